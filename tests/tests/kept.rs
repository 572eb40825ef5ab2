//! Memory that clients hold after it was given back: in user mode, where the daemon cannot take its pages away, it stays
//! charged.

use std::os::fd::OwnedFd;
use tensorlend_layout::wire::{Reply, Request};
use tensorlend_tests::hand::Hand;
use tensorlend_tests::{Daemon, eventually};

const LIMIT: u64 = 64 << 20;

/// 2^17 slots: 16 MiB of records.
const SLOTS_LOG2: u8 = 17;

fn daemon() -> Daemon {
    Daemon::start(
        "mode = \"user\"\n[pool]\nsegment_bytes = \"1MiB\"\nspare_segments = 0\n[uid]\nbytes_max = \"64MiB\"\n\
         [namespace_default]\nnames_max = 1024\n",
    )
}

fn held(kept: &[OwnedFd]) -> u64 {
    kept.iter().map(|fd| rustix::fs::fstat(fd).unwrap().st_blocks as u64 * 512).sum()
}

/// Returns the first slot of a new segment, unless a limit refuses it.
fn segment(hand: &Hand) -> Option<u32> {
    hand.segment(1, SLOTS_LOG2, |lent| Ok(lent.base)).ok()
}

/// Checks that memory was refused before the limit was passed, and that it is there again when nobody holds it.
fn check(daemon: &Daemon, kept: Vec<OwnedFd>) {
    assert!((LIMIT / 2..=LIMIT).contains(&held(&kept)), "{} bytes are held, of {LIMIT}", held(&kept));
    let bystander = Hand::join(&daemon.socket(), None).unwrap();
    assert_eq!(segment(&bystander), None, "what is held is charged");
    drop(kept);
    eventually("a segment within the limit", || segment(&bystander).is_some());
}

#[test]
fn descriptors_of_returned_segments_stay_charged_in_user_mode() {
    let daemon = daemon();
    let hostile = Hand::join(&daemon.socket(), None).unwrap();
    let mut kept = Vec::new();
    for _ in 0..12 {
        let Some(base) = segment(&hostile) else { break };
        let lent = hostile.segment_of(hostile.welcome.catalogue, base).unwrap();
        kept.extend([lent.segment, lent.slots]);
        assert!(matches!(hostile.ask(&Request::ReturnSegment { base }).unwrap().0, Reply::Done));
    }
    check(&daemon, kept);
}

#[test]
fn descriptors_of_segments_whose_owner_has_ended_stay_charged_in_user_mode() {
    let daemon = daemon();
    let hostile = Hand::join(&daemon.socket(), None).unwrap();
    let watcher = daemon.client();
    let mut kept = Vec::new();
    for _ in 0..12 {
        let owner = Hand::join(&daemon.socket(), None).unwrap();
        let Some(base) = segment(&owner) else { break };
        // The daemon has read the acknowledgement when it answers.
        owner.ask(&Request::Ping).unwrap();
        let lent = hostile.segment_of(owner.welcome.catalogue, base).unwrap();
        kept.extend([lent.segment, lent.slots]);
        drop(owner);
        eventually("the owner's end", || watcher.stat().is_ok_and(|stat| (stat.clients, stat.frozen) == (2, 0)));
    }
    check(&daemon, kept);
}
