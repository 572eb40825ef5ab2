//! Tests of the JSON that the server returns after actions of clients.

use super::http::{connect, read_head};
use super::{HOSTILE, Web};
use crate::bench::Bench;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use tensorlend::{Client, DType, Policy, Start};

fn named(bench: &Bench, label: &str) -> Client {
    Client::builder().socket(bench.broker.socket()).label(label).connect().unwrap()
}

fn find<'v>(list: &'v Value, key: &str, wanted: &Value) -> &'v Value {
    let found = list.as_array().unwrap().iter().find(|it| it[key] == *wanted);
    found.unwrap_or_else(|| panic!("no {wanted} in {list}"))
}

#[test]
fn names_clients_segments_and_leases() {
    let bench = Bench::new();
    let (producer, reader) = (named(&bench, "<i>producer</i>"), named(&bench, "reader"));
    for (at, name) in HOSTILE.iter().enumerate() {
        producer.put(name, &vec![at as f32; 16][..]).unwrap();
    }
    let long = "x".repeat(255);
    producer.put(&long, &[0u8; 4096]).unwrap();
    let held = reader.get(&long).unwrap();
    let web = Web::start(&bench, &[]);

    let status = web.until("/api/v1/status", |status| status["namespaces"][0]["leases"] == 1);
    let ns = &status["namespaces"][0];
    assert_eq!((&ns["names"], &ns["bytes"]["leased"]), (&json!(HOSTILE.len() + 1), &json!(4096)));
    assert_eq!(
        (status["daemon"]["pid"].as_u64(), &status["previews"]),
        (Some(std::process::id().into()), &json!(false))
    );

    let names = web.json("/api/v1/names");
    for name in HOSTILE {
        let value = find(&names["names"], "of", &json!({ "name": name }));
        assert_eq!((&value["dtype"], &value["shape"], &value["bytes"]), (&json!("f32"), &json!([16]), &json!(64)));
    }
    let some = web.json("/api/v1/names?contains=xxx&limit=1");
    assert_eq!((&some["total"], &some["names"][0]["of"]["name"]), (&json!(1), &json!(long)));
    assert_eq!(web.json("/api/v1/names?limit=2&offset=1")["names"].as_array().unwrap().len(), 2);

    let clients = web.json("/api/v1/clients");
    let seen = find(&clients["clients"], "label", &json!("<i>producer</i>"));
    assert_eq!(
        (&seen["state"], &seen["values"], &seen["pid"]),
        (&json!("alive"), &json!(6), &json!(std::process::id()))
    );
    assert!(seen["command"].as_str().unwrap().contains("verbs"), "{seen}");
    let us = find(&clients["clients"], "label", &json!("tensorlend web"));
    assert_eq!((&us["is_observer"], &us["pid"], &us["bytes"]), (&json!(true), &json!(web.running.pid()), &json!(0)));

    let leases = web.json("/api/v1/leases");
    let lease = &leases["leases"][0];
    assert_eq!((&lease["of"]["name"], &lease["bytes"], &lease["count"]), (&json!(long), &json!(4096), &json!(1)));
    assert_eq!(lease["holder"], find(&clients["clients"], "label", &json!("reader"))["client"]);

    let segments = web.json("/api/v1/segments?slots=1");
    let segment = find(&segments["segments"], "leased", &json!(4096));
    assert_eq!(segment["client"], seen["client"]);
    assert!(segment["map"].as_str().unwrap().contains('L'));
    let all = segments["segments"].as_array().unwrap().iter();
    let slots: Vec<&Value> = all.flat_map(|segment| segment["slot_list"].as_array().unwrap()).collect();
    assert_eq!((slots.len(), slots.iter().filter(|slot| slot["state"] == "leased").count()), (6, 1));

    // Replace the value during a lease: the name no longer leads to the old value, and the lease keeps it alive.
    producer.put(&long, &[0u8; 64]).unwrap();
    let status = web.until("/api/v1/status", |status| status["namespaces"][0]["bytes"]["retired"] == 4096);
    assert_eq!(status["namespaces"][0]["bytes"]["leased"], 4096, "it is leased as before");
    drop(held);
    web.until("/api/v1/status", |status| status["namespaces"][0]["leases"] == 0);
}

