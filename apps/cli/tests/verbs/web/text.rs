//! Tests of `/metrics`, with a parser as strict as the specification of the format.

use super::{HOSTILE, Web};
use crate::bench::Bench;
use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::process::{Command, Stdio};
use tensorlend::{Client, DType};

/// Values of samples by name and labels.
pub type Samples = HashMap<(String, Vec<(String, String)>), f64>;

fn is_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Parses labels: pairs of a name and a quoted text, in which the three escapes of the format and no others may occur.
fn labels(mut text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    loop {
        let (name, rest) = text.split_once("=\"").expect("a label and its text");
        assert!(is_name(name), "{name}");
        let (mut value, mut chars) = (String::new(), rest.char_indices());
        let end = loop {
            match chars.next().expect("the quote ends") {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next().expect("something is escaped").1 {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    other => panic!("\\{other} is no escape"),
                }),
                (_, c) => value.push(c),
            }
        };
        found.push((name.to_owned(), value));
        match &rest[end + 1..] {
            "" => return found,
            more => text = more.strip_prefix(',').expect("a comma"),
        }
    }
}

pub fn parse(text: &str) -> Samples {
    assert!(text.ends_with('\n'));
    let (mut kinds, mut samples, mut done) = (HashMap::new(), Samples::new(), HashSet::new());
    let (mut helped, mut current) = (None, None);
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            helped = Some(help.split_once(' ').expect("a help").0.to_owned());
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(["counter", "gauge"].contains(&kind) && is_name(name));
            assert_eq!(helped.as_deref(), Some(name));
            assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} comes twice");
            assert_eq!(kind == "counter", name.ends_with("_total"));
            current = Some(name.to_owned());
        } else {
            let (what, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = match what.split_once('{') {
                Some((name, rest)) => (name, labels(rest.strip_suffix('}').expect("a brace"))),
                None => (what, Vec::new()),
            };
            assert_eq!(current.as_deref(), Some(name), "samples stand behind their type");
            done.insert(name.to_owned());
            let value: f64 = value.parse().unwrap();
            assert!(value.is_finite() && value >= 0.0, "{line}");
            let names: HashSet<&String> = labels.iter().map(|(name, _)| name).collect();
            assert_eq!(names.len(), labels.len(), "{line}");
            assert!(samples.insert((name.to_owned(), labels), value).is_none(), "{line} comes twice");
        }
    }
    samples
}

/// Returns the value of the only sample with this name and these labels.
pub fn one(samples: &Samples, name: &str, wanted: &[(&str, &str)]) -> f64 {
    let has =
        |labels: &[(String, String)]| wanted.iter().all(|w| labels.iter().any(|(n, v)| (n.as_str(), v.as_str()) == *w));
    let found: Vec<f64> =
        samples.iter().filter(|((n, labels), _)| n == name && has(labels)).map(|(_, value)| *value).collect();
    assert_eq!(found.len(), 1, "{name} {wanted:?}: {found:?}");
    found[0]
}

/// Runs the official checker, if it is installed.
fn promtool(text: &str) {
    let Ok(mut child) = Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).spawn() else {
        tensorlend_os::skip::skip("promtool's check of the metrics: promtool is not installed");
        return;
    };
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn the_text_is_sound_and_says_what_happened() {
    let bench = Bench::new();
    let label = "a\\b\"c <script>{x=\"1\"} ü";
    let client = Client::builder().socket(bench.broker.socket()).label(label).connect().unwrap();
    for name in HOSTILE {
        client.put(name, &[0u8; 64]).unwrap();
    }
    let stream = client.stream(HOSTILE[0]).open().unwrap();
    for _ in 0..3 {
        stream.send(client.create(DType::U8, &[64]).unwrap()).unwrap();
    }
    let lease = client.get(HOSTILE[1]).unwrap();
    client.create(DType::U8, [1u64 << 50]).unwrap_err();
    let web = Web::start(&bench, &[]);
    web.until("/api/v1/streams", |seen| seen["streams"][0]["sent"] == 3);
    let text = web.get("/metrics").text().to_owned();
    promtool(&text);
    let samples = parse(&text);
    let one = |name: &str, wanted: &[(&str, &str)]| one(&samples, name, wanted);
    assert!((one("tensorlend_up", &[]) - 1.0).abs() < 1e-9);
    assert!((one("tensorlend_client_info", &[("label", label)]) - 1.0).abs() < 1e-9);
    assert!((one("tensorlend_stream_messages_total", &[]) - 3.0).abs() < 1e-9);
    assert!((one("tensorlend_refusals_total", &[("reason", "limit")]) - 1.0).abs() < 1e-9);
    for reason in ["invalid", "race"] {
        assert!(one("tensorlend_refusals_total", &[("reason", reason)]) >= 0.0);
    }
    assert!((one("tensorlend_namespace_slots_bytes", &[("state", "leased")]) - 64.0).abs() < 1e-9);
    assert!((one("tensorlend_namespace_leases", &[]) - 1.0).abs() < 1e-9);
    for name in HOSTILE {
        let of_no_label = |(_, labels): &(String, Vec<(String, String)>)| labels.iter().all(|(_, value)| value != name);
        assert!(samples.keys().all(of_no_label), "no tensor's or stream's name is a label");
    }
    drop(lease);
}
