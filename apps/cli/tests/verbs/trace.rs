//! Tests of `tensorlend trace` for names and streams.

use serde_json::{Value, json};
use tensorlend::{DType, Policy};

use crate::bench::{Bench, Running};

/// Reads events until one is of a type in `wanted`, and returns that event.
fn next(trace: &Running, wanted: &[&str]) -> Value {
    loop {
        let line = trace.line();
        let event: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line}: {e}"));
        let at_ns: u64 = event["at_ns"].as_str().unwrap().parse().unwrap();
        assert!(at_ns > 1_700_000_000_000_000_000, "{event}");
        if wanted.contains(&event["event"].as_str().unwrap()) {
            return event;
        }
    }
}

#[test]
fn a_name_from_its_first_value_to_its_end() {
    let bench = Bench::new();
    let (producer, reader) = (bench.client(), bench.client());
    producer.put("weights", &[1.0f32, 2.0]).unwrap();
    let trace = bench.start(&["trace", "weights", "--interval", "0.02", "--json"]);
    let first = next(&trace, &["published"]);
    assert_eq!((&first["number"], &first["was_there"]), (&json!(1), &json!(true)), "{first}");
    assert_eq!((&first["dtype"], &first["shape"], &first["nbytes"]), (&json!("f32"), &json!([2]), &json!(8)));
    assert_eq!(first["producer"]["pid"], std::process::id());

    let lease = reader.get("weights").unwrap();
    let leased = next(&trace, &["leased"]);
    assert_eq!((&leased["count"], &leased["nbytes"]), (&json!(1), &json!(8)), "{leased}");
    assert_eq!(leased["holder"]["pid"], std::process::id());
    producer.put("weights", &[3u8]).unwrap();
    let second = next(&trace, &["published", "released"]);
    assert_eq!((&second["event"], &second["number"], &second["dtype"]), (&json!("published"), &json!(2), &json!("u8")));
    assert_eq!(second["was_there"], false);
    // `trace` reports the release of a replaced value too.
    drop(lease);
    next(&trace, &["released"]);
    producer.rename("weights", "old").unwrap();
    let renamed = next(&trace, &["renamed", "deleted"]);
    assert_eq!((&renamed["event"], &renamed["to"]), (&json!("renamed"), &json!("old")), "{renamed}");
    producer.put("weights", &[4u8]).unwrap();
    assert_eq!(next(&trace, &["published"])["number"], 3);
    // A sample that has the lease has the value, too.
    let lease = reader.get("weights").unwrap();
    next(&trace, &["leased"]);
    drop(lease);
    next(&trace, &["released"]);
    producer.delete("weights").unwrap();
    assert_eq!(next(&trace, &["renamed", "deleted"])["event"], "deleted");
}

#[test]
fn it_ends_after_so_many_events_or_so_long() {
    let bench = Bench::new();
    let client = bench.client();
    client.put("weights", &[1u8]).unwrap();
    let text = bench.ok(&["trace", "weights", "--count", "1"]);
    assert!(text.contains("Z  there      1: u8 [1], 1 bytes, by "), "{text}");
    assert_eq!(bench.json(&["trace", "weights", "--count", "1"])[0]["was_there"], true);
    assert_eq!(bench.ok(&["trace", "nobody", "--for", "100ms"]), "");
    assert_eq!(bench.ok(&["trace", "--stream", "nothing", "--for", "100ms"]), "");
    // A time that is too long for the clock has no end.
    assert!(bench.ok(&["trace", "weights", "--for", "1e19", "--count", "1"]).contains("u8 [1]"));
    bench.fails(2, &["trace", "a\nb", "--for", "1s"]);
    assert_eq!(bench.run(&["trace"]).status, 2);
    assert_eq!(bench.run(&["trace", "a", "--stream", "b"]).status, 2);
}

#[test]
fn a_stream_its_messages_and_its_subscribers() {
    let bench = Bench::new();
    let (producer, reader) = (bench.client(), bench.client());
    let stream = producer.stream("camera").capacity(4).policy(Policy::DropOldest).open().unwrap();
    let send = || stream.send(producer.create(DType::U8, &[16]).unwrap()).unwrap();
    send();
    let trace = bench.start(&["trace", "--stream", "camera", "--interval", "0.02", "--json"]);
    let opened = next(&trace, &["opened"]);
    assert_eq!((&opened["capacity"], &opened["policy"]), (&json!(4), &json!("drop-oldest")), "{opened}");
    let sent = next(&trace, &["sent"]);
    assert_eq!((&sent["dtype"], &sent["shape"], &sent["nbytes"]), (&json!("u8"), &json!([16]), &json!(16)), "{sent}");
    let first = sent["number"].as_u64().unwrap();

    let mut frames = reader.subscribe("camera").unwrap();
    next(&trace, &["subscribed"]);
    send();
    assert_eq!(next(&trace, &["sent"])["number"], first + 1);
    // The subscriber starts with the message that the ring already held.
    drop((frames.recv().unwrap(), frames.recv().unwrap()));
    let mut received = 0;
    while received < 2 {
        received += next(&trace, &["received"])["messages"].as_u64().unwrap();
    }

    // Send more messages than the ring holds. `trace` reports every message, as sent or as passed, and reports the
    // losses.
    for _ in 0..20 {
        send();
    }
    let mut told = first + 1;
    while told < first + 21 {
        let event = next(&trace, &["sent", "passed"]);
        let (from, to) = match event["event"].as_str().unwrap() {
            "sent" => (event["number"].as_u64().unwrap(), event["number"].as_u64().unwrap()),
            _ => (event["first"].as_u64().unwrap(), event["last"].as_u64().unwrap()),
        };
        assert_eq!(from, told + 1, "{event}");
        told = to;
    }
    let message = frames.recv().unwrap();
    assert!(message.sequence() > first + 2);
    drop(message);
    let lost = next(&trace, &["lost"]);
    assert!(lost["messages"].as_u64().unwrap() > 0 && lost["subscriber"]["pid"] == std::process::id(), "{lost}");
    drop(frames);
    next(&trace, &["unsubscribed"]);
    drop(stream);
    next(&trace, &["closed", "ended"]);
}