#[test]
fn streams_and_events() {
    let bench = Bench::new();
    let producer = named(&bench, "camera");
    let web = Web::start(&bench, &[]);
    let stream = producer.stream(HOSTILE[0]).capacity(4).policy(Policy::DropOldest).open().unwrap();
    let mut frames = producer.subscription(HOSTILE[0]).start_at(Start::Oldest).open().unwrap();
    let send = || stream.send(producer.create(DType::U8, &[64]).unwrap()).unwrap();
    send();
    frames.recv().unwrap();
    for _ in 0..10 {
        send();
    }
    let is_lost = |seen: &Value| seen["streams"][0]["lag_max"] == 10;
    let seen = web.until("/api/v1/streams", is_lost);
    let camera = &seen["streams"][0];
    assert_eq!((&camera["name"], &camera["policy"]), (&json!(HOSTILE[0]), &json!("drop-oldest")));
    assert_eq!((&camera["sent"], &camera["held"], &camera["capacity"]), (&json!(11), &json!(4), &json!(4)));
    frames.recv().unwrap();
    web.until("/api/v1/streams", |seen| seen["streams"][0]["lost"] == 6);
    drop(stream);
    web.until("/api/v1/streams", |seen| seen["streams"][0]["is_closed"] == true);
    let kinds = |seen: &Value| -> Vec<String> {
        let events = seen["events"].as_array().unwrap();
        events.iter().rev().map(|event| event["kind"].as_str().unwrap().to_owned()).collect()
    };
    producer.create(DType::U8, [1u64 << 50]).unwrap_err();
    let seen = web.until("/api/v1/events", |seen| kinds(seen).contains(&"requests_refused".to_owned()));
    let all = kinds(&seen);
    for kind in ["stream_opened", "segments_lent", "stream_closed"] {
        assert!(all.iter().any(|known| known == kind), "{kind}: {seen}");
    }
    let last = seen["events"][0]["number"].as_u64().unwrap();
    assert_eq!(web.json(&format!("/api/v1/events?after={last}"))["total"], 0);
}

#[test]
fn updates_come_by_themselves() {
    let bench = Bench::new();
    let web = Web::start(&bench, &[]);
    let mut stream = connect(&web.at);
    stream.write_all(b"GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut reader = BufReader::new(stream);
    let (status, headers) = read_head(&mut reader);
    assert_eq!(status, 200);
    assert!(headers.contains(&("content-type".into(), "text/event-stream".into())));
    let mut next = || loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if let Some(data) = line.strip_prefix("data: ") {
            return serde_json::from_str::<Value>(data).unwrap();
        }
    };
    let first = next();
    assert_eq!(first["namespaces"][0]["segments"], json!([]));
    bench.client().put(HOSTILE[0], &[0u8; 100]).unwrap();
    let mut looks = vec![first["status"]["look"].as_u64().unwrap()];
    loop {
        let update = next();
        looks.push(update["status"]["look"].as_u64().unwrap());
        if update["status"]["namespaces"][0]["names"] == 1 {
            assert_eq!(update["namespaces"][0]["point"]["names"], 1);
            break;
        }
        assert!(looks.len() < 100);
    }
    assert!(looks.is_sorted_by(|a, b| a < b), "{looks:?}");
    let history = web.json("/api/v1/history");
    assert!(history["history"].as_array().unwrap().len() >= looks.len());
}

