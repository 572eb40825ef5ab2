//! Streams and listings between daemons in one process, over an in-memory network.

mod network;

use bytes::Bytes;
use network::{Memory, Network, Weather};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tensorlend::remote::{SERVICE, node_name};
use tensorlend::{Client, DType, Draft, Policy, Stream, Subscription};
use tensorlend_daemon::{Config, Embedded};
use tensorlend_gateway::Gateway;
use tensorlend_gateway::key::Key;
use tensorlend_gateway::settings::Settings;
use tensorlend_gateway::transport::{Body, Frame, LOSS_DELAY, OnNode, Transport};
use tensorlend_gateway::wire::{Chunk, Message, NodeName, Part, encode};

const LONG: Duration = Duration::from_mins(5);

/// A machine: its daemon, a client of it, its gateway.
struct Host {
    broker: Embedded,
    client: Client,
    way: Arc<Memory>,
    _gateway: Gateway,
}

impl Host {
    fn new(network: &Network, name: &str, policy: Policy) -> Self {
        // Without losses every answer arrives, however busy the machine is.
        Self::with_timeout(network, name, policy, LONG)
    }

    fn with_timeout(network: &Network, name: &str, policy: Policy, answer_timeout: Duration) -> Self {
        Self::on(tensorlend_daemon::embedded().unwrap(), network, name, policy, answer_timeout)
    }

    fn on(broker: Embedded, network: &Network, name: &str, policy: Policy, answer_timeout: Duration) -> Self {
        let connect = |label: &str| Client::builder().socket(broker.socket()).label(label).connect().unwrap();
        let client = connect("test");
        let mut settings = Settings::of_node(NodeName::new(name).unwrap());
        settings.socket = Some(broker.socket().to_owned());
        settings.chunk_bytes = 64 << 10;
        settings.window_bytes = 1 << 20;
        settings.windows_bytes = 4 << 20;
        settings.checksum = true;
        settings.answer_timeout = answer_timeout;
        settings.spaces[0].stream_policy = policy;
        let way = Arc::new(network.join());
        let gateway = Gateway::start(settings, way.clone()).unwrap();
        Self { broker, client, way, _gateway: gateway }
    }

    /// Waits until this gateway has seen another node connect or disconnect.
    fn sees(&self, node: &str, alive: bool) {
        until(|| self.client.remote().nodes().unwrap().iter().any(|known| known.node == node && known.alive == alive));
    }

    fn stat(&self, what: &str) -> u64 {
        let lease = self.client.wait_for(&format!("{SERVICE}/stat"), Some(LONG)).unwrap();
        let read: serde_json::Value = serde_json::from_slice(lease.as_slice::<u8>().unwrap()).unwrap();
        read[what].as_u64().unwrap()
    }

    fn number(&self, bytes: u64, n: u64) -> Draft {
        let mut draft = self.client.create(DType::U64, &[bytes / 8]).unwrap();
        draft.as_mut_slice::<u64>().unwrap().fill(n);
        draft
    }
}

fn until(mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < LONG, "it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn pair(network: &Network, policy: Policy) -> (Host, Host) {
    let (there, here) = (Host::new(network, "there", policy), Host::new(network, "here", policy));
    here.sees("there", true);
    there.sees("here", true);
    (there, here)
}

/// Returns the next message's number, which all of its elements must equal.
fn next(frames: &mut Subscription) -> u64 {
    let message = frames.recv_timeout(LONG).unwrap();
    let numbers = message.tensor().unwrap().as_slice::<u64>().unwrap().to_vec();
    assert!(numbers.iter().all(|n| *n == numbers[0]), "torn");
    numbers[0]
}

fn stream(host: &Host, policy: Policy) -> Stream {
    host.client.stream("cam").capacity(8).policy(policy).open().unwrap()
}

