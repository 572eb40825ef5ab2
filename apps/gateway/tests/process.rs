//! The program itself, over zenoh on this machine's loopback.
#![cfg(feature = "zenoh")]

mod node;

use node::{LONG, Node, program, send, two, two_on};
use std::process::Output;
use std::time::Duration;
use tensorlend::{Client, Policy, Subscription};
use tensorlend_tests::keeper::Service;
use tensorlend_tests::{eventually, run};

#[test]
fn names_of_one_machine_are_read_waited_for_and_put_on_another() {
    let (mut a, b) = two();
    let large: Vec<u8> = (0..20_000_000_u32).map(|n| (n >> 3) as u8).collect();
    b.client.put("sim/pressure", &large).unwrap();
    let lease = a.client.get("b/sim/pressure").unwrap();
    assert!(lease.bytes() == large);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| a.client.wait_newer("b/sim/pressure", lease.version(), LONG));
        b.client.put("sim/pressure", &[1.0f32, 2.0]).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap().as_slice::<f32>().unwrap(), [1.0, 2.0]);
    });
    drop(lease);
    a.client.remote().put("b/inbox/goal", &[3u16]).unwrap();
    assert_eq!(b.client.get("inbox/goal").unwrap().as_slice::<u16>().unwrap(), [3]);
    assert!(a.client.remote().put("b/outbox/goal", &[3u16]).is_err());
    assert!(a.client.get("b/nothing").unwrap_err().is_not_found());
    assert_eq!(a.end(rustix::process::Signal::TERM), Some(0));
    eventually("nothing of a gateway that has ended is left", || a.client.list("*").unwrap().is_empty());
    b.sees("a", false);
}

#[test]
fn a_gateway_that_is_killed_leaves_no_copies_and_joins_again() {
    let (a, mut b) = two();
    a.client.put("x", &[1u8]).unwrap();
    assert_eq!(b.client.get("a/x").unwrap().bytes(), [1]);
    b.end(rustix::process::Signal::KILL);
    a.client.put("x", &[2u8]).unwrap();
    eventually("no copy that nobody keeps good", || b.client.version("a/x").unwrap().is_none());
    b.start();
    b.sees("a", true);
    assert_eq!(b.client.get("a/x").unwrap().bytes(), [2]);
    // b's copies of a's names stay readable while a is disconnected.
    let mut a = a;
    a.end(rustix::process::Signal::KILL);
    b.sees("a", false);
    assert_eq!(b.client.get("a/x").unwrap().bytes(), [2]);
    a.client.put("x", &[3u8]).unwrap();
    a.start();
    b.sees("a", true);
    eventually("what changed meanwhile", || b.client.get("a/x").is_ok_and(|lease| lease.bytes() == [3]));
}

#[test]
fn names_of_known_nodes_fail_with_the_gateways_error_while_it_is_dead() {
    let (a, mut b) = two();
    a.client.put("x", &[1u8]).unwrap();
    assert_eq!(b.client.get("a/x").unwrap().bytes(), [1]);
    b.end(rustix::process::Signal::KILL);
    eventually("the documents about nodes end", || b.client.remote().nodes().unwrap().is_empty());
    eventually("the copies end", || b.client.version("a/x").unwrap().is_none());
    // A program that starts now has never seen the node.
    let fresh = Client::builder().socket(b.broker.as_ref().unwrap().socket()).connect().unwrap();
    for client in [&b.client, &fresh] {
        let is_dead = |what: &str, done: tensorlend::Result<()>| {
            let error = done.expect_err(what);
            assert_eq!(error.code(), "TL-0705", "{what}: {error}");
            assert!(!error.is_not_found(), "{what}: {error}");
        };
        is_dead("get", client.get("a/x").map(drop));
        is_dead("get_value", client.get_value("a/never/fetched").map(drop));
        is_dead("subscribe", client.subscribe("a/cam").map(drop));
        is_dead("fetch_list", client.remote().fetch_list("a/episodes").map(drop));
        is_dead("put_remote", client.remote().put("a/inbox/x", &[1u8]));
        is_dead("placement", client.remote().placement("a/x").map(drop));
        is_dead("remote_names", client.remote().names("*").map(drop));
        let short = Some(Duration::from_millis(50));
        let waits = [
            client.wait_for("a/x", short).unwrap_err(),
            client.subscription("a/cam").wait(short).open().map(drop).unwrap_err(),
        ];
        for error in waits {
            assert!(error.is_timeout() && error.to_string().contains("gateway does not respond"), "{error}");
        }
        // Other names are names of this machine, as before.
        assert_eq!(client.get("sim/x").unwrap_err().code(), "TL-0301");
    }
    b.start();
    b.sees("a", true);
    assert_eq!(fresh.get("a/x").unwrap().bytes(), [1]);
    assert!(b.client.get("a/nothing").unwrap_err().is_not_found());
    // A gateway that is stopped leaves nothing.
    assert_eq!(b.end(rustix::process::Signal::TERM), Some(0));
    eventually("nothing is left", || fresh.list("*").unwrap().is_empty());
    assert_eq!(fresh.get("a/x").unwrap_err().code(), "TL-0301");
}

