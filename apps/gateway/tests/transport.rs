//! The requirements of a gateway on its transport, tested for every transport.

#[cfg(feature = "zenoh")]
mod authority;
mod network;

use bytes::Bytes;
use network::{Memory, Network, Weather};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use tensorlend::Client;
use tensorlend_gateway::Gateway;
use tensorlend_gateway::key::{Key, Kind};
use tensorlend_gateway::settings::Settings;
use tensorlend_gateway::transport::{
    Answer, Body, Declared, Frame, OnAnswer, OnFrame, OnNode, OnQuestion, Question, Transport, Trouble,
};
use tensorlend_gateway::wire::{Epoch, NodeName};

/// A timeout that only a failure reaches.
const LONG: Duration = Duration::from_mins(5);

fn node(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

fn about(name: Option<&str>) -> Key {
    Key::About { node: node("a"), kind: Kind::Name, space: "lab".into(), name: name.map(str::to_owned) }
}

fn message(link: Option<u64>) -> Key {
    Key::Message { from: Some(node("a")), to: node("b"), link }
}

fn frame(head: &[u8], body: Body) -> Frame {
    Frame { head: Bytes::copy_from_slice(head), body }
}

fn ask(transport: &dyn Transport, key: &Key, question: Frame, timeout: Duration) -> Result<Frame, Trouble> {
    let (said, answers) = channel();
    transport.ask(key, question, timeout, Box::new(move |answer| said.send(answer).unwrap()));
    answers.recv_timeout(LONG).expect("an answer, or why there is none")
}

/// Repeats a request until it gets an answer: a declaration takes a moment to become known.
fn ask_until(transport: &dyn Transport, key: &Key, question: &Frame) -> Frame {
    for _ in 0..300 {
        match ask(transport, key, question.clone(), LONG) {
            Ok(answer) => return answer,
            Err(Trouble::Nobody) => std::thread::sleep(Duration::from_millis(20)),
            Err(trouble) => panic!("{trouble}"),
        }
    }
    panic!("nobody answers");
}

/// Nodes that connected and disconnected.
type Heard = Receiver<(NodeName, Epoch, bool)>;

fn watch(transport: &dyn Transport) -> (Declared, Heard) {
    let (said, heard) = channel();
    let said = Mutex::new(said);
    let on_node = Arc::new(move |node, epoch, alive| {
        let _ = said.lock().unwrap().send((node, epoch, alive));
    });
    (transport.watch_alive(on_node).unwrap(), heard)
}

/// Checks the requirements: `a` answers and publishes, `b` requests and subscribes.
fn is_a_transport(a: &dyn Transport, b: &dyn Transport) {
    let answers = a
        .answer(
            &about(None),
            Arc::new(|question| {
                let Key::About { name: Some(name), .. } = &question.key else { panic!("{:?}", question.key) };
                let mut head = question.frame.head.to_vec();
                head.extend_from_slice(name.as_bytes());
                let pieces = vec![Bytes::from_static(b"one piece, "), Bytes::from(vec![7; 100_000])];
                if name != "silent" {
                    (question.answer)(frame(&head, Body::pieces(pieces)));
                }
            }),
        )
        .unwrap();
    let answer = ask_until(b, &about(Some("sim/x*")), &frame(b"about ", Body::default()));
    assert_eq!(&answer.head[..], b"about sim/x*");
    assert_eq!(answer.body.len(), 100_011);
    assert_eq!(&answer.body.contiguous()[..12], b"one piece, \x07");
    assert_eq!(ask(b, &about(Some("silent")), Frame::default(), LONG).unwrap_err(), Trouble::Nobody);
    let other = Key::Names(node("a"), "lab".into());
    assert_eq!(ask(b, &other, Frame::default(), LONG).unwrap_err(), Trouble::Nobody);
    drop(answers);

    let (said, heard) = channel();
    let said = Mutex::new(said);
    let listens = b
        .listen(
            &Key::Message { from: None, to: node("b"), link: None },
            Arc::new(move |key, frame| {
                let _ = said.lock().unwrap().send((key, frame));
            }),
        )
        .unwrap();
    let first = loop {
        a.send(&message(Some(1)), frame(b"hello", Body::default())).unwrap();
        if let Ok(first) = heard.recv_timeout(Duration::from_millis(20)) {
            break first;
        }
    };
    assert_eq!(first.0, message(Some(1)));
    for number in 0..1000_u32 {
        let body = Body::of(Bytes::from(vec![number as u8; 10_000]));
        a.send(&message(Some(2)), frame(&number.to_le_bytes(), body)).unwrap();
    }
    for number in 0..1000_u32 {
        let (_, frame) = std::iter::from_fn(|| heard.recv_timeout(LONG).ok())
            .find(|(key, _)| *key == message(Some(2)))
            .expect("what was sent arrives");
        assert_eq!(frame.head[..], number.to_le_bytes());
        assert_eq!(frame.body.len(), 10_000);
        assert!(frame.body.contiguous().iter().all(|&byte| byte == number as u8));
    }
    drop(listens);

    let before = a.declare_alive(&node("a"), Epoch(1)).unwrap();
    let (watching, heard) = watch(b);
    assert_eq!(heard.recv_timeout(LONG), Ok((node("a"), Epoch(1), true)), "who was there before");
    let again = a.declare_alive(&node("a"), Epoch(2)).unwrap();
    assert_eq!(heard.recv_timeout(LONG), Ok((node("a"), Epoch(2), true)));
    drop(before);
    assert_eq!(heard.recv_timeout(LONG), Ok((node("a"), Epoch(1), false)));
    drop((watching, again));
}

#[test]
fn a_network_in_memory_is_a_transport() {
    let network = Network::new(1);
    let (a, b) = (network.join(), network.join());
    is_a_transport(&a, &b);
    network.set_weather(Weather { delay: Duration::from_millis(1), jitter: Duration::from_millis(3), loss: 0.0 });
    is_a_transport(&b, &a);
}

/// A transport whose sends to some keys wait until the test lets them go.
struct Full {
    inner: Memory,
    /// Whether the sends to a key wait.
    waits: fn(&Key) -> bool,
    gate: Arc<Gate>,
}

/// Where the sends of a full transport wait.
#[derive(Default)]
struct Gate {
    /// Number of sends that wait, and whether the path has room again.
    state: Mutex<(u32, bool)>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        self.changed.notify_all();
        let _state = self.changed.wait_while(state, |state| !state.1).unwrap();
    }

    fn wait_for(&self, sends: u32) {
        let state = self.state.lock().unwrap();
        let (state, _) = self.changed.wait_timeout_while(state, LONG, |state| state.0 < sends).unwrap();
        assert!(state.0 >= sends, "{} of {sends} sends wait", state.0);
    }

    fn open(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

impl Transport for Full {
    fn ask(&self, key: &Key, frame: Frame, timeout: Duration, done: OnAnswer) {
        if (self.waits)(key) {
            self.gate.pass();
        }
        self.inner.ask(key, frame, timeout, done);
    }

    fn answer(&self, key: &Key, on_question: OnQuestion) -> Result<Declared, Trouble> {
        let (waits, gate) = (self.waits, self.gate.clone());
        let passing = move |question: Question| {
            let (gate, must_wait) = (gate.clone(), waits(&question.key));
            let (key, frame) = (question.key, question.frame);
            let answer: Answer = Box::new(move |frame| {
                if must_wait {
                    gate.pass();
                }
                (question.answer)(frame);
            });
            on_question(Question { key, frame, answer });
        };
        self.inner.answer(key, Arc::new(passing))
    }

    fn send(&self, key: &Key, frame: Frame) -> Result<(), Trouble> {
        self.inner.send(key, frame)
    }

    fn listen(&self, key: &Key, on_frame: OnFrame) -> Result<Declared, Trouble> {
        self.inner.listen(key, on_frame)
    }

    fn declare_alive(&self, node: &NodeName, epoch: Epoch) -> Result<Declared, Trouble> {
        self.inner.declare_alive(node, epoch)
    }

    fn watch_alive(&self, on_node: OnNode) -> Result<Declared, Trouble> {
        self.inner.watch_alive(on_node)
    }
}

/// Starts a gateway with a daemon of its own; returns them, and a client.
fn host(name: &str, transport: Arc<dyn Transport>) -> (tensorlend_daemon::Embedded, Client, Gateway) {
    let broker = tensorlend_daemon::embedded().unwrap();
    let client = Client::builder().socket(broker.socket()).connect().unwrap();
    let socket = Some(broker.socket().to_owned());
    let settings = Settings { socket, answer_timeout: LONG, ..Settings::of_node(node(name)) };
    (broker, client, Gateway::start(settings, transport).unwrap())
}

/// Reads a name of another node until that node is known.
fn read(client: &Client, name: &str) -> u8 {
    let start = std::time::Instant::now();
    while start.elapsed() < LONG {
        match client.get(name) {
            Ok(lease) => return lease.bytes()[0],
            Err(error) if error.is_not_found() => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => panic!("{name}: {error}"),
        }
    }
    panic!("{name} does not come");
}

#[test]
fn a_path_that_is_full_holds_up_no_other_path() {
    let network = Network::new(3);
    let gates: [Arc<Gate>; 2] = Default::default();
    let is_slow = |key: &Key| matches!(key, Key::About { node, .. } if node.as_str() == "slow");
    let here = Full { inner: network.join(), waits: is_slow, gate: gates[0].clone() };
    let (_daemon, client, _gateway) = host("here", Arc::new(here));
    let is_first = |key: &Key| matches!(key, Key::About { name: Some(name), .. } if name == "first");
    let there = Full { inner: network.join(), waits: is_first, gate: gates[1].clone() };
    let (_other, producer, _sender) = host("there", Arc::new(there));
    let (_third, slow, _last) = host("slow", Arc::new(network.join()));
    for (number, name) in (1_u8..).zip(["first", "second", "third"]) {
        producer.put(name, &[number]).unwrap();
        slow.put(name, &[10 * number]).unwrap();
    }
    let read = |name: &'static str| {
        let client = client.clone();
        std::thread::spawn(move || read(&client, name))
    };
    // The thread that serves the clients sends to a path that is full, then a worker does.
    let waiting = [read("slow/first"), read("slow/second")];
    gates[0].wait_for(1);
    assert_eq!(read("there/second").join().unwrap(), 2);
    gates[0].wait_for(2);
    // The thread that applies the requests of other nodes responds on a path that is full.
    let first = read("there/first");
    gates[1].wait_for(1);
    assert_eq!(read("there/third").join().unwrap(), 3);
    gates[0].open();
    gates[1].open();
    assert_eq!(waiting.map(|read| read.join().unwrap()), [10, 20]);
    assert_eq!(first.join().unwrap(), 1);
    assert_eq!(read("slow/third").join().unwrap(), 30);
}

#[test]
fn a_network_in_memory_parts_heals_and_loses() {
    let network = Network::new(2);
    let (a, b): (Memory, Memory) = (network.join(), network.join());
    let _alive = a.declare_alive(&node("a"), Epoch(1)).unwrap();
    let (_watching, heard) = watch(&b);
    let _answers = a.answer(&about(None), Arc::new(|question| (question.answer)(Frame::default()))).unwrap();
    assert!(heard.recv_timeout(LONG).unwrap().2);
    assert!(ask(&b, &about(Some("x")), Frame::default(), LONG).is_ok());

    network.part(&a, &b);
    assert!(!heard.recv_timeout(LONG).unwrap().2);
    assert_eq!(ask(&b, &about(Some("x")), Frame::default(), LONG).unwrap_err(), Trouble::Nobody);
    network.heal(&a, &b);
    assert!(heard.recv_timeout(LONG).unwrap().2);
    assert!(ask(&b, &about(Some("x")), Frame::default(), LONG).is_ok());

    network.set_weather(Weather { loss: 0.5, ..Weather::default() });
    let short = Duration::from_millis(5);
    let came = (0..100).filter(|_| ask(&b, &about(Some("x")), Frame::default(), short).is_ok()).count();
    assert!(came < 100 && network.lost() > 0, "{came} of 100");
    drop(a);
    assert!(!heard.recv_timeout(LONG).unwrap().2);
}

#[cfg(feature = "zenoh")]
mod over_zenoh {
    use super::*;
    use crate::authority::Authority;
    use std::net::UdpSocket;
    use tensorlend_gateway::transport::{Zenoh, ZenohOptions};
    use tensorlend_tests::free_address;

    /// Returns a port of the certificates' address. Another process may take it first: then the test gets an error that
    /// it is in use.
    fn port() -> u16 {
        UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
    }

    fn options(mode: &str) -> ZenohOptions {
        let mut options = ZenohOptions::defaults().unwrap();
        options.set("mode", &format!("'{mode}'")).unwrap();
        options.set("scouting/multicast/enabled", "false").unwrap();
        // A node that cannot connect at once fails instead of retrying.
        options.set("connect/timeout_ms", "0").unwrap();
        options.set("connect/exit_on_failure", "true").unwrap();
        options.set("listen/endpoints", "[]").unwrap();
        options
    }

    fn listening(mode: &str, endpoint: &str) -> ZenohOptions {
        let mut options = options(mode);
        options.set_strings("listen/endpoints", &[endpoint.to_owned()]).unwrap();
        options
    }

    fn connecting(mode: &str, endpoint: &str) -> ZenohOptions {
        let mut options = options(mode);
        options.set_strings("connect/endpoints", &[endpoint.to_owned()]).unwrap();
        options
    }

    #[test]
    fn peers_are_a_transport() {
        let endpoint = format!("tcp/{}", free_address());
        let a = Zenoh::open(listening("peer", &endpoint)).unwrap();
        let b = Zenoh::open(connecting("peer", &endpoint)).unwrap();
        is_a_transport(&a, &b);
        assert_eq!(b.links(), 1);
        is_a_transport(&b, &a);
    }

    #[test]
    fn clients_of_a_router_are_a_transport() {
        let endpoint = format!("tcp/{}", free_address());
        let router = Zenoh::open(listening("router", &endpoint)).unwrap();
        let a = Zenoh::open(connecting("client", &endpoint)).unwrap();
        let b = Zenoh::open(connecting("client", &endpoint)).unwrap();
        is_a_transport(&a, &b);
        is_a_transport(&router, &b);
    }

    #[test]
    fn a_node_that_is_gone_is_missed() {
        let endpoint = format!("tcp/{}", free_address());
        let router = Zenoh::open(listening("router", &endpoint)).unwrap();
        let a = Zenoh::open(connecting("client", &endpoint)).unwrap();
        let (_watching, heard) = watch(&router);
        let alive = a.declare_alive(&node("a"), Epoch(7)).unwrap();
        assert_eq!(heard.recv_timeout(LONG), Ok((node("a"), Epoch(7), true)));
        let _answers = a.answer(&about(None), Arc::new(|question| (question.answer)(Frame::default()))).unwrap();
        ask_until(&router, &about(Some("x")), &Frame::default());
        std::mem::forget(alive);
        drop(a);
        assert_eq!(heard.recv_timeout(LONG), Ok((node("a"), Epoch(7), false)));
        assert_eq!(ask(&router, &about(Some("x")), Frame::default(), LONG).unwrap_err(), Trouble::Nobody);
    }

    impl Authority {
        /// Presents a certificate to nodes that connect here.
        fn shown(&self, options: &mut ZenohOptions) {
            self.set(options, "listen_certificate", "node.pem");
            self.set(options, "listen_private_key", "node.key");
        }

        /// Presents a certificate to nodes that this one connects to.
        fn shown_by_asker(&self, options: &mut ZenohOptions) {
            self.set(options, "connect_certificate", "node.pem");
            self.set(options, "connect_private_key", "node.key");
        }

        /// Trusts the authority.
        fn believed(&self, options: &mut ZenohOptions) {
            self.set(options, "root_ca_certificate", "ca.pem");
        }

        fn set(&self, options: &mut ZenohOptions, key: &str, file: &str) {
            options.set(&format!("transport/link/tls/{key}"), &format!("'{}'", self.path(file))).unwrap();
        }
    }

    #[test]
    fn only_who_shows_a_right_certificate_is_connected() {
        let (ours, theirs) = (Authority::new(), Authority::new());
        let endpoint = format!("quic/localhost:{}", port());
        let mut here = listening("router", &endpoint);
        ours.shown(&mut here);
        ours.believed(&mut here);
        assert!(Zenoh::open(here.clone()).is_err(), "a listener that says nothing about certificates of peers");
        here.set("transport/link/tls/enable_mtls", "false").unwrap();
        let here = Zenoh::open(here).unwrap();

        let mut wrong = connecting("client", &endpoint);
        theirs.believed(&mut wrong);
        assert!(Zenoh::open(wrong).is_err(), "a router whose certificate somebody else has signed");
        let plain = connecting("client", &endpoint.replace("quic/", "tcp/"));
        assert!(Zenoh::open(plain).is_err(), "without TLS");
        let mut right = connecting("client", &endpoint);
        ours.believed(&mut right);
        let right = Zenoh::open(right).unwrap();
        is_a_transport(&here, &right);
    }

    #[test]
    fn with_mutual_tls_who_asks_shows_a_right_certificate_too() {
        let (ours, theirs) = (Authority::new(), Authority::new());
        let endpoint = format!("quic/localhost:{}", port());
        let mut here = listening("router", &endpoint);
        ours.shown(&mut here);
        ours.believed(&mut here);
        here.set("transport/link/tls/enable_mtls", "true").unwrap();
        let here = Zenoh::open(here).unwrap();

        let asker = |shown: Option<&Authority>| {
            let mut options = connecting("client", &endpoint);
            ours.believed(&mut options);
            if let Some(authority) = shown {
                options.set("transport/link/tls/enable_mtls", "true").unwrap();
                authority.shown_by_asker(&mut options);
            }
            Zenoh::open(options)
        };
        assert!(asker(None).is_err(), "no certificate");
        assert!(asker(Some(&theirs)).is_err(), "somebody else's");
        let right = asker(Some(&ours)).unwrap();
        is_a_transport(&here, &right);
    }

    #[test]
    fn only_who_knows_a_password_is_connected() {
        let folder = tempfile::tempdir().unwrap();
        let passwords = folder.path().join("passwords");
        std::fs::write(&passwords, "node7:open sesame\n").unwrap();
        let endpoint = format!("tcp/{}", free_address());
        let mut here = listening("router", &endpoint);
        let set = |options: &mut ZenohOptions, user: &str, password: &str| {
            let text = format!("{{ user: '{user}', password: '{password}' }}");
            options.set("transport/auth/usrpwd", &text).unwrap();
        };
        let text = format!("{{ user: 'hub', password: 'x', dictionary_file: '{}' }}", passwords.display());
        here.set("transport/auth/usrpwd", &text).unwrap();
        let here = Zenoh::open(here).unwrap();

        assert!(Zenoh::open(connecting("client", &endpoint)).is_err(), "no password");
        let mut wrong = connecting("client", &endpoint);
        set(&mut wrong, "node7", "close sesame");
        assert!(Zenoh::open(wrong).is_err(), "a wrong password");
        let mut right = connecting("client", &endpoint);
        set(&mut right, "node7", "open sesame");
        let right = Zenoh::open(right).unwrap();
        is_a_transport(&here, &right);
    }
}
