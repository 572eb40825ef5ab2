//! Instruments of a client's memory, through the public API, with a daemon that has little memory.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tensorlend::{AllocationState, Client, ClientBuilder, DType, Draft, Error, Policy, Refusal, Relief, Statistics};
use tensorlend_daemon::{Bytes, Config, Embedded};

const PAGE: u64 = 4096;
const POOL: u64 = 4 << 20;

fn broker() -> Embedded {
    let mut config = Config::default();
    config.pool.bytes_max = Some(Bytes(POOL));
    config.pool.segment_bytes = Bytes(1 << 20);
    config.pool.spare_segments = 0;
    tensorlend_daemon::embedded_with(&config).expect("an embedded broker starts")
}

fn builder(broker: &Embedded) -> ClientBuilder {
    Client::builder().socket(broker.socket())
}

fn pages(client: &Client, count: u64) -> Draft {
    client.create(DType::U8, &[count * PAGE]).unwrap()
}

/// Parses a log into columns: thread, time, action, slot, generation, bytes.
fn lines(path: &Path) -> Vec<(u32, u64, String, u32, u64, u64)> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("thread,time_ns,action,slot,generation,bytes"));
    let line = |line: &str| {
        let f: Vec<&str> = line.split(',').collect();
        assert_eq!(f.len(), 6, "{line}");
        let number = |at: usize| f[at].parse::<u64>().unwrap();
        (number(0) as u32, number(1), f[2].to_owned(), number(3) as u32, number(4), number(5))
    };
    lines.map(line).collect()
}

#[test]
fn statistics_follow_what_is_in_use() {
    let broker = broker();
    let client = builder(&broker).statistics().connect().unwrap();
    assert_eq!(client.instruments().statistics(), Some(Statistics::default()));
    let first = pages(&client, 2);
    client.create(DType::U8, &[1]).unwrap().publish("small").unwrap();
    drop(first);
    let seen = client.instruments().statistics().unwrap();
    assert_eq!(seen.current_bytes.cast_unsigned(), client.memory().slot_bytes);
    assert_eq!((seen.current_bytes, seen.current_count), (64, 1));
    assert_eq!((seen.peak_bytes, seen.peak_count), (2 * PAGE + 64, 2));
    assert_eq!((seen.total_bytes, seen.total_count), (2 * PAGE + 64, 2));
    // Replaced values stay in use until they are reclaimed.
    for _ in 0..1000 {
        client.put("small", &[1u8]).unwrap();
    }
    let seen = client.instruments().statistics().unwrap();
    assert_eq!(seen.current_bytes.cast_unsigned(), client.memory().slot_bytes);
    assert_eq!(seen.total_count, 1002);
    assert!(seen.current_count < 1000, "{seen:?}");
    // A dataset consists of its tensors and its index; long metadata occupies a slot too.
    let before = client.instruments().statistics().unwrap().total_count;
    let mut image = pages(&client, 1);
    image.set_metadata(&[7; 100]).unwrap();
    client.dataset().add("image", image).unwrap().publish("frame").unwrap();
    assert_eq!(client.instruments().statistics().unwrap().total_count - before, 3);
}

#[test]
fn counting_may_begin_and_end_at_any_time() {
    let broker = broker();
    let client = builder(&broker).connect().unwrap();
    let early = pages(&client, 1);
    assert_eq!(client.instruments().statistics(), None);
    client.instruments().enable_statistics();
    client.instruments().enable_statistics();
    drop(early);
    // More was freed than allocated since the statistics were enabled.
    assert_eq!(client.instruments().statistics().unwrap().current_bytes, -(PAGE as i64));
    assert_eq!(client.instruments().statistics().unwrap().peak_bytes, 0);
    let scope = client.instruments().scope();
    client.instruments().disable_statistics();
    assert_eq!(client.instruments().statistics(), None);
    let kept = pages(&client, 1);
    assert_eq!(scope.statistics().current_count, 1);
    drop(scope);
    client.instruments().enable_statistics();
    assert_eq!(client.instruments().statistics(), Some(Statistics::default()));
    drop(kept);
}

