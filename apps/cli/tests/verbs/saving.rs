//! Tests of `save`, `load` and `restore`.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tensorlend::{Client, DType, TensorSpec};
use tensorlend_daemon::Bytes;

use crate::bench::Bench;

/// Publishes a tensor of each element type that safetensors can store, a dataset, and names that collide with those of
/// the dataset's members.
fn fill(client: &Client) {
    for dtype in DType::ALL.iter().copied().filter(|d| is_kept(*d)) {
        let mut draft = client.create(dtype, &[3, 2]).unwrap();
        let bytes = draft.bytes_mut();
        (0..).zip(bytes).for_each(|(at, byte)| *byte = if dtype == DType::BOOL { at % 2 } else { at });
        draft.publish(&format!("types/{dtype}")).unwrap();
    }
    client.create(DType::F32, ()).unwrap().publish("one").unwrap();
    client.create(DType::F64, &[3, 0]).unwrap().publish("none").unwrap();
    client.put("frame/image", &[1u8, 2]).unwrap();
    client.put("__metadata__", &[3u8]).unwrap();
    let mut image = client.create(DType::U8, &[4]).unwrap();
    image.copy_from(&[1, 2, 3, 4]).unwrap();
    image.set_metadata("größer".as_bytes()).unwrap();
    image.set_timestamp(5);
    let depth = client.create(DType::F32, &[2, 2]).unwrap();
    let frame = client.dataset().metadata(&[0xff, 0]).unwrap().timestamp(u64::MAX);
    frame.add("image", image).unwrap().add("depth", depth).unwrap().publish("frame").unwrap();
    let mut columns = TensorSpec::new(DType::U8, &[2, 3]);
    columns.strides = Some(vec![1, 2]);
    let mut columns = client.create_spec(columns).unwrap();
    columns.copy_from(&[1, 4, 2, 5, 3, 6]).unwrap();
    columns.publish("columns").unwrap();
}

fn is_kept(dtype: DType) -> bool {
    dtype != DType::C128
        && (!dtype.name().starts_with("f8_") || ["f8_e4m3fn", "f8_e5m2"].contains(&dtype.name()))
        && !dtype.name().starts_with("f4")
        && !dtype.name().starts_with("f6")
}

/// The contents of every name that starts with `prefix`: element type, shape, bytes, metadata and timestamp of each
/// tensor.
fn all(bench: &Bench, prefix: &str) -> Vec<Value> {
    let names = bench.names().into_iter().filter(|name| name.starts_with(prefix));
    let client = bench.client();
    let described = names.map(|name| {
        let value = client.get_value(&name).unwrap();
        let of = |t: &tensorlend::Tensor| {
            let mut bytes = vec![0; t.nbytes()];
            t.copy_to(&mut bytes).unwrap();
            json!([t.dtype().name(), t.shape(), bytes, t.metadata(), t.timestamp()])
        };
        let what = match (value.as_tensor(), value.as_dataset()) {
            (Some(tensor), _) => of(tensor),
            (_, Some(set)) => {
                json!([set.metadata(), set.timestamp(), set.iter().map(|(n, t)| json!([n, of(t)])).collect::<Vec<_>>()])
            }
            _ => unreachable!("nothing here is on a device"),
        };
        json!([name.strip_prefix(prefix), what])
    });
    described.collect()
}

#[test]
fn everything_comes_back() {
    let bench = Bench::new();
    fill(&bench.client());
    let before = all(&bench, "");
    let saved = bench.json_line(&["save", "*", "-o", "all.safetensors"]);
    assert_eq!(saved["names"].as_array().unwrap().len(), before.len());
    assert_eq!(saved["path"], "all.safetensors");

    let loaded = bench.json_line(&["load", "all.safetensors", "--prefix", "again/"]);
    assert_eq!(loaded["nbytes"], saved["nbytes"]);
    assert_eq!(all(&bench, "again/"), before);
    bench.ok(&["rm", "*"]);
    assert!(bench.ok(&["load", "all.safetensors"]).starts_with("all.safetensors: "));
    assert_eq!(all(&bench, ""), before);

    let again = bench.run(&["load", "all.safetensors", "--no-overwrite", "--only", "{one,new}"]).fails(1);
    assert!(again.contains("\"one\" exists already"), "{again}");
    bench.ok(&["rm", "*"]);
    bench.ok(&["load", "all.safetensors", "--no-overwrite", "--only", "frame", "--only", "o*"]);
    assert_eq!(bench.names(), ["frame", "one"]);
    bench.ok(&["load", "all.safetensors", "--only", "nothing"]);
}

