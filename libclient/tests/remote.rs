//! Names of other machines, as a program sees them: the test runs its own gateway, with an embedded daemon.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tensorlend::remote::{
    NodeDocument, Placement, RemoteAnswer, RemoteInfo, RemoteNames, RemoteRequest, SERVICE, VALUE, VALUE_PREFIX,
    node_name, split,
};
use tensorlend::{Call, Client, DType, Draft, Error, Lifetime, RemoteTrouble, Result, Stream, Value, Version};
use tensorlend_daemon::Embedded;

const LONG: Option<Duration> = Some(Duration::from_mins(5));

fn broker() -> Embedded {
    tensorlend_daemon::embedded().expect("an embedded broker starts")
}

fn client(broker: &Embedded) -> Client {
    let builder = Client::builder().socket(broker.socket()).remote_timeout(Duration::from_mins(5));
    builder.connect().expect("a client connects")
}

fn say_node(client: &Client, node: &str, alive: bool, here: bool) {
    let document = NodeDocument { v: 1, node: node.into(), epoch: "0".repeat(16), alive, here };
    client.put_for(&node_name(node), document.encode().as_slice(), Lifetime::EPHEMERAL).unwrap();
}

/// The other machine's values: bytes by name.
#[derive(Default)]
struct There {
    values: Mutex<HashMap<String, Vec<u8>>>,
    streams: Mutex<HashMap<String, Stream>>,
    asked: AtomicU32,
    waiting: AtomicU32,
    waiting_max: AtomicU32,
}

