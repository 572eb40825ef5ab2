//! A daemon under load: `stat`, `top`, `web` and its metrics show the same numbers.

use super::Web;
use super::text::{one, parse};
use crate::bench::Bench;
use serde_json::Value;
use std::time::Instant;
use tensorlend::{Client, DType, Policy, Start};

fn named(bench: &Bench, label: &str) -> Client {
    Client::builder().socket(bench.broker.socket()).label(label).connect().unwrap()
}

/// Returns the row or the entry with this value.
fn find<'v>(list: &'v Value, key: &str, wanted: &str) -> &'v Value {
    let found = list.as_array().unwrap().iter().find(|it| it[key] == wanted);
    found.unwrap_or_else(|| panic!("no {wanted} in {list}"))
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

/// Asserts that all places show the same number.
#[track_caller]
fn agree(what: &str, shown: &[f64]) {
    assert!(shown.windows(2).all(|pair| (pair[0] - pair[1]).abs() < 1e-9), "{what}: {shown:?}");
}

#[test]
fn all_monitors_show_the_same_numbers() {
    let begun = Instant::now();
    let bench = Bench::new();
    let (producer, first, second) = (named(&bench, "producer"), named(&bench, "first"), named(&bench, "second"));
    producer.put("layer.10", &[0u8; 8192]).unwrap();
    producer.put("layer.2", &[0u8; 4096]).unwrap();
    producer.put("idle", &[0u8; 2048]).unwrap();
    producer.put("removed", &[0u8; 1024]).unwrap();
    let current = (first.get("layer.2").unwrap(), second.get("layer.2").unwrap());
    let old = (second.get("layer.10").unwrap(), second.get("layer.10").unwrap(), first.get("removed").unwrap());
    producer.put("layer.10", &[0u8; 512]).unwrap();
    producer.delete("removed").unwrap();
    let stream = producer.stream("frames").capacity(4).policy(Policy::DropOldest).open().unwrap();
    let mut frames = first.subscription("frames").start_at(Start::Oldest).open().unwrap();
    let send = || stream.send(producer.create(DType::U8, &[64]).unwrap()).unwrap();
    send();
    frames.recv().unwrap();
    for _ in 0..10 {
        send();
    }
    frames.recv().unwrap();

    let web = Web::start(&bench, &[]);
    web.until("/api/v1/streams", |seen| seen["streams"][0]["lost"] == 6);
    // Samples of the server, and the programs below, must not see a message that is on its way.
    let status = web.until("/api/v1/status", |seen| seen["namespaces"][0]["bytes"]["retired"] == 8192 + 1024);
    let ns = &status["namespaces"][0];
    let metrics = parse(web.get("/metrics").text());
    let metric = |name: &str, labels: &[(&str, &str)]| one(&metrics, name, labels);
    let stat = bench.json_line(&["stat"]);
    let top = |tab: &str| bench.json_line(&["top", "--tab", tab]);

    // Bytes.
    let clients = top("clients");
    assert_eq!(stat["bytes_leased"], 4096 + 8192 + 1024, "of two clients, current and old values");
    for state in ["live", "leased", "retired", "free"] {
        let labels = [("state", state)];
        agree(
            state,
            &[
                number(&stat[&format!("bytes_{state}")]),
                number(&clients["bytes"][state]),
                number(&ns["bytes"][state]),
                metric("tensorlend_namespace_slots_bytes", &labels),
            ],
        );
    }
    let sum = |keys: [&str; 3]| keys.iter().map(|key| number(&ns["bytes"][key])).sum::<f64>();
    agree(
        "lent",
        &[
            number(&ns["bytes_lent"]),
            number(&clients["bytes"]["lent"]),
            metric("tensorlend_namespace_lent_bytes", &[]),
            sum(["live", "leased", "free"]),
        ],
    );
    let segments = web.json("/api/v1/segments");
    let of_segments = segments["segments"].as_array().unwrap().iter().map(|it| number(&it["leased"])).sum();
    agree("leased, by segment", &[of_segments, number(&ns["bytes"]["leased"])]);
    let (text, frame) = (bench.ok(&["stat"]), bench.ok(&["top", "--once"]));
    assert!(frame.contains(" 13.0 KiB leased (9.0 KiB retired)"), "{frame}");
    for line in ["bytes_leased    13312 bytes (13.0 KiB)", "bytes_retired   9216 bytes (9.0 KiB)"] {
        assert!(text.contains(line), "{text}");
    }

    // Holders.
    let all = web.json("/api/v1/clients");
    for (label, leases, bytes) in [("first", 2, 4096 + 1024), ("second", 3, 4096 + 8192), ("producer", 0, 0)] {
        let (row, entry) = (find(&clients["rows"], "label", label), find(&all["clients"], "label", label));
        let client = format!("{}.{}", entry["client"], entry["epoch"]);
        let of = |name: &str| metric(name, &[("client", &client)]);
        let counts = [f64::from(leases), number(&row["leases"]), number(&entry["leases"])];
        agree(label, &[&counts[..], &[of("tensorlend_client_leases")]].concat());
        let leased = [f64::from(bytes), number(&row["leased"]), number(&entry["leased_bytes"])];
        agree(label, &[&leased[..], &[of("tensorlend_client_leased_bytes")]].concat());
        agree(label, &[number(&row["bytes"]), number(&entry["bytes"]), of("tensorlend_client_bytes")]);
        assert_eq!((&row["state"], &row["pid"]), (&entry["state"], &entry["pid"]));
        assert_eq!(entry["lease_age_max_s"].is_null(), leases == 0, "{entry}");
    }

    // The holders of leases, the greatest first.
    let labels = |list: &Value| -> Vec<String> {
        let all = list.as_array().unwrap().iter().take(2);
        all.map(|it| it["label"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(labels(&stat["lease_holders"]), ["second", "first"]);
    assert_eq!(labels(&clients["rows"]), ["second", "first"]);
    let uses = top("use");
    let holders: Vec<_> = uses["rows"].as_array().unwrap().iter().filter(|row| row["kind"] == "client").collect();
    agree("the greatest holder", &[f64::from(4096 + 8192), number(&holders[0]["leased"])]);
    agree("the next holder", &[f64::from(4096 + 1024), number(&holders[1]["leased"])]);
    let namespace = find(&uses["rows"], "kind", "namespace");
    agree("leased in the namespace", &[number(&stat["bytes_leased"]), number(&namespace["leased"])]);
    assert_eq!(labels(&all["clients"]), ["second", "first"]);

    // Leases, with ages in seconds everywhere.
    let (leases, listed) = (top("leases"), web.json("/api/v1/leases"));
    let count = leases["rows"].as_array().unwrap().iter().map(|row| number(&row["count"])).sum();
    agree("leases", &[5.0, count, number(&ns["leases"]), metric("tensorlend_namespace_leases", &[])]);
    let ages = leases["rows"].as_array().unwrap().iter().map(|row| &row["age"]);
    let ages = ages.chain(listed["leases"].as_array().unwrap().iter().map(|lease| &lease["age_s"]));
    let since = ages.chain(clients["rows"].as_array().unwrap().iter().map(|row| &row["age"]));
    for age in since {
        assert!((0.0..=begun.elapsed().as_secs_f64()).contains(&number(age)), "{age} s");
    }

    // A stream that drops the oldest messages: it loses some, and has no problem.
    let (streams, listed) = (top("streams"), web.json("/api/v1/streams"));
    let (row, entry) = (&streams["rows"][0], &listed["streams"][0]);
    for (key, of_web, name) in [
        ("sent", "sent", "tensorlend_stream_messages_total"),
        ("held", "held", "tensorlend_stream_held_messages"),
        ("lag", "lag_max", "tensorlend_stream_lag_max_messages"),
        ("lost", "lost", "tensorlend_stream_lost_messages_total"),
    ] {
        agree(key, &[number(&row[key]), number(&entry[of_web]), metric(name, &[])]);
    }
    agree("rate", &[number(&row["rate"]), number(&entry["rate"])]);
    assert_eq!((&row["policy"], &entry["policy"]), (&"drop-oldest".into(), &"drop-oldest".into()));
    assert!(entry["problem"].is_null(), "{entry}");

    // Names are in their natural order.
    let in_order = |names: Vec<&str>| assert_eq!(names, ["idle", "layer.2", "layer.10"]);
    let (ls, names, listed) = (bench.json_line(&["ls"]), top("names"), web.json("/api/v1/names"));
    let texts = |list: &'_ Value, path: &str| -> Vec<String> {
        let of = |it: &Value| it.pointer(path).unwrap().as_str().unwrap().to_owned();
        list.as_array().unwrap().iter().map(of).collect()
    };
    for shown in [texts(&ls["names"], "/name"), texts(&names["rows"], "/name"), texts(&listed["names"], "/of/name")] {
        in_order(shown.iter().map(String::as_str).collect());
    }
    drop((current, old));
}
