//! Tests of `tensorlend web` over its sockets.

#[cfg(feature = "top")]
mod agreement;
mod answers;
mod doors;
mod http;
mod limits;
mod text;

use crate::bench::{Bench, Running};
use http::At;

/// Names that break a page or an API that does not escape them.
const HOSTILE: &[&str] =
    &["<script>alert(1)</script>", "\"quoted\" 'twice'", "back\\slash", "%3Cb%3E & + ?#", "\u{202E}\u{2028}\u{FEFF}"];

/// A running server.
struct Web {
    running: Running,
    at: At,
}

impl Web {
    /// Starts a server for the broker on a free port of this machine, with ten samples a second.
    fn start(bench: &Bench, more: &[&str]) -> Self {
        Self::start_every("0.1", bench, more)
    }

    /// Starts a server on a Unix socket of this name in the folder.
    fn start_at_socket(bench: &Bench, name: &str, more: &[&str]) -> Self {
        let path = bench.path(name);
        let listen = format!("unix:{}", path.display());
        let running = bench.start(&[&["web", "--listen", &listen, "--interval", "0.1"], more].concat());
        assert_eq!(running.line(), listen);
        Self { at: At::Unix(path), running }
    }

    /// Starts a server that samples the broker every `seconds` seconds.
    fn start_every(seconds: &str, bench: &Bench, more: &[&str]) -> Self {
        let usual = ["web", "--listen", "127.0.0.1:0", "--interval", seconds];
        let running = bench.start(&[&usual[..], more].concat());
        let line = running.line();
        let address = line.trim_start_matches("http://").trim_end_matches('/');
        Self { at: At::Tcp(address.parse().unwrap()), running }
    }

    fn get(&self, path: &str) -> http::Answer {
        http::ask(&self.at, "GET", path, &[])
    }

    fn json(&self, path: &str) -> serde_json::Value {
        let answer = self.get(path);
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")), "{path}");
        answer.json()
    }

    /// Repeats the request until `is_right` accepts the answer, which is up to a tenth of a second old. Panics after
    /// five
    /// minutes.
    fn until(&self, path: &str, is_right: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
        for _ in 0..12_000 {
            let answer = self.json(path);
            if is_right(&answer) {
                return answer;
            }
            std::thread::sleep(std::time::Duration::from_millis(25));
        }
        panic!("{path} did not become right: {}", self.json(path));
    }
}
