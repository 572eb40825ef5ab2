//! Tests of `tensorlend replay` with logs that clients have written, and with damaged logs.

use serde_json::Value;
use tensorlend::{Client, DType, Draft};

use crate::bench::Bench;

const HEAD: &str = "thread,time_ns,action,slot,generation,bytes";

/// Writes a log of 300 allocations. 200 of them are freed. Returns the peak of the allocated bytes.
fn write_log(bench: &Bench) -> u64 {
    let builder = Client::builder().socket(bench.broker.socket()).statistics();
    let client = builder.allocation_log(bench.path("log.csv")).connect().unwrap();
    let make = |bytes: u64| client.create(DType::U8, &[bytes]).unwrap();
    let mut drafts: Vec<Draft> = (0..200).map(|at| make(64 + at * 100)).collect();
    drafts.truncate(50);
    drafts.extend((0..100).map(|at| make(64 + at * 30)));
    drafts.drain(..50);
    client.instruments().stop_log().unwrap();
    client.instruments().statistics().unwrap().peak_bytes
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key}: {value}"))
}

#[test]
fn a_log_makes_the_round() {
    let bench = Bench::new();
    let peak = write_log(&bench);
    for args in
        [&["replay", "log.csv"][..], &["replay", "log.csv", "--connect"], &["replay", "log.csv", "--pool", "64MiB"]]
    {
        let report = bench.json_line(args);
        assert_eq!((number(&report["allocate"], "count"), number(&report["free"], "count")), (300, 200), "{report}");
        assert_eq!(number(&report, "log_bytes_peak"), peak);
        assert_eq!(number(&report, "slot_bytes_peak"), peak);
        assert!(number(&report, "segment_bytes_peak") >= peak);
        // The log's peak is about 2 MB, which a few segments hold.
        let misses = number(&report, "misses");
        assert!((1..10).contains(&misses), "{report}");
        assert_eq!(number(&report, "hits") + misses, 300);
        assert_eq!((number(&report, "failures"), number(&report, "log_frees_before")), (0, 0));
        assert!(number(&report["allocate"], "total_ns") > 0);
    }
    assert!(bench.names().is_empty());
    let text = bench.ok(&["replay", "log.csv"]);
    for word in ["allocations  300 in ", "frees        200 in ", "hit rate", "peak in use", "never freed"] {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn a_small_pool_shows_in_failures() {
    let bench = Bench::new();
    let line = |action: &str, slot: u32| format!("1,0,{action},{slot},1,1048576\n");
    let log: String = (0..8).map(|slot| line("allocate", slot)).chain((0..8).map(|slot| line("free", slot))).collect();
    bench.write("log.csv", format!("{HEAD}\n{log}"));
    let report = bench.json_line(&["replay", "log.csv", "--pool", "4MiB"]);
    let failures = number(&report, "failures");
    assert!((1..8).contains(&failures), "{report}");
    assert_eq!(number(&report["allocate"], "count") + failures, 8);
    assert_eq!(number(&report["free"], "count"), number(&report["allocate"], "count"));
    assert!(number(&report, "segment_bytes_peak") <= 4 << 20);
}

#[test]
fn what_the_log_lacks_is_told() {
    let bench = Bench::new();
    bench.write("log.csv", format!("{HEAD}\n1,5,free,3,1,64\n1,6,allocate failure,0,0,128\n0,7,lost,0,0,12\n"));
    let done = bench.run(&["replay", "log.csv", "--json"]);
    assert_eq!(done.status, 0);
    assert!(done.err.contains("lacks 12 events"), "{}", done.err);
    let report: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((number(&report, "log_frees_before"), number(&report, "log_failures")), (1, 1));
    assert_eq!((number(&report, "log_lost"), &report["hit_rate"]), (12, &Value::Null));
}

#[test]
fn damaged_logs() {
    let bench = Bench::new();
    assert!(bench.fails(6, &["replay", "none.csv"]).contains("none.csv"));
    for (log, word) in [
        ("", "no column \"action\""),
        ("a,b\n1,2\n", "no column \"action\""),
        (&format!("{HEAD}\n1,0,allocate,3,1,many\n"), "line 2"),
        (&format!("{HEAD}\n1,0,allocate,3,1\n"), "line 2 has 5 fields instead of 6"),
        (&format!("{HEAD}\n1,0,steal,3,1,64\n"), "no action \"steal\""),
        (&format!("{HEAD}\n1,0,allocate,3,1,64\n1,0,allocate,3,1,64\n"), "line 3 allocates slot 3 once more"),
        (&format!("{HEAD}\n1,0,allocate,3,1,{}\n1,0,allocate,4,1,64\n", u64::MAX), "line 3: too many bytes"),
        ("\u{0}\n\u{1}\n", "no column"),
    ] {
        bench.write("log.csv", log);
        let error = bench.fails(6, &["replay", "log.csv"]);
        assert!(error.contains("log.csv is damaged") && error.contains(word), "{error}");
    }
    bench.write("log.csv", b"thread,time_ns,action,slot,generation,bytes\n1,0,\xff,3,1,64\n");
    bench.fails(6, &["replay", "log.csv"]);
    assert_eq!(bench.run(&["replay", "log.csv", "--connect", "--pool", "4MiB"]).status, 2);
}