#[test]
fn scopes_nest_and_overlap() {
    let broker = broker();
    let client = builder(&broker).statistics().connect().unwrap();
    let a = pages(&client, 1);
    let outer = client.instruments().scope();
    let b = pages(&client, 2);
    let inner = client.instruments().scope();
    drop(pages(&client, 4));
    drop(a);
    assert_eq!((inner.statistics().current_bytes, inner.statistics().peak_bytes), (-(PAGE as i64), 4 * PAGE));
    assert_eq!((outer.statistics().current_bytes, outer.statistics().peak_bytes), (PAGE as i64, 6 * PAGE));
    assert_eq!(client.instruments().statistics().unwrap().peak_bytes, 7 * PAGE);
    // The outer scope ends first; the inner one continues.
    drop(outer);
    drop(b);
    assert_eq!((inner.statistics().current_count, inner.statistics().total_count), (-2, 1));
    drop(inner);
    let seen = client.instruments().statistics().unwrap();
    assert_eq!((seen.current_bytes, seen.peak_bytes, seen.total_bytes), (0, 7 * PAGE, 7 * PAGE));
}

#[test]
fn all_instruments_agree_with_many_threads() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 500;
    let broker = broker();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let client = builder(&broker).statistics().tracking().memory_limit(POOL).allocation_log(&path).connect().unwrap();
    let scope = client.instruments().scope();
    std::thread::scope(|threads| {
        for thread in 0..THREADS {
            let client = &client;
            threads.spawn(move || {
                for round in 0..ROUNDS {
                    let mut draft = client.create(DType::U8, &[64 * (1 + (round + thread) % 9)]).unwrap();
                    draft.bytes_mut().fill(thread as u8);
                    if round % 3 == 0 {
                        draft.publish(&format!("n{thread}")).unwrap();
                    }
                }
            });
        }
    });
    let seen = client.instruments().statistics().unwrap();
    assert_eq!(seen.total_count, THREADS * ROUNDS);
    assert_eq!(seen, scope.statistics());
    assert_eq!(seen.current_bytes.cast_unsigned(), client.memory().slot_bytes);
    let outstanding = client.instruments().outstanding().unwrap();
    assert_eq!(outstanding.bytes(), client.memory().slot_bytes);
    assert_eq!(outstanding.allocations().len(), seen.current_count as usize);
    assert_eq!(outstanding.of(AllocationState::Held).count(), THREADS as usize);
    assert_eq!(outstanding.of(AllocationState::Draft).count(), 0);

    client.instruments().stop_log().unwrap();
    let lines = lines(&path);
    assert!(lines.is_sorted_by_key(|line| line.1), "the lines are in the order of their times");
    let mut live: HashMap<u32, (u64, u64)> = HashMap::new();
    let (mut bytes, mut peak, mut threads) = (0, 0, std::collections::HashSet::new());
    for (thread, _, action, slot, generation, length) in lines {
        match action.as_str() {
            "allocate" => {
                assert_eq!(live.insert(slot, (generation, length)), None, "slot {slot} was allocated twice");
                threads.insert(thread);
                bytes += length;
                peak = peak.max(bytes);
            }
            "free" => {
                assert_eq!(live.remove(&slot), Some((generation, length)));
                bytes -= length;
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(threads.len(), THREADS as usize);
    assert_eq!(live.len(), seen.current_count as usize);
    assert_eq!(bytes, client.memory().slot_bytes);
    assert!(peak >= bytes);
}

#[test]
fn the_log_is_complete_when_the_client_is_gone() {
    let broker = broker();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.csv");
    let client = builder(&broker).allocation_log(&path).memory_limit(2 * PAGE).connect().unwrap();
    let draft = pages(&client, 1);
    assert!(client.create(DType::U8, &[PAGE + 1]).is_err());
    client.instruments().flush_log().unwrap();
    assert_eq!(lines(&path).len(), 2);
    drop(client);
    drop(draft);
    let seen: Vec<(String, u64)> = lines(&path).into_iter().map(|line| (line.2, line.5)).collect();
    let expected = [("allocate", PAGE), ("allocate failure", 2 * PAGE), ("free", PAGE)];
    assert_eq!(seen, expected.map(|(action, bytes)| (action.to_owned(), bytes)));
}

#[test]
fn one_log_ends_where_the_next_begins() {
    let broker = broker();
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("1.csv"), folder.path().join("2.csv"));
    let client = builder(&broker).connect().unwrap();
    client.instruments().stop_log().unwrap();
    client.instruments().start_log(&first).unwrap();
    // Events of more than one batch.
    for _ in 0..6000 {
        drop(client.create(DType::U8, &[1]).unwrap());
    }
    client.instruments().start_log(&second).unwrap();
    assert_eq!(lines(&first).len(), 12_000);
    let draft = pages(&client, 1);
    client.instruments().start_log(&second).unwrap();
    drop(draft);
    client.instruments().stop_log().unwrap();
    drop(pages(&client, 1));
    let left: Vec<String> = lines(&second).into_iter().map(|line| line.2).collect();
    assert_eq!(left, ["free"]);
    let nowhere = client.instruments().start_log(folder.path().join("none").join("log.csv")).unwrap_err();
    assert!(nowhere.to_string().contains("log.csv"), "{nowhere}");
    assert!(matches!(builder(&broker).allocation_log(folder.path()).connect(), Err(Error::System { .. })));
}

/// A client reads the variable when it connects, so the test uses a separate process.
#[test]
fn the_environment_names_a_log_for_each_client() {
    const CHILD: &str = "TENSORLEND_TEST_LOG_CHILD";
    if let Some(socket) = std::env::var_os(CHILD) {
        for bytes in [64, 128] {
            let client = Client::builder().socket(socket.clone()).connect().unwrap();
            drop(client.create(DType::U8, &[bytes]).unwrap());
        }
        return;
    }
    let broker = broker();
    let folder = tempfile::tempdir().unwrap();
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_environment_names_a_log_for_each_client"])
        .env(CHILD, broker.socket())
        .env("TENSORLEND_ALLOC_LOG", folder.path().join("a.csv"))
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    let mut logs: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    logs.sort();
    assert_eq!(logs.len(), 2, "{logs:?}");
    for (path, bytes) in logs.iter().zip([64, 128]) {
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("a.") && path.extension().unwrap() == "csv", "{name}");
        let seen: Vec<_> = lines(path).into_iter().map(|line| (line.2, line.5)).collect();
        assert_eq!(seen, [("allocate".to_owned(), bytes), ("free".to_owned(), bytes)]);
    }
}

