//! Schedules of the ordinary test run, and tests that the checks can fail. `tensorlend-sim` runs many more.

use tensorlend_sim::{Done, Flaw, Plan, explain, run};

/// Number of schedules within which a flaw must be detected.
const CAUGHT_IN: u64 = 20_000;

#[test]
fn no_schedule_breaks_an_invariant() {
    let mut all = Done::default();
    for seed in 1_000_000..1_002_400 {
        match run(Plan::new(seed)) {
            Ok(done) => all += done,
            Err(failure) => panic!("{}", explain(Plan::new(seed)).unwrap_or(failure)),
        }
    }
    assert!(all.reloads > 100, "limits change: {all:?}");
    assert!(all.spilled > 100 && all.recalled > 5, "segments go to files and come back: {all:?}");
    assert!(all.released > 40, "owners that live let go of segments: {all:?}");
    assert!(all.streams_ended > 5, "closed streams end: {all:?}");
    assert!(all.claims > 300 && all.confirmed > 100, "items of queues are claimed and confirmed: {all:?}");
    assert!(all.handed_over > 10, "items go to clients that wait: {all:?}");
    assert!(all.announced > 100, "writers become announcers, and announce: {all:?}");
    assert!(all.sliced > 100, "long work is left for later steps: {all:?}");
    assert!(all.leases > 1000 && all.lies > 1000 && all.segments_freed > 1000, "it does what it is for: {all:?}");
}

/// A client reconnects without a segment, whose place is freed and lent again before the world's next check.
#[test]
fn what_is_taken_can_be_lent_in_the_same_step() {
    run(Plan::new(515_708)).expect("it passes");
}

/// Schedules of the fuzzer, including those that once failed.
#[test]
fn the_fuzzers_schedules_pass() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/schedule");
    let mut played = 0;
    for file in std::fs::read_dir(corpus).expect("the corpus is a part of the repository") {
        tensorlend_sim::play(&std::fs::read(file.unwrap().path()).unwrap());
        played += 1;
    }
    assert!(played >= 3);
}

#[test]
fn a_seed_gives_the_same_schedule_again() {
    // Down to the last message, in a world that fails.
    let broken = |seed| Plan { flaw: Some(Flaw::KeepsDescriptors), ..Plan::new(seed) };
    let failure = (0..100).find_map(|seed| explain(broken(seed))).expect("it is caught");
    assert!(failure.trace.len() > 10);
    let again = explain(broken(failure.seed)).expect("it fails again");
    assert_eq!((again.what, again.trace), (failure.what, failure.trace));
    let done = |seed| format!("{:?}", run(Plan::new(seed)).expect("it passes"));
    assert_eq!(done(7), done(7));
    assert_ne!(done(7), done(8));
}

/// Returns the first failure that a flaw causes.
fn caught(flaw: Flaw) -> String {
    let plan = |seed| Plan { flaw: Some(flaw), ..Plan::new(seed) };
    let failure = (0..CAUGHT_IN).find_map(|seed| run(plan(seed)).err());
    failure.unwrap_or_else(|| panic!("{flaw:?} was not caught in {CAUGHT_IN} schedules")).what
}

#[test]
fn a_daemon_that_does_not_look_at_leases_is_caught() {
    let what = caught(Flaw::BlindToLeases);
    assert!(what.contains("leases"), "{what}");
}

#[test]
fn a_daemon_that_does_not_wait_for_quiescent_is_caught() {
    let what = caught(Flaw::TrustsTheLoud);
    // The client's lease table shows that a disconnected client still exists.
    assert!(what.contains("can write it") || what.contains("may come back"), "{what}");
}

#[test]
fn a_daemon_that_keeps_descriptors_is_caught() {
    let what = caught(Flaw::KeepsDescriptors);
    assert!(what.contains("bytes of") || what.contains("left"), "{what}");
}

#[test]
fn a_daemon_that_loses_answers_is_caught() {
    let what = caught(Flaw::LosesAnswers);
    assert!(what.contains("no answer"), "{what}");
}

#[test]
fn a_keeper_that_loses_descriptors_is_caught() {
    let what = caught(Flaw::LosesWhatIsKept);
    assert!(["lost", "gone", "not known", "there", "can write it"].iter().any(|word| what.contains(word)), "{what}");
}

#[test]
fn a_daemon_that_lends_before_it_keeps_is_caught() {
    let what = caught(Flaw::LendsBeforeItKeeps);
    assert!(what.contains("not known") || what.contains("may come back"), "{what}");
}

#[test]
fn a_keeper_that_forgets_nothing_is_caught() {
    let what = caught(Flaw::ForgetsNothing);
    assert!(["gone", "lost", "bytes of", "can write it", "leases"].iter().any(|word| what.contains(word)), "{what}");
}

#[test]
fn a_daemon_that_lists_readers_late_is_caught() {
    let what = caught(Flaw::ListsReadersLate);
    // A debug build finds the missing audience before its consequence.
    assert!(what.contains("written anew") || what.contains("in the audience of"), "{what}");
}

#[test]
fn a_daemon_that_grants_a_claim_again_is_caught() {
    let what = caught(Flaw::GrantsAgain);
    assert!(what.contains("is not new"), "{what}");
}

#[test]
fn a_daemon_that_reads_other_bytes_than_it_wrote_is_caught() {
    let what = caught(Flaw::ReadsOtherBytes);
    assert!(what.contains("other bytes"), "{what}");
}

#[test]
fn a_daemon_that_takes_the_away_for_gone_is_caught() {
    let what = caught(Flaw::TakesTheAwayForGone);
    assert!(what.contains("may come back") || what.contains("can write it"), "{what}");
}