/// A gateway to one node, `node7`, with the values in `there`; the node `lost` is unreachable.
struct Gateway {
    there: Arc<There>,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Gateway {
    fn start(broker: &Embedded) -> Self {
        let (there, end) = (Arc::new(There::default()), Arc::new(AtomicBool::new(false)));
        let (client, state, ending) = (client(broker), there.clone(), end.clone());
        let mut server = client.serve(SERVICE).open().unwrap();
        for (node, alive, here) in [("node7", true, false), ("lost", false, false), ("home", true, true)] {
            say_node(&client, node, alive, here);
        }
        let thread = std::thread::spawn(move || {
            std::thread::scope(|scope| {
                while !ending.load(Ordering::Relaxed) {
                    if let Ok(call) = server.recv_timeout(Duration::from_millis(20)) {
                        let (client, state, ending) = (&client, &state, &ending);
                        scope.spawn(move || answer(client, state, ending, call).unwrap());
                    }
                }
            });
        });
        Self { there, end, thread: Some(thread) }
    }

    fn has(&self, name: &str, bytes: &[u8]) {
        self.there.values.lock().unwrap().insert(name.into(), bytes.to_vec());
    }

    fn asked(&self) -> u32 {
        self.there.asked.load(Ordering::Relaxed)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

fn said(client: &Client, answer: &RemoteAnswer, elements: &[u8]) -> Result<Draft> {
    let mut draft = client.create(DType::U8, &[elements.len() as u64])?;
    draft.bytes_mut().copy_from_slice(elements);
    draft.set_metadata(&answer.encode())?;
    Ok(draft)
}

fn fetch(client: &Client, there: &There, name: &str) -> RemoteAnswer {
    match split(name) {
        Some(("lost", _)) => RemoteAnswer::Unreachable,
        Some((_, "secret")) => RemoteAnswer::Refused { why: "not for you".into() },
        Some((_, rest)) => match there.values.lock().unwrap().get(rest) {
            Some(bytes) => {
                client.put(name, bytes.as_slice()).unwrap();
                RemoteAnswer::here(false)
            }
            None => RemoteAnswer::Nothing,
        },
        None => RemoteAnswer::Nothing,
    }
}

fn answer(client: &Client, there: &There, end: &AtomicBool, call: Call) -> Result<()> {
    there.asked.fetch_add(1, Ordering::Relaxed);
    let metadata = match call.value() {
        Value::Tensor(tensor) => tensor.metadata(),
        Value::Dataset(dataset) => dataset.metadata(),
        #[allow(unreachable_patterns)]
        _ => unreachable!("nothing here is on a device"),
    };
    let mut elements = Vec::new();
    let answer = match RemoteRequest::decode(metadata).expect("a request") {
        RemoteRequest::Get { name } => fetch(client, there, &name),
        RemoteRequest::Wait { name, seen, timeout_ms } => {
            let seen = Version::from_words([seen.0, seen.1]);
            let waiting = there.waiting.fetch_add(1, Ordering::Relaxed) + 1;
            there.waiting_max.fetch_max(waiting, Ordering::Relaxed);
            let begun = Instant::now();
            let answer = loop {
                let news = fetch(client, there, &name);
                if news != RemoteAnswer::here(false) {
                    if !matches!(news, RemoteAnswer::Nothing) || begun.elapsed().as_millis() as u64 > timeout_ms {
                        break news;
                    }
                } else if seen == Version::NONE || client.version(&name)? != Some(seen) {
                    break news;
                }
                if end.load(Ordering::Relaxed) {
                    break RemoteAnswer::Timeout;
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            there.waiting.fetch_sub(1, Ordering::Relaxed);
            answer
        }
        RemoteRequest::Put { name, dataset } => {
            let sent = call.dataset()?;
            let mut bytes = Vec::new();
            for (member, tensor) in sent {
                assert!(if dataset {
                    member.starts_with(VALUE_PREFIX) || member == ".metadata"
                } else {
                    member == VALUE
                });
                bytes.extend_from_slice(tensor.as_slice::<u8>()?);
            }
            let name = split(&name).unwrap().1.to_owned();
            there.values.lock().unwrap().insert(name, bytes);
            RemoteAnswer::here(false)
        }
        RemoteRequest::Subscribe { name } if split(&name).unwrap().1 == "cam" => {
            let mut streams = there.streams.lock().unwrap();
            if !streams.contains_key(&name) {
                streams.insert(name.clone(), client.stream(&name).capacity(4).open()?);
            }
            RemoteAnswer::here(false)
        }
        RemoteRequest::Subscribe { .. } => RemoteAnswer::Nothing,
        RemoteRequest::List { name } => {
            for n in client.length(&name)..3 {
                let mut item = client.create(DType::U8, &[1])?;
                item.bytes_mut()[0] = n as u8;
                client.append(&name, item)?;
            }
            RemoteAnswer::here(false)
        }
        RemoteRequest::Names { .. } => {
            let names = there.values.lock().unwrap();
            let names = names.iter().map(|(name, bytes)| RemoteInfo {
                name: format!("node7/{name}"),
                kind: "tensor".into(),
                dtype: "u8".into(),
                shape: vec![bytes.len()],
                size: bytes.len() as u64,
                cached: false,
                stale: false,
            });
            elements = RemoteNames { names: names.collect(), silent: vec!["lost".into()], more: false }.encode();
            RemoteAnswer::Names
        }
        RemoteRequest::Where { name } => RemoteAnswer::Where(Placement {
            node: split(&name).unwrap().0.into(),
            alive: true,
            cached: client.exists(&name)?,
            stale: false,
            stamp: String::new(),
        }),
    };
    call.respond(said(client, &answer, &elements)?)
}

fn trouble(error: Error) -> RemoteTrouble {
    match error {
        Error::Remote { cause, .. } => cause,
        other => panic!("{other}"),
    }
}

#[test]
fn a_name_of_another_machine_is_fetched_once_and_read_here() {
    let broker = broker();
    let (gateway, reader) = (Gateway::start(&broker), client(&broker));
    gateway.has("sim/pressure", &[1, 2, 3]);
    assert_eq!(reader.get("node7/sim/pressure").unwrap().as_slice::<u8>().unwrap(), [1, 2, 3]);
    assert_eq!(reader.get("node7/sim/pressure").unwrap().as_slice::<u8>().unwrap(), [1, 2, 3]);
    assert_eq!(gateway.asked(), 1);
    assert!(reader.remote().placement("node7/sim/pressure").unwrap().unwrap().cached);
    assert_eq!(reader.remote().placement("sim/pressure").unwrap(), None);
    // A node's own names also work with the node's name as the first part.
    reader.put("temperature", &[4u8]).unwrap();
    assert_eq!(reader.get("home/temperature").unwrap().as_slice::<u8>().unwrap(), [4]);
    let again = reader.wait_for("home/temperature", LONG).unwrap();
    assert_eq!(again.as_slice::<u8>().unwrap(), [4]);
}

#[test]
fn what_cannot_be_had_says_why() {
    let broker = broker();
    let reader = client(&broker);
    // Without a gateway it is an ordinary name.
    assert!(matches!(reader.get("node7/x"), Err(Error::NotFound(_))));
    assert!(matches!(trouble(reader.remote().put("node7/x", &[1u8]).unwrap_err()), RemoteTrouble::Unknown { .. }));
    let gateway = Gateway::start(&broker);
    let missing = reader.get("node7/nothing").unwrap_err();
    assert!(missing.is_not_found() && missing.to_string().contains("node7"), "{missing}");
    assert!(matches!(trouble(missing), RemoteTrouble::Nothing { .. }));
    let lost = reader.get_value("lost/x").unwrap_err();
    assert!(lost.is_remote() && !lost.is_not_found());
    assert!(matches!(trouble(lost), RemoteTrouble::Unreachable { .. }));
    let refused = trouble(reader.get("node7/secret").unwrap_err());
    assert_eq!(refused, RemoteTrouble::Refused { node: "node7".into(), why: "not for you".into() });
    // The gateway receives no requests for other names.
    let asked = gateway.asked();
    assert!(matches!(reader.get("other/x"), Err(Error::NotFound(_))));
    assert!(matches!(reader.get("node7"), Err(Error::NotFound(_))));
    assert_eq!(gateway.asked(), asked);
}

#[test]
fn nodes_and_their_names_are_listed() {
    let broker = broker();
    let (gateway, reader) = (Gateway::start(&broker), client(&broker));
    let nodes: Vec<_> =
        reader.remote().nodes().unwrap().into_iter().map(|node| (node.node, node.alive, node.here)).collect();
    let is = |node: &str, alive, here| (node.to_owned(), alive, here);
    assert_eq!(nodes, [is("home", true, true), is("lost", false, false), is("node7", true, false)]);
    gateway.has("x", &[1]);
    let found = reader.remote().names("*").unwrap();
    assert_eq!((found.names[0].name.as_str(), found.silent.as_slice()), ("node7/x", ["lost".to_owned()].as_slice()));
    // Documents with another node's name, and invalid documents, are ignored.
    let liar = client(&broker);
    say_node(&liar, "node8", true, false);
    liar.rename(&node_name("node8"), &node_name("node9")).unwrap();
    liar.put(&node_name("node10"), b"{}".as_slice()).unwrap();
    assert_eq!(reader.remote().nodes().unwrap().len(), 3);
    assert!(matches!(reader.get("node9/x"), Err(Error::NotFound(_))));
    assert!(matches!(reader.get("node10/x"), Err(Error::NotFound(_))));
}

#[test]
fn waits_go_on_until_the_other_machine_has_something_newer() {
    let broker = broker();
    let (gateway, reader) = (Gateway::start(&broker), client(&broker));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| reader.wait_for("node7/late", LONG));
        while gateway.asked() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        gateway.has("late", &[7]);
        assert_eq!(waiting.join().unwrap().unwrap().as_slice::<u8>().unwrap(), [7]);
    });
    let none = reader.wait_for("node7/never", Some(Duration::from_millis(30))).unwrap_err();
    assert!(none.is_timeout() && none.to_string().contains("no such name"), "{none}");
    let lost = reader.wait_for("lost/never", Some(Duration::from_millis(30))).unwrap_err();
    assert!(lost.is_timeout() && lost.to_string().contains("cannot be reached"), "{lost}");
    assert!(reader.wait_for("node7/secret", LONG).unwrap_err().is_remote());
}

#[test]
fn a_wait_that_began_before_its_node_came_is_asked_there() {
    let broker = broker();
    let reader = client(&broker);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| reader.wait_for("node7/x", LONG));
        // The test cannot observe that the reader waits. The value must arrive in either order.
        std::thread::sleep(Duration::from_millis(50));
        let gateway = Gateway::start(&broker);
        gateway.has("x", &[9]);
        assert_eq!(waiting.join().unwrap().unwrap().as_slice::<u8>().unwrap(), [9]);
    });
}