#[test]
fn a_glob_without_a_match_leaves_the_file_alone() {
    let bench = Bench::new();
    bench.client().put("weights", &[1u8]).unwrap();
    bench.ok(&["save", "weights", "-o", "keep.safetensors"]);
    let kept = bench.read("keep.safetensors");
    for words in [&["typo*"][..], &["weights", "typo*"], &["w*", "typo*"]] {
        let error = bench.fails(4, &[&["save"], words, &["-o", "keep.safetensors"]].concat());
        assert!(error.contains("\"typo*\""), "{words:?}: {error}");
        assert_eq!(bench.read("keep.safetensors"), kept, "{words:?}");
    }
    assert_eq!(std::fs::read_dir(bench.path(".")).unwrap().count(), 1, "a temporary file was left");
}

/// The number of names is five times the number of leases that one client can hold.
#[test]
fn more_names_than_leases_come_back() {
    const NAMES: u32 = 20_000;
    let bench = Bench::new();
    let client = bench.client();
    let name = |number: u32| format!("n/{number:05}");
    for number in 0..NAMES {
        // Alternate between two element types, so that the file's order differs from the order of the names. Every
        // hundredth
        // value is a dataset.
        match number {
            _ if number % 100 == 0 => {
                let mut draft = client.create(DType::U32, &[1]).unwrap();
                draft.copy_from(&number.to_le_bytes()).unwrap();
                let set = client.dataset().metadata(&number.to_le_bytes()).unwrap();
                set.add("number", draft).unwrap().publish(&name(number)).unwrap();
            }
            _ if number % 2 == 0 => _ = client.put(&name(number), &[number]).unwrap(),
            _ => _ = client.put(&name(number), &number.to_le_bytes()).unwrap(),
        }
    }
    let saved = bench.json_line(&["save", "n/*", "-o", "all.safetensors"]);
    assert_eq!(saved["names"].as_array().unwrap().len(), NAMES as usize);
    assert_eq!((&saved["groups"], &saved["nbytes"]), (&json!(5), &json!(4 * NAMES)));
    bench.ok(&["rm", "n/*"]);
    assert_eq!(bench.json_line(&["restore", "all.safetensors"])["names"].as_array().unwrap().len(), NAMES as usize);
    for number in 0..NAMES {
        let value = client.get_value(&name(number)).unwrap();
        let set = value.as_dataset();
        assert_eq!(set.is_some(), number % 100 == 0);
        assert!(set.is_none_or(|set| set.metadata() == number.to_le_bytes()));
        let tensor: &tensorlend::Tensor = match set {
            Some(set) => set.get("number").unwrap(),
            None => value.as_tensor().unwrap(),
        };
        let mut bytes = [0; 4];
        tensor.copy_to(&mut bytes).unwrap();
        assert_eq!(bytes, number.to_le_bytes());
    }
}

/// Two of the values fit into memory and the others are spilled to disk, so one client cannot lease all of them at
/// once.
#[test]
fn values_that_do_not_fit_into_memory_together_are_saved() {
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::with(|config| {
        config.pool.bytes_max = Some(Bytes(12 << 20));
        config.pool.spare_segments = 0;
        config.spill.directory = Some(folder.path().to_owned());
        config.spill.bytes_max = Some(Bytes(64 << 20));
    });
    for number in 0..6u8 {
        let client = bench.client();
        client.put(&format!("n{number}"), &vec![number; 4 << 20]).unwrap();
    }
    assert!(bench.client().stat().unwrap().bytes_spilled > 0);
    let saved = bench.json_line(&["save", "*", "-o", "all.safetensors"]);
    assert!(saved["groups"].as_u64().unwrap() > 1, "{saved}");
    let file = bench.read("all.safetensors");
    let values = &file[file.len() - (24 << 20)..];
    assert!((0..6u8).all(|number| values[usize::from(number) << 22..][..4 << 20].iter().all(|byte| *byte == number)));
}

#[test]
fn files_of_other_programs() {
    let bench = Bench::new();
    bench.ok(&["put", "set", &crate::bench::fixture("stored.npz")]);
    bench.ok(&["get", "set", "-o", "plain.safetensors"]);
    let members = bench.json_line(&["info", "set"])["tensors"].as_array().unwrap().clone();
    bench.ok(&["rm", "*"]);
    bench.ok(&["load", "plain.safetensors"]);
    let mut names: Vec<_> = members.iter().map(|m| m["name"].as_str().unwrap().to_owned()).collect();
    names.sort_unstable();
    assert_eq!(bench.names(), names);
    // A reader that ignores the metadata finds the tensors.
    bench.ok(&["save", "*", "-o", "saved.safetensors"]);
    bench.ok(&["put", "set", "saved.safetensors"]);
    assert_eq!(bench.json_line(&["info", "set"])["tensors"].as_array().unwrap().len(), members.len());
}

