//! Tests of `run`, with stand-ins for Python. The tests of the Python package run programs with it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::bench::{Done, Running, program};

/// Runs `tensorlend run ARGUMENTS` with a script as `python3`.
fn run(script: &str, arguments: &[&str]) -> Done {
    let folder = tempfile::tempdir().unwrap();
    if !script.is_empty() {
        install(script, &folder.path().join("python3"));
    }
    Running::start(program(&[&["run"], arguments].concat()).env("PATH", folder.path())).done()
}

fn install(script: &str, path: &Path) {
    std::fs::write(path, script).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn the_program_gets_its_arguments_and_the_socket() {
    let script = "#!/bin/sh\n[ \"$1\" = -c ] && exit 0\necho \"$*; $TENSORLEND_SOCKET\"\nexit 7\n";
    let done = run(script, &["--weights", "--socket", "/s", "a.py", "--socket", "x", "-m", "--", "--help"]);
    assert_eq!((done.status, &*done.err), (7, ""));
    assert_eq!(done.out, "-m tensorlend.run --weights a.py --socket x -m -- --help; /s\n");
    assert_eq!(run(script, &["-c", "code", "-c"]).out, "-m tensorlend.run -c code -c; \n");
}

#[test]
fn without_python_or_the_package() {
    let error = run("#!/bin/sh\nexit 1\n", &["a.py"]).fails(1);
    assert!(error.contains("python3 has no package tensorlend: install it with `pip install tensorlend`"), "{error}");
    let error = run("", &["a.py"]).fails(1);
    assert!(error.contains("cannot start python3: No such file"), "{error}");
    let error = run("", &["--namespace", "x", "a.py"]).fails(2);
    assert!(error.contains("run has no --namespace"), "{error}");
}