#[test]
fn every_message_arrives_in_order_and_whole() {
    let network = Network::new(1);
    let (there, here) = pair(&network, Policy::Block);
    let cam = stream(&there, Policy::Block);
    let mut frames = here.client.subscribe("there/cam").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..300 {
                // Empty ones, small ones, and some of many chunks.
                let bytes = if n % 50 == 7 { 3 << 20 } else { 8 + 8 * (n % 5) };
                cam.send(there.number(bytes, n)).unwrap();
            }
        });
        for n in 0..300 {
            assert_eq!(next(&mut frames), n);
        }
    });
    assert_eq!(frames.lost(), 0);
    // A later subscriber shares the link, and datasets arrive unchanged.
    let mut second = here.client.subscribe("there/cam").unwrap();
    let mut image = there.number(16, 7);
    image.set_metadata(b"of the image").unwrap();
    let several = there.client.dataset().add("image", image).unwrap().add("none", there.number(0, 0)).unwrap();
    cam.send(several.metadata(b"frame").unwrap().timestamp(5)).unwrap();
    loop {
        let message = second.recv_timeout(LONG).unwrap();
        // The subscription began with the newest message at that time.
        let Ok(frame) = message.dataset() else { continue };
        assert_eq!((frame.metadata(), frame.timestamp(), frame.len()), (b"frame".as_slice(), 5, 2));
        assert_eq!(frame.get("image").unwrap().metadata(), b"of the image");
        break;
    }
    until(|| here.stat("messages_received") == 301);
    assert_eq!(here.stat("messages_lost"), 0);
}

#[test]
fn messages_of_10_mib_come_in_small_pieces() {
    let network = Network::new(2);
    let (there, here) = pair(&network, Policy::Block);
    let cam = stream(&there, Policy::Block);
    let mut frames = here.client.subscribe("there/cam").unwrap();
    for n in 0..4 {
        cam.send(there.number(10 << 20, n)).unwrap();
        assert_eq!(next(&mut frames), n);
    }
}

#[test]
fn a_slow_subscriber_holds_up_a_stream_that_blocks() {
    let network = Network::new(3);
    let (there, here) = pair(&network, Policy::Block);
    let cam = stream(&there, Policy::Block);
    let mut frames = here.client.subscribe("there/cam").unwrap();
    let sent = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..200 {
                cam.send(there.number(8, n)).unwrap();
                sent.store(n + 1, Ordering::Relaxed);
            }
        });
        // The subscriber takes nothing: rings and window fill up, and then the producer waits.
        until(|| {
            let before = sent.load(Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(300));
            before > 0 && before == sent.load(Ordering::Relaxed)
        });
        assert!(sent.load(Ordering::Relaxed) < 200);
        for n in 0..200 {
            assert_eq!(next(&mut frames), n);
        }
    });
}

#[test]
fn streams_that_nobody_takes_keep_less_than_their_part_here_and_hold_up_no_other() {
    let network = Network::new(8);
    let (there, here) = pair(&network, Policy::Block);
    let names = ["a", "b", "c", "d"];
    let open = |name: &str| there.client.stream(name).capacity(2).policy(Policy::Block).open().unwrap();
    let streams = names.map(open);
    let mut frames = names.map(|name| here.client.subscribe(&format!("there/{name}")).unwrap());
    std::thread::scope(|scope| {
        for stream in &streams {
            let there = &there;
            // Each message exceeds its link's limit of bytes in flight.
            scope.spawn(move || {
                for n in 0..8 {
                    stream.send(there.number(3 << 20, n)).unwrap();
                }
            });
        }
        until(|| here.stat("queued_bytes") > 0);
        let cam = open("cam");
        let mut taken = here.client.subscribe("there/cam").unwrap();
        for n in 0..20 {
            cam.send(there.number(200 << 10, n)).unwrap();
            assert_eq!(next(&mut taken), n);
            assert!(here.stat("queued_bytes") <= 2 << 20 && here.stat("in_flight_bytes") <= 2 << 20);
        }
        for frames in &mut frames {
            (0..8).for_each(|n| assert_eq!(next(frames), n));
        }
    });
    until(|| here.stat("queued_bytes") == 0);
    assert_eq!((here.stat("messages_lost"), here.stat("in_flight_bytes_max")), (0, 4 << 20));
}

