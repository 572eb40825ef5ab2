//! The table of docs/internals/deaths.md: each crash point has a row, and each row has a test.

use std::collections::BTreeSet;
use tensorlend_tests::tree::{root, texts};

/// A row of the table.
struct Window {
    line: String,
    points: Vec<String>,
    /// The tests, as `FILE: FUNCTION`.
    tests: Vec<String>,
}

/// Returns the texts in backticks.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn page() -> String {
    std::fs::read_to_string(root().join("docs/internals/deaths.md")).unwrap()
}

/// Returns the rows of the page's last table. The first table gives tests a letter.
fn windows() -> Vec<Window> {
    let page = page();
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
        let [operation, points, _dies, _lost, _left, tests] = cells[..] else { return None };
        (operation != "operation").then_some((line, points, tests))
    });
    let letter = |word: &str| tests_of_letter(&page, word);
    rows.map(|(line, points, tests)| Window {
        line: line.to_owned(),
        points: quoted(points),
        tests: quoted(tests).into_iter().chain(tests.split([',', ' ']).filter_map(letter)).collect(),
    })
    .collect()
}

/// Returns the test that the first table gives this letter.
fn tests_of_letter(page: &str, letter: &str) -> Option<String> {
    let row = page.lines().find_map(|line| line.strip_prefix(&format!("| **{letter}** | ")))?;
    quoted(row).into_iter().next()
}

/// Returns the crash points in the code.
fn named() -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["shm-layout/src", "os/src", "libclient/src", "daemon/src"] {
        for text in texts(&root().join(folder), "rs").values() {
            let calls = text.split("crash_point!(\"").skip(1);
            found.extend(calls.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
    }
    found.sort_unstable();
    found
}

/// The code names every crash point exactly once, and `points` lists exactly these.
#[test]
fn every_place_in_the_code_is_listed() {
    let listed = std::fs::read_to_string(root().join("shm-layout/src/crash.rs")).unwrap();
    let listed = listed.split_once("POINTS: &[&str] = &[").unwrap().1.split_once("];").unwrap().0.to_owned();
    let mut listed: Vec<String> = listed
        .lines()
        .filter_map(|line| Some(line.trim().strip_prefix('"')?.strip_suffix("\",")?.to_owned()))
        .collect();
    listed.sort_unstable();
    assert_eq!(named(), listed);
}

#[test]
fn every_place_has_one_row_of_the_table_of_deaths() {
    let windows = windows();
    let mut rows: Vec<String> = windows.iter().flat_map(|it| it.points.clone()).collect();
    rows.sort_unstable();
    assert_eq!(rows, named());
    assert!(windows.len() <= 100, "{} rows", windows.len());
}

#[test]
fn every_row_of_the_table_of_deaths_has_a_test_that_exists() {
    let mut missing = BTreeSet::new();
    for window in windows() {
        assert!(!window.tests.is_empty(), "without a test: {}", window.line);
        for test in window.tests {
            let (file, function) = test.split_once(": ").unwrap_or_else(|| panic!("`FILE: FUNCTION`, not {test:?}"));
            let text = std::fs::read_to_string(root().join(file)).unwrap_or_default();
            if !text.contains(&format!("fn {function}(")) {
                missing.insert(test);
            }
        }
    }
    assert!(missing.is_empty(), "there are no such tests: {missing:#?}");
}
