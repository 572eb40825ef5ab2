//! The exhaustive search of small depth, and tests that it finds a daemon that stores a word at the wrong place.
#![cfg(feature = "crash-points")]

use tensorlend_sim::explore::{Bounds, Family, bounds, explore};
use tensorlend_sim::{Flaw, Words};

#[test]
fn no_short_trace_breaks_an_invariant() {
    for bounds in bounds("names=1/0,lists=1/0,streams=1/1,memory=1/0,user-all=1/0") {
        let explored = explore(bounds).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(explored.states > 20 && explored.deaths > 20, "{bounds}: {explored:?}");
    }
}

/// Asserts that the search finds a daemon with this flaw.
fn found(family: Family, depth: usize, flaw: Flaw) {
    let bounds = Bounds { family, depth, twice: 0, user_mode: false, threads: 1, flaw: Some(flaw) };
    let failure = explore(bounds).expect_err("the flaw is found");
    assert!(failure.what.contains("a new client sees"), "{failure}");
}

#[test]
fn a_change_that_is_not_recorded_is_found() {
    found(Family::Names, 2, Flaw::StoresLate(Words::Change));
}

#[test]
fn a_lifetime_before_its_record_is_found() {
    found(Family::Names, 2, Flaw::StoresEarly(Words::Life));
}

#[test]
fn an_owner_before_the_lifetime_is_found() {
    found(Family::Names, 2, Flaw::StoresEarly(Words::Owner));
}

#[test]
fn announcements_that_count_as_absorbed_before_they_are_bound_are_found() {
    found(Family::Names, 2, Flaw::StoresEarly(Words::Absorbed));
}

#[test]
fn an_end_before_the_items_is_found() {
    found(Family::Lists, 2, Flaw::StoresEarly(Words::ListEnd));
}

#[test]
fn a_renamed_list_whose_line_has_the_former_name_is_found() {
    found(Family::Lists, 3, Flaw::StoresLate(Words::ListKey));
}