#[test]
fn the_oldest_are_left_out_where_that_is_wanted() {
    let network = Network::new(4);
    let (there, here) = pair(&network, Policy::DropOldest);
    let cam = stream(&there, Policy::DropOldest);
    let mut frames = here.client.subscribe("there/cam").unwrap();
    // Messages before the first received one do not count as lost.
    cam.send(there.number(8, 0)).unwrap();
    assert_eq!(next(&mut frames), 0);
    // The subscriber takes none of these messages in the meantime.
    for n in 1..2000 {
        cam.send(there.number(64 << 10, n)).unwrap();
    }
    let (mut last, mut taken) = (None, 1);
    while last != Some(1999) {
        let n = next(&mut frames);
        assert!(last.is_none_or(|last| n > last), "{n} after {last:?}");
        (last, taken) = (Some(n), taken + 1);
    }
    assert!(taken < 2000);
    // The subscription counts messages lost anywhere.
    assert_eq!(taken + frames.lost(), 2000);
}

#[test]
fn a_stream_goes_on_after_a_parting() {
    let network = Network::new(5);
    let (there, here) = pair(&network, Policy::DropOldest);
    let cam = stream(&there, Policy::DropOldest);
    let mut frames = here.client.subscribe("there/cam").unwrap();
    cam.send(there.number(8, 0)).unwrap();
    assert_eq!(next(&mut frames), 0);
    network.part(&there.way, &here.way);
    here.sees("there", false);
    for n in 1..50 {
        cam.send(there.number(8, n)).unwrap();
    }
    network.heal(&there.way, &here.way);
    here.sees("there", true);
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 50.. {
                if end.load(Ordering::Relaxed) {
                    break;
                }
                cam.send(there.number(8, n)).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let mut last = 0;
        while last < 60 {
            let n = next(&mut frames);
            assert!(n > last, "{n} after {last}");
            last = n;
        }
        end.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_stream_that_ends_there_ends_here_and_goes_on_when_it_is_opened_again() {
    let network = Network::new(6);
    let (there, here) = pair(&network, Policy::Block);
    let cam = stream(&there, Policy::Block);
    let mut frames = here.client.subscribe("there/cam").unwrap();
    cam.send(there.number(8, 1)).unwrap();
    assert_eq!(next(&mut frames), 1);
    drop(cam);
    assert!(matches!(frames.recv_timeout(LONG), Err(tensorlend::Error::StreamEnded(_))));
    let cam = stream(&there, Policy::Block);
    cam.send(there.number(8, 2)).unwrap();
    let again = loop {
        match frames.recv_timeout(LONG) {
            Err(tensorlend::Error::StreamEnded(_)) => std::thread::sleep(Duration::from_millis(5)),
            other => break other.unwrap(),
        }
    };
    assert_eq!(again.tensor().unwrap().as_slice::<u64>().unwrap(), [2]);
    // Without a subscriber, nothing is sent.
    drop(frames);
    until(|| there.stat("streams_sent") == 0 && here.stat("streams_received") == 0);
    assert!(here.client.subscribe("there/none").unwrap_err().is_not_found());
}

#[test]
fn a_message_that_cannot_be_sent_here_is_lost_and_the_link_stays() {
    let network = Network::new(12);
    let (there, here) = pair(&network, Policy::Block);
    let cam = stream(&there, Policy::Block);
    let mut frames = here.client.subscribe("there/cam").unwrap();
    cam.send(there.number(8, 1)).unwrap();
    assert_eq!(next(&mut frames), 1);
    assert!(here.client.delete_stream("there/cam").unwrap());
    // The local stream of the first message is deleted, and the second one opens it again.
    cam.send(there.number(8, 2)).unwrap();
    cam.send(there.number(8, 3)).unwrap();
    let mut again = None;
    until(|| {
        again = frames.recv_timeout(Duration::from_millis(5)).ok();
        again.is_some()
    });
    let again = again.unwrap();
    assert_eq!((again.tensor().unwrap().as_slice::<u64>().unwrap(), again.lost()), ([3].as_slice(), 1));
}

#[test]
fn pieces_that_belong_to_nothing_are_dropped_and_counted() {
    let network = Network::new(7);
    let (there, here) = pair(&network, Policy::Block);
    let stranger = network.join();
    let key = |link| Key::Message {
        from: Some(NodeName::new("there").unwrap()),
        to: NodeName::new("here").unwrap(),
        link: Some(link),
    };
    let more = Message { number: 0, part: Part::More(Chunk { bytes: 3, ..Chunk::default() }) };
    let body = || Body::of(Bytes::from_static(b"abc"));
    let heads =
        [encode(&more), Bytes::new(), Bytes::from_static(b"TLG\x01\x0a\xff\xff"), Bytes::from(vec![0; 5 << 20])];
    for (link, head) in heads.into_iter().enumerate() {
        stranger.send(&key(link as u64), Frame { head, body: body() }).unwrap();
    }
    until(|| here.stat("dropped") >= 4);
    let cam = stream(&there, Policy::Block);
    let mut frames = here.client.subscribe("there/cam").unwrap();
    cam.send(there.number(8, 3)).unwrap();
    assert_eq!(next(&mut frames), 3);
}

#[test]
fn a_lossy_way_costs_messages_and_the_stream_goes_on() {
    let network = Network::new(8);
    let host = |name| Host::with_timeout(&network, name, Policy::DropOldest, Duration::from_millis(500));
    let (there, here) = (host("there"), host("here"));
    here.sees("there", true);
    let cam = stream(&there, Policy::DropOldest);
    // On a busy machine the answer may take longer than the timeout.
    let mut frames = None;
    until(|| {
        frames = here.client.subscribe("there/cam").ok();
        frames.is_some()
    });
    let mut frames = frames.unwrap();
    network.set_weather(Weather { delay: Duration::from_millis(1), jitter: Duration::from_millis(2), loss: 0.1 });
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                if end.load(Ordering::Relaxed) {
                    break;
                }
                cam.send(there.number(200 << 10, n)).unwrap();
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let mut last = None;
        for _ in 0..40 {
            let n = next(&mut frames);
            assert!(last.is_none_or(|last| n > last), "{n} after {last:?}");
            last = Some(n);
        }
        end.store(true, Ordering::Relaxed);
    });
    network.set_weather(Weather::default());
    assert!(here.stat("messages_received") > 0);
}

