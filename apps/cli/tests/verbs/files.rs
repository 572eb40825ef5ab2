//! Tests of `put` and `get`: values survive the round trip, and a command writes whole files only.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;
use tensorlend::{DType, TensorSpec};

use crate::bench::{Bench, fixture, repository};

/// A pattern of bytes in which neighbours differ. For booleans, each byte is 0 or 1.
fn pattern(dtype: DType, bytes: usize) -> Vec<u8> {
    let most = if dtype == DType::BOOL { 2 } else { 251 };
    (0..bytes).map(|at| ((at * 7 + 3) % most) as u8).collect()
}

#[test]
fn every_dtype_goes_through_a_name_and_back() {
    let bench = Bench::new();
    for &dtype in DType::ALL {
        let bytes = pattern(dtype, 6 * dtype.item_bytes());
        bench.write("in.raw", &bytes);
        let put = bench.json_line(&["put", "t", "in.raw", "--dtype", dtype.name(), "--shape", "2x3"]);
        let expected =
            json!({"name": "t", "kind": "tensor", "dtype": dtype.name(), "shape": [2, 3], "nbytes": bytes.len()});
        assert_eq!(put["published"], json!([expected]));
        bench.ok(&["get", "t", "-o", "out.raw"]);
        assert_eq!(bench.read("out.raw"), bytes, "{dtype}");

        let format = match dtype {
            DType::BF16 => "safetensors",
            dtype if dtype.name().starts_with("f8_") => "safetensors",
            _ => "npy",
        };
        let file = format!("out.{format}");
        let done = bench.run(&["get", "t", "-o", &file]);
        if [DType::F8_E3M4, DType::F8_E4M3, DType::F8_E4M3B11FNUZ].contains(&dtype) {
            done.fails(6);
            continue;
        }
        done.ok();
        bench.ok(&["put", "again", &file]);
        bench.ok(&["get", "again", "-o", "again.raw"]);
        assert_eq!(bench.read("again.raw"), bytes, "{dtype}");
        bench.ok(&["rm", "t", "again"]);
    }
}

#[test]
fn odd_shapes() {
    let bench = Bench::new();
    for (shape, sizes, bytes) in [
        ("", json!([]), 4),
        ("0", json!([0]), 0),
        ("3x0x7", json!([3, 0, 7]), 0),
        ("1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x2", json!([1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2]), 8),
    ] {
        bench.write("in.raw", pattern(DType::F32, bytes));
        bench.ok(&["put", "t", "in.raw", "--dtype", "float32", "--shape", shape]);
        for file in ["o.npy", "o.npz", "o.safetensors"] {
            bench.ok(&["get", "t", "-o", file]);
            bench.ok(&["put", "again", file]);
            let info = bench.json_line(&["info", "again"]);
            let tensor = if file == "o.npy" { &info } else { &info["tensors"][0] };
            assert_eq!((&tensor["shape"], &tensor["nbytes"]), (&sizes, &json!(bytes)), "{file} {shape}");
            bench.ok(&["get", "again", "-o", "o.raw"]);
            assert_eq!(bench.read("o.raw"), pattern(DType::F32, bytes));
        }
    }
    let many = ["1"; 17].join("x");
    let done = bench.run(&["put", "t", "in.raw", "--dtype", "f32", "--shape", &many]);
    assert_eq!(done.status, 2, "{}", done.err);
}

#[test]
fn files_of_several_tensors_are_datasets() {
    let bench = Bench::new();
    for name in ["stored.npz", "deflated.npz"] {
        let put = bench.json_line(&["put", "d", &fixture(name)]);
        assert_eq!(put["published"][0]["kind"], "dataset", "{put}");
        bench.ok(&["get", "d", "-o", "d.npz"]);
        bench.ok(&["get", "d", "-o", "d.safetensors"]);
        let client = bench.client();
        let before = client.get_dataset("d").unwrap();
        for file in ["d.npz", "d.safetensors"] {
            bench.ok(&["put", "again", file]);
            let after = client.get_dataset("again").unwrap();
            assert_eq!(before.len(), after.len());
            for (member, tensor) in &before {
                let same = after.get(member).unwrap();
                assert_eq!(
                    (tensor.dtype(), tensor.shape(), tensor.bytes()),
                    (same.dtype(), same.shape(), same.bytes())
                );
            }
        }
    }
    let error = bench.fails(6, &["get", "d", "-o", "d.npy"]);
    assert!(error.contains("d.npy") && error.contains(".npz or .safetensors"), "{error}");
    assert!(!bench.path("d.npy").exists());

    bench.ok(&["put", "part", &fixture("stored.npz"), "--split", "--metadata", "m"]);
    assert_eq!(bench.names(), ["again", "d", "part/a", "part/ü"]);
    assert_eq!(bench.json_line(&["info", "part/a"])["metadata"], "m");
    bench.ok(&["get", "part/a", "-o", "a.npz"]);
    bench.ok(&["put", "one", "a.npz"]);
    // A dataset of one tensor may be written to a format that holds one tensor.
    bench.ok(&["get", "one", "-o", "a.npy"]);
    bench.ok(&["get", "part/a", "-o", "b.npy"]);
    assert_eq!(bench.read("a.npy"), bench.read("b.npy"));
}

