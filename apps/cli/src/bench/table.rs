//! The benchmark's report as text.

use super::race::{Label, LeftOut};
use super::report::Report;
use crate::output::Table;

/// Formats the report. Rows keep the order of the plan, in which a floor precedes the rows compared
/// with it.
pub fn text(report: &Report, left_out: &[LeftOut]) -> String {
    let machine = &report.machine;
    let mut text = format!(
        "tensorlend {} on {}, {} cores, Linux {}, {}\ncores {} and {} are {}\n\n",
        machine.version,
        machine.cpu,
        machine.cores,
        machine.kernel,
        machine.date,
        machine.cores_used[0],
        machine.cores_used[1],
        report.placement,
    );
    let mut table = Table::new(&["NAME", "PEER", ">SIZE", ">MEDIAN", ">FASTEST", ">SLOWEST", ">RATIO", "TO"]);
    for row in &report.results {
        table.row([
            row.name.clone(),
            row.peer.to_owned(),
            row.size_bytes.map_or_else(String::new, size_text),
            time_text(row.p50_ns),
            time_text(row.min_ns),
            time_text(row.max_ns),
            row.ratio.map_or_else(String::new, ratio_text),
            row.floor.unwrap_or_default().to_owned(),
        ]);
    }
    for LeftOut { label, not_built, .. } in left_out {
        let Label { name, peer, size_bytes, .. } = label;
        let why = if *not_built { "not built" } else { "failed" };
        let size = size_bytes.map_or_else(String::new, size_text);
        let nothing = String::new;
        table.row([name.clone(), (*peer).to_owned(), size, why.to_owned(), nothing(), nothing(), nothing(), nothing()]);
    }
    text += &table.text();
    if left_out.iter().any(|row| row.not_built) {
        text += "\nnot built: cargo build --release -p tensorlend-cli --features bench-peers\n";
    }
    text
}

/// Formats bytes in the largest binary unit that divides them.
pub fn size_text(bytes: u64) -> String {
    tensorlend_layout::size::bytes_text(bytes)
}

/// Formats nanoseconds with three digits and a suitable unit.
pub fn time_text(ns: f64) -> String {
    if ns < 99.95 { format!("{ns:.1} ns") } else { crate::demo::table::nanos_text(ns.round() as u64) }
}

/// Formats a ratio with at least three digits.
pub fn ratio_text(ratio: f64) -> String {
    match ratio {
        r if r < 0.1 => format!("{r:.4}x"),
        r if r < 9.995 => format!("{r:.2}x"),
        r if r < 99.95 => format!("{r:.1}x"),
        r => format!("{r:.0}x"),
    }
}

#[cfg(test)]
mod tests {
    use super::{ratio_text, time_text};

    #[test]
    fn figures_have_three_digits() {
        let cases = [(0.5, "0.5 ns"), (99.94, "99.9 ns"), (99.96, "100 ns"), (1234.0, "1.23 us"), (5e6, "5.00 ms")];
        for (ns, text) in cases {
            assert_eq!(time_text(ns), text);
        }
        let cases = [(0.001_23, "0.0012x"), (1.0, "1.00x"), (9.994, "9.99x"), (12.34, "12.3x"), (123.4, "123x")];
        for (ratio, text) in cases {
            assert_eq!(ratio_text(ratio), text);
        }
    }
}