#[test]
fn names_of_all_nodes_are_listed_and_who_is_silent_is_named() {
    let network = Network::new(9);
    let (there, here) = pair(&network, Policy::Block);
    let third = Host::new(&network, "third", Policy::Block);
    here.sees("third", true);
    for n in 0..5000 {
        there.client.put(&format!("sim/{n:04}"), &[n]).unwrap();
    }
    third.client.put("sim/one", &[1.0f32, 2.0]).unwrap();
    let _cam = stream(&third, Policy::Block);
    third.client.append("episodes", third.number(8, 0)).unwrap();
    let found = here.client.remote().names("*").unwrap();
    assert!(found.silent.is_empty() && !found.more);
    let of = |kind: &str| {
        found.names.iter().filter(|name| name.kind == kind).map(|name| name.name.as_str()).collect::<Vec<_>>()
    };
    assert_eq!((of("tensor").len(), of("stream"), of("list")), (5001, vec!["third/cam"], vec!["third/episodes"]));
    // No names of the gateways themselves.
    assert!(found.names.iter().all(|name| !name.name.contains(SERVICE)));
    let one = here.client.remote().names("third/sim/*").unwrap();
    assert_eq!((one.names[0].dtype.as_str(), one.names[0].shape.as_slice()), ("f32", [2].as_slice()));
    assert!(!one.names[0].cached);
    assert_eq!(here.client.get("third/sim/one").unwrap().as_slice::<f32>().unwrap(), [1.0, 2.0]);
    assert!(here.client.exists(&node_name("third")).unwrap());
    network.part(&third.way, &here.way);
    here.sees("third", false);
    let found = here.client.remote().names("*/sim/one").unwrap();
    assert_eq!(found.silent, ["third"]);
    assert!(found.names.iter().all(|name| name.stale && name.cached && name.name == "third/sim/one"));
}

