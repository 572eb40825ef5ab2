//! `tensorlend model`, with a runner.

mod common;

use common::{Runner, broker, client, eventually, models, put};
use std::path::Path;
use std::process::Command;

#[test]
fn a_model_is_added_run_and_removed_from_the_command_line() {
    let broker = broker();
    let _runner = Runner::start(&broker, &[]);
    let client = client(&broker);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("affine.onnx"), models::affine(2.0)).unwrap();
    put(&client, "image", &[1, 3], &[1.0f32, 2.0, 3.0]);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(tensorlend_tests::binary("tensorlend"));
        command.arg("--socket").arg(broker.socket()).args(arguments).current_dir(folder.path() as &Path);
        let done = tensorlend_tests::run(&mut command);
        let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        (done.status.code(), said)
    };
    let ok = |arguments: &[&str]| {
        let (status, said) = run(arguments);
        assert_eq!(status, Some(0), "{arguments:?}: {said}");
        said
    };
    ok(&["model", "add", "affine", "affine.onnx", "--batch-max", "4"]);
    assert_eq!(ok(&["model", "run", "affine", "--in", "x=image", "--out", "y=moved"]), "y -> moved\n");
    assert_eq!(client.get("moved").unwrap().as_slice::<f32>().unwrap(), [3.0, 5.0, 7.0]);
    assert_eq!(ok(&["model", "run", "affine", "--in", "x=image", "--out", "y=moved", "--json"]), "{\"y\":\"moved\"}\n");
    eventually("statistics", || ok(&["model", "stat", "affine"]).contains("rten 0.27"));
    let (status, said) = run(&["model", "run", "affine", "--in", "x=nothing", "--out", "y=moved"]);
    assert!(status == Some(1) && said.contains("nothing"), "{status:?}: {said}");
    let listed = ok(&["model", "ls"]);
    assert!(listed.contains("affine") && listed.contains("served"), "{listed}");
    // A file of the right form, with an operator that no engine has.
    std::fs::write(folder.path().join("odd.onnx"), models::odd()).unwrap();
    ok(&["model", "add", "odd", "odd.onnx"]);
    eventually("the state of what cannot be read", || ok(&["model", "ls"]).contains("refused"));
    let listed = ok(&["model", "ls"]);
    assert!(listed.contains("odd: it cannot be read") && listed.contains("served"), "{listed}");
    ok(&["model", "add", "odd", "affine.onnx"]);
    eventually("the state of its replacement", || !ok(&["model", "ls"]).contains("refused"));
    ok(&["model", "rm", "affine"]);
    assert_eq!(run(&["model", "rm", "affine"]).0, Some(4));
}

#[test]
fn a_runner_without_a_daemon_ends_with_a_code() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorlend-runner"));
    let done = tensorlend_tests::run(command.args(["--socket", "/nowhere/control.sock"]));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(1) && said.contains("/nowhere/control.sock"), "{said}");
    assert!(said.ends_with(" [TL-0101]\n"), "{said}");
}