#[test]
fn the_limit_is_exact() {
    let broker = broker();
    let client = builder(&broker).memory_limit(10 * PAGE).connect().unwrap();
    let all: Vec<Draft> = (0..9).map(|_| pages(&client, 1)).collect();
    let last = pages(&client, 1);
    match client.create(DType::U8, &[1]) {
        Err(e @ Error::MemoryLimit { asked: 64, used, limit }) => {
            assert_eq!((used, limit), (10 * PAGE, 10 * PAGE));
            assert!(e.is_limit() && e.to_string().contains("memory_limit"), "{e}");
        }
        other => panic!("{other:?}"),
    }
    drop(last);
    // 65 bytes occupy two cache lines.
    let rest: Vec<Draft> = (0..32).map(|_| client.create(DType::U8, &[65]).unwrap()).collect();
    assert!(client.create(DType::U8, &[1]).is_err());
    drop(rest);
    assert!(client.create(DType::U8, &[PAGE + 1]).is_err());
    drop(pages(&client, 1));
    drop(all);
    drop(pages(&client, 10));
    assert!(client.create(DType::U8, &[10 * PAGE + 1]).is_err());
    assert!(client.create(DType::U8, &[u64::MAX / 2]).is_err());
    drop(pages(&client, 10));
}

#[test]
fn what_was_replaced_makes_room_below_the_limit() {
    let broker = broker();
    let client = builder(&broker).memory_limit(2 * PAGE).connect().unwrap();
    // Far more in total than the limit: replaced and deleted values are reclaimed on demand.
    for _ in 0..100 {
        pages(&client, 1).publish("name").unwrap();
    }
    let lease = client.get("name").unwrap();
    client.delete("name").unwrap();
    pages(&client, 1).publish("other").unwrap();
    // A leased value is in use.
    assert!(matches!(client.create(DType::U8, &[1]), Err(Error::MemoryLimit { .. })));
    drop(lease);
    client.create(DType::U8, &[1]).unwrap();
}

#[test]
fn threads_together_stay_below_the_limit() {
    let broker = broker();
    let client = builder(&broker).memory_limit(8 * PAGE).statistics().connect().unwrap();
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..500 {
                    let drafts: Vec<_> = (0..3).map(|_| client.create(DType::U8, &[PAGE])).collect();
                    for failed in drafts.iter().filter_map(|draft| draft.as_ref().err()) {
                        assert!(matches!(failed, Error::MemoryLimit { .. }), "{failed}");
                    }
                }
            });
        }
    });
    let seen = client.instruments().statistics().unwrap();
    assert!(seen.peak_bytes <= 8 * PAGE && seen.current_bytes == 0, "{seen:?}");
    drop(pages(&client, 8));
}

