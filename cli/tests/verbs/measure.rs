//! Tests that the output of `bench` is complete and consistent. No test checks a speed.

use std::collections::HashMap;

use serde_json::Value;

use crate::bench::{Bench, Running, program};

/// The rows that a short run prints, and the sizes that each row must have.
const ROWS: [(&str, &[u64]); 27] = [
    ("cacheline_one_way", &[]),
    ("futex_one_way", &[]),
    ("eventfd_epoll_one_way", &[]),
    ("unix_socket_round_trip", &[]),
    ("unix_connect", &[]),
    ("store_fence_look", &[]),
    ("page_fault_fresh", &[4096]),
    ("page_fault_existing", &[4096]),
    ("page_fault_populated", &[4096]),
    ("memcpy", &[1 << 10, 64 << 10, 1 << 20, 16 << 20]),
    ("memory_written_read", &[1 << 10, 1 << 20, 4 << 20]),
    ("stream_poll_one_way", &[1 << 10, 1 << 20, 4 << 20]),
    ("stream_poll_written_read", &[1 << 10, 1 << 20, 4 << 20]),
    ("stream_wake_one_way", &[1 << 10]),
    ("stream_epoll_one_way", &[1 << 10]),
    ("get_name", &[]),
    ("exists", &[]),
    ("list_len", &[]),
    ("publish_overwrite", &[]),
    ("publish_new", &[]),
    ("draft_create_drop", &[64, 1 << 20]),
    ("put_copy_in", &[64 << 10, 1 << 20, 16 << 20]),
    ("get_into", &[64 << 10, 1 << 20, 16 << 20]),
    ("exchange_round_trip", &[1 << 10, 1 << 20]),
    ("exchange_put_round_trip", &[1 << 10, 1 << 20]),
    ("connect", &[]),
    ("first_slot", &[]),
];

/// Two processes want two cores. Whether there is one, which is reported then.
fn too_few_cores() -> bool {
    let too_few = std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2);
    if too_few {
        tensorlend_os::skip::skip("it needs two cores");
    }
    too_few
}

fn text<'v>(row: &'v Value, field: &str) -> &'v str {
    row[field].as_str().unwrap_or_else(|| panic!("{field} of {row}"))
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("{field} of {row}"))
}

fn check(report: &Value) {
    let fields: Vec<&String> = report.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["machine", "placement", "results"]);
    assert!(["near", "far"].contains(&text(report, "placement")));
    let machine = &report["machine"];
    assert!(number(machine, "cores") >= 2.0 && number(machine, "memory_bytes") > 0.0);
    for field in ["cpu", "kernel", "date"] {
        assert!(!text(machine, field).is_empty());
    }

    let rows = report["results"].as_array().unwrap();
    let mut floors = HashMap::new();
    for row in rows.iter().filter(|row| text(row, "peer") == "floor") {
        floors.insert((text(row, "name"), row["size_bytes"].as_u64()), number(row, "p50_ns"));
    }
    for row in rows {
        let (p50, min, max) = (number(row, "p50_ns"), number(row, "min_ns"), number(row, "max_ns"));
        assert!(0.0 < min && min <= p50 && p50 <= max, "{row}");
        let Some(floor) = row["floor"].as_str() else {
            assert!(row["floor"].is_null() && row["ratio"].is_null(), "{row}");
            continue;
        };
        let size = row["size_bytes"].as_u64();
        let floor = floors.get(&(floor, size)).or_else(|| floors.get(&(floor, None)));
        let ratio = p50 / floor.unwrap_or_else(|| panic!("no floor for {row}"));
        assert!((number(row, "ratio") - ratio).abs() <= 1e-3 * ratio + 1e-4, "{row}");
    }
    let found = |name: &str, peer: &str, size: Option<u64>| {
        let is_it = |row: &&Value| text(row, "name") == name && text(row, "peer") == peer;
        rows.iter().filter(is_it).filter(|row| row["size_bytes"].as_u64() == size).count() == 1
    };
    for (name, sizes) in ROWS {
        let sizes: Vec<_> = if sizes.is_empty() { vec![None] } else { sizes.iter().copied().map(Some).collect() };
        for size in sizes {
            assert!(found(name, "floor", size) || found(name, "tensorlend", size), "{name} of {size:?} bytes");
        }
    }
}

#[test]
fn a_short_run_has_every_row_and_its_ratios() {
    if too_few_cores() {
        return;
    }
    let done = Running::start(&mut program(&["bench", "--quick", "--json"])).done();
    assert_eq!(done.status, 0, "{}", done.err);
    assert!(done.err.contains("a cache line takes"), "{}", done.err);
    assert!(!done.err.contains("left out"), "{}", done.err);
    let mut lines = done.out.lines();
    check(&serde_json::from_str(lines.next().unwrap()).unwrap());
    assert_eq!(lines.next(), None);
}

#[test]
fn with_a_daemon_nothing_is_left_in_it_and_plots_are_written() {
    if too_few_cores() {
        return;
    }
    let bench = Bench::new();
    bench.client().put("mine", &[1_u8]).unwrap();
    // One row of each plot and of each kind: another test looks at all of them.
    let rows = ["cacheline_one_way", "stream_poll_one_way", "store_fence_look", "get_name", "exchange_round_trip"];
    let only: Vec<&str> = rows.iter().flat_map(|row| ["--only", row]).collect();
    let done = bench.run(&[&["bench", "--quick", "--plot", "plots"], only.as_slice()].concat());
    assert_eq!(done.status, 0, "{}", done.err);
    assert!(!done.err.contains("left out"), "{}", done.err);
    for word in ["NAME", "MEDIAN", "cacheline_one_way", "stream_poll_one_way", "tensorlend", "store_fence_look"] {
        assert!(done.out.contains(word), "{word}: {}", done.out);
    }
    for name in ["plots/operations.svg", "plots/exchange.svg"] {
        assert!(bench.read(name).starts_with(b"<svg"), "{name}");
    }
    assert_eq!(bench.names(), ["mine"]);
    let client = bench.client();
    assert!(client.streams("*").unwrap().is_empty() && client.lists("*").unwrap().is_empty());
}

#[test]
fn only_what_was_asked_for_is_measured() {
    if too_few_cores() {
        return;
    }
    let done = Running::start(&mut program(&["bench", "--quick", "--json", "--only", "list_len"])).done();
    assert_eq!(done.status, 0, "{}", done.err);
    let report: Value = serde_json::from_str(&done.out).unwrap();
    let names: Vec<&str> = report["results"].as_array().unwrap().iter().map(|row| text(row, "name")).collect();
    assert!(names.contains(&"list_len") && names.contains(&"store_fence_look"), "{names:?}");
    assert!(!names.contains(&"stream_poll_one_way"), "{names:?}");

    let done = Running::start(&mut program(&["bench", "--quick", "--only", "no such row"])).done();
    assert_eq!(done.status, 2, "{}", done.err);
}
