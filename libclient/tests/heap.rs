//! A client's own memory: slots that threads cache for their next drafts, retired slots, and the return of segments.

use std::sync::{Arc, Barrier};
use tensorlend::{Client, DType, Draft, Lease};
use tensorlend_daemon::{Bytes, Config, Embedded};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Number of threads with their own shard; the others share one.
const SHARDS: usize = 63;

fn broker() -> Embedded {
    tensorlend_daemon::embedded().expect("an embedded broker starts")
}

fn small_broker(pool: u64, segment: u64) -> Embedded {
    let mut config = Config::default();
    config.pool.bytes_max = Some(Bytes(pool));
    config.pool.segment_bytes = Bytes(segment);
    config.pool.spare_segments = 0;
    tensorlend_daemon::embedded_with(&config).expect("an embedded broker starts")
}

fn client(broker: &Embedded) -> Client {
    Client::builder().socket(broker.socket()).connect().expect("a client connects")
}

fn draft(client: &Client, bytes: u64) -> Draft {
    client.create(DType::U8, &[bytes]).expect("a slot")
}

/// Fills every byte of a tensor with its owner's mark.
fn mark(draft: &mut Draft, mark: u8) {
    draft.bytes_mut().fill(mark);
}

#[test]
fn drafts_of_many_threads_never_share_a_slot() {
    let broker = broker();
    let client = client(&broker);
    // More threads than shards, so that some have none.
    let together = Arc::new(Barrier::new(SHARDS + 7));
    let threads: Vec<_> = (0..SHARDS + 7)
        .map(|thread| {
            let (client, together) = (client.clone(), together.clone());
            std::thread::spawn(move || {
                let mut held: Vec<(u8, Draft)> = Vec::new();
                together.wait();
                for round in 0..400usize {
                    let bytes = [8, 64, 1000, 4096, 20_000, 300_000][(round * 7 + thread) % 6];
                    let mut draft = draft(&client, bytes);
                    let value = (round * 31 + thread) as u8;
                    mark(&mut draft, value);
                    held.push((value, draft));
                    if held.len() > round % 5 {
                        let (value, mut draft) = held.swap_remove(round % held.len());
                        assert!(draft.bytes_mut().iter().all(|&byte| byte == value), "another draft wrote here");
                    }
                }
                // Another thread drops the rest.
                held
            })
        })
        .collect();
    let left: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().expect("no thread panics")).collect();
    assert!(!left.is_empty());
    for (value, mut draft) in left {
        assert!(draft.bytes_mut().iter().all(|&byte| byte == value));
    }
    assert_eq!(client.memory().slot_bytes, 0);
}

#[test]
fn slot_records_are_a_small_part_of_the_segments() {
    let broker = broker();
    let client = client(&broker);
    let before = client.stat().unwrap().bytes_sheets;
    let _drafts: Vec<Draft> = (0..100).map(|_| draft(&client, 64 * KIB)).collect();
    let stat = client.stat().unwrap();
    let tables = stat.bytes_sheets - before;
    assert!(tables > 0 && tables * 20 <= stat.bytes_in_use, "{tables} of {}", stat.bytes_in_use);
}

/// Threads that find no room at the same time request one segment, not one each.
#[test]
fn threads_share_a_new_segment() {
    const THREADS: usize = 32;
    let broker = small_broker(256 * MIB, 4 * MIB);
    let client = client(&broker);
    assert_eq!(client.stat().unwrap().segments, 0);
    let together = Barrier::new(THREADS);
    let drafts: Vec<Draft> = std::thread::scope(|scope| {
        let draft = || {
            together.wait();
            // All 32 slots fit into the first segment, of 1 MiB.
            draft(&client, 20 * KIB)
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(draft)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    });
    assert_eq!(drafts.len(), THREADS);
    assert_eq!(client.stat().unwrap().segments, 1, "{:?}", client.memory());
}

#[test]
fn what_other_threads_keep_comes_back_before_memory_runs_out() {
    // Twice as much as the threads cache: they take their slots at the same time, and segments of 1 MiB fragment.
    let broker = small_broker(16 * MIB, MIB);
    let client = client(&broker);
    let (kept, done) = (Arc::new(Barrier::new(9)), Arc::new(Barrier::new(9)));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (client, kept, done) = (client.clone(), kept.clone(), done.clone());
            std::thread::spawn(move || {
                // Nearly a megabyte per thread, in the cache of a live thread.
                drop([draft(&client, 500 * KIB), draft(&client, 300 * KIB), draft(&client, 100 * KIB)]);
                kept.wait();
                done.wait();
                // The same thread requests the size again.
                drop(draft(&client, 500 * KIB));
            })
        })
        .collect();
    kept.wait();
    assert_eq!(client.memory().slot_bytes, 0);
    // Segments of these lengths are available only if all segments are empty.
    for length in [15 * MIB, 3 * MIB] {
        let mut large = draft(&client, length);
        mark(&mut large, 7);
        assert_eq!(client.memory().slot_bytes, length);
    }
    done.wait();
    for thread in threads {
        thread.join().expect("no thread panics");
    }
    assert_eq!(client.memory().slot_bytes, 0);
}