/// Returns the next message's number, and how often the stream ended before it.
fn next(frames: &mut Subscription) -> (u64, u64) {
    let (mut found, mut ends) = (None, 0);
    eventually("the next message", || match frames.recv_timeout(Duration::from_secs(1)) {
        Ok(message) => {
            found = Some(message.tensor().unwrap().as_slice::<u64>().unwrap()[0]);
            true
        }
        Err(tensorlend::Error::StreamEnded(_)) => {
            ends += 1;
            false
        }
        Err(error) => {
            assert!(error.is_timeout(), "{error}");
            false
        }
    });
    (found.unwrap(), ends)
}

#[test]
fn a_stream_goes_on_when_the_gateway_that_sends_it_was_killed() {
    let (mut a, b) = two();
    let cam = a.client.stream("cam").capacity(8).open().unwrap();
    let mut frames = b.client.subscribe("a/cam").unwrap();
    send(&cam, &a.client, 0);
    assert_eq!(next(&mut frames), (0, 0));
    a.end(rustix::process::Signal::KILL);
    // The ring keeps these messages.
    (1..8).for_each(|n| send(&cam, &a.client, n));
    a.start();
    // The receiver notices nothing of the restart.
    for n in 1..8 {
        assert_eq!(next(&mut frames), (n, 0));
    }
    // A stream that was reopened in the meantime, and has fewer messages than before, is received from its start.
    a.end(rustix::process::Signal::KILL);
    drop(cam);
    let cam = a.client.stream("cam").capacity(8).open().unwrap();
    (100..103).for_each(|n| send(&cam, &a.client, n));
    a.start();
    for n in 100..103 {
        assert_eq!(next(&mut frames).0, n);
    }
    // A stream that is missing when the gateway starts ends; it continues when a producer opens it.
    a.end(rustix::process::Signal::KILL);
    drop(cam);
    assert!(a.client.delete_stream("cam").unwrap());
    a.start();
    eventually("the stream has ended", || {
        matches!(frames.recv_timeout(Duration::from_secs(1)), Err(tensorlend::Error::StreamEnded(_)))
    });
    eventually("others may have its window", || b.stat("in_flight_bytes") == Some(0));
    let cam = a.client.stream("cam").capacity(8).open().unwrap();
    send(&cam, &a.client, 200);
    assert_eq!(next(&mut frames).0, 200);
}