#[test]
fn long_waits_hold_up_nobody() {
    let broker = broker();
    let (gateway, reader) = (Gateway::start(&broker), client(&broker));
    gateway.has("now", &[1]);
    std::thread::scope(|scope| {
        for n in 0..6 {
            let reader = &reader;
            scope.spawn(move || reader.wait_for(&format!("node7/later/{n}"), LONG).unwrap());
        }
        while gateway.there.waiting.load(Ordering::Relaxed) < 6 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(reader.get("node7/now").unwrap().as_slice::<u8>().unwrap(), [1]);
        (0..6).for_each(|n| gateway.has(&format!("later/{n}"), &[n]));
    });
    // More than may be in flight at once: they wait for each other, and all get a response.
    std::thread::scope(|scope| {
        for n in 0..20 {
            let reader = &reader;
            scope.spawn(move || assert!(reader.get(&format!("node7/missing/{n}")).unwrap_err().is_not_found()));
        }
    });
    assert!(gateway.there.waiting_max.load(Ordering::Relaxed) >= 6);
}

#[test]
fn values_are_put_there() {
    let broker = broker();
    let (gateway, writer) = (Gateway::start(&broker), client(&broker));
    writer.remote().put("node7/gain", &[5u8]).unwrap();
    let two = |n: u8| {
        let mut draft = writer.create(DType::U8, &[2]).unwrap();
        draft.bytes_mut().fill(n);
        draft
    };
    let several = writer.dataset().add("a", two(1)).unwrap().add("b", two(2)).unwrap().metadata(b"m").unwrap();
    writer.remote().put_draft("node7/several", several).unwrap();
    let values = gateway.there.values.lock().unwrap();
    assert_eq!(
        (values["gain"].as_slice(), values["several"].as_slice()),
        ([5].as_slice(), [1, 1, 2, 2, b'm'].as_slice())
    );
    drop(values);
    writer.remote().put("home/gain", &[6u8]).unwrap();
    assert_eq!(writer.get("gain").unwrap().as_slice::<u8>().unwrap(), [6]);
}

