//! Names between daemons in one process, over an in-memory network.

mod network;

use bytes::Bytes;
use network::{Memory, Network, Weather};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tensorlend::remote::{
    Placement, RemoteAnswer, RemoteRequest, SERVICE, VALUE, VALUE_METADATA, VALUE_PREFIX, node_name,
};
use tensorlend::{Client, DType, Draft, TensorSpec, Version};
use tensorlend_daemon::Embedded;
use tensorlend_gateway::Gateway;
use tensorlend_gateway::key::{Key, Kind};
use tensorlend_gateway::settings::{Globs, Settings};
use tensorlend_gateway::transport::{Body, Frame, Question, Transport};
use tensorlend_gateway::wire::{
    AboutName, Asker, Changed, Chunk, Codecs, Descriptor, Epoch, NameAnswer, NameQuestion, NodeName, Packing, Shape,
    Stamp, TensorShape, decode, encode,
};
use tensorlend_layout::random::splitmix64;

const LONG: Duration = Duration::from_mins(5);

/// A machine: its daemon, a client of it, its gateway.
struct Host {
    broker: Embedded,
    client: Client,
    settings: Settings,
    way: Arc<Memory>,
    gateway: Option<Gateway>,
}

impl Host {
    fn new(network: &Network, name: &str) -> Self {
        Self::with(network, name, |_| {})
    }

    fn with(network: &Network, name: &str, change: impl FnOnce(&mut Settings)) -> Self {
        let broker = tensorlend_daemon::embedded().unwrap();
        let client = Client::builder().socket(broker.socket()).label("test").connect().unwrap();
        let mut settings = Settings::of_node(NodeName::new(name).unwrap());
        settings.socket = Some(broker.socket().to_owned());
        settings.chunk_bytes = 64 << 10;
        settings.window_bytes = 256 << 10;
        settings.windows_bytes = 512 << 10;
        settings.answer_timeout = LONG;
        change(&mut settings);
        let mut host = Self { broker, client, settings, way: Arc::new(network.join()), gateway: None };
        host.start();
        host
    }

    fn start(&mut self) {
        self.gateway = Some(Gateway::start(self.settings.clone(), self.way.clone()).unwrap());
    }

    fn stop(&mut self) {
        self.gateway.take().unwrap().stop();
    }

    fn call(&self, request: &RemoteRequest) -> RemoteAnswer {
        self.call_with(message(&self.client, request))
    }

    fn call_with(&self, request: impl tensorlend::Sendable) -> RemoteAnswer {
        let mut caller = self.client.caller(SERVICE).open().unwrap();
        let answer = caller.call(request, Some(LONG)).unwrap();
        RemoteAnswer::decode(answer.as_tensor().unwrap().metadata()).unwrap()
    }

    fn fetch(&self, name: &str) -> RemoteAnswer {
        self.call(&RemoteRequest::Get { name: name.into() })
    }

    fn wait(&self, name: &str, seen: Version, timeout: Duration) -> RemoteAnswer {
        let [home, cell] = seen.words();
        let timeout_ms = timeout.as_millis() as u64;
        self.call(&RemoteRequest::Wait { name: name.into(), seen: (home, cell), timeout_ms })
    }

    fn placed(&self, name: &str) -> Placement {
        match self.call(&RemoteRequest::Where { name: name.into() }) {
            RemoteAnswer::Where(placement) => placement,
            other => panic!("{other:?}"),
        }
    }

    /// Reads as a client does: a local copy, or else by asking the gateway.
    fn read(&self, name: &str) -> tensorlend::Value {
        let start = Instant::now();
        loop {
            if self.client.version(name).unwrap().is_some()
                && let Ok(value) = self.client.get_value(name)
            {
                return value;
            }
            let answer = self.fetch(name);
            assert!(matches!(answer, RemoteAnswer::Here { .. }), "{name}: {answer:?}");
            assert!(start.elapsed() < LONG, "{name} is here and cannot be read");
        }
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        self.read(name).as_tensor().unwrap().bytes().to_vec()
    }

    fn sees(&self, node: &str, alive: bool) {
        eventually(&format!("{node} is alive: {alive}"), || {
            let document = self.client.get(&node_name(node)).ok()?;
            let document: serde_json::Value = serde_json::from_slice(document.bytes()).unwrap();
            (document["alive"] == alive).then_some(())
        });
    }

    fn statistic(&self, which: &str) -> u64 {
        let Ok(document) = self.client.get(&format!("{SERVICE}/stat")) else { return 0 };
        let document: serde_json::Value = serde_json::from_slice(document.bytes()).unwrap();
        document[which].as_u64().unwrap()
    }