#[test]
fn a_slow_subscriber_gets_each_message_once_though_the_gateway_that_sends_them_was_killed() {
    let (mut a, b) = two();
    let cam = a.client.stream("cam").capacity(8).policy(Policy::Block).open().unwrap();
    let mut frames = b.client.subscribe("a/cam").unwrap();
    // Eight fill the ring of b, one waits for room in it, and 15 are queued behind that one.
    (0..24).for_each(|n| send(&cam, &a.client, n));
    eventually("all are on the way", || b.stat("queued_bytes") == Some(15 * 8));
    a.end(rustix::process::Signal::KILL);
    // The ring of a still has the last eight, which are sent again on the next link.
    a.start();
    eventually("the next link", || a.stat("streams_sent") == Some(1));
    // Larger than a window: messages taken on the previous link do not free room for the rest.
    let mut large = a.client.create(tensorlend::DType::U64, &[3 << 20]).unwrap();
    large.as_mut_slice::<u64>().unwrap().fill(24);
    cam.send(large).unwrap();
    eventually("some of the large one", || b.stat("queued_bytes") > Some(15 << 20));
    for n in 0..25 {
        assert_eq!(next(&mut frames), (n, 0));
    }
    eventually("the count", || b.stat("messages_received") == Some(25));
    assert_eq!(b.stat("messages_lost"), Some(0));
}

#[test]
fn a_stream_goes_on_with_the_next_gateway_of_those_who_receive_it() {
    for by in [rustix::process::Signal::KILL, rustix::process::Signal::TERM] {
        let (a, mut b) = two();
        let cam = a.client.stream("cam").capacity(8).open().unwrap();
        let mut frames = b.client.subscribe("a/cam").unwrap();
        send(&cam, &a.client, 0);
        assert_eq!(next(&mut frames), (0, 0));
        b.end(by);
        // The stream has not ended. In a while, its subscribers get the gateway's error, and not before each poll.
        eventually("the gateway's error", || match frames.recv_timeout(Duration::from_secs(1)) {
            Err(error @ tensorlend::Error::Remote { .. }) => {
                assert_eq!(error.code(), "TL-0705", "{error}");
                true
            }
            Err(error) if error.is_timeout() => false,
            other => panic!("{other:?}"),
        });
        assert!(frames.try_recv().unwrap().is_none());
        (1..4).for_each(|n| send(&cam, &a.client, n));
        b.start();
        // They continue at their positions.
        for n in 1..4 {
            assert_eq!(next(&mut frames), (n, 0));
        }
        send(&cam, &a.client, 4);
        assert_eq!((next(&mut frames), frames.lost()), ((4, 0), 0));
        // After the last subscriber has left, the gateway removes the stream's copy.
        drop(frames);
        eventually("the link ends", || b.client.streams("*").unwrap().iter().all(|stream| stream.name != "a/cam"));
    }
}

#[test]
fn a_gateway_goes_on_with_a_broker_that_was_killed() {
    let mut service = Service::start("mode = \"user\"\n");
    let (a, b) = two_on(Some(service.socket()));
    let read = |what: &str, from: &Node, name: &str, value: u8| {
        eventually(what, || from.client.get(name).is_ok_and(|lease| lease.bytes() == [value]));
    };
    for round in [0, 10] {
        a.client.put("x", &[round + 1]).unwrap();
        b.client.put("y", &[round + 1]).unwrap();
        read("what is new, before", &b, "a/x", round + 1);
        read("what is new, before", &a, "b/y", round + 1);
        service.end(rustix::process::Signal::KILL);
        a.client.put("x", &[round + 2]).unwrap();
        service.start_again();
        read("what came while it was away", &b, "a/x", round + 2);
        read("what it held before", &a, "b/y", round + 1);
        a.client.put("x", &[round + 3]).unwrap();
        b.client.put("y", &[round + 3]).unwrap();
        read("what is new, after", &b, "a/x", round + 3);
        read("what is new, after", &a, "b/y", round + 3);
        assert!(b.client.remote().nodes().unwrap().iter().any(|node| node.node == "a" && node.alive));
    }
}

#[test]
fn a_gateway_whose_session_is_over_ends() {
    let mut service = Service::start("mode = \"system\"\n");
    let mut node = Node::new("a", "listen = []", Some(service.socket()));
    // In system mode the next daemon knows only the stored descriptors.
    service.end(rustix::process::Signal::KILL);
    service.lose();
    service.start_again();
    // Under a service manager, the manager would restart the gateway now.
    assert_eq!(node.gateway.take().unwrap().wait().unwrap().code(), Some(1));
}