#[test]
fn a_full_pool_gives_small_tensors_the_room_beside_large_ones() {
    let broker = small_broker(4 * MIB, 4 * MIB);
    let client = client(&broker);
    let large = draft(&client, 3 * MIB);
    let mut all: Vec<Draft> = Vec::new();
    let error = loop {
        match client.create(DType::U8, &[2 * KIB]) {
            Ok(draft) => all.push(draft),
            Err(error) => break error,
        }
    };
    assert!(error.is_limit(), "{error}");
    assert!(!all.is_empty(), "there was a megabyte beside the large one");
    drop((large, all));
    let whole = draft(&client, 4 * MIB);
    assert_eq!(client.memory().slot_bytes, 4 * MIB);
    drop(whole);
}

#[test]
fn the_segments_of_small_tensors_go_back_when_a_large_one_needs_their_room() {
    let broker = small_broker(4 * MIB, 4 * MIB);
    let client = client(&broker);
    for _ in 0..3 {
        let small: Vec<Draft> = (0..2000).map(|_| draft(&client, KIB)).collect();
        assert!(client.memory().segment_bytes >= 2000 * KIB);
        drop(small);
        let mut large = draft(&client, 4 * MIB);
        mark(&mut large, 9);
        assert_eq!(client.memory(), tensorlend::MemoryUse { slot_bytes: 4 * MIB, segment_bytes: 4 * MIB });
    }
}

#[test]
fn every_allocation_is_counted_once_whoever_keeps_it() {
    let broker = broker();
    let client = client(&broker);
    // These slots are cached, so they do not count.
    drop([draft(&client, 64), draft(&client, 64)]);
    client.instruments().enable_statistics();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let client = client.clone();
            std::thread::spawn(move || {
                for round in 0..100 {
                    let one = draft(&client, 64);
                    let other = draft(&client, 64 * (1 + round % 3));
                    drop((one, other));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no thread panics");
    }
    let seen = client.instruments().statistics().expect("it counts");
    assert_eq!((seen.total_count, seen.current_count, seen.current_bytes), (800, 0, 0));
    assert!(seen.peak_count >= 2 && seen.peak_count <= 8);
    client.instruments().disable_statistics();
    drop(draft(&client, 64));
    client.instruments().enable_statistics();
    let kept = draft(&client, 64);
    let seen = client.instruments().statistics().expect("it counts");
    assert_eq!((seen.total_count, seen.current_count), (1, 1));
    drop(kept);
    assert_eq!(client.instruments().statistics().expect("it counts").current_count, 0);
}

#[test]
fn a_draft_in_a_kept_slot_is_published_under_a_version_of_its_own() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    let mut seen = std::collections::HashSet::new();
    let mut held: Vec<(u8, Lease)> = Vec::new();
    for round in 0..600usize {
        // Slots of dropped drafts are reused for the published value.
        drop(draft(&producer, 100));
        drop(draft(&producer, 100));
        let mut published = draft(&producer, 100);
        mark(&mut published, round as u8);
        let version = published.publish("x").expect("publish");
        assert!(seen.insert(version), "round {round} has a version that was there before");
        let lease = consumer.get("x").expect("get");
        assert_eq!(lease.version(), version);
        assert!(lease.bytes().iter().all(|&byte| byte == round as u8));
        if round.is_multiple_of(3) {
            held.push((round as u8, lease));
        }
    }
    assert!(
        held.iter().all(|(value, lease)| lease.bytes().iter().all(|byte| byte == value)),
        "a leased slot was reused"
    );
}

#[test]
fn leased_slots_stay_and_the_others_are_used_again() {
    let broker = broker();
    let producer = client(&broker);
    let readers: Vec<Client> = (0..12).map(|_| client(&broker)).collect();
    for bytes in [64, 4 * KIB, 64 * KIB, MIB] {
        let mut held: Vec<(u8, Lease)> = Vec::new();
        for round in 0..400usize {
            let mut draft = draft(&producer, bytes);
            mark(&mut draft, round as u8);
            draft.publish("x").expect("publish");
            if round.is_multiple_of(40) {
                held.extend(readers.iter().map(|reader| (round as u8, reader.get("x").expect("get"))));
            }
        }
        let intact = |(value, lease): &(u8, Lease)| lease.bytes().iter().all(|byte| byte == value);
        assert!(held.iter().all(intact), "a leased slot of {bytes} bytes was reused");
        // Ten leased values, the published one, and slots that wait for a scan.
        let used = producer.memory().slot_bytes;
        assert!(used < 11 * bytes + 8 * MIB, "{used} bytes in use for tensors of {bytes}");
        drop(held);
    }
}

#[test]
fn a_producer_without_readers_goes_round_in_few_slots() {
    let broker = broker();
    let client = client(&broker);
    for bytes in [64 * KIB, MIB, 4 * MIB] {
        for _ in 0..200 {
            draft(&client, bytes).publish("x").expect("publish");
        }
        let used = client.memory().slot_bytes;
        // The published value, and slots that wait for a scan of the leases: the latest, and 256 KiB.
        assert!(used <= 2 * bytes + 512 * KIB, "{used} bytes in use for one tensor of {bytes}");
    }
}

#[test]
fn segments_go_back_when_what_was_large_is_gone() {
    let broker = broker();
    let client = client(&broker);
    let mut all: Vec<Draft> = (0..12).map(|_| draft(&client, 40 * MIB)).collect();
    // A small draft in between, which this thread caches when it is dropped.
    all.insert(6, draft(&client, 300 * KIB));
    assert!(client.memory().segment_bytes >= 12 * 40 * MIB);
    drop(all);
    let memory = client.memory();
    assert_eq!(memory.slot_bytes, 0);
    assert!(memory.segment_bytes <= 400 * MIB, "{memory:?}");
}