#[test]
fn lists_are_mirrored_and_only_what_is_new_is_fetched() {
    let network = Network::new(10);
    let (there, here) = pair(&network, Policy::Block);
    let append = |from: u64, to: u64| {
        for n in from..to {
            let bytes = if n == 3 { 1 << 20 } else { 8 * n };
            there.client.append("episodes", there.number(bytes, n)).unwrap();
        }
    };
    append(0, 100);
    assert!(here.client.remote().fetch_list("there/none").unwrap_err().is_not_found());
    assert_eq!(here.client.remote().fetch_list("there/episodes").unwrap(), 100);
    let look = |of: u64, first: u64| {
        let items = here.client.get_all("there/episodes").unwrap();
        assert_eq!(items.len() as u64, of);
        for (n, item) in (first..).zip(items) {
            assert!(item.as_tensor().unwrap().as_slice::<u64>().unwrap().iter().all(|one| *one == n));
        }
    };
    look(100, 0);
    let (identity, _) = here.client.list_identity("there/episodes").unwrap();
    append(100, 130);
    assert_eq!(here.client.remote().fetch_list("there/episodes").unwrap(), 130);
    look(130, 0);
    // The same list: the local items have stayed.
    assert_eq!(here.client.list_identity("there/episodes").unwrap().0, identity);
    there.client.clear("episodes").unwrap();
    append(7, 10);
    assert_eq!(here.client.remote().fetch_list("there/episodes").unwrap(), 3);
    look(3, 7);
    network.part(&there.way, &here.way);
    here.sees("there", false);
    // Local items stay.
    assert_eq!(here.client.remote().fetch_list("there/episodes").unwrap(), 3);
}

#[test]
fn a_list_of_small_items_takes_one_request_for_256_of_them() {
    let network = Network::new(12);
    let (there, here) = (Host::new(&network, "there", Policy::Block), Host::new(&network, "here", Policy::Block));
    here.sees("there", true);
    let answered = there.stat("answered");
    let append = |range: std::ops::Range<u64>| {
        there.client.append_many("episodes", range.map(|n| there.number(8, n))).unwrap();
    };
    append(0..600);
    assert_eq!(here.client.remote().fetch_list("there/episodes").unwrap(), 600);
    append(600..601);
    assert_eq!(here.client.remote().fetch_list("there/episodes").unwrap(), 601);
    let items = here.client.get_all("there/episodes").unwrap();
    let numbers: Vec<u64> = items.iter().map(|item| item.tensor().unwrap().as_slice::<u64>().unwrap()[0]).collect();
    assert!(numbers.iter().copied().eq(0..601));
    append(601..602);
    assert_eq!(here.client.remote().fetch_list("there/episodes").unwrap(), 602);
    // 256, 256 and 88 items, then one, and then one. A needless request would be counted before the last one.
    until(|| there.stat("answered") >= answered + 5);
    assert_eq!(there.stat("answered"), answered + 5);
    // A list that began again: the first response has its first items.
    there.client.clear("episodes").unwrap();
    append(1000..1700);
    assert_eq!(here.client.remote().fetch_list("there/episodes").unwrap(), 700);
    until(|| there.stat("answered") >= answered + 8);
    assert_eq!(there.stat("answered"), answered + 8);
}

