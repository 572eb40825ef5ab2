//! Tests of `ls`, `info`, `rm`, `rename`, `copy` and of lists.

use serde_json::json;

use crate::bench::{Bench, repository};

#[test]
fn names_at_their_limits() {
    let bench = Bench::new();
    bench.write("in.raw", [7]);
    let put = |name: &str| bench.run(&["put", name, "in.raw", "--dtype", "u8", "--shape", "1"]);
    let (longest, too_long) = ("x".repeat(255), "x".repeat(256));
    let wide = "温".repeat(85);
    for name in ["a", &longest, &wide, "温度/センサ 1", "a b", "*", "--", "./..", "ё\u{301}"] {
        let args = ["put", "--dtype", "u8", "--shape", "1", "--", name, "in.raw"];
        assert!(bench.ok(&args).starts_with(name));
        assert!(bench.ok(&["ls", "-a"]).contains(name));
        assert_eq!(bench.names(), [name]);
        bench.ok(&["get", "-o", "out.npz", "--", name]);
        assert_eq!(bench.ok(&["rm", "--exact", "--", name]), "deleted 1 name\n");
    }
    for name in ["", &too_long, "a\nb", "a\tb", "\u{7f}", "a\u{85}b"] {
        let error = put(name).fails(2);
        assert!(error.contains("name"), "{error}");
        bench.fails(2, &["get", name, "-o", "out.npy"]);
        bench.fails(2, &["info", name]);
        bench.fails(2, &["watch", name, "--timeout", "1"]);
        bench.fails(2, &["rm", "--exact", name]);
        bench.fails(2, &["copy", "a", name]);
        bench.fails(2, &["send", name, "in.raw", "--dtype", "u8", "--shape", "1"]);
        bench.fails(2, &["append", name, "in.raw", "--dtype", "u8", "--shape", "1"]);
    }
    assert!(bench.names().is_empty());
    // With the member's name appended the name is too long, so the command publishes nothing of the file.
    bench.ok(&["put", "a", "in.raw", "--dtype", "u8", "--shape", "1"]);
    bench.ok(&["get", "a", "-o", "a.npz"]);
    bench.fails(6, &["put", &"x".repeat(254), "a.npz", "--split"]);
    assert_eq!(bench.names(), ["a"]);
}

#[test]
fn listing() {
    let bench = Bench::new();
    assert_eq!(bench.ok(&["ls"]), "");
    assert_eq!(bench.json_line(&["ls"]), json!({"names": [], "streams": [], "lists": []}));
    bench.ok(&["put", "flowers/iris", &repository("examples/data/iris.npy")]);
    bench.ok(&["put", "digits", &repository("examples/data/digits.npy")]);
    bench.ok(&["send", "camera", &repository("examples/data/china.jpg")]);
    bench.ok(&["append", "results", &repository("examples/data/iris.npy")]);

    let text = bench.ok(&["ls"]);
    let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0], ["NAME", "DTYPE", "SHAPE", "BYTES", "OWNER"]);
    assert_eq!(words[1][..6], ["digits", "u8", "[1797,", "8,", "8]", "115008"]);
    assert_eq!(words[1][7..], ["tensorlend", "put", "(gone)"]);
    assert_eq!(words[2][0], "flowers/iris");
    assert_eq!((words[4].as_slice(), words[5].as_slice()), (&["STREAM", "SUBSCRIBERS"][..], &["camera", "0"][..]));
    assert_eq!((words[7].as_slice(), words[8].as_slice()), (&["LIST", "ITEMS"][..], &["results", "1"][..]));

    let all = bench.json_line(&["ls"]);
    let iris = &all["names"][1];
    assert_eq!(iris["name"], "flowers/iris");
    assert_eq!(iris["kind"], "tensor");
    assert_eq!(iris["dtype"], "f64");
    assert_eq!(iris["shape"], json!([150, 4]));
    assert_eq!(iris["nbytes"], 4800);
    assert_eq!(iris["owner"]["label"], "tensorlend put");
    assert_eq!(iris["owner"]["alive"], false);
    assert!(iris["owner"]["pid"].as_u64().unwrap() > 0);
    assert_eq!(all["streams"], json!([{"name": "camera", "subscribers": 0}]));
    assert_eq!(all["lists"], json!([{"name": "results", "items": 1}]));

    assert_eq!(bench.json_line(&["ls", "--lists"]), json!({"lists": [{"name": "results", "items": 1}]}));
    assert_eq!(bench.json_line(&["ls", "c*", "--streams"])["streams"].as_array().unwrap().len(), 1);
    assert_eq!(bench.json_line(&["ls", "f*"])["names"].as_array().unwrap().len(), 1);
    assert_eq!(bench.ok(&["ls", "nothing*"]), "");
    let error = bench.fails(2, &["ls", "[a"]);
    assert!(error.contains("[a"), "{error}");
    // The owner, this test's client, is alive.
    let client = bench.client();
    client.put("mine", &[1.0f32]).unwrap();
    assert_eq!(bench.json_line(&["info", "mine"])["owner"]["alive"], true);
    assert_eq!(bench.json_line(&["info", "mine"])["owner"]["pid"], std::process::id());
    assert!(!bench.ok(&["info", "mine"]).contains("(gone)"));
}

