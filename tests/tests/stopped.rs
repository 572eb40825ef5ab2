//! A daemon that is alive but does not respond: SIGSTOP.

use rustix::process::Signal;
use std::time::Duration;
use tensorlend::{Client, DType, Error, Length};
use tensorlend_tests::{Daemon, eventually, run, signal};

/// The clients' timeout in these tests. Long enough that a slow daemon on a busy machine does not look stopped.
const TIMEOUT: Duration = Duration::from_secs(2);

fn stop(daemon: &Daemon) {
    signal(daemon.pid(), Signal::STOP);
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", daemon.pid())).unwrap();
    eventually("a stopped daemon", || state().rsplit(") ").next().unwrap().starts_with('T'));
}

fn connect(daemon: &Daemon) -> Result<Client, Error> {
    Client::builder().socket(daemon.socket()).request_timeout(TIMEOUT).connect()
}

/// Runs `work` in a thread that must end, so that a call which blocks for ever fails the test instead of hanging it.
fn ends<T: Send + 'static>(what: &'static str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(work);
    eventually(what, || thread.is_finished());
    thread.join().unwrap()
}

fn is_told<T>(daemon: &Daemon, what: &str, done: Result<T, Error>) {
    let error = done.err().unwrap_or_else(|| panic!("{what} succeeded"));
    let text = error.to_string();
    assert!(matches!(error, Error::NotAnswering { .. }) && error.is_disconnected(), "{what}: {text}");
    assert!(text.starts_with(&format!("the daemon (pid {}) does not respond", daemon.pid())), "{what}: {text}");
}