#[test]
fn pictures() {
    let bench = Bench::new();
    bench.ok(&["put", "photo", &repository("examples/data/china.jpg")]);
    assert_eq!(bench.json_line(&["info", "photo"])["shape"], json!([427, 640, 3]));
    bench.ok(&["get", "photo", "-o", "photo.png"]);
    bench.ok(&["put", "copy", "photo.png"]);
    let client = bench.client();
    assert_eq!(client.get("photo").unwrap().bytes(), client.get("copy").unwrap().bytes());
    bench.ok(&["get", "photo", "-o", "photo.jpeg"]);
    bench.ok(&["put", "lossy", "photo.jpeg"]);
    assert_eq!(client.get("lossy").unwrap().shape(), [427, 640, 3]);
    bench.ok(&["put", "iris", &repository("examples/data/iris.npy")]);
    let error = bench.fails(6, &["get", "iris", "-o", "iris.png"]);
    assert!(error.contains("iris.png"), "{error}");
}

#[test]
fn raw_bytes_whatever_the_extension() {
    let bench = Bench::new();
    bench.write("in", [1, 2, 3, 4]);
    bench.ok(&["put", "t", "in", "--dtype", "u16", "--shape", "2"]);
    bench.write("out.npy", "old");
    fs::set_permissions(bench.path("out.npy"), fs::Permissions::from_mode(0o640)).unwrap();
    bench.ok(&["get", "t", "-o", "out.npy", "--raw"]);
    assert_eq!(bench.read("out.npy"), [1, 2, 3, 4]);
    assert_eq!(fs::metadata(bench.path("out.npy")).unwrap().permissions().mode() & 0o777, 0o640);
    bench.ok(&["get", "t", "-o", "out", "--raw"]);
    assert_eq!(bench.read("out"), [1, 2, 3, 4]);
    let left = fs::read_dir(bench.path("")).unwrap().count();
    assert_eq!(left, 3, "no temporary file is left");
    bench.fails(6, &["get", "t", "-o", "/", "--raw"]);
    bench.fails(6, &["get", "t", "-o", "no/such/folder", "--raw"]);
    bench.fails(2, &["get", "t", "-o", "out"]);
}

#[test]
fn strided_tensors_are_written_in_c_order() {
    let bench = Bench::new();
    let client = bench.client();
    let spec = TensorSpec { dtype: DType::U8, shape: vec![3, 2], strides: Some(vec![1, 3]), byte_offset: 0 };
    let mut draft = client.create_spec(spec).unwrap();
    draft.bytes_mut().copy_from_slice(&[0, 2, 4, 1, 3, 5]);
    draft.publish("columns").unwrap();
    bench.ok(&["get", "columns", "-o", "c.raw"]);
    assert_eq!(bench.read("c.raw"), [0, 1, 2, 3, 4, 5]);
    assert_eq!(bench.json_line(&["info", "columns"])["strides"], json!([1, 3]));
}

#[test]
fn many_elements_of_few_bytes_are_not_copied_beyond_the_memory() {
    let bench = Bench::new();
    let client = bench.client();
    let spec =
        TensorSpec { dtype: DType::U8, shape: vec![1 << 31, 1 << 31], strides: Some(vec![0, 0]), byte_offset: 0 };
    let mut draft = client.create_spec(spec).unwrap();
    draft.bytes_mut()[0] = 1;
    draft.publish("wide").unwrap();
    let error = bench.fails(7, &["get", "wide", "-o", "wide.npy"]);
    assert!(error.contains("memory"), "{error}");
    bench.fails(7, &["watch", "wide", "--count", "1"]);
    bench.ok(&["ls"]);
}

