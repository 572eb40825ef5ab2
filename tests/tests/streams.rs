//! Unused streams: closed, or left by killed processes.

use std::time::Duration;
use tensorlend::{Client, DType, Error, Policy, Start};
use tensorlend_tests::filled::{filled, value};
use tensorlend_tests::keeper::Service;
use tensorlend_tests::{Daemon, eventually};

/// Returns the names of all streams and lists.
fn left(client: &Client) -> Vec<String> {
    let streams = client.streams("*").unwrap().into_iter().map(|stream| stream.name);
    streams.chain(client.lists("*").unwrap().into_iter().map(|list| list.name)).collect()
}

#[test]
fn ten_thousand_streams_in_turn_leave_none() {
    let daemon = Daemon::start("[streams]\ngrace_ms = 300\n");
    let (client, watcher) = (daemon.client(), daemon.client());
    for number in 0..10_000u64 {
        let stream = client.stream(&format!("stream/{number}")).capacity(2).open().unwrap();
        if number % 10 == 0 {
            stream.send(filled(&client, number).unwrap()).unwrap();
        }
    }
    eventually("the end of all streams", || left(&watcher).is_empty());
    drop(client);
    eventually("the return of their memory", || {
        let stat = watcher.stat().unwrap();
        (stat.bytes_in_use, stat.names, stat.clients) == (0, 0, 1)
    });
}

#[test]
fn a_closed_stream_is_there_for_who_reads_it_and_for_who_comes_in_time() {
    // The grace period is a day, so here a stream ends only if another one needs its place.
    let daemon = Daemon::start("[streams]\ngrace_ms = 86400000\n[namespace_default]\nstreams_max = 4\n");
    let (client, reader) = (daemon.client(), daemon.client());
    let open = |name: &str| client.stream(name).capacity(4).policy(Policy::DropOldest).open().unwrap();
    let camera = open("camera");
    let mut frames = reader.subscribe("camera").unwrap();
    for number in 0..4 {
        camera.send(filled(&client, number).unwrap()).unwrap();
    }
    drop(camera);
    for number in 0..100 {
        drop(open(&format!("other/{number}")));
    }
    for number in 0..4 {
        assert_eq!(value(frames.recv_timeout(Duration::from_mins(1)).unwrap().tensor().unwrap()), Ok(number));
    }
    drop(frames);
    // The stream idle for longest ends first, and this one has been idle for a moment only.
    drop(open("one more"));
    let mut late = reader.subscription("camera").start_at(Start::Oldest).open().unwrap();
    assert_eq!(late.recv_timeout(Duration::from_mins(1)).unwrap().sequence(), 0);
    drop(late);
    for number in 0..4 {
        drop(open(&format!("again/{number}")));
    }
    assert!(reader.subscribe("camera").unwrap_err().is_not_found());
    // Open streams are never ended to make room.
    let kept: Vec<_> = (0..4).map(|number| open(&format!("kept/{number}"))).collect();
    assert!(client.stream("no room").open().unwrap_err().is_limit());
    drop(kept);
}

/// Producers, subscribers, callers and servers are killed with everything that they have open.
#[test]
fn two_hundred_killed_processes_leave_nothing() {
    let daemon = Daemon::start("[streams]\ngrace_ms = 500\n");
    let watcher = daemon.client();
    for round in 0..50 {
        let (mut producer, mut subscriber) = (daemon.agent(), daemon.agent());
        let (mut server, mut caller) = (daemon.agent(), daemon.agent());
        producer.ok(&format!("stream camera/{round} 4"));
        producer.ok(&format!("send camera/{round} 7"));
        subscriber.ok(&format!("subscribe camera/{round}"));
        server.ok(&format!("serve service/{round}"));
        caller.tell(&format!("call service/{round} 41"));
        assert_eq!(server.ok("take-call"), "41");
        // Kill the four processes in another order in each round.
        let mut all = [&mut producer, &mut subscriber, &mut server, &mut caller];
        all.rotate_left(round % 4);
        all.into_iter().for_each(tensorlend_tests::Agent::kill);
    }
    eventually("the end of all streams and lists", || left(&watcher).is_empty());
    eventually("the return of all memory", || {
        let stat = watcher.stat().unwrap();
        (stat.bytes_in_use, stat.names, stat.clients, stat.frozen) == (0, 0, 1, 0)
    });
}

/// The producer closes its stream while no daemon runs.
#[test]
fn a_stream_that_was_closed_without_a_daemon_ends_with_the_next() {
    let mut service = Service::start("mode = \"system\"\n[streams]\ngrace_ms = 300\n");
    let (client, watcher) = (service.client(), service.client());
    let stream = client.stream("camera").open().unwrap();
    stream.send(filled(&client, 1).unwrap()).unwrap();
    service.end(rustix::process::Signal::KILL);
    drop(stream);
    assert!(watcher.streams("*").unwrap().iter().any(|stream| stream.name == "camera"));
    service.start_again();
    eventually("the end of the stream", || watcher.ping().is_ok() && left(&watcher).is_empty());
    drop(client);
    eventually("the return of its memory", || watcher.stat().is_ok_and(|stat| stat.bytes_in_use == 0));
}

#[test]
fn a_producer_without_subscribers_learns_that_its_session_is_over() {
    let mut service = Service::start("mode = \"system\"\n");
    let client = service.client();
    let stream = client.stream("camera").open().unwrap();
    let draft = client.create(DType::U8, [4]).unwrap();
    // The next daemon knows no session: nobody preserved the descriptors.
    service.end(rustix::process::Signal::KILL);
    service.lose();
    service.start_again();
    eventually("the end of the session", || {
        // A request, because a stream without subscribers sends none.
        let _ = client.stat();
        matches!(stream.wait_room(Duration::ZERO), Err(Error::SessionEnded))
    });
    // No message reaches the next daemon, so `send` must not return a number.
    assert!(matches!(stream.send(draft), Err(Error::SessionEnded)));
}