#[test]
fn streams_and_lists_are_asked_for() {
    let broker = broker();
    let (gateway, reader) = (Gateway::start(&broker), client(&broker));
    let mut frames = reader.subscribe("node7/cam").unwrap();
    let streams = gateway.there.streams.lock().unwrap();
    let sender = client(&broker);
    drop(sender);
    assert_eq!((frames.name(), streams.len()), ("node7/cam", 1));
    drop(streams);
    assert!(frames.try_recv().unwrap().is_none());
    let none = reader.subscribe("node7/none").unwrap_err();
    assert!(none.is_not_found() && none.is_remote());
    let late = reader.subscription("node7/none").wait(Duration::from_millis(30)).open().unwrap_err();
    assert!(late.is_timeout(), "{late}");
    assert!(reader.subscribe("nowhere/cam").unwrap_err().is_not_found());

    assert_eq!(reader.length("node7/episodes"), 0);
    assert_eq!(reader.remote().fetch_list("node7/episodes").unwrap(), 3);
    let items = reader.get_all("node7/episodes").unwrap();
    assert_eq!(items.iter().map(|item| item.as_tensor().unwrap().bytes()[0]).collect::<Vec<_>>(), [0, 1, 2]);
}

/// Serves, and responds to everything with these words and this tensor.
fn liar(broker: &Embedded, words: Vec<u8>, calls: usize) -> JoinHandle<()> {
    let client = client(broker);
    let mut server = client.serve(SERVICE).open().unwrap();
    say_node(&client, "node7", true, false);
    std::thread::spawn(move || {
        for _ in 0..calls {
            let call = server.recv_timeout(Duration::from_mins(5)).unwrap();
            let mut draft = client.create(DType::U8, &[0]).unwrap();
            draft.set_metadata(&words).unwrap();
            call.respond(draft).unwrap();
        }
    })
}

#[test]
fn a_gateway_that_answers_nonsense_is_told_of_and_ends_no_program() {
    let broker = broker();
    for words in [b"".to_vec(), b"{}".to_vec(), br#"{"v":2,"answer":"nothing"}"#.to_vec(), vec![0xff; 60_000]] {
        let (thread, reader) = (liar(&broker, words, 1), client(&broker));
        assert!(matches!(trouble(reader.get("node7/x").unwrap_err()), RemoteTrouble::Gateway { .. }));
        thread.join().unwrap();
    }
    // Claims that the value is here, but it is not.
    let here = RemoteAnswer::here(false).encode();
    let (thread, reader) = (liar(&broker, here, 16), client(&broker));
    assert!(matches!(trouble(reader.get("node7/x").unwrap_err()), RemoteTrouble::Gateway { .. }));
    thread.join().unwrap();
}

#[test]
fn a_gateway_that_never_answers_is_given_up() {
    let broker = broker();
    let silent = client(&broker);
    let _server = silent.serve(SERVICE).open().unwrap();
    say_node(&silent, "node7", true, false);
    let reader =
        Client::builder().socket(broker.socket()).remote_timeout(Duration::from_millis(100)).connect().unwrap();
    let error = reader.get("node7/x").unwrap_err();
    assert!(error.is_timeout() || matches!(trouble(error), RemoteTrouble::Gateway { .. }));
    let late = reader.wait_for("node7/x", Some(Duration::from_millis(10)));
    assert!(late.unwrap_err().is_timeout());
}

#[cfg(feature = "tokio")]
#[test]
fn tasks_wait_for_other_machines_too() {
    let broker = broker();
    let reader = client(&broker).into_async();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let waiting = runtime.spawn({
        let reader = reader.clone();
        async move { reader.wait_for("node7/x").await.map(|lease| lease.bytes().to_vec()) }
    });
    let gateway = Gateway::start(&broker);
    gateway.has("x", &[3]);
    assert_eq!(runtime.block_on(waiting).unwrap().unwrap(), [3]);
    gateway.has("y", &[4]);
    assert_eq!(runtime.block_on(reader.wait_for("node7/y")).unwrap().bytes(), [4]);
    reader.put("z", &[5u8]).unwrap();
    assert_eq!(runtime.block_on(reader.wait_for("home/z")).unwrap().bytes(), [5]);
}
