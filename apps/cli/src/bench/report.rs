//! The machine-readable report.

use serde::Serialize;
use tensorlend_baselines::floors::Placement;

use super::machine::Machine;
use super::race::Raced;

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub machine: Machine,
    pub placement: &'static str,
    pub results: Vec<Measured>,
}

/// A measured row of the report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    pub name: String,
    /// "floor", "tensorlend", or the name of another library.
    pub peer: &'static str,
    /// Size of the payload in bytes; `None` for rows without a payload.
    pub size_bytes: Option<u64>,
    pub p50_ns: f64,
    pub min_ns: f64,
    pub max_ns: f64,
    /// The name of the row with which this row is compared. If several rows have this name, the
    /// comparison uses the row with the same size or without a size.
    pub floor: Option<&'static str>,
    /// The median of this row divided by the median of the row that `floor` names.
    pub ratio: Option<f64>,
}

impl Report {
    pub fn new(machine: Machine, placement: Placement, raced: &[Raced]) -> Self {
        Self { machine, placement: placement.name(), results: raced.iter().map(|row| measured(row, raced)).collect() }
    }
}

fn measured(row: &Raced, all: &[Raced]) -> Measured {
    let floor = row.label.floor.and_then(|name| {
        let named = || all.iter().filter(|other| other.label.name == name && other.label.peer == "floor");
        let same_size = named().find(|other| other.label.size_bytes == row.label.size_bytes);
        same_size.or_else(|| named().find(|other| other.label.size_bytes.is_none()))
    });
    let p50_ns = rounded(row.stat.p50_ns);
    Measured {
        name: row.label.name.clone(),
        peer: row.label.peer,
        size_bytes: row.label.size_bytes,
        p50_ns,
        min_ns: rounded(row.stat.min_ns),
        max_ns: rounded(row.stat.max_ns),
        floor: floor.and(row.label.floor),
        ratio: floor.map(|floor| (p50_ns / rounded(floor.stat.p50_ns) * 1e4).round() / 1e4),
    }
}

/// Rounds to a hundredth of a nanosecond, but never to zero.
fn rounded(ns: f64) -> f64 {
    ((ns * 100.0).round() / 100.0).max(0.01)
}

#[cfg(test)]
mod tests {
    use super::super::race::Label;
    use super::{Raced, measured};
    use tensorlend_baselines::Stat;

    fn raced(
        name: &str,
        peer: &'static str,
        size_bytes: Option<u64>,
        p50_ns: f64,
        floor: Option<&'static str>,
    ) -> Raced {
        let label = Label { name: name.to_owned(), peer, size_bytes, floor };
        Raced { label, stat: Stat { p50_ns, min_ns: p50_ns / 2.0, max_ns: p50_ns * 2.0 } }
    }

    #[test]
    fn a_ratio_is_to_the_floor_of_the_same_size_or_to_that_of_none() {
        let all = [
            raced("line", "floor", None, 50.0, None),
            raced("memcpy", "floor", Some(1), 10.0, None),
            raced("memcpy", "floor", Some(2), 20.0, None),
            raced("memcpy", "other", Some(2), 1.0, None),
            raced("put", "tensorlend", Some(2), 30.0, Some("memcpy")),
            raced("send", "tensorlend", Some(2), 75.0, Some("line")),
            raced("lost", "tensorlend", Some(3), 75.0, Some("memcpy")),
        ];
        let ratio = |index: usize| measured(&all[index], &all).ratio;
        assert_eq!((ratio(4), ratio(5)), (Some(1.5), Some(1.5)));
        assert_eq!((measured(&all[6], &all).floor, ratio(6), ratio(0)), (None, None, None));
    }

    #[test]
    fn the_ratio_is_of_the_figures_that_are_told() {
        let all =
            [raced("line", "floor", None, 0.333_33, None), raced("send", "tensorlend", None, 0.666_66, Some("line"))];
        let row = measured(&all[1], &all);
        assert_eq!((row.p50_ns, row.ratio), (0.67, Some((0.67_f64 / 0.33 * 1e4).round() / 1e4)));
    }
}