#[test]
fn drafts_are_told_from_what_names_streams_and_lists_hold() {
    let broker = broker();
    let client = builder(&broker).tracking().connect().unwrap();
    assert!(client.instruments().outstanding().unwrap().is_empty());
    assert!(builder(&broker).connect().unwrap().instruments().outstanding().is_none());

    let mut draft = pages(&client, 1);
    client.put("name", &[1u8]).unwrap();
    client.append("list", client.create(DType::U8, &[1]).unwrap()).unwrap();
    let stream = client.stream("stream").open().unwrap();
    stream.send(client.create(DType::U8, &[1]).unwrap()).unwrap();
    let mut member = client.create(DType::U8, &[1]).unwrap();
    member.set_metadata(&[0; 100]).unwrap();
    client.dataset().add("member", member).unwrap().publish("dataset").unwrap();
    let count = |state| client.instruments().outstanding().unwrap().of(state).count();
    // Name, item, message; of the dataset: index, tensor, metadata.
    assert_eq!(count(AllocationState::Held), 6);
    assert_eq!(count(AllocationState::Draft), 1);
    assert_eq!(count(AllocationState::Retired), 0);

    // A dataset is deleted while all of it is leased.
    let lease = client.get_dataset("dataset").unwrap();
    client.delete("dataset").unwrap();
    assert_eq!(count(AllocationState::Retired), 3);
    assert_eq!(count(AllocationState::Held), 3);
    drop(lease);

    draft.set_metadata(&[0; 100]).unwrap();
    draft.publish("name").unwrap();
    assert_eq!(count(AllocationState::Draft), 0);
    let outstanding = client.instruments().outstanding().unwrap();
    assert!(outstanding.allocations().iter().all(|it| it.backtrace.is_none()));
    assert_eq!(outstanding.bytes(), client.memory().slot_bytes);
    let ages: Vec<_> = outstanding.allocations().iter().map(|it| it.age).collect();
    assert!(ages.is_sorted_by(|older, newer| older >= newer));
}

#[test]
fn the_leak_report_names_the_place() {
    #[inline(never)]
    fn the_forgetful_function(client: &Client) -> Draft {
        pages(client, 3)
    }
    let broker = broker();
    let client = builder(&broker).tracking_backtraces().connect().unwrap();
    client.put("name", &[1u8]).unwrap();
    let leaked = the_forgetful_function(&client);
    let report = client.instruments().outstanding().unwrap().to_string();
    assert!(
        report.starts_with("2 allocations outstanding, 12352 bytes\ndrafts: 1 allocation, 12288 bytes\n"),
        "{report}"
    );
    let drafts = report.find("drafts:").unwrap();
    let held = report.find("held by names, streams and lists: 1 allocation, 64 bytes").unwrap();
    assert!(report[drafts..held].contains("the_forgetful_function"), "{report}");
    assert!(!report[held..].contains("the_forgetful_function"), "{report}");
    drop(leaked);
    assert_eq!(client.instruments().outstanding().unwrap().of(AllocationState::Draft).count(), 0);
}

/// Returns a client with a stock of drafts, of which its callback drops one at each call.
fn with_spare(builder: ClientBuilder) -> (Client, Arc<Mutex<Vec<Draft>>>, Arc<AtomicU32>) {
    let spare: Arc<Mutex<Vec<Draft>>> = Arc::default();
    let calls = Arc::new(AtomicU32::new(0));
    let (theirs, counted) = (spare.clone(), calls.clone());
    let client = builder
        .on_memory_pressure(move |pressure| {
            counted.fetch_add(1, Ordering::Relaxed);
            assert!(pressure.attempt() > 0 && pressure.cause().is_limit());
            let dropped = theirs.lock().unwrap().pop();
            if dropped.is_some() { Relief::Retry } else { Relief::GiveUp }
        })
        .connect()
        .unwrap();
    (client, spare, calls)
}

#[test]
fn the_callback_makes_room_below_the_limit() {
    let broker = broker();
    let (client, spare, calls) = with_spare(builder(&broker).memory_limit(4 * PAGE));
    for _ in 0..4 {
        let draft = pages(&client, 1);
        spare.lock().unwrap().push(draft);
    }
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    // Three drafts must be dropped.
    let large = pages(&client, 3);
    assert_eq!(calls.load(Ordering::Relaxed), 3);
    assert_eq!(spare.lock().unwrap().len(), 1);
    assert!(client.create(DType::U8, &[2 * PAGE]).is_err());
    assert_eq!(calls.load(Ordering::Relaxed), 5);
    assert!(spare.lock().unwrap().is_empty());
    drop(large);
}

