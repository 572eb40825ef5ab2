//! Tests of output for programs and shells: errors and numbers as JSON, and completions.

use std::process::Command;

use serde_json::{Value, json};

use crate::bench::{Bench, repository};

/// Returns the error that a command writes as JSON.
fn error(bench: &Bench, status: i32, args: &[&str]) -> Value {
    let done = bench.run(&[args, &["--json"]].concat());
    assert_eq!((done.status, done.out.as_str()), (status, ""), "{}", done.err);
    assert_eq!(done.err.lines().count(), 1, "{}", done.err);
    serde_json::from_str(&done.err).unwrap()
}

#[test]
fn errors_are_json_where_the_output_is() {
    let bench = Bench::new();
    let missing = error(&bench, 4, &["info", "nothing"]);
    assert_eq!((&missing["code"], &missing["status"]), (&json!("TL-0301"), &json!(4)));
    assert!(missing["error"].as_str().unwrap().contains("nothing"), "{missing}");
    let unknown = error(&bench, 2, &["ls", "--no-such-option"]);
    assert_eq!(unknown["code"], "TL-1002");
    assert_eq!(bench.run(&["ls", "--help", "--json"]).status, 0, "help is no error");
}

#[test]
fn every_command_of_values_has_json() {
    let bench = Bench::new();
    bench.ok(&["put", "a", &repository("examples/data/iris.npy")]);
    assert_eq!(bench.json_line(&["rename", "a", "b"]), json!({ "kind": "name", "from": "a", "to": "b" }));
    assert_eq!(bench.json_line(&["copy", "b", "c"]), json!({ "from": "b", "to": "c" }));
    // No f64 has this number: it is a text.
    let info = bench.json_line(&["info", "c"]);
    assert!(info["timestamp_ns"].as_str().is_some_and(|text| text.parse::<u64>().is_ok()), "{info}");
    assert_eq!(info["nbytes"], 4800);
}

#[cfg(feature = "top")]
#[test]
fn top_prints_a_view_as_json() {
    let bench = Bench::new();
    bench.ok(&["put", "weights", &repository("examples/data/iris.npy")]);
    let seen = bench.json_line(&["top", "--tab", "names"]);
    assert_eq!((&seen["view"], &seen["rows"][0]["name"]), (&json!("names"), &json!("weights")));
    assert_eq!((&seen["rows"][0]["bytes"], &seen["refusals"]["limit"]), (&json!(4800), &json!(0)));
}

#[test]
fn names_with_a_dot_in_front_are_for_programs() {
    let bench = Bench::new();
    let client = bench.client();
    for name in ["shown", ".hidden"] {
        client.put(name, &[1.0f32]).unwrap();
    }
    assert!(!bench.ok(&["ls"]).contains(".hidden"));
    for args in [&["ls", "-a"][..], &["ls", ".hid*"], &["ls", "--json"]] {
        assert!(bench.ok(args).contains(".hidden"), "{args:?}");
    }
}

/// Returns bash's completions of the last of these words.
fn offered(bench: &Bench, words: &[&str]) -> Vec<String> {
    let script = bench.ok(&["completions", "bash"]);
    bench.write("completions.bash", script);
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_tensorlend")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    // The words are the arguments of the shell, so that no quoting is needed.
    let ask = "source completions.bash; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
               _tensorlend_published tensorlend \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"; \
               printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut command = Command::new("bash");
    command.args(["--norc", "-c", ask, "bash"]).args(words).env("PATH", path);
    command.env("TENSORLEND_SOCKET", bench.broker.socket()).current_dir(bench.path(""));
    let done = command.output().unwrap();
    String::from_utf8(done.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn the_shell_completes_names_that_are_published() {
    let bench = Bench::new();
    let client = bench.client();
    for name in ["weights", "weights/1", "work", "other", "$(touch hacked)"] {
        client.put(name, &[1.0f32]).unwrap();
    }
    let _stream = client.stream("camera").open().unwrap();
    assert_eq!(offered(&bench, &["tensorlend", "get", "we"]), ["weights", "weights/1"]);
    assert_eq!(offered(&bench, &["tensorlend", "recv", "ca"]), ["camera"]);
    assert!(offered(&bench, &["tensorlend", "ls", "--str"]).contains(&"--streams".to_owned()));
    // A name is untrusted text: the shell must not run it.
    assert_eq!(offered(&bench, &["tensorlend", "info", "$"]), ["\\$\\(touch\\ hacked\\)"]);
    for shell in ["zsh", "fish"] {
        assert!(bench.ok(&["completions", shell]).contains("tensorlend complete"), "{shell}");
    }
}