#[test]
fn what_cannot_be_kept_changes_no_file() {
    let bench = Bench::new();
    let client = bench.client();
    client.create(DType::C128, &[2]).unwrap().publish("complex").unwrap();
    bench.write("x.safetensors", "old");
    let error = bench.fails(6, &["save", "*", "-o", "x.safetensors"]);
    assert!(error.contains("\"complex\"") && error.contains("c128"), "{error}");
    assert_eq!(bench.read("x.safetensors"), b"old");
    let mut broken = client.create(DType::BOOL, &[2]).unwrap();
    broken.bytes_mut().fill(7);
    broken.publish("odd").unwrap();
    let error = bench.fails(6, &["save", "odd", "-o", "x.safetensors"]);
    assert!(error.contains("\"odd\""), "{error}");
    assert_eq!(std::fs::read_dir(bench.path(".")).unwrap().count(), 1, "a temporary file was left");
}

#[test]
fn a_damaged_file_or_one_that_does_not_fit_publishes_nothing() {
    let bench = Bench::with(|config| {
        config.pool.bytes_max = Some(Bytes(8 << 20));
        config.pool.spare_segments = 0;
    });
    let client = bench.client();
    client.put("small", &[1u8; 100]).unwrap();
    client.put("large", &vec![2u8; 3 << 20]).unwrap();
    bench.ok(&["save", "*", "-o", "whole.safetensors"]);
    // Other programs may keep the metadata and change the tensors.
    let whole = bench.read("whole.safetensors");
    let at = whole.windows(7).position(|w| w == b"\"small\"").unwrap();
    let mut renamed = whole.clone();
    renamed[at + 1] = b'S';
    bench.write("renamed.safetensors", renamed);
    bench.write("cut.safetensors", &whole[..whole.len() - 1]);
    bench.ok(&["rm", "*"]);
    for name in ["renamed", "cut"] {
        let error = bench.fails(6, &["load", &format!("{name}.safetensors")]);
        assert!(error.contains(name) && error.contains("damaged"), "{error}");
    }
    let filler = client.create(DType::U8, &[5 << 20]).unwrap();
    let error = bench.fails(7, &["load", "whole.safetensors"]);
    assert!(error.contains("pool.bytes_max"), "{error}");
    let error = bench.fails(6, &["load", "whole.safetensors", "--prefix", &"x".repeat(252)]);
    assert!(error.contains("name"), "{error}");
    assert!(bench.names().is_empty());
    drop(filler);
}

#[test]
fn what_is_saved_was_there_together() {
    let bench = Bench::new();
    let client = bench.client();
    // The producer publishes both names in this order with the same number, and pauses now and then. At every moment
    // the
    // number of the first is that of the second or one more.
    let names = ["a", "b"];
    for name in names {
        client.put(name, &[0u64]).unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1u64.. {
                for name in names {
                    client.put(name, &[number]).unwrap();
                }
                if number % 100 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                if done.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        for _ in 0..20 {
            let run = bench.run(&["save", "a", "b", "-o", "x.safetensors"]);
            if run.status == 7 {
                // The producer replaced a value during every attempt. The error message names the cause.
                assert!(run.err.contains("changed while the others were leased"), "{}", run.err);
                continue;
            }
            run.ok();
            bench.ok(&["load", "x.safetensors", "--prefix", "seen/"]);
            let [a, b] =
                names.map(|name| bench.client().get(&format!("seen/{name}")).unwrap().as_slice::<u64>().unwrap()[0]);
            assert!(a == b || a == b + 1, "{a} {b}");
        }
        done.store(true, Ordering::Relaxed);
    });
    bench.ok(&["save", "a", "b", "-o", "x.safetensors"]);
}

