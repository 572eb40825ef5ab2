//! The demo's measurements as a table.

use std::fmt;
use std::io::{self, Write};
use tensorlend_layout::size::bytes_text;

/// A method of passing a tensor to another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// serde and bincode over an ipc-channel.
    Serialize,
    /// Copies through the shared_memory crate.
    Copy,
    /// tensorlend, with a copy of the producer's own array into shared memory.
    LendCopied,
    /// tensorlend, with the tensor written in place in shared memory.
    Lend,
}

impl Method {
    /// All methods, in display order.
    pub const ALL: [Self; 4] = [Self::Serialize, Self::Copy, Self::LendCopied, Self::Lend];

    /// Returns a one-word name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Serialize => "serialize",
            Self::Copy => "copy",
            Self::LendCopied => "put",
            Self::Lend => "lend",
        }
    }

    /// Returns a label that includes the libraries.
    pub fn label(self) -> &'static str {
        match self {
            Self::Serialize => "serialize (bincode over ipc-channel)",
            Self::Copy => "copy (shared_memory)",
            Self::LendCopied => "put (tensorlend, copied in)",
            Self::Lend => "lend (tensorlend, in place)",
        }
    }
}

/// Statistics of one time over all rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "the unit is part of each name")]
pub struct Stat {
    /// Shortest time.
    pub min_ns: u64,
    /// Median. If the number of samples is even, the larger of the middle two.
    pub p50_ns: u64,
    /// Longest time.
    pub max_ns: u64,
}

impl Stat {
    /// Computes the statistics of rounds of samples in any order. The median is the median of the rounds' medians, so that
    /// a round in which the machine was busy does not change it. Returns `None` without samples.
    pub fn of_rounds<'a>(rounds: impl Iterator<Item = &'a [u64]>) -> Option<Self> {
        let rounds: Vec<Self> = rounds.filter_map(Self::of_round).collect();
        let medians: Vec<u64> = rounds.iter().map(|round| round.p50_ns).collect();
        Some(Self {
            min_ns: rounds.iter().map(|round| round.min_ns).min()?,
            p50_ns: Self::of_round(&medians)?.p50_ns,
            max_ns: rounds.iter().map(|round| round.max_ns).max()?,
        })
    }

    fn of_round(samples_ns: &[u64]) -> Option<Self> {
        let mut sorted = samples_ns.to_vec();
        sorted.sort_unstable();
        Some(Self { min_ns: *sorted.first()?, p50_ns: *sorted.get(sorted.len() / 2)?, max_ns: *sorted.last()? })
    }
}

/// The times of one method and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    pub bytes: u64,
    /// The method by which the tensor was passed.
    pub method: Method,
    /// Time from the start, with the writes of the tensor, until the producer's call returned.
    pub put: Stat,
    /// Time from that return until the consumer had read the tensor.
    pub get: Stat,
    /// Time from the start until the producer had the acknowledgement.
    pub round_trip: Stat,
}

/// A row that was not measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    pub bytes: u64,
    /// The method by which the tensor would be passed.
    pub method: Method,
    /// The reason why the row was not measured.
    pub reason: String,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.method.name(), bytes_text(self.bytes), self.reason)
    }
}

const LEGEND: &str = "\
put         how long the producer writes and hands over every byte
get         how long from then until the consumer has read every byte
round trip  put, get and the acknowledgement back at the producer
x lend      its round trip divided by lend's
";

/// Writes the medians, with `is_verbose` the extremes, and then the omitted rows. Rows of one size must be adjacent.
///
/// # Errors
///
/// The errors of `out`.
pub fn render(rows: &[Row], left_out: &[LeftOut], is_verbose: bool, out: &mut impl Write) -> io::Result<()> {
    if !rows.is_empty() {
        medians(rows, out)?;
    }
    if !rows.is_empty() && is_verbose {
        extremes(rows, out)?;
    }
    if !left_out.is_empty() {
        writeln!(out, "\nLeft out")?;
        for row in left_out {
            writeln!(out, "  {row}")?;
        }
    }
    Ok(())
}

