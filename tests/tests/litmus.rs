//! The fences between storing a lease and reading the cell, and between replacing a value and scanning leases, tested
//! in two processes: see `src/litmus.rs`.

use std::collections::BTreeMap;
use std::process::Command;
use tensorlend_tests::{binary, budget, run, skip};

/// Numbers of rounds of each variant.
const ROUNDS: (u32, u32) = (100_000, 400_000);

#[test]
fn the_fences_are_enough_and_are_needed() {
    let output = run(Command::new(binary("tensorlend-litmus")).arg(budget(ROUNDS.0, ROUNDS.1).to_string()));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    if said.starts_with("one processor") {
        return skip("there is one processor only: nothing happens at the same time");
    }
    println!("{said}");
    let violations: BTreeMap<&str, u64> = said
        .lines()
        .map(|line| {
            let (way, count) = line.split_once(' ').expect("WAY ROUNDS VIOLATIONS");
            (way, count.rsplit_once(' ').expect("two numbers").1.parse().expect("a number"))
        })
        .collect();
    let lost = ["steps", "overwrite", "fences"].map(|way| violations[way]);
    assert_eq!(lost, [0; 3], "a lease was lost:\n{said}");
    if violations["none"] == 0 {
        skip("this machine reordered nothing, even without fences: the litmus test shows nothing here");
    }
}