#[test]
fn listing_what_meets_conditions() {
    let bench = Bench::new();
    let (client, me) = (bench.client(), std::process::id().to_string());
    bench.write("in.raw", vec![0; 8192]);
    bench.ok(&["put", "stamped", "in.raw", "--dtype", "u8", "--shape", "8192"]);
    bench.ok(&["send", "camera", &repository("examples/data/china.jpg")]);
    client.put("small", &[0u8; 16]).unwrap();
    client.put("large", &[0u8; 4096]).unwrap();
    client.copy("large", "copy").unwrap();
    client.put("replaced", &[1u8]).unwrap();
    let listed = |args: &[&str]| -> Vec<String> {
        let found = bench.json_line(&[&["ls"], args].concat());
        assert!(found["streams"].is_null() && found["lists"].is_null(), "{found}");
        found["names"].as_array().unwrap().iter().map(|info| info["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(listed(&["--larger", "4KiB"]), ["stamped"]);
    assert_eq!(listed(&["--larger", "4095"]), ["copy", "large", "stamped"]);
    // Only a value with a timestamp has an age.
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(listed(&["--older", "10ms"]), ["stamped"]);
    assert!(listed(&["--older", "1h"]).is_empty());
    assert!(listed(&["--held-by", &me]).is_empty());
    let leases = ["small", "large", "replaced"].map(|name| client.get(name).unwrap());
    client.put("replaced", &[2u8]).unwrap();
    let held = listed(&["--held-by", &me]);
    assert!(held.contains(&"small".into()) && held.contains(&"large".into()), "{held:?}");
    assert!(!held.contains(&"replaced".into()) && !held.contains(&"stamped".into()), "{held:?}");
    assert_eq!(listed(&["--held-by", &me, "--larger", "16B", "l*"]), ["large"]);
    assert!(listed(&["--held-by", &me, "--older", "1ms"]).is_empty());
    assert!(bench.ok(&["ls", "--held-by", &me]).contains("large"));
    drop(leases);
    assert!(listed(&["--held-by", &me]).is_empty());
    let error = bench.fails(4, &["ls", "--held-by", "1"]);
    assert!(error.contains("process 1"), "{error}");
    assert_eq!(bench.run(&["ls", "--larger", "1GB"]).status, 2);
    assert_eq!(bench.run(&["ls", "--older", "soon"]).status, 2);
    assert_eq!(bench.run(&["ls", "--streams", "--larger", "1"]).status, 2);
}

#[test]
fn removing() {
    let bench = Bench::new();
    let client = bench.client();
    let names = ["a/1", "a/2", "b", "c", "odd[1]*", "d"];
    for name in names {
        client.put(name, &[1u8]).unwrap();
    }
    assert_eq!(bench.ok(&["rm", "a/*"]), "deleted 2 names\n");
    assert_eq!(bench.ok(&["rm", "z*"]), "deleted 0 names\n");
    assert_eq!(bench.ok(&["rm", "--exact", "odd[1]*"]), "deleted 1 name\n");
    let done = bench.run(&["rm", "nothing", "b", "nobody"]);
    assert_eq!(done.out, "deleted 1 name\n");
    assert_eq!(done.fails(4), "there is no tensor named \"nothing\", no tensor named \"nobody\": see `tensorlend ls`");
    assert_eq!(bench.names(), ["c", "d"]);
    assert_eq!(bench.json_line(&["rm", "?"]), json!({"names": ["c", "d"], "streams": [], "lists": []}));

    let iris = repository("examples/data/iris.npy");
    for (stream, list) in [("s1", "l1"), ("s2", "l2"), ("s", "l")] {
        bench.ok(&["send", stream, &iris]);
        bench.ok(&["append", list, &iris]);
    }
    assert_eq!(bench.ok(&["rm", "--stream", "s", "--list", "l"]), "deleted 1 stream, 1 list\n");
    assert_eq!(bench.ok(&["rm", "--stream", "s?", "--list", "l{1,2}"]), "deleted 2 streams, 2 lists\n");
    let done = bench.run(&["rm", "--stream", "s", "--list", "l"]);
    assert_eq!(done.fails(4), "there is no stream named \"s\", no list named \"l\": see `tensorlend ls`");
    assert_eq!(bench.run(&["rm"]).status, 2);
    assert_eq!(bench.ok(&["ls"]), "");
}

#[test]
fn a_removed_tensor_stays_with_its_reader() {
    let bench = Bench::new();
    bench.write("in.raw", [7, 8, 9]);
    bench.ok(&["put", "t", "in.raw", "--dtype", "u8", "--shape", "3"]);
    let lease = bench.client().get("t").unwrap();
    assert_eq!(bench.json_line(&["stat"])["bytes_leased"].as_u64().unwrap(), 3);
    bench.ok(&["rm", "t"]);
    bench.ok(&["put", "t", "in.raw", "--dtype", "u8", "--shape", "1x3"]);
    assert_eq!(lease.bytes(), [7, 8, 9]);
}

#[test]
fn renaming_and_copying() {
    let bench = Bench::new();
    let client = bench.client();
    client.put("mine", &[1u8, 2]).unwrap();
    bench.ok(&["put", "theirs", &repository("examples/data/iris.npy")]);
    // First the value of a live owner, then the value of an owner that has exited.
    for (name, nbytes) in [("mine", 2), ("theirs", 4800)] {
        bench.ok(&["cp", name, "double"]);
        bench.ok(&["rename", name, "new"]);
        bench.ok(&["mv", "double", "double2"]);
        assert_eq!(
            bench.names(),
            if name == "mine" { vec!["double2", "new", "theirs"] } else { vec!["double2", "new"] }
        );
        for name in ["new", "double2"] {
            assert_eq!(bench.json_line(&["info", name])["nbytes"], nbytes);
        }
    }
    for verb in ["rename", "copy"] {
        let error = bench.fails(4, &[verb, "nobody", "x"]);
        assert!(error.contains("\"nobody\""), "{error}");
    }
    bench.ok(&["append", "list", &repository("examples/data/iris.npy")]);
    bench.ok(&["rename", "--list", "list", "list2"]);
    assert_eq!(client.length("list2"), 1);
    bench.fails(4, &["rename", "--list", "list", "list3"]);
}

#[test]
fn lists() {
    let bench = Bench::new();
    let (iris, digits) = (repository("examples/data/iris.npy"), repository("examples/data/digits.npy"));
    let npz = crate::bench::fixture("stored.npz");
    let appended = bench.json_line(&["append", "results", &iris, &npz]);
    assert_eq!(appended, json!({"list": "results", "items": [0, 1], "nbytes": 4825}));
    assert_eq!(bench.ok(&["append", "results", &digits]), "appended 1 item, 115008 bytes, to results\n");
    let got = bench.json(&["list-get", "results", "-o", "r"]);
    let paths: Vec<&str> = got.iter().map(|g| g["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["r/000000.npy", "r/000001.npz", "r/000002.npy"]);
    bench.ok(&["put", "again", "r/000002.npy"]);
    let original = bench.client();
    bench.ok(&["put", "digits", &digits]);
    assert_eq!(original.get("again").unwrap().bytes(), original.get("digits").unwrap().bytes());
    let some = bench.json(&["list-get", "results", "-o", "some", "--first", "1", "--count", "1"]);
    assert_eq!(some[0]["item"], 1);
    assert_eq!(some.len(), 1);
    assert_eq!(bench.ok(&["list-get", "results", "-o", "none", "--first", "9"]), "");
    let error = bench.fails(4, &["list-get", "nobody", "-o", "nobody"]);
    assert!(error.contains("\"nobody\""), "{error}");
    assert!(!bench.path("nobody").exists());
    bench.fails(2, &["list-get", "results", "-o", "x", "--format", "gif"]);
    bench.fails(6, &["list-get", "results", "-o", "x", "--format", "png"]);
}

#[test]
fn names_that_end_by_themselves() {
    let bench = Bench::new();
    bench.write("in.raw", [7]);
    let raw = ["--dtype", "u8", "--shape", "1"];
    bench.ok(&[&["put", "long", "in.raw", "--ttl", "2h"][..], &raw].concat());
    assert!(bench.ok(&["info", "long"]).contains("s left"));
    let info = bench.json_line(&["info", "long"]);
    assert!(info["ttl_ns"].as_u64().unwrap() > 3_600_000_000_000 && info["ephemeral"] == false, "{info}");
    bench.ok(&[&["put", "long", "in.raw"][..], &raw].concat());
    assert_eq!(bench.json_line(&["info", "long"])["ttl_ns"], json!(null), "put again without one, it stays");
    assert_eq!(bench.run(&[&["put", "x", "in.raw", "--ttl", "0s"][..], &raw].concat()).status, 2);

    bench.ok(&[&["put", "short", "in.raw", "--ttl", "1ms"][..], &raw].concat());
    while bench.names().contains(&"short".to_owned()) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let stat = bench.json_line(&["stat"]);
    assert_eq!(stat["names_expired"], 1);
    assert_eq!(stat["uids"].as_array().unwrap().len(), 1);
    assert_eq!(stat["namespaces"][0]["names"], 1);
    assert!(stat["uids"][0]["sessions"].as_u64().unwrap() >= 1, "{stat}");
}

#[test]
fn an_ephemeral_name_lasts_as_long_as_its_command() {
    let bench = Bench::new();
    bench.write("in.raw", [7]);
    let running = bench.start(&["put", "here", "in.raw", "--dtype", "u8", "--shape", "1", "--ephemeral"]);
    assert!(running.line().starts_with("here: "));
    assert!(bench.ok(&["info", "here"]).contains("ends with its owner"));
    assert_eq!(bench.json_line(&["info", "here"])["ephemeral"], true);
    drop(running);
    while !bench.names().is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(bench.json_line(&["stat"])["names_ephemeral_gone"], 1);
}