/// The copy never has items of two lists, and has all items of the last list.
#[test]
fn a_list_that_begins_again_during_its_copy_is_copied_from_its_start() {
    let network = Network::new(12);
    let (there, here) = pair(&network, Policy::Block);
    let numbers = || -> Vec<u64> {
        match here.client.get_all("there/episodes") {
            Ok(items) => items.iter().map(|item| item.tensor().unwrap().as_slice::<u64>().unwrap()[0]).collect(),
            Err(error) => {
                assert!(error.is_not_found(), "{error}");
                Vec::new()
            }
        }
    };
    std::thread::scope(|scope| {
        let lists = scope.spawn(|| {
            for list in 1..=100 {
                there.client.clear("episodes").unwrap();
                for page in 0..7 {
                    let items = (list * 1000 + page * 100..).take(100);
                    there.client.append_many("episodes", items.map(|n| there.number(8, n))).unwrap();
                }
            }
        });
        while !lists.is_finished() {
            if let Err(error) = here.client.remote().fetch_list("there/episodes") {
                assert!(error.is_not_found() || error.to_string().contains("again and again"), "{error}");
            }
            let numbers = numbers();
            let first = numbers.first().copied().unwrap_or(0);
            assert_eq!(first % 1000, 0);
            assert!(numbers.iter().copied().eq(first..first + numbers.len() as u64), "{numbers:?}");
        }
    });
    assert_eq!(here.client.remote().fetch_list("there/episodes").unwrap(), 700);
    assert!(numbers().into_iter().eq((100_000..).take(700)));
}

#[test]
fn a_queue_whose_items_have_ended_is_refused() {
    let network = Network::new(12);
    let (there, here) = pair(&network, Policy::Block);
    let jobs = there.client.queue("jobs").unwrap();
    for n in 0..4 {
        jobs.put(there.number(8, n), None).unwrap();
    }
    assert!(here.client.queue("there/jobs").unwrap_err().to_string().contains("one machine"));
    // While all of its items exist, it is a list like any other.
    assert_eq!(here.client.remote().fetch_list("there/jobs").unwrap(), 4);
    for n in 4..8 {
        jobs.put(there.number(8, n), None).unwrap();
    }
    for _ in 0..6 {
        assert!(jobs.get(None).unwrap().done().unwrap());
    }
    let refused = here.client.remote().fetch_list("there/jobs").unwrap_err().to_string();
    assert!(refused.contains("of its items 4 to 8, only 2 exist: other machines copy no queue"), "{refused}");
    let kept = here.client.get_all("there/jobs").unwrap();
    assert_eq!(kept.len(), 4, "items that were copied stay");
}

/// The network fails a request to a lost node before it reports the loss, as zenoh does.
#[test]
fn a_name_of_a_lost_node_is_unreachable_and_not_missing() {
    let network = Network::new(11);
    let (there, here) = pair(&network, Policy::Block);
    let _cam = stream(&there, Policy::Block);
    there.client.append("episodes", there.number(8, 0)).unwrap();
    let ask = |list: &str, cam: &str| -> [tensorlend::Result<()>; 2] {
        std::thread::scope(|scope| {
            let list = scope.spawn(|| here.client.remote().fetch_list(list).map(drop));
            let cam = scope.spawn(|| here.client.subscribe(cam).map(drop));
            [list.join().unwrap(), cam.join().unwrap()]
        })
    };
    for asked in ask("there/none", "there/none") {
        assert!(asked.unwrap_err().is_not_found());
    }
    // The report takes this long, and all other frames take no time.
    let report = |change: fn(&Network, &Memory, &Memory), delay: u64| {
        network.set_weather(Weather { delay: Duration::from_millis(delay), ..Weather::default() });
        change(&network, &there.way, &here.way);
        network.set_weather(Weather::default());
    };
    let lost = timely(&here, || {
        report(Network::part, 30);
        let asked = ask("there/episodes", "there/cam");
        here.sees("there", false);
        report(Network::heal, 0);
        asked
    });
    for asked in lost {
        let error = asked.unwrap_err();
        assert!(error.is_remote() && !error.is_not_found(), "{error}");
    }
    // The node returns before the gateway decides.
    let returned = timely(&here, || {
        report(Network::part, 100);
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| ask("there/episodes", "there/cam"));
            std::thread::sleep(Duration::from_millis(50));
            report(Network::heal, 100);
            asking.join().unwrap()
        })
    });
    for asked in returned {
        // On a busy machine the gateway may know of the loss before it is asked.
        assert!(asked.as_ref().err().is_none_or(|error| !error.is_not_found()), "{asked:?}");
    }
}

