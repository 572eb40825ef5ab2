//! The first commands of a new user.

use tensorlend_tests::{Daemon, binary, run};

#[test]
fn the_demo_runs_without_a_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("plot.svg");
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/");
    let output = run(std::process::Command::new(binary("tensorlend"))
        .args(["demo", "--max-mib", "1", "--plot"])
        .arg(&plot)
        .args(["iris.npy", "digits.npy", "china.jpg"].map(|file| format!("{data}{file}"))));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    for line in ["iris ", "digits ", "china ", "Every byte was verified", "lend (tensorlend, in place)"] {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
    let plot = std::fs::read_to_string(plot).unwrap();
    assert!(plot.starts_with("<svg") && plot.contains("</svg>"));
}

/// As installed: outside the project's folder, and not run by cargo.
#[test]
fn the_demo_brings_its_own_data() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(std::process::Command::new(binary("tensorlend"))
        .args(["demo", "--max-mib", "0"])
        .env_remove("CARGO_MANIFEST_DIR")
        .env("TMPDIR", folder.path())
        .current_dir(folder.path()));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    for line in ["iris ", "iris_labels ", "rings ", "Every byte was verified"] {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "the demo left {left:?}");
}

#[test]
fn the_demo_uses_a_running_daemon_and_leaves_nothing() {
    let daemon = Daemon::start("");
    let folder = tempfile::tempdir().unwrap();
    for time in ["first", "second"] {
        let mut demo = daemon.cli(&["demo", "--connect", "--max-mib", "1"]);
        demo.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/iris.npy"));
        let plot = if time == "first" {
            demo.arg("--plot").arg(folder.path().join("p.svg"));
            "\nPlot: "
        } else {
            // A directory in which no file can be created.
            demo.current_dir("/proc");
            "\nNo plot: cannot write tensorlend-demo.svg"
        };
        let output = run(&mut demo);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "the {time} time: {text}\n{errors}");
        assert!(text.contains("running daemon") && text.contains("iris ") && text.contains(plot), "{text}");
    }
    let client = daemon.client();
    let names: Vec<String> = client.list("demo/*").unwrap().into_iter().map(|info| info.name).collect();
    assert!(names.is_empty(), "the demo left {names:?}");
    assert!(client.streams("*").unwrap().is_empty() && client.lists("*").unwrap().is_empty());
}

#[test]
fn put_in_one_process_get_in_another() {
    let daemon = Daemon::start("");
    let folder = tempfile::tempdir().unwrap();
    let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/digits.npy");
    let copy = folder.path().join("copy.npy");
    assert!(run(&mut daemon.cli(&["put", "digits", digits])).status.success());
    let listed = run(&mut daemon.cli(&["ls", "--json"]));
    assert!(String::from_utf8_lossy(&listed.stdout).contains("\"digits\""));
    assert!(run(daemon.cli(&["get", "digits", "-o"]).arg(&copy)).status.success());
    let data = |path: &std::path::Path| {
        let bytes = std::fs::read(path).unwrap();
        bytes[bytes.len() - 1797 * 64..].to_vec()
    };
    assert_eq!(data(digits.as_ref()), data(&copy));
}
