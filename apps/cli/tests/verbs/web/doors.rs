//! Tests of access: tokens, host names and sockets.

use super::http::{At, ask, raw};
use super::{HOSTILE, Web};
use crate::bench::Bench;
use std::os::unix::fs::PermissionsExt;

const TOKEN: &str = "correct-horse-battery";

fn token_file(bench: &Bench, mode: u32) -> String {
    bench.write("token", format!("{TOKEN}\n"));
    let path = bench.path("token");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn an_open_port_needs_a_token() {
    let bench = Bench::new();
    for open in ["0.0.0.0:0", "[::]:0"] {
        let error = bench.fails(2, &["web", "--listen", "127.0.0.1:0", "--listen", open]);
        assert!(error.contains("--token-file"), "{error}");
    }
    let file = token_file(&bench, 0o644);
    let error = bench.fails(2, &["web", "--listen", "127.0.0.1:0", "--token-file", &file]);
    assert!(error.contains("chmod 600"), "{error}");
    bench.write("token", "short");
    token_file(&bench, 0o600);
    bench.write("token", "short");
    assert!(bench.fails(2, &["web", "--listen", "127.0.0.1:0", "--token-file", &file]).contains("5 bytes"));
}

#[test]
fn a_token_opens_what_the_page_shows_and_the_page_itself_is_open() {
    let bench = Bench::new();
    let file = token_file(&bench, 0o600);
    let mut web = Web::start(&bench, &["--listen", "0.0.0.0:0", "--token-file", &file]);
    let open: std::net::SocketAddr =
        web.running.line().trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
    for at in [web.at.clone(), At::Tcp(([127, 0, 0, 1], open.port()).into())] {
        web.at = at;
        for path in ["/metrics", "/api/v1/status", "/api/v1/live", "/api/v1/nothing", "/nothing"] {
            let answer = web.get(path);
            assert_eq!((answer.status, answer.header("www-authenticate")), (401, Some("Bearer")), "{path}");
            assert_eq!(answer.header("connection"), Some("close"), "{path}");
        }
        for wrong in ["Bearer correct-horse-batterx", "Bearer", "Basic correct-horse-battery", "correct-horse-battery"]
        {
            assert_eq!(ask(&web.at, "GET", "/metrics", &[("Authorization", wrong)]).status, 401, "{wrong}");
        }
        let by_query = web.get(&format!("/metrics?token={TOKEN}"));
        assert_eq!(by_query.status, 401, "an address is no place for a token");
        let right = format!("Bearer {TOKEN}");
        let answer = ask(&web.at, "GET", "/metrics", &[("Authorization", &right)]);
        assert!(answer.status == 200 && answer.text().contains("tensorlend_up 1\n"));
        assert_eq!(web.get("/").status, 200);
    }
}

/// Only observers may see the names of all namespaces, and every user of the machine reaches loopback.
#[test]
fn an_observer_needs_a_token_or_a_unix_socket() {
    let bench = Bench::with(|config| config.observers = vec![rustix::process::getuid().as_raw().to_string()]);
    let client = bench.client();
    let socket = format!("unix:{}", bench.path("web.sock").display());
    for listen in [&["127.0.0.1:0"][..], &["[::1]:0"], &[&socket, "127.0.0.1:0"]] {
        let listen: Vec<&str> = listen.iter().flat_map(|at| ["--listen", at]).collect();
        for more in [&["--observe"][..], &["--observe", "--namespace", client.namespace()]] {
            let error = bench.fails(2, &[&["web"], &listen[..], more].concat());
            assert!(error.contains("--token-file") && error.contains("--listen unix:"), "{error}");
            assert!(!bench.path("web.sock").exists(), "the command listens nowhere");
        }
    }
    assert!(bench.fails(2, &["web", "--observe"]).contains("127.0.0.1:9470"));
    let running = bench.start(&["web", "--observe", "--listen", &socket]);
    assert_eq!(running.line(), socket);
    let file = token_file(&bench, 0o600);
    let web = Web::start(&bench, &["--observe", "--token-file", &file]);
    assert_eq!(web.get("/metrics").status, 401);
    let right = format!("Bearer {TOKEN}");
    assert_eq!(ask(&web.at, "GET", "/metrics", &[("Authorization", &right)]).status, 200);
}

#[test]
fn a_unix_socket_is_for_its_owner() {
    let bench = Bench::new();
    let path = bench.path("web.sock");
    let listen = format!("unix:{}", path.display());
    let start = || bench.start(&["web", "--listen", &listen]);
    let running = start();
    assert_eq!(running.line(), listen);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let at = At::Unix(path.clone());
    assert_eq!(ask(&at, "GET", "/api/v1/status", &[("Host", "anything")]).status, 200);
    // A second server cannot take the socket while the first one runs, and can after the first has ended.
    assert!(bench.fails(1, &["web", "--listen", &listen]).contains("cannot listen"));
    drop(running);
    let again = start();
    assert_eq!(again.line(), listen);
    assert_eq!(ask(&at, "HEAD", "/", &[]).status, 200);
}

#[test]
fn a_strangers_name_for_this_machine_is_none() {
    let bench = Bench::new();
    let web = Web::start(&bench, &[]);
    for host in ["evil.example", "evil.example:9470", "127.0.0.1.evil.example", "10.1.2.3", "", "localhost@evil"] {
        let answer = ask(&web.at, "GET", "/api/v1/status", &[("Host", host)]);
        assert_eq!(answer.status, 421, "{host}");
        assert!(!answer.text().contains("evil"), "nothing that was said comes back");
    }
    assert_eq!(ask(&web.at, "GET", "/", &[("Host", "evil.example")]).status, 421);
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:9470"] {
        assert_eq!(ask(&web.at, "GET", "/api/v1/status", &[("Host", host)]).status, 200, "{host}");
    }
    assert_eq!(
        raw(&web.at, b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\nConnection: close\r\n\r\n").status,
        421
    );
    assert_eq!(raw(&web.at, b"GET / HTTP/1.0\r\n\r\n").status, 421);
}

#[test]
fn every_answer_tells_the_browser_to_be_careful() {
    let bench = Bench::new();
    for name in HOSTILE {
        bench.client().put(name, &[1u8]).unwrap();
    }
    let web = Web::start(&bench, &[]);
    for (path, status, kind) in [
        ("/", 200, "text/html; charset=utf-8"),
        ("/dashboard.js", 200, "text/javascript; charset=utf-8"),
        ("/charts.js", 200, "text/javascript; charset=utf-8"),
        ("/tables.js", 200, "text/javascript; charset=utf-8"),
        ("/dashboard.css", 200, "text/css; charset=utf-8"),
        ("/icon.svg", 200, "image/svg+xml"),
        ("/metrics", 200, "text/plain; version=0.0.4; charset=utf-8"),
        ("/api/v1/names", 200, "application/json"),
        ("/api/v1/%3Cscript%3E", 404, "application/json"),
        ("/%3Cscript%3Ealert(1)%3C/script%3E", 404, "application/json"),
        ("/../../Cargo.toml", 404, "application/json"),
        ("/api/v1/names?namespace=%3Cscript%3E", 404, "application/json"),
        ("/api/v1/names?limit=%3Cscript%3E", 400, "application/json"),
        ("/api/v1/names?contains=%ff", 400, "application/json"),
        ("/api/v1/preview?name=x", 403, "application/json"),
    ] {
        let answer = web.get(path);
        assert_eq!((answer.status, answer.header("content-type")), (status, Some(kind)), "{path}");
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none';") && !policy.contains("unsafe"), "{policy}");
        for (name, value) in
            [("x-content-type-options", "nosniff"), ("x-frame-options", "DENY"), ("referrer-policy", "no-referrer")]
        {
            assert_eq!(answer.header(name), Some(value), "{path}");
        }
        let cached = answer.header("cache-control").unwrap();
        assert_eq!(cached, if kind.contains("json") || kind.contains("plain") { "no-store" } else { "no-cache" });
        assert!(!answer.headers().iter().any(|(name, _)| name.starts_with("access-control")), "{path}");
        assert!(!kind.contains("html") || !answer.text().contains("alert(1)"), "no name is in the page");
        assert!(status == 200 || !answer.text().contains("script"), "{}", answer.text());
        let head = ask(&web.at, "HEAD", path, &[]);
        assert_eq!((head.status, head.body.len()), (status, 0), "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW"] {
        let answer = ask(&web.at, method, "/api/v1/status", &[]);
        assert_eq!((answer.status, answer.header("allow")), (405, Some("GET, HEAD")), "{method}");
    }
}