    fn counts(&self, which: &str, least: u64) {
        eventually(&format!("{which} reaches {least}"), || (self.statistic(which) >= least).then_some(()));
    }
}

fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < LONG, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn message(client: &Client, request: &RemoteRequest) -> Draft {
    let mut draft = client.create(DType::U8, &[0]).unwrap();
    draft.set_metadata(&request.encode()).unwrap();
    draft
}

fn filled(client: &Client, bytes: &[u8]) -> Draft {
    let mut draft = client.create(DType::U8, &[bytes.len() as u64]).unwrap();
    draft.copy_from(bytes).unwrap();
    draft
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    std::iter::repeat_with(|| splitmix64(&mut state) as u8).take(bytes).collect()
}

fn two(change: impl Fn(&mut Settings)) -> (Network, Host, Host) {
    let network = Network::new(1);
    let (a, b) = (Host::with(&network, "a", &change), Host::with(&network, "b", &change));
    a.sees("b", true);
    b.sees("a", true);
    (network, a, b)
}

#[test]
fn tensors_and_datasets_arrive_as_they_were_published() {
    let (_network, a, b) = two(|_| {});
    let mut draft = b.client.create(DType::F32, &[30, 1000]).unwrap();
    let numbers: Vec<f32> = (0..30_000_u16).map(f32::from).collect();
    draft.as_mut_slice::<f32>().unwrap().copy_from_slice(&numbers);
    draft.set_metadata(b"pascal").unwrap().set_timestamp(77);
    draft.publish("sim/pressure").unwrap();
    b.client.create(DType::F64, &[0, 3]).unwrap().publish("empty").unwrap();
    let spec = TensorSpec { dtype: DType::U16, shape: vec![2, 3], strides: Some(vec![1, 2]), byte_offset: 0 };
    let strided = || {
        let mut strided = b.client.create_spec(spec.clone()).unwrap();
        strided.as_mut_slice::<u16>().unwrap().copy_from_slice(&[1, 2, 3, 4, 5, 6]);
        strided
    };
    strided().publish("strided").unwrap();
    let frame = b.client.dataset().add("image", filled(&b.client, &noise(200_000, 3))).unwrap();
    let frame = frame.add("depth", strided()).unwrap().metadata(b"of all").unwrap().timestamp(5);
    frame.publish("frame").unwrap();

    assert_eq!(a.fetch("b/sim/pressure"), RemoteAnswer::here(false));
    let pressure = a.client.get("b/sim/pressure").unwrap();
    assert_eq!((pressure.shape(), pressure.metadata(), pressure.timestamp()), (&[30, 1000][..], &b"pascal"[..], 77));
    assert_eq!(pressure.as_slice::<f32>().unwrap(), numbers);
    assert_eq!(a.read("b/empty").as_tensor().unwrap().shape(), [0, 3]);
    assert_eq!(a.read("b/strided").as_tensor().unwrap().as_slice::<u16>().unwrap(), [1, 3, 5, 2, 4, 6]);
    let frame = a.read("b/frame");
    let frame = frame.as_dataset().unwrap();
    assert_eq!((frame.metadata(), frame.timestamp(), frame.len()), (&b"of all"[..], 5, 2));
    assert_eq!(frame.get("image").unwrap().bytes(), noise(200_000, 3));
    assert_eq!(frame.get("depth").unwrap().as_slice::<u16>().unwrap(), [1, 3, 5, 2, 4, 6]);
    assert_eq!(a.fetch("b/nothing"), RemoteAnswer::Nothing);
    assert_eq!(a.fetch("c/nothing"), RemoteAnswer::Unreachable);
    assert!(matches!(a.fetch("a/own"), RemoteAnswer::Refused { .. }));
    assert!(matches!(a.fetch("plain"), RemoteAnswer::Refused { .. }));
    let placed = a.placed("b/sim/pressure");
    assert!(placed.alive && placed.cached && !placed.stale && placed.node == "b" && !placed.stamp.is_empty());
    assert!(!a.placed("b/nothing").cached);
}

#[test]
fn a_large_tensor_arrives_in_chunks_packed_or_not() {
    for (packing, checksum) in [(Packing::None, false), (Packing::Zstd, true)] {
        let (_network, a, b) = two(|settings| (settings.packing, settings.checksum) = (packing, checksum));
        let bytes: Vec<u8> = if packing == Packing::None { noise(64 << 20, 9) } else { vec![7; 4 << 20] };
        filled(&b.client, &bytes).publish("large").unwrap();
        assert!(a.bytes("b/large") == bytes);
        eventually("what was read is kept no longer", || (b.statistic("kept") == 0).then_some(()));
    }
}

