//! Tests that the output of `bench` is complete and consistent, and that `demo` moves the bytes of which it prints times.
//! No test checks a speed.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use tensorlend::DType;

use crate::bench::{Bench, Running, program};

/// The rows that a short run prints, and the sizes that each row must have.
const ROWS: &[(&str, &[u64])] = &[
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
    ("memory_written_read", &[32, 1 << 10, 1 << 20, 4 << 20]),
    ("stream_poll_one_way", &[1 << 10, 1 << 20, 4 << 20]),
    ("stream_loan_one_way", &[1 << 10, 1 << 20, 4 << 20]),
    ("stream_poll_written_read", &[32, 1 << 10, 1 << 20, 4 << 20]),
    ("stream_loan_written_read", &[32, 1 << 10, 1 << 20, 4 << 20]),
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
    ("connect_after_pause", &[]),
    ("first_slot_after_pause", &[]),
];

/// Two processes want two cores. Whether there is one, which is reported then.
pub fn too_few_cores() -> bool {
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
fn with_a_daemon_nothing_is_left_in_it() {
    if too_few_cores() {
        return;
    }
    let bench = Bench::new();
    bench.client().put("mine", &[1_u8]).unwrap();
    // One row of each kind: another test looks at all of them.
    let rows = ["cacheline_one_way", "stream_poll_one_way", "store_fence_look", "get_name", "exchange_round_trip"];
    let only: Vec<&str> = rows.iter().flat_map(|row| ["--only", row]).collect();
    let done = bench.run(&[&["bench", "--quick"], only.as_slice()].concat());
    assert_eq!(done.status, 0, "{}", done.err);
    assert!(!done.err.contains("left out"), "{}", done.err);
    for word in ["NAME", "MEDIAN", "cacheline_one_way", "stream_poll_one_way", "tensorlend", "store_fence_look"] {
        assert!(done.out.contains(word), "{word}: {}", done.out);
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

#[test]
fn the_demo_writes_every_byte_of_each_tensor_that_it_times() {
    let bench = Bench::new();
    let client = bench.client();
    let mut demo = bench.start(&["demo", "--connect", "--max-mib", "1"]);
    let mut seen: HashMap<String, HashSet<u8>> = HashMap::new();
    while !demo.has_ended() {
        for info in client.list("demo/race/*").unwrap() {
            // The demo may have deleted the name. The consumer's acknowledgements are not bytes.
            let Some(lease) = client.get(&info.name).ok().filter(|lease| lease.dtype() == DType::U8) else { continue };
            let first = lease.bytes()[0];
            assert!(lease.bytes().iter().all(|&byte| byte == first), "{} has bytes of several exchanges", info.name);
            let method = info.name["demo/race/".len()..].split('-').next().unwrap_or_default();
            seen.entry(method.to_owned()).or_default().insert(first);
        }
    }
    demo.done().ok();
    for method in ["put", "lend"] {
        assert!(seen.get(method).is_some_and(|values| values.len() > 1), "{method}: {seen:?}");
    }
}

/// A run with one row of tensorlend, as `bench --json` prints it.
fn run_of(ns: f64) -> String {
    format!(
        r#"{{"machine":{{"cpu":"A","cores":2,"kernel":"6"}},"placement":"near","results":[{{"name":"get_name",
        "peer":"tensorlend","size_bytes":null,"p50_ns":{ns},"min_ns":1,"max_ns":9,"floor":null,"ratio":null}}]}}"#
    )
}

#[test]
fn two_groups_of_runs_are_compared_and_a_slower_row_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, runs: &[f64]| {
        let path = folder.path().join(name);
        std::fs::write(&path, runs.iter().copied().map(run_of).collect::<Vec<_>>().join("\n")).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (base, more) = (write("base", &[100.0, 101.0, 102.0]), write("more", &[103.0, 104.0]));
    let now = write("now", &[111.0, 112.0, 113.0, 114.0, 115.0]);
    let compare = |more_args: &[&str]| {
        let args = ["bench", "--compare", &base, &more, "--now", &now];
        Running::start(&mut program(&[&args[..], more_args].concat())).done()
    };

    let done = compare(&[]);
    assert_eq!(done.status, 1, "{}", done.err);
    for word in ["get_name", "102 ns", "113 ns", "1.11x", "slower"] {
        assert!(done.out.contains(word), "{word}: {}", done.out);
    }
    assert!(done.err.contains("slower than the base by more than 5 %: get_name (1.11x)"), "{}", done.err);

    let done = compare(&["--threshold", "12", "--json"]);
    assert_eq!(done.status, 0, "{}", done.err);
    let report: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&report["base_runs"], &report["now_runs"]), (&5.into(), &5.into()));
    let row = &report["rows"][0];
    assert_eq!((text(row, "name"), text(row, "verdict")), ("get_name", "slower"));
    assert!(row["low"].as_f64().unwrap() > 1.0 && row["high"].as_f64() > row["low"].as_f64(), "{row}");

    let done = Running::start(&mut program(&["bench", "--compare", &format!("{base}-missing"), "--now", &now])).done();
    assert_eq!(done.status, 6, "{}", done.err);
    let done = Running::start(&mut program(&["bench", "--now", &now])).done();
    assert_eq!(done.status, 2, "{}", done.err);
}

#[test]
fn each_run_is_measured_in_its_own_process_and_compared() {
    if too_few_cores() {
        return;
    }
    let only = ["--quick", "--only", "store_fence_look"];
    let done = Running::start(&mut program(&[&["bench", "--runs", "2", "--json"], &only[..]].concat())).done();
    assert_eq!(done.status, 0, "{}", done.err);
    assert_eq!(done.out.lines().count(), 2, "{}", done.out);
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("base.json");
    std::fs::write(&base, &done.out).unwrap();
    let args = ["bench", "--runs", "1", "--json", "--compare", base.to_str().unwrap()];
    let done = Running::start(&mut program(&[&args[..], &only].concat())).done();
    assert_eq!(done.status, 0, "{}", done.err);
    assert!(done.err.contains("a verdict needs 5 runs"), "{}", done.err);
    let report: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&report["base_runs"], &report["now_runs"]), (&2.into(), &1.into()));
    assert!(report["rows"].as_array().unwrap().iter().all(|row| text(row, "verdict") == "too_few_runs"), "{report}");
}