/// Returns a sentence that compares the largest tensor that was both serialized and lent.
pub fn summary(rows: &[Row]) -> Option<String> {
    let round_trip = |bytes, method| {
        let row = rows.iter().find(|row| (row.bytes, row.method) == (bytes, method))?;
        Some(row.round_trip.p50_ns)
    };
    let bytes = rows.iter().filter(|row| row.method == Method::Lend).map(|row| row.bytes);
    let (bytes, lend, serialize) = bytes
        .filter_map(|bytes| Some((bytes, round_trip(bytes, Method::Lend)?, round_trip(bytes, Method::Serialize)?)))
        .max_by_key(|(bytes, ..)| *bytes)?;
    let ratio = ratio_text(serialize as f64 / lend.max(1) as f64);
    let [lend, serialize] = [lend, serialize].map(nanos_text);
    Some(format!(
        "A process wrote {} and another one read every byte, in {lend} without a copy; serialized it took {serialize}, {ratio}.",
        bytes_text(bytes)
    ))
}

fn medians(rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "From one process to another, medians\n")?;
    writeln!(out, "{:<10} {:<36} {:>9} {:>9} {:>11} {:>8}", "size", "method", "put", "get", "round trip", "x lend")?;
    for (row, size) in rows.iter().zip(sizes(rows)) {
        let [put, get, round_trip] = [row.put, row.get, row.round_trip].map(|stat| nanos_text(stat.p50_ns));
        let ratio = ratio_to_lend(row, rows).map_or_else(|| "-".to_owned(), ratio_text);
        writeln!(out, "{size:<10} {:<36} {put:>9} {get:>9} {round_trip:>11} {ratio:>8}", row.method.label())?;
    }
    write!(out, "\n{LEGEND}")?;
    if rows.iter().any(|row| row.get.p50_ns == 0) {
        writeln!(out, "get 0 ns    the consumer had read it before the producer's call returned")?;
    }
    Ok(())
}

fn extremes(rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\nFastest to slowest\n")?;
    writeln!(out, "{:<10} {:<9}  {:>20}  {:>20}  {:>20}", "size", "method", "put", "get", "round trip")?;
    for (row, size) in rows.iter().zip(sizes(rows)) {
        let [put, get, round_trip] = [row.put, row.get, row.round_trip].map(span_text);
        writeln!(out, "{size:<10} {:<9}  {put:>20}  {get:>20}  {round_trip:>20}", row.method.name())?;
    }
    Ok(())
}

/// Returns the text of each row's size. The text is empty if the row above has the same size.
fn sizes(rows: &[Row]) -> impl Iterator<Item = String> {
    let above = std::iter::once(None).chain(rows.iter().map(|row| Some(row.bytes)));
    rows.iter()
        .zip(above)
        .map(|(row, above)| if above == Some(row.bytes) { String::new() } else { bytes_text(row.bytes) })
}

/// Returns the row's median round trip divided by the median of [`Method::Lend`] with the same
/// size. Returns `None` if that method was not measured.
fn ratio_to_lend(row: &Row, rows: &[Row]) -> Option<f64> {
    let lend = rows.iter().find(|other| other.bytes == row.bytes && other.method == Method::Lend)?;
    (lend.round_trip.p50_ns > 0).then(|| row.round_trip.p50_ns as f64 / lend.round_trip.p50_ns as f64)
}

fn ratio_text(ratio: f64) -> String {
    if ratio < 9.95 { format!("{ratio:.1}x") } else { format!("{ratio:.0}x") }
}

fn span_text(stat: Stat) -> String {
    format!("{} .. {}", nanos_text(stat.min_ns), nanos_text(stat.max_ns))
}