#[test]
fn a_change_is_seen_by_whoever_asks_after_it() {
    let (_network, a, b) = two(|_| {});
    for round in 0..50_u8 {
        b.client.put("x", &[round; 100]).unwrap();
        eventually("the new value", || (a.bytes("b/x") == [round; 100]).then_some(()));
    }
    b.client.delete("x").unwrap();
    eventually("it is deleted here, too", || a.client.version("b/x").unwrap().is_none().then_some(()));
    assert_eq!(a.fetch("b/x"), RemoteAnswer::Nothing);
}

#[test]
fn a_wait_ends_with_the_next_value_and_holds_up_nobody() {
    let (_network, a, b) = two(|_| {});
    b.client.put("x", &[1u8]).unwrap();
    let mut seen = a.read("b/x").version();
    for round in 2..10_u8 {
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| a.wait("b/x", seen, LONG));
            assert_eq!(a.fetch("b/other"), RemoteAnswer::Nothing);
            b.client.put("x", &[round]).unwrap();
            assert_eq!(waiting.join().unwrap(), RemoteAnswer::here(false));
        });
        let value = a.read("b/x");
        assert_eq!(value.as_tensor().unwrap().bytes(), [round]);
        seen = value.version();
    }
    assert_eq!(a.wait("b/x", seen, Duration::from_millis(50)), RemoteAnswer::Timeout);
    // A name that does not exist yet.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| a.wait("b/late", Version::NONE, LONG));
        std::thread::sleep(Duration::from_millis(50));
        b.client.put("late", &[5u8]).unwrap();
        assert_eq!(waiting.join().unwrap(), RemoteAnswer::here(false));
        assert_eq!(a.bytes("b/late"), [5]);
    });
}

#[test]
fn values_are_put_where_that_is_accepted() {
    let (_network, a, b) = two(|settings| settings.spaces[0].accept_put = Globs::new(&["inbox/*", "a/*"]).unwrap());
    let put = |name: &str, value: Draft| {
        let request = RemoteRequest::Put { name: name.into(), dataset: false };
        let request = a.client.dataset().add(VALUE, value).unwrap().metadata(&request.encode()).unwrap();
        a.call_with(request)
    };
    let bytes = noise(1 << 20, 5);
    let mut value = filled(&a.client, &bytes);
    value.set_metadata(b"mine").unwrap();
    assert_eq!(put("b/inbox/x", value), RemoteAnswer::here(false));
    let taken = b.client.get("inbox/x").unwrap();
    assert!(taken.bytes() == bytes && taken.metadata() == b"mine");
    // The writer of a value can read it, and so can others.
    for round in 0..10_u8 {
        assert_eq!(put("b/inbox/y", filled(&a.client, &[round])), RemoteAnswer::here(false));
        assert_eq!(a.bytes("b/inbox/y"), [round]);
    }
    let request = RemoteRequest::Put { name: "b/inbox/set".into(), dataset: true };
    let several = a.client.dataset().add(&format!("{VALUE_PREFIX}one"), filled(&a.client, &[1])).unwrap();
    let several = several.add(&format!("{VALUE_PREFIX}two"), filled(&a.client, &bytes)).unwrap();
    let several = several.add(VALUE_METADATA, filled(&a.client, b"of both")).unwrap().timestamp(9);
    assert_eq!(a.call_with(several.metadata(&request.encode()).unwrap()), RemoteAnswer::here(false));
    let set = b.client.get_dataset("inbox/set").unwrap();
    assert_eq!((set.len(), set.metadata(), set.timestamp()), (2, &b"of both"[..], 9));
    assert!(set.get("two").unwrap().bytes() == bytes);
    for name in ["b/outbox/x", "b/a/x", "b/.gateway/x"] {
        assert!(matches!(put(name, filled(&a.client, &[1])), RemoteAnswer::Refused { .. }), "{name}");
    }
    assert_eq!(put("nobody/inbox/x", filled(&a.client, &[1])), RemoteAnswer::Unreachable);
    b.counts("puts_taken", 12);
}

