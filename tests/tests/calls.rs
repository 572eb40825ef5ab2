//! Requests whose server or caller is killed.

use std::time::Duration;
use tensorlend::{Client, Error};
use tensorlend_tests::keeper::Service;
use tensorlend_tests::{Daemon, eventually};

/// Returns the streams and lists that are left of services. The servers' names are not among them.
fn left(client: &Client) -> Vec<String> {
    let streams = client.streams("*").unwrap().into_iter().map(|stream| stream.name);
    streams.chain(client.lists("*").unwrap().into_iter().map(|list| list.name)).collect()
}

#[test]
fn a_call_goes_on_with_another_server_when_its_own_is_killed() {
    let daemon = Daemon::start("");
    let (mut first, mut second, mut caller) = (daemon.agent(), daemon.agent(), daemon.agent());
    first.ok("serve s");
    caller.tell("call s 41");
    assert_eq!(first.ok("take-call"), "41");
    second.ok("serve s");
    first.kill();
    assert_eq!(second.ok("take-call"), "41");
    second.ok("answer-call");
    assert_eq!(caller.answer().unwrap(), "42");
    second.exit();
    caller.exit();
    let watcher = daemon.client();
    // The killed server's announcement list (its "door") goes when the caller does.
    eventually("the end of all lines and doors", || left(&watcher).is_empty());
    let mut next = daemon.agent();
    next.ok("serve s");
    assert_eq!(left(&watcher), Vec::<String>::new());
    next.exit();
    eventually("the return of its memory", || watcher.stat().unwrap().bytes_in_use == 0);
}

#[test]
fn a_caller_goes_to_a_server_that_is_idle_and_on_when_that_is_killed() {
    let daemon = Daemon::start("");
    let (mut busy, mut idle, mut other, mut caller) = (daemon.agent(), daemon.agent(), daemon.agent(), daemon.agent());
    busy.ok("serve s");
    caller.tell("call-again s 1");
    assert_eq!(busy.ok("answer-next 240000"), "1");
    assert_eq!(caller.answer().unwrap(), "2");
    // From here on the busy server has one unanswered request.
    other.tell("call s 100");
    assert_eq!(busy.ok("take-call"), "100");
    idle.ok("serve s");
    // On a stalled machine the stream to the idle server may open a request or two later, and the busy one still
    // responds.
    let mut number = 2;
    eventually("a call at the idle server", || {
        number += 2;
        caller.tell(&format!("call-again s {number}"));
        // One of the two servers receives it, possibly late.
        let mut is_idle = false;
        eventually("a server that takes the call", || {
            is_idle = idle.ok("answer-next 50") == number.to_string();
            is_idle || busy.ok("answer-next 50") == number.to_string()
        });
        assert_eq!(caller.answer().unwrap(), (number + 1).to_string());
        is_idle
    });
    // Later requests stay with the idle server.
    for number in [500, 502, 504] {
        caller.tell(&format!("call-again s {number}"));
        assert_eq!(idle.ok("answer-next 240000"), number.to_string());
        assert_eq!(caller.answer().unwrap(), (number + 1).to_string());
    }
    // The server holds one request when it is killed. The caller sends it to the busy server, the only one left.
    caller.tell("call-again s 600");
    assert_eq!(idle.ok("take-call"), "600");
    idle.kill();
    assert_eq!(busy.ok("answer-next 240000"), "600");
    assert_eq!(caller.answer().unwrap(), "601");
    caller.tell("call-again s 602");
    assert_eq!(busy.ok("answer-next 240000"), "602");
    assert_eq!(caller.answer().unwrap(), "603");
    assert_eq!(busy.ok("answer-call"), "100");
    assert_eq!(other.answer().unwrap(), "101");
}

#[test]
fn a_server_forgets_a_caller_that_was_killed() {
    let daemon = Daemon::start("");
    let (mut server, mut dying, mut other) = (daemon.agent(), daemon.agent(), daemon.agent());
    server.ok("serve s");
    dying.tell("call s 1");
    assert_eq!(server.ok("take-call"), "1");
    dying.kill();
    // No caller receives this response; that is not an error.
    server.ok("answer-call");
    other.tell("call s 2");
    assert_eq!(server.ok("take-call"), "2");
    server.ok("answer-call");
    assert_eq!(other.answer().unwrap(), "3");
    assert_eq!(server.ok("serve-until-idle"), "0");
    let watcher = daemon.client();
    assert_eq!(
        left(&watcher),
        ["s/.door/"].map(|door| left(&watcher).into_iter().find(|n| n.starts_with(door)).unwrap())
    );
}

#[test]
fn what_both_left_is_taken_away_by_the_next_server() {
    let daemon = Daemon::start("");
    let (mut server, mut caller) = (daemon.agent(), daemon.agent());
    server.ok("serve s");
    caller.tell("call s 1");
    assert_eq!(server.ok("take-call"), "1");
    caller.kill();
    server.kill();
    let watcher = daemon.client();
    // The caller's stream and its entry in the server's list have not been idle for long enough to end by themselves.
    eventually("the end of the door", || left(&watcher).len() == 2);
    eventually("the end of the server's name", || watcher.list("s/.server/*").unwrap().is_empty());
    let mut next = daemon.agent();
    next.ok("serve s");
    assert_eq!(left(&watcher), Vec::<String>::new());
    next.ok("disconnect");
    eventually("the end of all names", || watcher.list("*").unwrap().is_empty());
    eventually("the return of its memory", || watcher.stat().unwrap().bytes_in_use == 0);
}

#[test]
fn a_server_learns_that_its_session_is_over() {
    let mut service = Service::start("mode = \"system\"\n");
    let client = service.client();
    let mut server = client.serve("s").open().unwrap();
    // The next daemon knows no session: nobody preserved the descriptors.
    service.end(rustix::process::Signal::KILL);
    service.lose();
    service.start_again();
    // Until the server has met that daemon, it reports a lost connection.
    eventually("the end of the session", || {
        matches!(server.recv_timeout(Duration::from_millis(50)), Err(Error::SessionEnded))
    });
    assert!(matches!(server.try_recv(), Err(Error::SessionEnded)));
}