/// Formats nanoseconds with three digits and a suitable unit.
pub fn nanos_text(nanos: u64) -> String {
    if nanos < 1000 {
        return format!("{nanos} ns");
    }
    // A value at one of these limits would round to 1000 of its unit, so use the next unit.
    let (value, unit) = match nanos as f64 {
        ns if ns < 999.5e3 => (ns / 1e3, "us"),
        ns if ns < 999.5e6 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::{LeftOut, Method, Row, Stat, nanos_text, render, summary};

    fn row(bytes: u64, method: Method, put: u64, get: u64) -> Row {
        let stat = |ns: u64| Stat { min_ns: ns / 2, p50_ns: ns, max_ns: ns * 3 };
        Row { bytes, method, put: stat(put), get: stat(get), round_trip: stat(put + get + 100) }
    }

    fn text(rows: &[Row], left_out: &[LeftOut]) -> String {
        let mut out = Vec::new();
        render(rows, left_out, true, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_whole_table() {
        let rows = [
            row(1024, Method::Serialize, 6840, 0),
            row(1024, Method::Copy, 20, 60),
            row(1024, Method::Lend, 40, 60),
            row(256 << 20, Method::Serialize, 306_258_832, 99_969_934),
            row(256 << 20, Method::Lend, 13_000_000, 100),
        ];
        let reason = "/dev/shm has 64 MiB free; the shared_memory crate would die of SIGBUS".to_owned();
        let left_out = [LeftOut { bytes: 256 << 20, method: Method::Copy, reason }];
        assert_eq!(text(&rows, &left_out), GOLDEN);
        assert!(GOLDEN.lines().all(|line| line.len() <= 90 && line == line.trim_end()));
    }

    const GOLDEN: &str = "\
From one process to another, medians

size       method                                     put       get  round trip   x lend
1 KiB      serialize (bincode over ipc-channel)   6.84 us      0 ns     6.94 us      35x
           copy (shared_memory)                     20 ns     60 ns      180 ns     0.9x
           lend (tensorlend, in place)              40 ns     60 ns      200 ns     1.0x
256 MiB    serialize (bincode over ipc-channel)    306 ms    100 ms      406 ms      31x
           lend (tensorlend, in place)            13.0 ms    100 ns     13.0 ms     1.0x

put         how long the producer writes and hands over every byte
get         how long from then until the consumer has read every byte
round trip  put, get and the acknowledgement back at the producer
x lend      its round trip divided by lend's
get 0 ns    the consumer had read it before the producer's call returned

Fastest to slowest

size       method                      put                   get            round trip
1 KiB      serialize    3.42 us .. 20.5 us          0 ns .. 0 ns    3.47 us .. 20.8 us
           copy             10 ns .. 60 ns       30 ns .. 180 ns       90 ns .. 540 ns
           lend            20 ns .. 120 ns       30 ns .. 180 ns      100 ns .. 600 ns
256 MiB    serialize      153 ms .. 919 ms     50.0 ms .. 300 ms      203 ms .. 1.22 s
           lend         6.50 ms .. 39.0 ms       50 ns .. 300 ns    6.50 ms .. 39.0 ms

Left out
  copy at 256 MiB: /dev/shm has 64 MiB free; the shared_memory crate would die of SIGBUS
";

    #[test]
    fn the_summary_compares_the_largest_tensor() {
        let rows = [
            row(1024, Method::Lend, 40, 60),
            row(1 << 20, Method::Serialize, 4000, 0),
            row(1 << 20, Method::Lend, 1900, 0),
        ];
        let text = "A process wrote 1 MiB and another one read every byte, in 2.00 us without a copy; serialized it took 4.10 us, 2.0x.";
        assert_eq!(summary(&rows).as_deref(), Some(text));
        assert_eq!(summary(&rows[..2]), None);
    }

    #[test]
    fn without_lend_there_is_no_ratio() {
        let text = text(&[row(1024, Method::Copy, 20, 60)], &[]);
        assert!(text.contains("180 ns        -\n"), "{text}");
        assert!(!text.contains("Left out"));
    }

    #[test]
    fn nothing_measured_is_nothing_but_the_reasons() {
        assert_eq!(text(&[], &[]), "");
        let left_out = LeftOut { bytes: 1, method: Method::Lend, reason: "no".to_owned() };
        assert_eq!(text(&[], &[left_out]), "\nLeft out\n  lend at 1 byte: no\n");
    }

    #[test]
    fn times_have_three_digits() {
        let cases = [
            (0, "0 ns"),
            (999, "999 ns"),
            (1000, "1.00 us"),
            (9994, "9.99 us"),
            (9996, "10.0 us"),
            (99_960, "100 us"),
            (999_499, "999 us"),
            (999_500, "1.00 ms"),
            (724_261_603, "724 ms"),
            (999_600_000, "1.00 s"),
            (61_000_000_000, "61.0 s"),
        ];
        for (nanos, text) in cases {
            assert_eq!(nanos_text(nanos), text);
        }
    }

    #[test]
    fn statistics_of_samples() {
        let of = |rounds: &[&[u64]]| Stat::of_rounds(rounds.iter().copied());
        assert_eq!((of(&[]), of(&[&[]])), (None, None));
        assert_eq!(of(&[&[5, 1, 9]]), Some(Stat { min_ns: 1, p50_ns: 5, max_ns: 9 }));
        assert_eq!(of(&[&[4, 2]]), Some(Stat { min_ns: 2, p50_ns: 4, max_ns: 4 }));
        // The second round was in a bad moment.
        assert_eq!(of(&[&[2, 3, 4], &[50, 60, 70], &[1, 2, 3]]), Some(Stat { min_ns: 1, p50_ns: 3, max_ns: 70 }));
    }
}