#[test]
fn what_is_not_exported_or_not_imported_is_as_if_it_were_not_there() {
    let network = Network::new(1);
    let b = Host::with(&network, "b", |settings| settings.spaces[0].export = Globs::new(&["public/*"]).unwrap());
    let a = Host::with(&network, "a", |settings| settings.spaces[0].import = Globs::new(&["b/*", "a/*"]).unwrap());
    a.sees("b", true);
    b.client.put("secret", &[1u8]).unwrap();
    b.client.put("public/x", &[2u8]).unwrap();
    assert_eq!(a.fetch("b/secret"), RemoteAnswer::Nothing);
    assert_eq!(a.fetch("b/.gateway/stat"), RemoteAnswer::Nothing);
    assert_eq!(a.bytes("b/public/x"), [2]);
    assert!(matches!(a.fetch("c/x"), RemoteAnswer::Refused { .. }));
    // A wait for a name that is not exported times out.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| a.wait("b/secret", Version::NONE, Duration::from_millis(300)));
        b.client.put("secret", &[3u8]).unwrap();
        assert_eq!(waiting.join().unwrap(), RemoteAnswer::Timeout);
    });
}

#[test]
fn copies_of_a_node_that_went_are_stale_and_good_again_when_it_is_back() {
    let (network, a, b) = two(|_| {});
    for name in ["same", "other", "gone"] {
        b.client.put(name, &[1u8; 10]).unwrap();
        a.read(&format!("b/{name}"));
    }
    network.part(&a.way, &b.way);
    a.sees("b", false);
    b.client.put("other", &[2u8; 10]).unwrap();
    b.client.delete("gone").unwrap();
    assert_eq!(a.bytes("b/other"), [1; 10]);
    let placed = a.placed("b/other");
    assert!(placed.cached && placed.stale && !placed.alive);
    assert_eq!(a.fetch("b/other"), RemoteAnswer::here(true));
    assert_eq!(a.fetch("b/unknown"), RemoteAnswer::Unreachable);
    let seen = a.client.version("b/same").unwrap();
    network.heal(&a.way, &b.way);
    eventually("the new value", || (a.bytes("b/other") == [2; 10]).then_some(()));
    eventually("what is gone", || (a.fetch("b/gone") == RemoteAnswer::Nothing).then_some(()));
    eventually("the same is good", || (!a.placed("b/same").stale).then_some(()));
    assert_eq!(a.client.version("b/same").unwrap(), seen);
}

#[test]
fn a_node_can_be_reached_after_another_gateway_of_its_name_has_ended() {
    let (network, a, b) = two(|_| {});
    b.client.put("x", &[1u8; 10]).unwrap();
    let mut namesake = Host::new(&network, "b");
    b.counts("dropped", 1);
    namesake.stop();
    // Declarations arrive in order.
    let c = Host::new(&network, "c");
    a.sees("c", true);
    assert_eq!(a.bytes("b/x"), [1; 10]);
    drop(c);
}

#[test]
fn a_transfer_goes_on_where_it_was_when_the_way_broke() {
    let (network, a, b) = two(|settings| {
        settings.packing = Packing::None;
        // A request in flight gets no answer when the link breaks.
        settings.answer_timeout = Duration::from_secs(5);
    });
    let bytes = noise(16 << 20, 4);
    filled(&b.client, &bytes).publish("large").unwrap();
    network.set_weather(Weather { delay: Duration::from_millis(10), ..Weather::default() });
    std::thread::scope(|scope| {
        let fetching = scope.spawn(|| a.bytes("b/large"));
        eventually("it has begun", || (b.statistic("sent_bytes") > 1 << 20).then_some(()));
        network.part(&a.way, &b.way);
        a.sees("b", false);
        network.heal(&a.way, &b.way);
        assert!(fetching.join().unwrap() == bytes);
    });
    b.counts("sent_bytes", 16 << 20);
    // Only the bytes that were in flight when the link broke are sent twice.
    assert!(b.statistic("sent_bytes") < 20 << 20, "{}", b.statistic("sent_bytes"));
}

#[test]
fn a_lossy_way_loses_nothing() {
    let (network, a, b) = two(|settings| settings.answer_timeout = Duration::from_millis(100));
    let bytes = noise(2 << 20, 4);
    filled(&b.client, &bytes).publish("large").unwrap();
    let jitter = Duration::from_millis(3);
    network.set_weather(Weather { delay: Duration::from_millis(1), jitter, loss: 0.05 });
    let got = eventually("the value", || match a.fetch("b/large") {
        RemoteAnswer::Here { .. } => a.client.get("b/large").ok().map(|lease| lease.bytes().to_vec()),
        _ => None,
    });
    assert!(got == bytes && network.lost() > 0);
    // Invalidation messages are lost, too: their sequence numbers show that.
    for round in 0..20_u8 {
        b.client.put("x", &[round; 8]).unwrap();
        eventually("the new value", || {
            let _ = a.fetch("b/x");
            (a.client.get("b/x").ok()?.bytes() == [round; 8]).then_some(())
        });
    }
}