#[test]
fn no_call_waits_for_ever_and_the_session_goes_on() {
    let daemon = Daemon::start("[pool]\nsegment_bytes = \"1MiB\"\nspare_segments = 0\n");
    let owner = daemon.client();
    owner.put("theirs", &[7u8; 100]).unwrap();
    let client = connect(&daemon).unwrap();
    client.put("own", &[1u8]).unwrap();
    let before = owner.stat().unwrap().segments;

    stop(&daemon);
    type Call = fn(&Client) -> Result<(), Error>;
    let calls: [(&'static str, Call); 9] = [
        ("ping", |client| client.ping().map(drop)),
        ("stat", |client| client.stat().map(drop)),
        ("get", |client| client.get("theirs").map(drop)),
        ("info", |client| client.info("theirs").map(drop)),
        ("list", |client| client.list("*").map(drop)),
        ("create", |client| client.create(DType::U8, &[3 << 20]).map(drop)),
        ("put_for", |client| {
            client.put_for("brief", &[1u8], tensorlend::Lifetime::ttl(Duration::from_hours(1))).map(drop)
        }),
        ("delete_stream", |client| client.delete_stream("s").map(drop)),
        ("stream", |client| client.stream("s").open().map(drop)),
    ];
    for (what, call) in calls {
        let client = client.clone();
        is_told(&daemon, what, ends(what, move || call(&client)));
    }
    // All threads wait for one response, each with its own timeout.
    let threads: Vec<_> = (0..40)
        .map(|_| {
            let client = client.clone();
            std::thread::spawn(move || client.ping())
        })
        .collect();
    eventually("the end of many", || threads.iter().all(std::thread::JoinHandle::is_finished));
    for thread in threads {
        is_told(&daemon, "one of many", thread.join().unwrap());
    }
    let socket = daemon.socket();
    is_told(
        &daemon,
        "connect",
        ends("connect", move || Client::builder().socket(socket).request_timeout(TIMEOUT).connect()),
    );

    signal(daemon.pid(), Signal::CONT);
    eventually("an answer", || client.ping().is_ok());
    assert_eq!(client.get("theirs").unwrap().bytes(), [7; 100]);
    assert_eq!(client.get("own").unwrap().bytes(), [1], "the session is another");
    let mut draft = client.create(DType::U8, &[3 << 20]).unwrap();
    draft.bytes_mut().fill(9);
    draft.publish("large").unwrap();
    drop(client);
    eventually("the end of what was lent to nobody", || owner.stat().unwrap().segments <= before + 1);
    assert!(owner.get("large").unwrap().bytes().iter().all(|byte| *byte == 9));
}

/// A client that deletes names does not wait for the response to its report of them. The next request receives the response.
#[test]
fn a_client_that_deletes_names_does_not_wait_for_the_daemon() {
    let daemon = Daemon::start("");
    let client = Client::builder().socket(daemon.socket()).request_timeout(Duration::from_hours(3)).connect().unwrap();
    let names = || (0..100u64).map(|name| format!("n/{name}"));
    names().for_each(|name| _ = client.put(&name, &[0u64]).unwrap());
    let other = daemon.client();
    // Names that the directory does not have yet are not reported.
    eventually("the names in the directory", || other.stat().unwrap().names == 100);
    stop(&daemon);
    let its = client.clone();
    // After 64 of them, the client reports the first ones.
    ends("the deletions", move || names().for_each(|name| assert!(its.delete(&name).unwrap())));
    assert!(names().all(|name| !client.exists(&name).unwrap()));
    signal(daemon.pid(), Signal::CONT);
    assert_eq!(client.stat().unwrap().names, 100 - 64);
    names().for_each(|name| _ = client.put(&name, &[9u64]).unwrap());
    assert!(names().all(|name| other.get(&name).unwrap().as_slice::<u64>().unwrap() == [9]));
}

/// A wait has a deadline of its own, also where it must ask the daemon first.
#[test]
fn a_wait_ends_by_its_own_deadline() {
    let daemon = Daemon::start("");
    let hours = Duration::from_hours(3);
    let client = Client::builder().socket(daemon.socket()).request_timeout(hours).connect().unwrap();
    let list = client.clone();
    stop(&daemon);
    let second = Duration::from_secs(1);
    is_told(&daemon, "wait_for", ends("wait_for", move || client.wait_for("nothing", second).map(drop)));
    is_told(&daemon, "wait_length", ends("wait_length", move || list.wait_length("l", Length::AtLeast(1), second)));
}

/// A memory request that timed out: the client returns the segment of the late response.
#[test]
fn memory_that_comes_too_late_goes_back() {
    let daemon = Daemon::start("[pool]\nsegment_bytes = \"1MiB\"\nspare_segments = 0\n");
    let client = connect(&daemon).unwrap();
    let before = client.stat().unwrap().segments;
    stop(&daemon);
    is_told(&daemon, "create", client.create(DType::U8, &[3 << 20]));
    signal(daemon.pid(), Signal::CONT);
    eventually("an answer", || client.ping().is_ok());
    eventually("its memory", || client.stat().unwrap().segments == before);
    // The late response serves the next request of the same kind.
    stop(&daemon);
    is_told(&daemon, "create", client.create(DType::U8, &[3 << 20]));
    signal(daemon.pid(), Signal::CONT);
    let mut draft = None;
    eventually("memory", || {
        draft = client.create(DType::U8, &[3 << 20]).ok();
        draft.is_some()
    });
    assert_eq!(client.stat().unwrap().segments, before + 1);
}

#[test]
fn commands_say_that_the_daemon_does_not_answer() {
    let daemon = Daemon::start("");
    daemon.client().put("x", &[1u8]).unwrap();
    stop(&daemon);
    let says = format!("the daemon (pid {}) does not respond", daemon.pid());
    for words in [
        &["ping"][..],
        &["stat", "--daemon-timeout", "1"],
        &["ls", "--daemon-timeout", "1"],
        &["get", "x", "-o", "/dev/null/x.npy", "--daemon-timeout", "1"],
        &["rm", "x", "--daemon-timeout", "1"],
        &["watch", "x", "--daemon-timeout", "1"],
        &["save", "x", "-o", "x.safetensors", "--daemon-timeout", "1"],
    ] {
        let done = run(&mut daemon.cli(words));
        let error = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!((done.status.code(), error.contains(&says)), (Some(3), true), "{words:?}: {error}");
    }
    let doctor = run(&mut daemon.cli(&["doctor", "--daemon-timeout", "1"]));
    let out = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert_eq!(doctor.status.code(), Some(3), "{out}");
    let failure = out.lines().find(|line| line.starts_with("FAILURE  daemon")).unwrap_or_else(|| panic!("{out}"));
    assert!(failure.contains(&says), "{out}");

    // The doctor prints each check as it ends: the first are there while it still waits for the daemon.
    let mut command = daemon.cli(&["doctor", "--daemon-timeout", "1000"]);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let (sender, seen) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        while let Some(Ok(line)) = lines.next() {
            let _ = sender.send(line);
        }
    });
    // The last check before a request to the daemon.
    let is_socket = |line: String| line.starts_with("ok") && line.contains("socket");
    let is_there = std::iter::from_fn(|| seen.recv_timeout(Duration::from_mins(1)).ok()).any(is_socket);
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap();
    assert!(is_there, "nothing was printed before the daemon was asked");
    signal(daemon.pid(), Signal::CONT);
}

