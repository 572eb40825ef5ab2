//! The export to an OpenTelemetry collector.
#![cfg(feature = "otel")]

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tensorlend::Client;
use tensorlend_web::{Options, Otlp, Server, Source};

/// Timeout of every step.
const TIMEOUT: Duration = Duration::from_mins(5);

fn accept(collector: &TcpListener) -> TcpStream {
    collector.set_nonblocking(true).unwrap();
    let start = Instant::now();
    loop {
        match collector.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                return stream;
            }
            Err(error) => assert!(start.elapsed() < TIMEOUT, "nothing is sent: {error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Receives one request, responds to it, and returns its head and its body.
fn receive(collector: &TcpListener, status: &str) -> (String, Vec<u8>) {
    let stream = accept(collector);
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "a whole head: {head}");
    }
    let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.expect("it says its length")];
    reader.read_exact(&mut body).unwrap();
    let answer = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}"
    );
    reader.into_inner().write_all(answer.as_bytes()).unwrap();
    (head, body)
}

/// Returns the data points of a metric: attributes and value.
fn points(sent: &Value, name: &str) -> Vec<(String, f64)> {
    let metrics = sent["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().expect("metrics");
    let Some(metric) = metrics.iter().find(|metric| metric["name"] == name) else { return Vec::new() };
    let kind = if metric["sum"].is_object() { "sum" } else { "gauge" };
    let points = metric[kind]["dataPoints"].as_array().expect("points");
    let text = |point: &Value| {
        let attributes = point["attributes"].as_array().into_iter().flatten();
        let mut all: Vec<_> = attributes
            .map(|it| format!("{}={}", it["key"].as_str().unwrap(), it["value"]["stringValue"].as_str().unwrap()))
            .collect();
        all.sort();
        all.join(",")
    };
    points.iter().map(|point| (text(point), point["asDouble"].as_f64().expect("a number"))).collect()
}

#[test]
fn a_collector_is_sent_the_figures_and_may_fail_once() {
    let broker = tensorlend_daemon::embedded().unwrap();
    let connect = |label: &'static str| {
        let socket = broker.socket().to_owned();
        move || Client::builder().socket(&socket).label(label).connect()
    };
    let client = connect("test")().unwrap();
    for name in ["a", "b", "c"] {
        client.put(name, &[1u8, 2, 3]).unwrap();
    }
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", collector.local_addr().unwrap()).parse().unwrap();
    let server = Server::new(Options {
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        token: None,
        previews: false,
        interval: Duration::from_millis(100),
        socket: String::new(),
        namespaces: vec![Source::Join(Arc::new(connect("web")))],
        later: None,
        otlp: Some(Otlp { endpoint, interval: Duration::from_millis(100) }),
    })
    .unwrap();
    std::thread::spawn(move || server.run());

    receive(&collector, "500 Internal Server Error");
    let (head, body) = receive(&collector, "200 OK");
    assert!(head.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{head}");
    assert!(head.to_ascii_lowercase().contains("content-type: application/json"), "{head}");
    let sent: Value = serde_json::from_slice(&body).unwrap();
    let name = client.namespace();
    let one = |attributes: &str, value: f64| vec![(attributes.to_owned(), value)];
    assert_eq!(points(&sent, "tensorlend_up"), one("", 1.0));
    assert_eq!(points(&sent, "tensorlend_namespace_names"), one(&format!("namespace={name}"), 3.0));
    let clients = points(&sent, "tensorlend_namespace_clients");
    assert!(clients.contains(&(format!("namespace={name},state=alive"), 2.0)), "{clients:?}");
    let counted = points(&sent, "tensorlend_requests_total");
    assert!(counted.len() == 1 && counted[0].1 > 0.0, "{counted:?}");
    let resource = &sent["resourceMetrics"][0]["resource"]["attributes"];
    let is_service = |it: &Value| it["key"] == "service.name" && it["value"]["stringValue"] == "tensorlend";
    assert!(resource.as_array().unwrap().iter().any(is_service), "{resource}");

    // Later exports are of later samples.
    client.put("d", &[1u8]).unwrap();
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < TIMEOUT, "the new name is never sent");
        let (_, body) = receive(&collector, "200 OK");
        let sent: Value = serde_json::from_slice(&body).unwrap();
        if points(&sent, "tensorlend_namespace_names") == one(&format!("namespace={name}"), 4.0) {
            break;
        }
    }
}