#[test]
fn a_gateway_that_is_started_again_knows_nothing_and_keeps_nobody_from_reading() {
    let (_network, mut a, mut b) = two(|_| {});
    b.client.put("x", &[1u8]).unwrap();
    a.read("b/x");
    a.stop();
    // A copy without an invalidation subscription is evicted.
    eventually("no copies", || a.client.version("b/x").unwrap().is_none().then_some(()));
    b.client.put("x", &[2u8]).unwrap();
    a.start();
    a.sees("b", true);
    assert_eq!(a.bytes("b/x"), [2]);
    b.stop();
    a.sees("b", false);
    b.client.put("x", &[3u8]).unwrap();
    assert_eq!(a.bytes("b/x"), [2]);
    b.start();
    eventually("the new value", || (a.bytes("b/x") == [3]).then_some(()));
}

#[test]
fn no_name_goes_in_circles() {
    let network = Network::new(1);
    let hosts = ["a", "b", "c"].map(|name| Host::new(&network, name));
    for (host, other) in [(0, "b"), (0, "c"), (1, "c"), (1, "a"), (2, "a"), (2, "b")] {
        hosts[host].sees(other, true);
    }
    let [a, b, c] = &hosts;
    c.client.put("x", &[1u8]).unwrap();
    assert_eq!(b.bytes("c/x"), [1]);
    // b's copies of c's names are not names of b.
    assert_eq!(a.fetch("b/c/x"), RemoteAnswer::Nothing);
    assert_eq!(c.fetch("b/c/x"), RemoteAnswer::Nothing);
    assert_eq!(a.bytes("c/x"), [1]);
}

#[test]
fn a_name_of_this_machine_is_never_written_over() {
    let (_network, a, b) = two(|_| {});
    b.client.put("x", &[1u8]).unwrap();
    let own = a.client.put("b/x", &[9u8]).unwrap();
    assert!(matches!(a.fetch("b/x"), RemoteAnswer::Refused { .. }));
    assert_eq!(a.client.version("b/x").unwrap(), Some(own));
    a.client.delete("b/x").unwrap();
    assert_eq!(a.bytes("b/x"), [1]);
    // A copy that a client has deleted is fetched again.
    a.client.delete("b/x").unwrap();
    assert_eq!(a.bytes("b/x"), [1]);
}

#[test]
fn copies_take_no_more_memory_than_they_may() {
    let (_network, a, b) = two(|settings| settings.cache_bytes = 100_000);
    for n in 0..50_u8 {
        b.client.put(&format!("x/{n}"), &[n; 10_000]).unwrap();
        assert_eq!(a.bytes(&format!("b/x/{n}")), [n; 10_000]);
        std::thread::sleep(Duration::from_millis(5));
    }
    eventually("room", || (a.client.list("b/x/*").unwrap().len() <= 10).then_some(()));
    b.client.put("huge", &vec![0u8; 200_000]).unwrap();
    assert!(matches!(a.fetch("b/huge"), RemoteAnswer::Refused { .. }));
}

/// Reads a name of another node with few requests to the daemon.
fn read_by(caller: &mut tensorlend::Caller, client: &Client, name: &str) -> Vec<u8> {
    caller.call(message(client, &RemoteRequest::Get { name: name.into() }), Some(LONG)).unwrap();
    client.get(name).unwrap().bytes().to_vec()
}

#[test]
fn a_new_copy_of_a_name_takes_no_request_to_the_daemon() {
    const ROUNDS: u8 = 40;
    let (_network, mut a, b) = two(|_| {});
    let mut caller = a.client.caller(SERVICE).open().unwrap();
    let gone = |a: &Host| {
        // The copy of a former value goes, although nobody requests the name.
        eventually("the copy has gone", || a.client.version("b/x").unwrap().is_none().then_some(()));
    };
    let (mut start, mut before) = (Instant::now(), 0);
    for round in 0..=ROUNDS {
        b.client.put("x", &[round; 100]).unwrap();
        gone(&a);
        assert!(!a.client.exists("b/x").unwrap() && a.client.list("b/x").unwrap().is_empty());
        assert_eq!(read_by(&mut caller, &a.client, "b/x"), [round; 100]);
        assert!(a.client.info("b/x").unwrap().lifetime.ephemeral);
        if round == 0 {
            (start, before) = (Instant::now(), a.client.stat().unwrap().requests);
        }
    }
    // Once a second the gateway publishes its statistics.
    let (requests, others) = (a.client.stat().unwrap().requests - before, 2 * start.elapsed().as_secs());
    assert!(requests < u64::from(ROUNDS) + others, "{requests} requests of {ROUNDS} rounds, {others} of others");
    // A client of this machine may use the name, and the gateway then leaves it alone.
    b.client.put("x", &[0u8]).unwrap();
    gone(&a);
    let own = a.client.put("b/x", &[9u8]).unwrap();
    assert_eq!(a.client.version("b/x").unwrap(), Some(own));
    a.client.delete("b/x").unwrap();
    // The copies end with the gateway.
    assert_eq!(read_by(&mut caller, &a.client, "b/x"), [0]);
    drop(caller);
    a.stop();
    eventually("nothing is left", || a.client.list("*").unwrap().is_empty().then_some(()));
}