#[test]
fn the_callback_makes_room_in_the_pool() {
    let broker = broker();
    let (client, spare, calls) = with_spare(builder(&broker));
    loop {
        match client.create(DType::U8, &[1 << 20]) {
            Ok(draft) if calls.load(Ordering::Relaxed) == 0 => spare.lock().unwrap().push(draft),
            Ok(_) => break,
            Err(e) => panic!("{e}"),
        }
    }
    // Dropping one of the drafts made room for the last one.
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    let refused = client.create(DType::U8, &[2 * POOL]).unwrap_err();
    assert!(spare.lock().unwrap().is_empty());
    let limit = matches!(refused, Error::Refused { refusal: Refusal::Limit { .. } | Refusal::Memory { .. }, .. });
    assert!(limit, "{refused}");
}

#[test]
fn the_callback_may_delete_and_ask_and_allocate() {
    let broker = broker();
    let asked = Arc::new(AtomicU64::new(0));
    let counted = asked.clone();
    let own: Arc<Mutex<Option<Client>>> = Arc::default();
    let theirs = own.clone();
    let client = builder(&broker)
        .memory_limit(4 * PAGE)
        .statistics()
        .tracking()
        .on_memory_pressure(move |pressure| {
            counted.fetch_add(1, Ordering::Relaxed);
            assert_eq!(pressure.bytes(), 4 * PAGE);
            let client = theirs.lock().unwrap().clone().unwrap();
            assert_eq!(client.instruments().statistics().unwrap().current_bytes, 4 * PAGE as i64);
            assert_eq!(client.instruments().outstanding().unwrap().bytes(), 4 * PAGE);
            // The callback is not called for an allocation that the callback itself makes.
            assert!(client.create(DType::U8, &[1]).unwrap_err().is_limit());
            if pressure.delete("cache").unwrap() { Relief::Retry } else { Relief::GiveUp }
        })
        .connect()
        .unwrap();
    *own.lock().unwrap() = Some(client.clone());
    pages(&client, 4).publish("cache").unwrap();
    let draft = pages(&client, 4);
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    assert!(!client.exists("cache").unwrap());
    assert!(client.create(DType::U8, &[4 * PAGE]).is_err());
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    drop(draft);
    *own.lock().unwrap() = None;
}

#[test]
fn a_panic_in_the_callback_is_the_callers_and_harms_nothing() {
    let broker = broker();
    let panics = Arc::new(AtomicU32::new(1));
    let left = panics.clone();
    let client = builder(&broker)
        .memory_limit(2 * PAGE)
        .statistics()
        .on_memory_pressure(move |_| {
            assert_eq!(left.swap(0, Ordering::Relaxed), 0, "the callback panics");
            Relief::GiveUp
        })
        .connect()
        .unwrap();
    let draft = pages(&client, 1);
    let panicked = catch_unwind(AssertUnwindSafe(|| client.create(DType::U8, &[2 * PAGE]).is_ok()));
    assert!(panicked.is_err());
    // The callback is called again, and the failed attempt is not counted.
    assert!(client.create(DType::U8, &[2 * PAGE]).unwrap_err().is_limit());
    assert_eq!(client.instruments().statistics().unwrap().current_bytes, PAGE as i64);
    let other = pages(&client, 1);
    drop((draft, other));
    drop(pages(&client, 2));
}

#[test]
fn nobody_is_asked_while_a_stream_is_locked() {
    let broker = broker();
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let client = builder(&broker)
        .memory_limit(PAGE)
        .on_memory_pressure(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Relief::GiveUp
        })
        .connect()
        .unwrap();
    let stream = client.stream("stream").policy(Policy::DropOldest).open().unwrap();
    let mut message = pages(&client, 1);
    message.set_metadata(&[0; 100]).unwrap();
    assert!(matches!(stream.send(message), Err(Error::MemoryLimit { .. })));
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    // The draft was dropped with the message. For other allocations the callback is called.
    let draft = pages(&client, 1);
    assert!(client.create(DType::U8, &[1]).is_err());
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    drop(draft);
}
