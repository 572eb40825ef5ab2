//! Tests of `model add`, `ls` and `rm`, and of the errors without a runner. The tests in apps/runner/tests execute models.

use serde_json::json;

use crate::bench::Bench;

/// An ONNX model without nodes: its output is its input `x`.
const MODEL: &[u8] = b"\x08\x08\x3a\x0a\x5a\x03\x0a\x01x\x62\x03\x0a\x01x";

#[test]
fn models_are_added_listed_and_removed() {
    let bench = Bench::new();
    bench.write("a.onnx", MODEL);
    assert_eq!(bench.ok(&["model", "add", "vision/a", "a.onnx"]), "added model vision/a, 14 bytes\n");
    let more = ["model", "add", "b", "a.onnx", "--batch-max", "8", "--batch-wait-ms", "2.5", "--json"];
    let added: serde_json::Value = serde_json::from_str(&bench.ok(&more)).unwrap();
    assert_eq!((&added["name"], &added["options"]["batch_max"]), (&json!("b"), &json!(8)));
    let listed: serde_json::Value = serde_json::from_str(&bench.ok(&["model", "ls", "--json"])).unwrap();
    assert_eq!(listed[1]["name"], json!("vision/a"));
    assert_eq!(listed[0]["options"]["batch_wait_ms"], json!(2.5));
    assert_eq!((&listed[0]["state"], &listed[0]["why"]), (&json!("waiting"), &json!(null)));
    assert!(bench.ok(&["model", "ls", "b"]).contains("no runner"));
    assert!(bench.ok(&["model", "ls", "v*"]).contains("vision/a"));
    assert_eq!(bench.names(), ["model/b/.onnx", "model/vision/a/.onnx"]);
    assert_eq!(bench.ok(&["model", "rm", "b"]), "removed model b\n");
    bench.fails(4, &["model", "rm", "b"]);
    bench.fails(4, &["model", "stat", "b"]);
    assert!(bench.ok(&["model", "stat", "vision/a"]).contains("ENGINE"));
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_added() {
    let bench = Bench::new();
    bench.write("a.onnx", MODEL);
    bench.write("empty.onnx", []);
    bench.write("text.onnx", "this is no model\n");
    bench.write("cut.onnx", &MODEL[..MODEL.len() - 1]);
    let gpu = bench.fails(2, &["model", "add", "a", "a.onnx", "--device", "gpu"]);
    assert!(gpu.contains("cpu"), "{gpu}");
    bench.fails(2, &["model", "add", "a", "a.onnx", "--batch-max", "0"]);
    bench.fails(2, &["model", "add", "a", "empty.onnx"]);
    bench.fails(6, &["model", "add", "a", "nothing.onnx"]);
    for file in ["text.onnx", "cut.onnx"] {
        let none = bench.fails(6, &["model", "add", "a", file]);
        assert!(none.contains(file) && none.contains("no ONNX file") && none.contains("nothing was added"), "{none}");
    }
    bench.fails(2, &["model", "add", &"x".repeat(250), "a.onnx"]);
    bench.fails(4, &["model", "run", "a", "--in", "x=x", "--out", "y=z"]);
    assert!(bench.names().is_empty());
    // The model exists, but no runner serves it.
    bench.ok(&["model", "add", "a", "a.onnx"]);
    let alone = bench.fails(5, &["model", "run", "a", "--in", "x=x", "--out", "y=z", "--timeout", "0.3"]);
    assert!(alone.contains("tensorlend-runner"), "{alone}");
}
