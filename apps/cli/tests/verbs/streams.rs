//! Tests of `watch`, `send` and `recv` between processes.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tensorlend::{Client, DType, Policy, Stream};

use crate::bench::{Bench, fixture, repository};

#[test]
fn watching() {
    let bench = Bench::new();
    let client = bench.client();
    let watch = bench.start(&["watch", "t", "--count", "3", "--json"]);
    let mut sums = Vec::new();
    for value in 0..3u8 {
        client.put("t", &[value; 5]).unwrap();
        // Wait until the watcher has printed each value before publishing the next one.
        let seen: Value = serde_json::from_str(&watch.line()).unwrap();
        assert_eq!((&seen["name"], &seen["kind"], &seen["dtype"]), (&json!("t"), &json!("tensor"), &json!("u8")));
        assert_eq!((&seen["shape"], &seen["nbytes"], &seen["timestamp_ns"]), (&json!([5]), &json!(5), &json!(0)));
        let sum = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&[value; 5]));
        assert_eq!(seen["checksum_xxh3"], sum.as_str());
        sums.push(sum);
    }
    watch.done().ok();

    assert_eq!(bench.ok(&["watch", "t", "--count", "1"]), format!("t: u8 [5], 5 bytes, xxh3 {}\n", sums[2]));
    assert_eq!(bench.ok(&["watch", "t", "--count", "1", "--no-checksum"]), "t: u8 [5], 5 bytes\n");
    // No new value is published.
    let done = bench.run(&["watch", "t", "--timeout", "0.2"]);
    assert_eq!(done.out.lines().count(), 1);
    let error = done.fails(5);
    assert!(error.contains("\"t\"") && error.contains("200 ms"), "{error}");
    let done = bench.run(&["watch", "t", "--new", "--timeout", "0.2"]);
    assert_eq!((done.out.as_str(), done.status), ("", 5));
    bench.fails(5, &["watch", "nobody", "--timeout", "0.1"]);
    bench.fails(5, &["get", "nobody", "-o", "x.npy", "--timeout", "0.1"]);
}

#[test]
fn watching_what_another_process_puts() {
    let bench = Bench::new();
    let watch = bench.start(&["watch", "d", "--count", "2", "--timeout", "30"]);
    bench.ok(&["put", "d", &repository("examples/data/iris.npy")]);
    assert!(watch.line().starts_with("d: f64 [150, 4], 4800 bytes, xxh3 "));
    bench.ok(&["put", "d", &fixture("stored.npz")]);
    assert!(watch.line().starts_with("d: dataset of 2 tensors, 25 bytes: a f32 [2, 3], 24 bytes, xxh3 "));
    watch.done().ok();
    // `get` waits for a tensor that does not exist yet.
    let get = bench.start(&["get", "late", "-o", "late.npy", "--timeout", "30"]);
    bench.ok(&["put", "late", &repository("examples/data/iris.npy")]);
    get.done().ok();
    assert!(bench.path("late.npy").exists());
}

#[test]
fn files_travel_through_a_stream() {
    let bench = Bench::new();
    let files = ["iris.npy", "digits.npy", "china.jpg"].map(|f| repository(&format!("examples/data/{f}")));
    let npz = fixture("stored.npz");
    let receivers =
        ["one", "two"].map(|folder| bench.start(&["recv", "camera", "-o", folder, "--timeout", "30", "--json"]));
    let mut send = vec!["send", "camera", "--capacity", "2", "--wait-subscribers", "2", "--timeout", "30"];
    send.extend(files.iter().map(String::as_str));
    send.push(&npz);
    let sent = bench.json_line(&send);
    assert_eq!(sent, json!({"stream": "camera", "messages": 4, "nbytes": 4800 + 115_008 + 819_840 + 25}));
    for (receiver, folder) in receivers.into_iter().zip(["one", "two"]) {
        let out = receiver.done().ok();
        let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let paths: Vec<&str> = lines.iter().map(|line| line["path"].as_str().unwrap()).collect();
        let wanted = ["000000.npy", "000001.npy", "000002.npy", "000003.npz"].map(|f| format!("{folder}/{f}"));
        assert_eq!(paths, wanted);
        for (number, line) in lines.iter().enumerate() {
            assert_eq!((&line["sequence"], &line["lost"]), (&json!(number), &json!(0)));
            assert!(line["timestamp_ns"].as_str().is_some_and(|text| text.parse::<u64>().is_ok()));
        }
        assert_eq!(lines[3]["kind"], "dataset");
    }
    for file in ["000000.npy", "000001.npy", "000002.npy", "000003.npz"] {
        assert_eq!(bench.read(&format!("one/{file}")), bench.read(&format!("two/{file}")));
    }
    bench.ok(&["put", "iris", &files[0]]);
    bench.ok(&["put", "received", "one/000000.npy"]);
    let client = bench.client();
    assert_eq!(client.get("iris").unwrap().bytes(), client.get("received").unwrap().bytes());
}