/// The dashboard's server reports it, long before its next sample of the namespaces.
#[test]
fn the_dashboard_and_the_metrics_tell_of_a_daemon_that_does_not_answer() {
    use std::io::{BufRead, BufReader, Read, Write};

    /// Killed at the end of the test.
    struct Web(std::process::Child);
    impl Drop for Web {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    let daemon = Daemon::start("");
    // The next sample is an hour away.
    let mut command = daemon.cli(&["web", "--listen", "127.0.0.1:0", "--interval", "3600"]);
    let mut web = Web(command.stdout(std::process::Stdio::piped()).spawn().unwrap());
    let mut url = String::new();
    BufReader::new(web.0.stdout.take().unwrap()).read_line(&mut url).unwrap();
    let address = url.trim().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let get = |path: &str| {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.split_once("\r\n\r\n").unwrap().1.to_owned()
    };
    let status = || serde_json::from_str::<serde_json::Value>(&get("/api/v1/status")).unwrap();
    assert_eq!(status()["daemon"]["pid"], daemon.pid());

    for _ in 0..2 {
        stop(&daemon);
        eventually("news of a daemon that does not answer", || status()["daemon"].is_null());
        assert!(status()["daemon_answered_ms"].as_u64().unwrap() > 0);
        assert!(get("/metrics").contains("\ntensorlend_up 0\n"));
        signal(daemon.pid(), Signal::CONT);
        eventually("news of a daemon that answers again", || status()["daemon"]["pid"] == daemon.pid());
        assert!(get("/metrics").contains("\ntensorlend_up 1\n"));
    }
    signal(daemon.pid(), Signal::KILL);
    eventually("news of a daemon that is gone", || status()["daemon"].is_null());
}

#[test]
fn many_claims_end_in_the_time_of_a_few_requests() {
    let daemon = Daemon::start("");
    let connect = || {
        let timeout = Duration::from_secs(1);
        Client::builder().socket(daemon.socket()).request_timeout(timeout).connect().unwrap()
    };
    let (client, other) = (connect(), connect());
    let queue = client.queue("jobs").unwrap();
    for value in 0..16u8 {
        queue.put(client.create_from(&[value]).unwrap(), None).unwrap();
    }
    let mut items = queue.items().prefetch(16);
    assert_eq!(items.next(None).unwrap().unwrap().number(), 0);
    assert!(items.done().unwrap());
    stop(&daemon);
    let dropped = std::thread::spawn(move || drop(items));
    // Each ping takes as long as one request of a claim.
    let mut pings = 0;
    while !dropped.is_finished() {
        is_told(&daemon, "ping", other.ping());
        pings += 1;
        assert!(pings < 12, "15 claims take as long as {pings} requests");
    }
    signal(daemon.pid(), Signal::CONT);
    eventually("a daemon that answers again", || client.ping().is_ok());
    assert_eq!((queue.waiting().unwrap(), queue.claimed().unwrap()), (15, 0));
}

#[test]
fn claims_end_although_a_stopped_daemon_did_not_receive_the_request() {
    let daemon = Daemon::start("");
    let client = connect(&daemon).unwrap();
    let queue = client.queue("jobs").unwrap();
    for value in 0..4u8 {
        queue.put(client.create_from(&[value]).unwrap(), None).unwrap();
    }
    let items: Vec<_> = (0..4).map(|_| queue.get(None).unwrap()).collect();
    stop(&daemon);
    // One of the requests is sent. The others wait for its reply until their timeouts.
    let threads: Vec<_> = items
        .into_iter()
        .map(|item| {
            std::thread::spawn(move || match item.number() {
                0 | 1 => item.done().map(drop),
                2 => item.give_back(),
                _ => {
                    drop(item);
                    Ok(())
                }
            })
        })
        .collect();
    eventually("the timeouts", || threads.iter().all(std::thread::JoinHandle::is_finished));
    for (number, thread) in threads.into_iter().enumerate().take(3) {
        is_told(&daemon, &format!("item {number}"), thread.join().unwrap());
    }
    signal(daemon.pid(), Signal::CONT);
    eventually("a daemon that answers again", || client.ping().is_ok());
    let other = daemon.client().queue("jobs").unwrap();
    assert_eq!((other.waiting().unwrap(), other.claimed().unwrap()), (2, 0));
    let (first, second) = (other.get(None).unwrap(), other.get(None).unwrap());
    assert_eq!((first.number(), second.number()), (2, 3));
}

/// The clients' timeout in tests with many requests that time out. A call that a slow daemon answers too late is repeated.
const SHORT: Duration = Duration::from_millis(300);

/// Makes a call whose request times out, and lets the daemon respond after that.
fn too_late<T>(daemon: &Daemon, client: &Client, what: &str, call: impl FnOnce() -> Result<T, Error>) {
    stop(daemon);
    let done = call();
    signal(daemon.pid(), Signal::CONT);
    is_told(daemon, what, done);
    eventually("an answer", || client.ping().is_ok());
}

/// Waits until the client's slots are at most at this level. The client frees cells when it binds a name, and slots after
/// some overwrites.
fn falls_to(client: &Client, what: &str, level: u64) {
    eventually(what, || {
        let _ = client.put_for("own", &[0u8; 4096], tensorlend::Lifetime::ttl(Duration::from_hours(1)));
        client.put("kept", &[0u8; 4096]).unwrap();
        client.memory().slot_bytes <= level
    });
}

/// The client returns cells and slots of publications that the daemon refuses after their timeout. Otherwise this client
/// would use more cells than a daemon grants, and memory for all refused values.
#[test]
fn publications_that_are_refused_too_late_cost_nothing() {
    const ITEMS: usize = 1024;
    let daemon = Daemon::start("[pool]\nsegment_bytes = \"1MiB\"\n[namespace_default]\nnames_max = 1024\n");
    let client = Client::builder().socket(daemon.socket()).request_timeout(SHORT).connect().unwrap();
    let other = daemon.client();
    let hours = tensorlend::Lifetime::ttl(Duration::from_hours(1));
    let queue = client.queue("full").unwrap().max_waiting(1);
    queue.put(client.create_from(&[1u8]).unwrap(), None).unwrap();
    client.put_for("own", &[0u8; 4096], hours).unwrap();
    client.put("kept", &[0u8; 4096]).unwrap();
    // From here on the namespace takes no more names.
    let filled = (0..2048).find_map(|name| other.put_for(&format!("theirs {name}"), &[1u8], hours).err());
    assert!(filled.expect("the namespace is full").is_limit());

    let large = || client.create(DType::U8, [1 << 20]).unwrap();
    let round = || {
        let draft = large();
        too_late(&daemon, &client, "publish_for", || draft.publish_for("new", hours));
        let items: Vec<_> = (0..ITEMS).map(|_| client.create(DType::U8, [512]).unwrap()).collect();
        too_late(&daemon, &client, "append_many", || client.append_many("list", items));
        let item = large();
        too_late(&daemon, &client, "queue.put", || queue.put(item, SHORT));
    };
    round();
    falls_to(&client, "the slots of the first round", 1 << 19);
    let (segments, used) = (client.memory().segment_bytes, daemon.client().stat().unwrap().bytes_in_use);
    // The daemon grants 8,192 cells to a client of this namespace.
    for _ in 0..9 {
        round();
    }
    falls_to(&client, "the slots of all rounds", 1 << 19);
    eventually("the level of the pool", || {
        client.memory().segment_bytes <= segments && other.stat().unwrap().bytes_in_use <= used
    });
    let error = client.append_many("list", (0..ITEMS).map(|_| client.create(DType::U8, [1]).unwrap())).unwrap_err();
    assert!(error.to_string().contains("names_max"), "{error}");
    assert!(!client.exists("new").unwrap());
    assert_eq!((client.length("list"), queue.waiting().unwrap()), (0, 1));
}

/// The daemon reports once which cells it took, also if the client has stopped to wait for the report.
#[test]
fn cells_that_are_reported_too_late_are_freed() {
    let daemon = Daemon::start("[pool]\nsegment_bytes = \"1MiB\"\n");
    let client = Client::builder().socket(daemon.socket()).request_timeout(SHORT).connect().unwrap();
    let other = daemon.client();
    let queue = client.queue("jobs").unwrap();
    for _ in 0..4 {
        for _ in 0..64 {
            queue.put(client.create(DType::U8, [1 << 16]).unwrap(), None).unwrap();
        }
        assert!(other.clear("jobs").unwrap());
        let item = client.create_from(&[7u8]).unwrap();
        too_late(&daemon, &client, "queue.put", || queue.put(item, SHORT));
        falls_to(&client, "the slots of the items", 1 << 19);
    }
}

/// A stream that opens too late is closed: another client can open it.
#[test]
fn a_stream_that_opens_too_late_is_closed() {
    let daemon = Daemon::start("");
    let client = Client::builder().socket(daemon.socket()).request_timeout(SHORT).connect().unwrap();
    let other = daemon.client();
    for _ in 0..4 {
        too_late(&daemon, &client, "stream", || client.stream("camera").open());
        eventually("the closed stream", || other.stream("camera").open().is_ok());
        assert!(other.delete_stream("camera").unwrap());
    }
    // The late response serves the same request.
    stop(&daemon);
    is_told(&daemon, "stream", client.stream("camera").open());
    signal(daemon.pid(), Signal::CONT);
    let mut camera = None;
    eventually("the stream", || {
        camera = client.stream("camera").open().ok();
        camera.is_some()
    });
    let mut frames = other.subscribe("camera").unwrap();
    camera.unwrap().send(client.create_from(&[5u8]).unwrap()).unwrap();
    assert_eq!(frames.recv_timeout(Duration::from_mins(1)).unwrap().tensor().unwrap().bytes(), [5]);
}

/// A subscription that begins or ends too late leaves neither a subscriber nor a used cursor.
#[test]
fn subscriptions_of_late_responses_end() {
    let daemon = Daemon::start("");
    let client = Client::builder().socket(daemon.socket()).request_timeout(SHORT).connect().unwrap();
    let other = daemon.client();
    let streams: Vec<_> = (0..5).map(|at| other.stream(&format!("s{at}")).open().unwrap()).collect();
    // All cursors of a client except one.
    let mut held: Vec<_> = (0..255).map(|at| client.subscribe(&format!("s{}", at % 4)).unwrap()).collect();
    for _ in 0..4 {
        too_late(&daemon, &client, "subscribe", || client.subscribe("s4"));
        eventually("no subscriber", || streams[4].subscribers() == 0);
        too_late(&daemon, &client, "a pollable subscription", || client.subscription("s4").pollable().open());
        eventually("no subscriber", || streams[4].subscribers() == 0);
        let last = client.subscribe("s4").expect("the last cursor is free");
        assert!(matches!(client.subscribe("s4"), Err(Error::Cursors(_))), "a cursor is free twice");
        stop(&daemon);
        drop(last);
        signal(daemon.pid(), Signal::CONT);
        eventually("an answer", || client.ping().is_ok());
        assert_eq!(streams[4].subscribers(), 0);
        too_late(&daemon, &client, "subscribe", || client.subscribe("nothing"));
    }
    held.push(client.subscribe("s4").expect("the last cursor is free"));
    assert_eq!(held.len(), 256);
}