#[test]
fn copies_that_have_gone_give_their_names_back() {
    const NAMES: u64 = 600;
    let (_network, a, b) = two(|_| {});
    let mut caller = a.client.caller(SERVICE).open().unwrap();
    for n in 0..NAMES {
        let name = format!("x/{n}");
        b.client.put(&name, &[1u8]).unwrap();
        assert_eq!(read_by(&mut caller, &a.client, &format!("b/{name}")), [1]);
        b.client.delete(&name).unwrap();
    }
    eventually("all copies have gone", || a.client.list("b/x/*").unwrap().is_empty().then_some(()));
    let used = a.client.stat().unwrap().names;
    assert!(used < NAMES / 2, "{used} names are in use");
}

/// A node whose responses to requests for names the test determines.
struct Liar {
    node: NodeName,
    way: Memory,
    declared: Vec<tensorlend_gateway::transport::Declared>,
}

type Lie = dyn FnMut(AboutName) -> Frame + Send;

impl Liar {
    fn new(network: &Network, lie: Box<Lie>) -> Self {
        let way = network.join();
        let node = NodeName::new("liar").unwrap();
        let lie = Mutex::new(lie);
        let answer = move |question: Question| {
            let about = decode::<AboutName>(&question.frame.head).unwrap();
            (question.answer)(lie.lock().unwrap()(about));
        };
        let key = Key::About { node: node.clone(), kind: Kind::Name, space: "default".into(), name: None };
        let declared = vec![way.answer(&key, Arc::new(answer)).unwrap(), way.declare_alive(&node, Epoch(5)).unwrap()];
        Self { node, way, declared }
    }

    fn ask(&self, node: &str, what: NameQuestion, by: &str) -> Option<NameAnswer> {
        self.ask_with(node, what, Body::default(), by)
    }

    fn ask_with(&self, node: &str, what: NameQuestion, body: Body, by: &str) -> Option<NameAnswer> {
        let (sender, answers) = std::sync::mpsc::channel();
        let key = Key::About {
            node: NodeName::new(node).unwrap(),
            kind: Kind::Name,
            space: "default".into(),
            name: Some("x".into()),
        };
        let about = AboutName { asker: Asker { node: NodeName::new(by).unwrap(), epoch: Epoch(5) }, what };
        let frame = Frame { head: encode(&about), body };
        let done = move |answer: Result<Frame, _>| sender.send(answer.ok()).unwrap();
        self.way.ask(&key, frame, LONG, Box::new(done));
        answers.recv().unwrap().map(|frame| decode(&frame.head).unwrap())
    }
}

fn described(origin: &str, bytes: u64) -> Descriptor {
    let shape = TensorShape { dtype: (1, 8, 1), shape: vec![bytes], metadata: vec![], timestamp_ns: 0 };
    Descriptor { origin: NodeName::new(origin).unwrap(), shape: Shape::Tensor(shape) }
}

fn value(descriptor: Descriptor, chunk: Chunk, body: usize) -> Frame {
    let stamp = Stamp { epoch: Epoch(5), counter: u64::MAX };
    let head = encode(&NameAnswer::Value { descriptor, stamp, chunk });
    Frame { head, body: Body::of(Bytes::from(vec![1; body])) }
}