#[test]
fn damaged_files_publish_nothing() {
    let bench = Bench::new();
    bench.write("t.raw", pattern(DType::F32, 4000));
    bench.ok(&["put", "t", "t.raw", "--dtype", "f32", "--shape", "10x100"]);
    for file in ["t.npy", "t.npz", "t.safetensors"] {
        bench.ok(&["get", "t", "-o", file]);
    }
    bench.ok(&["put", "p", &repository("examples/data/china.jpg")]);
    bench.ok(&["get", "p", "-o", "t.png"]);
    fs::copy(repository("examples/data/china.jpg"), bench.path("t.jpg")).unwrap();
    bench.ok(&["rm", "t", "p"]);
    for file in ["t.npy", "t.npz", "t.safetensors", "t.png", "t.jpg"] {
        let whole = bench.read(file);
        let bad = format!("bad.{}", &file[2..]);
        for cut in [0, 5, 100, whole.len() / 2, whole.len() - 1] {
            bench.write(&bad, &whole[..cut]);
            for more in [&[][..], &["--split"]] {
                let error = bench.fails(6, &[&["put", "x", &bad], more].concat());
                assert!(error.contains("\"x\"") && error.contains(&bad), "{error}");
            }
            bench.fails(6, &["send", "s", &bad, "--timeout", "5"]);
            bench.fails(6, &["append", "l", &bad]);
            assert!(bench.names().is_empty(), "{file} cut to {cut} bytes");
            assert!(bench.client().lists("*").unwrap().is_empty());
        }
    }
    // Flip a byte in the middle of an array: only the archive's checksum detects it.
    let mut zip = bench.read("t.npz");
    let middle = zip.len() / 2;
    zip[middle] ^= 1;
    bench.write("bad.npz", &zip);
    bench.fails(6, &["put", "x", "bad.npz"]);
    // A file with more data than its header declares, and a file with less.
    bench.write("bad.npy", [bench.read("t.npy"), vec![0]].concat());
    bench.fails(6, &["put", "x", "bad.npy"]);
    bench.fails(2, &["put", "x", "t.raw", "--dtype", "f32", "--shape", "10x101"]);
    bench.write("bad.raw", [0, 1, 2]);
    let error = bench.fails(6, &["put", "x", "bad.raw", "--dtype", "bool", "--shape", "3"]);
    assert!(error.contains("boolean"), "{error}");
    bench.fails(6, &["put", "x", &fixture("objects.npy")]);
    bench.fails(6, &["put", "x", "missing.npy"]);
    assert!(bench.names().is_empty());
}

#[test]
fn a_bad_file_leaves_what_the_name_held() {
    let bench = Bench::new();
    bench.write("in.raw", [7]);
    bench.ok(&["put", "t", "in.raw", "--dtype", "u8", "--shape", ""]);
    bench.write("bad.npy", "x");
    bench.fails(6, &["put", "t", "bad.npy"]);
    bench.ok(&["get", "t", "-o", "out.raw"]);
    assert_eq!(bench.read("out.raw"), [7]);
}

#[test]
fn a_large_file_says_nothing_to_a_pipe() {
    let bench = Bench::new();
    let bytes = 80 << 20;
    fs::File::create(bench.path("big.raw")).unwrap().set_len(bytes).unwrap();
    let out = bench.ok(&["put", "big", "big.raw", "--dtype", "f32", "--shape", "20x1048576"]);
    assert_eq!(out, "big: f32 [20, 1048576], 83886080 bytes\n");
    bench.ok(&["get", "big", "-o", "big2.raw"]);
    assert_eq!(fs::metadata(bench.path("big2.raw")).unwrap().len(), bytes);
}

#[test]
fn metadata_and_timestamps() {
    let bench = Bench::new();
    bench.write("in.raw", [7]);
    let put = |more: &[&str]| bench.run(&[&["put", "t", "in.raw", "--dtype", "u8", "--shape", "1"], more].concat());
    let long = "ü".repeat(32_768);
    for text in ["", "Beijing, 2008", &long] {
        put(&["--metadata", text]).ok();
        let info = bench.json_line(&["info", "t"]);
        assert_eq!((&info["metadata"], &info["metadata_nbytes"]), (&json!(text), &json!(text.len())));
        let timestamp: u64 = info["timestamp_ns"].as_str().unwrap().parse().unwrap();
        assert!(timestamp > 1_600_000_000_000_000_000);
        assert!(bench.ok(&["info", "t"]).len() < 1000);
    }
    assert_eq!(put(&["--metadata", &(long + "x")]).status, 2);

    let client = bench.client();
    let mut draft = client.create(DType::U8, &[0]).unwrap();
    draft.set_metadata(&[0xff, 0x0a]).unwrap();
    draft.publish("bytes").unwrap();
    assert_eq!(bench.json_line(&["info", "bytes"])["metadata_hex"], "ff0a");
    let mut draft = client.create(DType::U8, &[0]).unwrap();
    draft.set_metadata(b"\x1b[2J").unwrap();
    draft.publish("escape").unwrap();
    assert!(bench.ok(&["info", "escape"]).contains("\\u{1b}[2J"));
}