#[test]
fn previews_are_off_until_they_are_asked_for() {
    let bench = Bench::new();
    let client = bench.client();
    let mut image = client.create(DType::U8, &[4, 8, 3]).unwrap();
    image.bytes_mut().fill(9);
    image.publish("image <1>").unwrap();
    client.dataset().add("a", client.create(DType::U8, &[4]).unwrap()).unwrap().publish("both").unwrap();
    let web = Web::start(&bench, &["--previews"]);
    let seen = web.json("/api/v1/preview?name=image%20%3C1%3E");
    assert_eq!((&seen["statistics"]["mean"], &seen["is_picture"]), (&json!(9.0), &json!(true)));
    let picture = web.get("/api/v1/preview.png?name=image+%3C1%3E");
    assert_eq!((picture.status, picture.header("content-type")), (200, Some("image/png")));
    let picture = png::Decoder::new(std::io::Cursor::new(picture.body)).read_info().unwrap();
    assert_eq!((picture.info().width, picture.info().height), (8, 4));
    assert_eq!(web.json("/api/v1/preview?name=both")["members"][0]["name"], "a");
    assert_eq!(web.json("/api/v1/preview?name=both&member=a")["shape"], json!([4]));
    for (path, status) in [
        ("/api/v1/preview", 400),
        ("/api/v1/preview?name=", 400),
        ("/api/v1/preview?name=nobody", 404),
        ("/api/v1/preview?name=both&member=b", 404),
        ("/api/v1/preview.png?name=both&member=a", 415),
        ("/api/v1/preview?name=both&namespace=nobody's", 404),
    ] {
        assert_eq!(web.get(path).status, status, "{path}");
    }
    web.until("/api/v1/leases", |leases| leases["total"] == 0);
}

#[test]
fn several_namespaces() {
    let me = rustix::process::getuid().as_raw().to_string();
    let bench = Bench::with(|config| {
        let text = format!("[namespace.a]\nwriters = [\"{me}\"]\n[namespace.b]\nwriters = [\"{me}\"]");
        config.namespace = tensorlend_daemon::Config::parse(&text).unwrap().namespace;
    });
    let join = |name| Client::builder().socket(bench.broker.socket()).namespace(name).connect().unwrap();
    join("a").put("in a", &[1u8]).unwrap();
    join("b").put("in b", &[1u8]).unwrap();
    let web = Web::start(&bench, &["--namespace", "a", "--namespace", "b"]);
    for name in ["a", "b"] {
        let names = web.until(&format!("/api/v1/names?namespace={name}"), |names| names["total"] == 1);
        assert_eq!(names["names"][0]["of"]["name"], format!("in {name}"));
    }
    assert_eq!(web.get("/api/v1/names?namespace=c").status, 404);
    let error = bench.fails(2, &["ls", "--namespace", "a", "--namespace", "b"]);
    assert!(error.contains("one namespace"), "{error}");
}

#[test]
fn an_observer_sees_namespaces_that_come_and_go() {
    let me = rustix::process::getuid().as_raw().to_string();
    let bench = Bench::with(|config| {
        let text =
            format!("observers = [\"{me}\"]\n[namespace.a]\nwriters = [\"{me}\"]\n[namespace.b]\nwriters = [\"{me}\"]");
        let parsed = tensorlend_daemon::Config::parse(&text).unwrap();
        (config.observers, config.namespace) = (parsed.observers, parsed.namespace);
    });
    let join = |name| Client::builder().socket(bench.broker.socket()).namespace(name).connect().unwrap();
    join("b").put("in b", &[1u8]).unwrap();
    let all = Web::start_at_socket(&bench, "all.sock", &["--observe", "--previews"]);
    let one = Web::start_at_socket(&bench, "one.sock", &["--observe", "--namespace", "b"]);
    assert_eq!(all.get("/api/v1/names?namespace=a").status, 404);
    let client = join("a");
    client.put("in a", &[1u8]).unwrap();
    let status = all.until("/api/v1/status", |status| status["namespaces"].as_array().unwrap().len() == 2);
    let shown = |at: usize| status["namespaces"][at]["name"].clone();
    assert_eq!((shown(0), shown(1)), (json!("b"), json!("a")), "the new one follows the others");
    all.until("/api/v1/names?namespace=a", |names| names["total"] == 1);
    assert_eq!(all.get("/api/v1/preview?name=in%20a&namespace=a").status, 403, "an observer sees no values");
    assert_eq!(all.get("/api/v1/preview?name=in%20a&namespace=c").status, 404);
    // The named namespace stays the only one.
    let sample = one.json("/api/v1/status")["look"].as_u64().unwrap();
    let later = one.until("/api/v1/status", |status| status["look"].as_u64().unwrap() > sample + 1);
    assert_eq!(later["namespaces"].as_array().unwrap().len(), 1);
    client.delete("in a").unwrap();
    drop(client);
    let status = all.until("/api/v1/status", |status| status["namespaces"].as_array().unwrap().len() == 1);
    assert_eq!(status["namespaces"][0]["name"], "b");
}