#[test]
fn missing_names_are_an_error_unless_ignored() {
    let bench = Bench::new();
    bench.client().put("model/a", &[1u8]).unwrap();
    let names = ["model/*", "optimizer", "other/*"];
    for missing in &names[1..] {
        bench.fails(4, &["save", "model/*", missing, "-o", "x.safetensors"]);
    }
    assert!(!bench.path("x.safetensors").exists());
    let run = bench.run(&[&["save", "--ignore-missing", "-o", "x.safetensors"][..], &names].concat());
    assert!(run.err.contains("\"optimizer\" does not exist"), "{}", run.err);
    assert!(run.err.contains("no name matches \"other/*\""), "{}", run.err);
    assert_eq!(run.status, 0, "{}", run.err);
    bench.ok(&["load", "x.safetensors", "--prefix", "seen/"]);
    assert_eq!(bench.names(), ["model/a", "seen/model/a"]);
    let before = bench.read("x.safetensors");
    for missing in &names[1..] {
        let run = bench.run(&["save", "--ignore-missing", missing, "-o", "x.safetensors"]);
        assert_eq!(run.status, 4, "{}", run.err);
    }
    assert_eq!(bench.read("x.safetensors"), before);
}

#[test]
fn what_exists_is_left_alone_by_a_restore() {
    let bench = Bench::new();
    let client = bench.client();
    for (name, value) in [("a", 1u8), ("b", 2), ("c", 3)] {
        client.put(name, &[value]).unwrap();
    }
    bench.ok(&["save", "a", "b", "-o", "ab.safetensors"]);
    bench.ok(&["save", "c", "-o", "c.safetensors"]);
    std::fs::create_dir(bench.path("boot")).unwrap();
    for (from, to) in [("ab", "boot/1"), ("c", "boot/3")] {
        std::fs::rename(bench.path(&format!("{from}.safetensors")), bench.path(&format!("{to}.safetensors"))).unwrap();
    }
    let value = |name: &str| client.get(name).unwrap().as_slice::<u8>().unwrap()[0];
    client.put("a", &[7u8]).unwrap();
    client.delete("b").unwrap();
    client.delete("c").unwrap();
    let said = bench.json(&["restore", "boot"]);
    assert_eq!((&said[0]["names"], &said[0]["kept"]), (&json!(["b"]), &json!(["a"])));
    assert_eq!((&said[1]["names"], &said[1]["kept"]), (&json!(["c"]), &json!([])));
    assert_eq!((value("a"), value("b"), value("c")), (7, 2, 3));
    assert!(
        bench.ok(&["load", "boot/1.safetensors", "--keep-existing"]).contains("0 names, 0 bytes, 2 kept as they are")
    );
    bench.ok(&["load", "boot/1.safetensors"]);
    assert_eq!(value("a"), 1);

    // A damaged or missing file does not stop the other files from being restored. Files of another type are ignored.
    bench.write("boot/2.safetensors", "nonsense");
    bench.write("boot/notes.txt", "nonsense");
    client.delete("c").unwrap();
    let error = bench.fails(6, &["restore", "boot"]);
    assert!(error.starts_with("1 of 3 files were not restored") && error.contains("2.safetensors"), "{error}");
    assert_eq!(value("c"), 3);
    client.delete("c").unwrap();
    let both = bench.run(&["restore", "missing.safetensors", "boot"]);
    assert_eq!((both.status, both.err.lines().count()), (6, 2), "{}", both.err);
    assert!(both.err.contains("missing.safetensors") && both.err.contains("2 of 4 files"), "{}", both.err);
    assert_eq!(value("c"), 3);
    let alone = bench.fails(6, &["restore", "missing.safetensors"]);
    assert!(alone.starts_with("cannot read"), "{alone}");
    // An empty folder is not an error: it is empty when the daemon starts for the first time.
    std::fs::create_dir(bench.path("empty")).unwrap();
    assert_eq!(bench.ok(&["restore", "empty"]), "");
}

/// Published names outlive the client that restored them, and the values need not fit into memory together if the
/// daemon has a spill directory.
#[test]
fn files_are_restored_one_after_the_other_into_a_small_pool() {
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::with(|config| {
        config.pool.bytes_max = Some(Bytes(8 << 20));
        config.pool.spare_segments = 0;
        config.spill.directory = Some(folder.path().to_owned());
        config.spill.bytes_max = Some(Bytes(64 << 20));
    });
    std::fs::create_dir(bench.path("boot")).unwrap();
    for number in 0..4u8 {
        let client = bench.client();
        let mut draft = client.create(DType::U8, &[4 << 20]).unwrap();
        draft.bytes_mut().fill(number);
        draft.publish(&format!("n{number}")).unwrap();
        drop(client);
        bench.ok(&["save", &format!("n{number}"), "-o", &format!("boot/{number}.safetensors")]);
        bench.ok(&["rm", &format!("n{number}")]);
    }
    bench.ok(&["restore", "boot"]);
    let client = bench.client();
    for number in 0..4u8 {
        let tensor = client.get(&format!("n{number}")).unwrap();
        assert!(tensor.as_slice::<u8>().unwrap().iter().all(|byte| *byte == number));
    }
    assert!(client.stat().unwrap().bytes_spilled > 0);
}

