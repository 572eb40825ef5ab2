//! The exhaustive search of small depth, and tests that it finds a daemon that stores a word at the wrong place.
#![cfg(feature = "crash-points")]

use tensorlend_sim::explore::{Bounds, Family, bounds, explore};
use tensorlend_sim::{Flaw, Words};

#[test]
fn no_short_trace_breaks_an_invariant() {
    for bounds in bounds("names=1/1,lists=1/1,streams=1/1,memory=1/1,user-all=1/0") {
        let explored = explore(bounds).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(explored.states > 20 && explored.deaths > 20, "{bounds}: {explored:?}");
    }
}

/// Asserts that the search finds a daemon with this flaw, with a message that contains `what`.
fn found(family: Family, flaw: Flaw, what: &str) {
    let bounds = Bounds { family, depth: 2, twice: 0, user_mode: false, threads: 1, flaw: Some(flaw) };
    let failure = explore(bounds).expect_err("the flaw is found");
    assert!(failure.what.contains(what), "{failure}");
}

const SEES: &str = "a new client sees";

#[test]
fn a_change_that_is_not_recorded_is_found() {
    found(Family::Names, Flaw::StoresLate(Words::Change), SEES);
}

#[test]
fn a_lifetime_before_its_record_is_found() {
    found(Family::Names, Flaw::StoresEarly(Words::Life), SEES);
}

#[test]
fn an_owner_before_the_lifetime_is_found() {
    found(Family::Names, Flaw::StoresEarly(Words::Owner), SEES);
}

#[test]
fn announcements_that_count_as_absorbed_before_they_are_bound_are_found() {
    found(Family::Names, Flaw::StoresEarly(Words::Absorbed), SEES);
}

#[test]
fn an_end_before_the_items_is_found() {
    found(Family::Lists, Flaw::StoresEarly(Words::ListEnd), SEES);
}

#[test]
fn a_renamed_list_whose_line_has_the_former_name_is_found() {
    found(Family::Lists, Flaw::StoresLate(Words::ListKey), SEES);
}

#[test]
fn a_list_whose_id_ends_before_its_name_is_found() {
    found(Family::Lists, Flaw::StoresEarly(Words::ListId), SEES);
}

#[test]
fn a_stream_whose_id_is_stored_late_is_found() {
    found(Family::Streams, Flaw::StoresLate(Words::StreamId), SEES);
}

#[test]
fn a_segment_that_is_listed_late_is_found() {
    found(Family::Memory, Flaw::StoresLate(Words::Range), "");
}