#[test]
fn lies_are_dropped_and_counted_and_never_published() {
    let network = Network::new(1);
    let a = Host::with(&network, "a", |settings| settings.checksum = true);
    let whole = |bytes| Chunk { bytes, ..Chunk::default() };
    let lies: Vec<Frame> = vec![
        Frame::default(),
        Frame { head: Bytes::from(noise(200, 1)), body: Body::default() },
        Frame { head: encode(&NameAnswer::Unchanged), body: Body::default() },
        Frame { head: encode(&NameAnswer::Done), body: Body::default() },
        Frame { head: encode(&NameAnswer::Bytes(whole(5))), body: Body::of(Bytes::from_static(b"12345")) },
        // Another node's value; and a node's own value that returns to it.
        value(described("b", 10), whole(10), 10),
        value(described("a", 10), whole(10), 10),
        // A body that is too long, too short, empty.
        value(described("liar", 10), whole(10), 11),
        value(described("liar", 10), whole(10), 9),
        value(described("liar", 10), whole(10), 0),
        // Bytes with a wrong checksum.
        value(described("liar", 10), Chunk { checksum: Some(1), ..whole(10) }, 10),
    ];
    let (count, next) = (lies.len(), Arc::new(AtomicU64::new(0)));
    let told = next.clone();
    let lie = move |about: AboutName| match about.what {
        NameQuestion::Get { .. } => lies[told.load(Ordering::Relaxed) as usize].clone(),
        _ => Frame::default(),
    };
    let liar = Liar::new(&network, Box::new(lie));
    a.sees("liar", true);
    for n in 0..count {
        next.store(n as u64, Ordering::Relaxed);
        let answer = a.fetch("liar/x");
        assert!(matches!(answer, RemoteAnswer::Refused { .. }), "lie {n}: {answer:?}");
        assert_eq!(a.client.version("liar/x").unwrap(), None, "lie {n}");
    }
    a.counts("dropped", 7);
    a.counts("loops", 1);
    // Messages that no gateway sends.
    let key = |from: &str| Key::Changed {
        from: Some(NodeName::new(from).unwrap()),
        to: NodeName::new("a").unwrap(),
        space: Some("default".into()),
    };
    let changed = Changed { epoch: Epoch(99), number: 1, names: vec![("x".into(), None)] };
    liar.way.send(&key("liar"), Frame { head: encode(&changed), body: Body::default() }).unwrap();
    liar.way.send(&key("nobody"), Frame { head: encode(&changed), body: Body::default() }).unwrap();
    liar.way.send(&key("liar"), Frame { head: Bytes::from(noise(50, 8)), body: Body::default() }).unwrap();
    a.counts("dropped", 10);
    assert_eq!(liar.declared.len(), 2);
    assert_eq!(liar.node.as_str(), "liar");
}

#[test]
fn a_value_whose_bytes_never_come_right_is_refused() {
    let network = Network::new(1);
    let a = Host::new(&network, "a");
    let asked = Arc::new(AtomicU64::new(0));
    let count = asked.clone();
    let lie = move |about: AboutName| match about.what {
        NameQuestion::Get { .. } => value(described("liar", 1 << 20), Chunk::default(), 0),
        // A chunk at another offset than requested.
        NameQuestion::Read { offset, bytes, .. } => {
            count.fetch_add(1, Ordering::Relaxed);
            let chunk = Chunk { offset: offset + 1, bytes, ..Chunk::default() };
            Frame { head: encode(&NameAnswer::Bytes(chunk)), body: Body::of(Bytes::from(vec![0; bytes as usize])) }
        }
        _ => Frame { head: encode(&NameAnswer::Done), body: Body::default() },
    };
    let _liar = Liar::new(&network, Box::new(lie));
    a.sees("liar", true);
    assert!(matches!(a.fetch("liar/x"), RemoteAnswer::Refused { .. }));
    assert!(asked.load(Ordering::Relaxed) < 100);
    assert_eq!(a.client.version("liar/x").unwrap(), None);
}

#[test]
fn a_node_that_never_answers_leaves_the_others_half_of_what_may_be_on_its_way() {
    let (network, a, b) = two(|settings| settings.answer_timeout = LONG);
    let (free, held) = std::sync::mpsc::channel::<()>();
    let lie = move |about: AboutName| {
        if let NameQuestion::Get { .. } = about.what {
            return value(described("liar", 1 << 20), Chunk::default(), 0);
        }
        let _ = held.recv();
        Frame::default()
    };
    let _liar = Liar::new(&network, Box::new(lie));
    // Dropped before the liar, which waits for it.
    let _free = free;
    a.sees("liar", true);
    // Four times the limit of bytes in flight, requested by programs that do not wait for them.
    for n in 0..8 {
        let mut caller = a.client.caller(SERVICE).open().unwrap();
        let mut draft = a.client.create(DType::U8, &[0]).unwrap();
        draft.set_metadata(&RemoteRequest::Get { name: format!("liar/{n}") }.encode()).unwrap();
        assert!(caller.call(draft, Some(Duration::from_millis(50))).is_err());
    }
    a.counts("in_flight_bytes", 256 << 10);
    assert_eq!((a.statistic("in_flight_bytes"), a.statistic("in_flight_bytes_max")), (256 << 10, 512 << 10));
    for n in 0..5 {
        let bytes = noise(1 << 20, n);
        b.client.put("x", &bytes).unwrap();
        eventually("the new value", || (a.bytes("b/x") == bytes).then_some(()));
    }
}