/// Repeats `part`, in which another node is lost and returns, until the loss is reported within [`LOSS_DELAY`] of its beginning.
/// A gateway that learns of a loss later cannot know that the node has the name.
fn timely<T>(here: &Host, part: impl Fn() -> T) -> T {
    let reports = Arc::new(Mutex::new(Vec::new()));
    let seen = reports.clone();
    let watch: OnNode = Arc::new(move |_, _, alive| seen.lock().unwrap().push((alive, Instant::now())));
    let _watching = here.way.watch_alive(watch).unwrap();
    for _ in 0..100 {
        reports.lock().unwrap().clear();
        let began = Instant::now();
        let done = part();
        let mut lost = None;
        until(|| {
            let reports = reports.lock().unwrap();
            let mut after = reports.iter().skip_while(|report| report.0);
            lost = after.next().map(|report| report.1);
            after.any(|report| report.0)
        });
        here.sees("there", true);
        if lost.unwrap() < began + LOSS_DELAY {
            return done;
        }
    }
    panic!("100 losses of a node were reported more than {LOSS_DELAY:?} late");
}

/// Pool and disk are full: no spilled value can be read back into memory.
#[test]
fn a_listing_has_spilled_datasets_and_reads_none_back() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[pool]\nbytes_max = \"64MiB\"\nsegment_bytes = \"8MiB\"\nspare_segments = 0\n[spill]\ndirectory = \"{}\"\n\
         bytes_max = \"40MiB\"\n",
        folder.path().display()
    );
    let network = Network::new(12);
    let broker = tensorlend_daemon::embedded_with(&Config::parse(&config).unwrap()).unwrap();
    let there = Host::on(broker, &network, "there", Policy::Block, LONG);
    let here = Host::new(&network, "here", Policy::Block);
    here.sees("there", true);
    there.sees("here", true);
    // Each producer ends at once: the daemon spills the segments of dead clients.
    let put = |name: &str| -> tensorlend::Result<()> {
        let producer = Client::builder().socket(there.broker.socket()).connect()?;
        let draft = producer.create(DType::U8, &[7_u64 << 20])?;
        producer.dataset().add("member", draft)?.publish(name).map(drop)
    };
    let mut names = Vec::new();
    loop {
        let name = format!("t{:02}", names.len());
        match put(&name) {
            Ok(()) => names.push(format!("there/{name}")),
            Err(error) => break assert!(error.is_limit(), "{error}"),
        }
        assert!(names.len() < 100);
    }
    let spilled = || there.client.stat().unwrap().bytes_spilled;
    let before = spilled();
    assert!(before >= 24 << 20, "{before} of {names:?}");
    let found = here.client.remote().names("there/*").unwrap();
    assert!(found.silent.is_empty() && !found.more);
    assert_eq!(found.names.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), names);
    assert!(found.names.iter().all(|one| one.kind == "dataset" && [0, 7 << 20].contains(&one.size)));
    assert!(found.names.iter().any(|one| one.size == 0));
    assert!(spilled() >= before);
}
