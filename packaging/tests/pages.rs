//! The output of `tensorlend-pages`: a page for each command, pages that man accepts, and completions that shells
//! accept.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};
use tensorlend_tests::{run, skip_without};

fn written() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    assert!(Command::new(env!("CARGO_BIN_EXE_tensorlend-pages")).arg(folder.path()).status().unwrap().success());
    folder
}

fn names(folder: &Path) -> BTreeSet<String> {
    std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

/// Runs a program. Returns `None` and reports it if this machine does not have the program.
fn tried(command: &mut Command) -> Option<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    (!skip_without(&program)).then(|| run(command))
}

/// The pages of a command and of its subcommands, except the hidden ones, which only completions run.
fn expect(command: &clap::Command, name: &str, pages: &mut BTreeSet<String>) {
    pages.insert(format!("{name}.1"));
    for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        expect(one, &format!("{name}-{}", one.get_name()), pages);
    }
}

#[test]
fn every_command_has_a_page() {
    let folder = written();
    let mut wanted = BTreeSet::new();
    expect(&tensorlend_cli::command(), "tensorlend", &mut wanted);
    assert!(["tensorlend.1", "tensorlend-put.1", "tensorlend-model-run.1"].iter().all(|&page| wanted.contains(page)));
    wanted.insert("tensorlend-runner.1".to_owned());
    assert_eq!(names(&folder.path().join("man1")), wanted);
    let named = |names: [&str; 2]| names.map(str::to_owned).into();
    assert_eq!(names(&folder.path().join("man5")), named(["tensorlend-gateway.toml.5", "tensorlendd.toml.5"]));
    assert_eq!(names(&folder.path().join("man8")), named(["tensorlend-gateway.8", "tensorlendd.8"]));
}

#[test]
fn man_finds_nothing_wrong_with_the_pages() {
    let folder = written();
    for section in ["man1", "man5", "man8"] {
        for name in names(&folder.path().join(section)) {
            let page = folder.path().join(section).join(&name);
            let mut man = Command::new("man");
            man.args(["--warnings", "--encoding=UTF-8", "--local-file"]).arg(&page).env("MANWIDTH", "80");
            let Some(output) = tried(&mut man) else { return };
            let complaints = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && complaints.is_empty(), "{name}: {complaints}");
            let text = String::from_utf8_lossy(&output.stdout);
            let lines: Vec<&str> = text.lines().collect();
            for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "SEE ALSO"] {
                assert!(lines.contains(&section), "{name} has no {section}:\n{text}");
            }
        }
    }
}

#[test]
fn examples_keep_their_lines() {
    let folder = written();
    let page = std::fs::read_to_string(folder.path().join("man1/tensorlend-ping.1")).unwrap();
    assert!(page.contains(".SH EXAMPLE\n.nf\n  until tensorlend ping; do sleep 1; done\n.fi\n"), "{page}");
}

#[test]
fn shells_read_the_completions() {
    let folder = written();
    let programs = ["tensorlend", "tensorlendd", "tensorlend-gateway", "tensorlend-runner"];
    let files = programs
        .iter()
        .flat_map(|name| [("bash", (*name).to_owned()), ("zsh", format!("_{name}")), ("fish", format!("{name}.fish"))]);
    for (shell, file) in files {
        let path = folder.path().join(shell).join(file);
        assert!(path.exists(), "{}", path.display());
        if let Some(output) = tried(Command::new(shell).arg("-n").arg(&path)) {
            assert!(output.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&output.stderr));
        }
    }
    // Returns bash's completions.
    let script = "source \"$0\"; COMP_WORDS=(tensorlend pi); COMP_CWORD=1; _tensorlend tensorlend pi tensorlend; \
                  echo \"${COMPREPLY[@]}\"";
    if let Some(output) = tried(Command::new("bash").args(["-c", script]).arg(folder.path().join("bash/tensorlend"))) {
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "ping");
    }
}