#[test]
fn what_it_cannot_do_it_says() {
    let words = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let printed = run(program().arg("--print-config"));
    assert!(printed.status.success());
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("gateway.toml");
    std::fs::write(&config, &printed.stdout).unwrap();
    assert!(run(program().arg("--check").arg("--config").arg(&config)).status.success());
    std::fs::write(&config, "nodes = \"a\"").unwrap();
    let wrong = run(program().arg("--config").arg(&config));
    assert_eq!(wrong.status.code(), Some(78));
    assert!(words(&wrong).contains("nodes") && words(&wrong).ends_with(" [TL-1201]\n"), "{}", words(&wrong));
    // A check reports that peers need no certificate, as a start does.
    let zenoh = folder.path().join("open.json5");
    std::fs::write(&zenoh, "{ transport: { link: { tls: { enable_mtls: false } } } }").unwrap();
    let listens = |endpoint: &str| format!("node = \"a\"\nzenoh = {zenoh:?}\nlisten = [{endpoint:?}]\n");
    std::fs::write(&config, listens("quic/localhost:7447")).unwrap();
    let open = run(program().arg("--check").arg("--config").arg(&config));
    assert!(
        open.status.success() && words(&open).matches("can read all exported names").count() == 1,
        "{}",
        words(&open)
    );
    std::fs::write(&config, listens("tls/localhost:7447")).unwrap();
    let foreign = run(program().arg("--check").arg("--config").arg(&config));
    assert_eq!(foreign.status.code(), Some(78), "{}", words(&foreign));
    assert!(words(&foreign).contains("listen: \"tls/localhost:7447\" uses a protocol"), "{}", words(&foreign));
    let missing = run(program().arg("--config").arg(folder.path().join("none")));
    assert_eq!(missing.status.code(), Some(78));
    assert!(words(&missing).contains("cannot read ") && words(&missing).contains("[TL-1201]"), "{}", words(&missing));
    let zenoh = folder.path().join("zenoh.json5");
    std::fs::write(&zenoh, "{ scouting: { multicast: { enabled: false } } }").unwrap();
    let socket = folder.path().join("no.sock");
    let text = format!("node = \"a\"\nsocket = {socket:?}\nzenoh = {zenoh:?}\nlisten = []\n");
    std::fs::write(&config, text).unwrap();
    let alone = run(program().arg("--config").arg(&config));
    assert_eq!(alone.status.code(), Some(1));
    assert!(words(&alone).contains("no.sock"), "{}", words(&alone));
    assert!(words(&alone).contains("cannot reach this machine's daemon: "), "{}", words(&alone));
    assert!(words(&alone).ends_with(" [TL-0101]\n"), "{}", words(&alone));
    let text = format!("node = \"a\"\nzenoh = {zenoh:?}\nlisten = [\"tcp/nowhere\"]\n");
    std::fs::write(&config, text).unwrap();
    let cut_off = run(program().arg("--config").arg(&config));
    assert_eq!(cut_off.status.code(), Some(1));
    assert!(words(&cut_off).contains("cannot connect to other nodes: "), "{}", words(&cut_off));
    assert!(
        words(&cut_off).ends_with(": check the options listen, connect, mode and zenoh [TL-1202]\n"),
        "{}",
        words(&cut_off)
    );
}

#[test]
fn a_namespace_has_one_gateway() {
    let (a, _b) = two();
    let text = std::fs::read_to_string(&a.config).unwrap();
    // A second listener on the first gateway's address would be another error.
    let lines = text.lines().map(|line| if line.starts_with("listen") { "listen = []" } else { line });
    std::fs::write(&a.config, lines.collect::<Vec<_>>().join("\n")).unwrap();
    let second = run(program().arg("--config").arg(&a.config));
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("stop the other gateway, or use another namespace [TL-1202]"), "{said}");
}
