//! Tests that one viewer cannot starve the others.

use super::Web;
use super::http::{ask, connect, raw, read_head};
use crate::bench::Bench;
use std::io::{BufReader, Read, Write};
use std::time::{Duration, Instant};

#[test]
fn requests_have_a_size() {
    let bench = Bench::new();
    let web = Web::start(&bench, &[]);
    let long = "x".repeat(60_000);
    assert!([400, 414, 431].contains(&web.get(&format!("/{long}")).status));
    assert!([400, 431].contains(&ask(&web.at, "GET", "/", &[("X-Long", &long)]).status));
    let many = "X-Many: 1\r\n".repeat(200);
    let answer = raw(&web.at, format!("GET / HTTP/1.1\r\nHost: localhost\r\n{many}\r\n").as_bytes());
    assert!([400, 431].contains(&answer.status));
    assert_eq!(ask(&web.at, "GET", "/", &[("Content-Length", "5")]).status, 413);
    assert_eq!(ask(&web.at, "GET", "/", &[("Transfer-Encoding", "chunked")]).status, 413);
    assert_eq!(web.get(&format!("/api/v1/status?{}", "a&".repeat(100))).status, 400);
    assert_eq!(raw(&web.at, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n").status, 400);
    assert_eq!(web.get("/").status, 200);
}

#[test]
fn who_says_nothing_is_hung_up_on() {
    let bench = Bench::new();
    let web = Web::start(&bench, &[]);
    let mut silent: Vec<_> = (0..70).map(|_| connect(&web.at)).collect();
    silent[0].write_all(b"GET / HTTP/1.1\r\nHo").unwrap();
    // A client that has its answer and keeps the connection open without another request.
    silent[1].write_all(b"GET /icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    // There are more connections than the server accepts. This one waits until the server closes the first ones.
    assert_eq!(web.get("/").status, 200);
    let mut rest = Vec::new();
    let answered = silent[1].read_to_end(&mut rest);
    assert!(answered.is_ok() && rest.starts_with(b"HTTP/1.1 200"), "{answered:?}");
    rest.clear();
    let _ = silent[0].read_to_end(&mut rest);
    assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&rest));
}

#[test]
fn so_many_viewers_and_no_more() {
    let bench = Bench::new();
    let web = Web::start(&bench, &[]);
    let view = || {
        let mut stream = connect(&web.at);
        stream.write_all(b"GET /api/v1/live HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut reader = BufReader::new(stream);
        let (status, _) = read_head(&mut reader);
        (status, reader)
    };
    let mut viewers: Vec<_> = (0..16).map(|_| view()).collect();
    assert!(viewers.iter().all(|(status, _)| *status == 200));
    assert_eq!(view().0, 503);
    assert_eq!(ask(&web.at, "GET", "/metrics", &[]).status, 200);
    // The server notices a closed connection, and frees its place, when it sends the next event.
    viewers.pop();
    let since = Instant::now();
    while view().0 != 200 {
        assert!(since.elapsed() < Duration::from_mins(5));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn looks_are_shared_and_the_daemon_is_asked_once_for_each() {
    let bench = Bench::new();
    let client = bench.client();
    client.put("x", &[1u8]).unwrap();
    let web = Web::start_every("0.5", &bench, &[]);
    std::thread::sleep(Duration::from_millis(600));
    let (requests, since) = (client.stat().unwrap().requests, Instant::now());
    for _ in 0..200 {
        assert_eq!(web.get("/metrics").status, 200);
        assert_eq!(web.get("/api/v1/names").status, 200);
    }
    let asked = client.stat().unwrap().requests - requests;
    // Take the time after the count, so that the time covers every counted request.
    let looks = since.elapsed().as_secs_f64() / 0.5 + 2.0;
    assert!(asked as f64 <= looks + 1.0, "{asked} questions in {looks} looks");
}