#[test]
fn a_value_that_is_too_large_to_be_is_refused_before_memory_is_asked_for() {
    let network = Network::new(1);
    let a = Host::new(&network, "a");
    let lie = |_: AboutName| value(described("liar", 1 << 50), Chunk::default(), 0);
    let _liar = Liar::new(&network, Box::new(lie));
    a.sees("liar", true);
    assert!(matches!(a.fetch("liar/x"), RemoteAnswer::Refused { .. }));
    assert_eq!(a.statistic("transfers"), 0);
}

#[test]
fn who_asks_for_what_cannot_be_is_refused() {
    let network = Network::new(1);
    let b = Host::new(&network, "b");
    b.client.put("x", &[1u8; 100]).unwrap();
    let liar = Liar::new(&network, Box::new(|_| Frame::default()));
    b.sees("liar", true);
    let get = NameQuestion::Get { have: None, inline_max: 10 };
    let Some(NameAnswer::Value { stamp, chunk, .. }) = liar.ask("b", get.clone(), "liar") else { panic!("no value") };
    assert_eq!(chunk.bytes, 10);
    let read =
        |stamp, offset, bytes| NameQuestion::Read { stamp, offset, bytes, codecs: Codecs::default(), checksum: true };
    assert!(matches!(liar.ask("b", read(stamp, 50, 50), "liar"), Some(NameAnswer::Bytes(_))));
    for (offset, bytes) in [(50, 51), (100, 1), (1 << 40, 1)] {
        assert!(matches!(liar.ask("b", read(stamp, offset, bytes), "liar"), Some(NameAnswer::Refused(_))));
    }
    let future = Stamp { counter: stamp.counter + 1, ..stamp };
    assert_eq!(liar.ask("b", read(future, 0, 1), "liar"), Some(NameAnswer::Superseded(Some(stamp))));
    assert!(matches!(liar.ask("b", get.clone(), "liar"), Some(NameAnswer::Value { .. })));
    // In the name of the node that receives the request: it is ignored.
    assert_eq!(liar.ask("b", get, "b"), None);
    b.counts("loops", 1);
    let put = NameQuestion::Put { descriptor: described("b", 5), stamp, offer: 1, chunk: Chunk::default() };
    assert!(matches!(liar.ask("b", put, "liar"), Some(NameAnswer::Refused(_))));
}

/// A chunk must match its offer: otherwise the offer is refused, and nothing is published.
#[test]
fn offers_whose_bytes_are_not_what_they_say_are_refused() {
    let network = Network::new(1);
    let b = Host::with(&network, "b", |settings| settings.spaces[0].accept_put = Globs::new(&["*"]).unwrap());
    let liar = Liar::new(&network, Box::new(|_| Frame { head: encode(&NameAnswer::Nothing), body: Body::default() }));
    b.sees("liar", true);
    let stamp = Stamp { epoch: Epoch(5), counter: 1 };
    let offer = |offer, chunk, body: usize| {
        let what = NameQuestion::Put { descriptor: described("liar", 10), stamp, offer, chunk };
        liar.ask_with("b", what, Body::of(Bytes::from(vec![1; body])), "liar")
    };
    let whole = Chunk { bytes: 10, ..Chunk::default() };
    for (number, chunk, body) in [
        (1, whole.clone(), 9),
        (2, whole.clone(), 11),
        (3, whole.clone(), 0),
        (4, Chunk { checksum: Some(1), ..whole.clone() }, 10),
        (5, Chunk { offset: 5, bytes: 5, ..Chunk::default() }, 5),
        // An empty chunk, and an offer of a missing value.
        (6, Chunk::default(), 0),
    ] {
        assert!(matches!(offer(number, chunk, body), Some(NameAnswer::Refused(_))), "{number}");
    }
    assert!(!b.client.exists("x").unwrap());
    assert_eq!(offer(8, whole.clone(), 10), Some(NameAnswer::Done));
    assert_eq!(b.client.get("x").unwrap().bytes(), [1; 10]);
    // A repeated offer is not taken again.
    b.client.put("x", &[2u8; 10]).unwrap();
    assert_eq!(offer(8, whole, 10), Some(NameAnswer::Done));
    assert_eq!(b.client.get("x").unwrap().bytes(), [2; 10]);
}

#[test]
fn the_broker_is_left_tidy() {
    let (_network, mut a, b) = two(|_| {});
    b.client.put("x", &[1u8; 1000]).unwrap();
    a.read("b/x");
    a.stop();
    eventually("nothing is left", || a.client.list("*").unwrap().is_empty().then_some(()));
    assert!(a.broker.socket().exists());
}