#[test]
fn a_stream_can_be_received_after_its_end() {
    let bench = Bench::new();
    bench.ok(&["send", "s", &fixture("stored.npz"), "--split", "--capacity", "8"]);
    assert_eq!(bench.ok(&["recv", "s", "-o", "all"]).lines().count(), 2);
    assert_eq!(bench.ok(&["recv", "s", "-o", "newest", "--from", "newest"]).lines().count(), 1);
    assert!(bench.path("newest/000001.npy").exists());
    assert_eq!(bench.ok(&["recv", "s", "-o", "next", "--from", "next"]), "");
    assert_eq!(bench.ok(&["recv", "s", "-o", "st", "--format", "safetensors", "--count", "1"]).lines().count(), 1);
    assert!(bench.path("st/000000.safetensors").exists());
    let error = bench.fails(6, &["recv", "s", "-o", "png", "--format", "png"]);
    assert!(error.contains("message 0") && error.contains("png/000000.png"), "{error}");
    bench.fails(2, &["recv", "s", "-o", "gif", "--format", "gif"]);
    assert!(!bench.path("gif").exists());
}

#[test]
fn nobody_to_talk_to() {
    let bench = Bench::new();
    let iris = repository("examples/data/iris.npy");
    let error = bench.fails(4, &["recv", "nobody", "-o", "x"]);
    assert!(error.contains("\"nobody\""), "{error}");
    bench.fails(5, &["recv", "nobody", "-o", "x", "--timeout", "0.2"]);
    bench.fails(5, &["send", "s", &iris, "--wait-subscribers", "1", "--timeout", "0.2"]);
    // The stream exists, but nobody sends.
    let client = bench.client();
    let _stream = client.stream("quiet").open().unwrap();
    bench.fails(5, &["recv", "quiet", "-o", "x", "--timeout", "0.2"]);
    let error = bench.fails(1, &["send", "quiet", &iris]);
    assert!(error.contains("quiet"), "{error}");
    // A subscriber that receives nothing.
    for (policy, status, timeout) in [("block", 5, "6"), ("error", 7, "300"), ("drop-oldest", 0, "300")] {
        let options = ["--capacity", "1", "--wait-subscribers", "1", "--timeout", timeout, "--policy", policy];
        let send = bench.start(&[&["send", policy, &iris, &iris, &iris], &options[..]].concat());
        let _lazy = client.subscription(policy).wait(Duration::from_mins(5)).open().unwrap();
        let done = send.done();
        assert_eq!(done.status, status, "{policy}: {}", done.err);
        if status != 0 {
            let error = done.fails(status);
            assert!(error.contains(policy) && error.contains("after 1 message"), "{error}");
        }
    }
}

/// Sends `count` small tensors.
fn send(client: &Client, stream: &Stream, count: u8) {
    for value in 0..count {
        let mut draft = client.create(DType::U8, &[2]).unwrap();
        draft.bytes_mut().fill(value);
        stream.send(draft).unwrap();
    }
}

#[test]
fn lost_messages_are_reported() {
    let bench = Bench::new();
    let client = bench.client();
    let stream = client.stream("s").capacity(2).policy(Policy::DropOldest).open().unwrap();
    let recv = bench.start(&["recv", "s", "-o", "r", "--timeout", "30", "--json"]);
    stream.wait_subscribers(1, Duration::from_mins(5)).unwrap();
    send(&client, &stream, 1);
    recv.line();
    let stopped = stop(recv.pid());
    send(&client, &stream, 7);
    kill_process(stopped, Signal::CONT).unwrap();
    let next: Value = serde_json::from_str(&recv.line()).unwrap();
    assert_eq!((&next["sequence"], &next["lost"], &next["path"]), (&json!(6), &json!(5), &json!("r/000006.npy")));
    drop(stream);
    let done = recv.done();
    assert_eq!((done.status, done.out.lines().count()), (0, 1));
    assert_eq!(done.err, "tensorlend: stream \"s\": 5 messages lost before message 6\n");
}

/// Sends SIGSTOP to a process and waits until the process has stopped: the signal may take effect later.
fn stop(pid: u32) -> Pid {
    let process = Pid::from_raw(pid.cast_signed()).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    let start = Instant::now();
    while !fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ") {
        assert!(start.elapsed() < Duration::from_mins(5));
        std::thread::sleep(Duration::from_millis(2));
    }
    process
}

#[test]
fn a_stream_that_is_opened_anew_is_followed_and_overwrites_no_file() {
    let bench = Bench::new();
    let client = bench.client();
    let first = client.stream("s").open().unwrap();
    let recv = bench.start(&["recv", "s", "-o", "r", "--timeout", "30", "--count", "4"]);
    first.wait_subscribers(1, Duration::from_mins(5)).unwrap();
    send(&client, &first, 2);
    recv.line();
    recv.line();
    // Reopen the stream while the subscriber is stopped: a subscriber that sees the stream closed would exit.
    let stopped = stop(recv.pid());
    drop(first);
    let second = client.stream("s").open().unwrap();
    kill_process(stopped, Signal::CONT).unwrap();
    send(&client, &second, 2);
    let done = recv.done();
    assert_eq!((done.status, done.err.as_str()), (0, ""));
    let mut files: Vec<_> =
        fs::read_dir(bench.path("r")).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    assert_eq!(files, ["000000.npy", "000001.npy", "000002.npy", "000003.npy"]);
}