/// The values of all names, to compare them before and after a failed command.
fn names_and_values(bench: &Bench) -> Vec<Value> {
    all(bench, "")
}

/// A namespace of 512 names, in which 64 names may be longer than 96 bytes.
fn small() -> Bench {
    Bench::with(|config| config.namespace_default.names_max = Some(512))
}

/// Writes a file with these names to the folder of `bench`.
fn file_of(bench: &Bench, file: &str, names: impl Iterator<Item = String>) {
    let large = Bench::new();
    let client = large.client();
    for name in names {
        client.put(&name, &[9u8, 9]).unwrap();
    }
    large.ok(&["save", "*", "-o", file]);
    bench.write(file, large.read(file));
}

#[test]
fn more_names_than_the_limit_publish_nothing() {
    let bench = small();
    bench.client().put("n/0001", &[1u8]).unwrap();
    let before = names_and_values(&bench);
    file_of(&bench, "many.safetensors", (0..600).map(|number| format!("n/{number:04}")));
    for verb in [&["load"][..], &["load", "--keep-existing"], &["restore"]] {
        let error = bench.fails(7, &[verb, &["many.safetensors"]].concat());
        assert!(error.contains("names_max") && error.contains("nothing was published"), "{verb:?}: {error}");
        assert_eq!(names_and_values(&bench), before, "{verb:?}");
    }
    bench.ok(&["load", "many.safetensors", "--only", "n/01*"]);
    assert_eq!(bench.names().len(), 101);
}

/// The file has fewer names than the limit, but the daemon refuses some of the long names.
#[test]
fn a_name_that_the_daemon_refuses_takes_the_others_back() {
    let bench = small();
    let client = bench.client();
    let long = |number: u32| format!("{}/{number:04}", "n".repeat(96));
    client.put("short", &[1u8]).unwrap();
    client.put(&long(3), &[2u8]).unwrap();
    client.put(&long(200), &[3u8]).unwrap();
    let before = names_and_values(&bench);
    file_of(&bench, "long.safetensors", (0..400).map(long).chain(["short".to_owned()]));
    for verb in [&["load"][..], &["load", "--keep-existing"], &["restore"]] {
        let error = bench.fails(7, &[verb, &["long.safetensors"]].concat());
        assert!(error.contains("all names have their former values"), "{verb:?}: {error}");
        assert_eq!(names_and_values(&bench), before, "{verb:?}");
    }
    // `put --split` publishes several names, too.
    let error = bench.fails(7, &["put", "part", "long.safetensors", "--split"]);
    assert!(error.contains("all names have their former values"), "{error}");
    assert_eq!(names_and_values(&bench), before);
    // Nothing of a failed command uses up the limit.
    bench.ok(&["load", "long.safetensors", "--only", "*/000*", "--only", "*/001*", "--only", "short"]);
    assert_eq!(client.get("short").unwrap().as_slice::<u8>().unwrap(), [9, 9]);
    assert_eq!(bench.names().len(), 22);
}

/// The test stops the command while it publishes names, and then sends the signal.
#[test]
fn a_signal_during_a_load_takes_the_names_back() {
    const NAMES: usize = 20_000;
    let bench = Bench::new();
    let name = |number: usize| format!("n/{number:05}");
    file_of(&bench, "all.safetensors", (0..NAMES).map(name));
    let client = bench.client();
    client.put("n/00007", &[1u8]).unwrap();
    let before = names_and_values(&bench);
    // The command may end before the signal arrives. Then the test starts it again.
    let caught = (0..20).any(|_| {
        let load = ["load", "all.safetensors"];
        let mut child = bench.command(&load).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        while child.try_wait().unwrap().is_none() && !client.exists(&name(100)).unwrap() {
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        let _ = kill_process(pid, Signal::STOP);
        let is_publishing = !client.exists(&name(NAMES - 1)).unwrap();
        let _ = kill_process(pid, Signal::TERM);
        let _ = kill_process(pid, Signal::CONT);
        let ended_by = child.wait().unwrap().signal();
        if is_publishing && ended_by.is_some() {
            assert_eq!(ended_by, Some(Signal::TERM.as_raw()));
            return true;
        }
        bench.ok(&["rm", "n/*"]);
        client.put("n/00007", &[1u8]).unwrap();
        false
    });
    assert!(caught, "the signal did not arrive during a publication");
    assert_eq!(names_and_values(&bench), before);
}
