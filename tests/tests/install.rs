//! `scripts/install`, with the programs that are built already: what it installs, updates and refuses.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use tensorlend_tests::manager::{Manager, SERVICE, SOCKET, Scope, skip_without_systemd, workspace};
use tensorlend_tests::system::{INSIDE, System};
use tensorlend_tests::{Agent, Daemon, binary, run, skip, skip_without};

/// The programs that the script calls before it builds.
const TOOLS: [&str; 22] = [
    "bash", "cat", "cp", "cut", "df", "dirname", "du", "env", "find", "grep", "head", "mkdir", "mktemp", "mv",
    "realpath", "rm", "sed", "sort", "tail", "tee", "tr", "uname",
];

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a command that must succeed, and returns its output.
fn done(command: &mut Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{command:?}\n{}\n{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Returns the script as a user calls it, without the variables of cargo and of an environment of Python.
fn install(arguments: &[&str]) -> Command {
    let mut command = Command::new(workspace("scripts/install"));
    command.args(arguments).env_remove("VIRTUAL_ENV").env_remove("CONDA_PREFIX");
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "CARGO" {
            command.env_remove(&*name);
        }
    }
    command
}

/// Returns the files below a folder.
fn files(folder: &Path) -> Vec<String> {
    let mut command = Command::new("find");
    done(command.arg(folder).args(["!", "-type", "d", "-printf", "%P\\n"])).lines().map(str::to_owned).collect()
}

/// Writes a program, such as one that takes the place of cargo.
fn program(folder: &Path, name: &str, script: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/bash\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Returns a folder with the programs that each Linux has, and nothing to build with.
fn bare_path() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for tool in TOOLS {
        let found = std::env::split_paths("/usr/bin:/bin").map(|it| it.join(tool)).find(|it| it.exists());
        symlink(found.unwrap_or_else(|| panic!("no {tool}")), folder.path().join(tool)).unwrap();
    }
    folder
}

/// Installs the programs, and the library that `scripts/capi` has built, in a folder; then again, over a daemon that runs.
#[test]
fn the_command_installs_updates_and_lists_what_it_installed() {
    if skip_without("cc") || skip_without("cargo") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("prefix");
    let programs = binary("tensorlendd").parent().unwrap().to_owned();
    let mut arguments = vec!["--debug", "--c", "--programs", programs.to_str().unwrap()];
    arguments.extend(["--prefix", prefix.to_str().unwrap()]);
    let said = done(&mut install(&arguments));
    assert!(said.contains("[1 of 2] building the library for C and C++\n"), "{said}");
    assert!(said.contains("export PATH=") && said.contains("tensorlend = { path = \""), "{said}");
    assert!(said.contains(&format!("PKG_CONFIG_PATH={}/lib/pkgconfig", prefix.display())), "{said}");
    for file in [
        "bin/tensorlendd",
        "include/tensorlend.hpp",
        "lib/libtensorlend.so",
        "lib/pkgconfig/tensorlend.pc",
        "share/man/man1/tensorlend-put.1",
        "share/man/man8/tensorlendd.8",
        "share/bash-completion/completions/tensorlend",
        "share/zsh/site-functions/_tensorlendd",
        "share/fish/vendor_completions.d/tensorlend.fish",
    ] {
        assert!(prefix.join(file).exists(), "{file} in {:#?}", files(&prefix));
    }
    assert!(!files(&prefix).iter().any(|it| it.contains("runner") || it.contains("gateway")), "{:#?}", files(&prefix));

    let mut daemon = Daemon::start_in("", |_| Command::new(prefix.join("bin/tensorlendd")));
    let client = daemon.client();
    client.put("weights", &[1u8; 1000]).unwrap();
    let inode = || std::fs::metadata(prefix.join("bin/tensorlendd")).unwrap().ino();
    let before = inode();
    arguments.remove(1);
    let said = done(&mut install(&arguments));
    assert!(inode() != before && said.contains("A daemon of the former version runs"), "{said}");
    let mut tool = Command::new(prefix.join("bin/tensorlend"));
    assert!(done(tool.arg("--socket").arg(daemon.socket()).arg("ls")).contains("weights"));
    drop(client);
    assert!(daemon.stop().success());

    // The command that it prints removes the files of both runs.
    let removal = said.lines().find_map(|line| line.split("To remove it: ").nth(1)).expect("it says how to remove it");
    done(Command::new("sh").args(["-c", removal]));
    assert!(files(&prefix).is_empty());
}

/// Returns the crates that a build compiles, from cargo's graph: each with all that decides whether a second build uses it.
fn crates(graph: &Path) -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(graph).unwrap_or_else(|error| panic!("{}: {error}", graph.display()));
    let graph: serde_json::Value = serde_json::from_str(&text).unwrap();
    let compiled = graph["units"].as_array().unwrap().iter().filter(|unit| unit["mode"] == "build");
    let one = |unit: &serde_json::Value| {
        let kind = &unit["target"]["kind"];
        let is_for = if unit["profile"]["opt_level"] == "0" { "the build" } else { "a program" };
        let name = format!("{} {kind} {} for {is_for}", unit["pkg_id"], unit["target"]["name"]);
        (name, format!("{} {}", unit["features"], unit["profile"]))
    };
    compiled.map(one).collect()
}

/// Cargo prints the graphs of the builds of all parts, and compiles nothing.
#[test]
fn nothing_is_built_twice() {
    if skip_without("cc") || skip_without("cargo") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // The header has the numbers that scripts/capi reads. `pip` builds the package by the last command of this test.
    let script = format!(
        "if [[ $1 == run ]]; then echo '#define TENSORLEND_ABI 0'; exit; fi\n\
         RUSTC_BOOTSTRAP=1 {} \"$1\" --unit-graph -Zunstable-options \"${{@:2}}\" >{}/$1",
        env!("CARGO"),
        folder.path().display()
    );
    let fake = program(folder.path(), "cargo", &script);
    program(folder.path(), "python", "exit 0");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    for parts in [&["--c"][..], &["--python=./python"], &["--c", "--python=./python"]] {
        let mut command = install(parts);
        command.args(["--prefix", "prefix"]).current_dir(folder.path()).env("PATH", &path);
        // It stops at the programs, which do not exist.
        let output = run(command.env("CARGO_TARGET_DIR", at("target")));
        let programs = crates(&at("build"));
        let shares = |graph: &str| {
            let part = crates(&at(graph));
            let shared: Vec<_> = part.iter().filter(|(name, _)| programs.contains_key(*name)).collect();
            assert!(shared.len() > 150, "{parts:?} {graph}: {}{}", shared.len(), text(&output.stderr));
            let twice: Vec<_> = shared.iter().filter(|(name, how)| programs[*name] != **how).collect();
            assert!(twice.is_empty(), "{parts:?}: {graph} builds these again: {twice:#?}");
        };
        if parts.contains(&"--c") {
            shares("rustc");
        }
        if parts.contains(&"--python=./python") {
            let mut package = Command::new(&fake);
            package.args(["rustc", "-p", "tensorlend-python", "--lib", "--release", "--crate-type", "cdylib"]);
            done(package.args(["--features", "abi3"]).current_dir(workspace("")));
            shares("rustc");
        }
    }
}

/// Every reason is listed at once, with a remedy, and nothing is written.
#[test]
fn it_refuses_before_it_builds() {
    let folder = tempfile::tempdir().unwrap();
    let (prefix, path) = (folder.path().join("prefix"), bare_path());
    let refused = |arguments: &[&str]| {
        let mut command = install(&["--prefix", prefix.to_str().unwrap()]);
        command.args(arguments).env("PATH", path.path()).env("CARGO_HOME", "/nowhere");
        let output = run(command.env("CARGO_TARGET_DIR", folder.path().join("target")));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.starts_with("scripts/install: nothing was installed:\n  - "), "{said}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{arguments:?}");
        said
    };
    let contains = |said: &str, parts: &[&str]| {
        for part in parts {
            assert!(said.contains(part), "{part:?} is missing in\n{said}");
        }
    };
    let missing = refused(&["--python", "--service"]);
    contains(&missing, &["no Rust (cargo): install it from https://rustup.rs", "no C compiler (cc)"]);
    contains(&missing, &["no virtual environment is active: python3 -m venv ", "systemd"]);

    program(path.path(), "cc", "exit 0");
    program(path.path(), "cargo", "exit 0");
    program(path.path(), "rustc", "echo 'rustc 1.70.0 (90c541806 2023-05-31)'");
    contains(&refused(&[]), &["Rust 1.70.0 is too old, and the build needs 1.", "rustup update"]);
    contains(&refused(&["--programs", "/nowhere"]), &["/nowhere has no programs"]);
    contains(
        &refused(&["--prefix", "/proc/none", "--programs", binary("tensorlend").parent().unwrap().to_str().unwrap()]),
        &["cannot write to /proc/none", "--prefix ~/.local"],
    );
    contains(&refused(&["--python=/nowhere/python"]), &["no Python at /nowhere/python"]);
    if skip_without("/usr/bin/python3") {
        return;
    }
    // Interpreters that are not as this machine's: an old one, one of the system, one whose folder is not writable.
    let fakes = tempfile::tempdir().unwrap();
    std::fs::write(fakes.path().join("EXTERNALLY-MANAGED"), "").unwrap();
    let fake = |name: &str, changes: &str| {
        let read = "import os, sys, sysconfig; sys.argv = ['-', sys.argv[2]]";
        let line =
            format!("[[ $1 == -m ]] || exec /usr/bin/python3 -c \"{read}; {changes}; exec(sys.stdin.read())\" \"$@\"");
        format!("--python={}", program(fakes.path(), name, &line).display())
    };
    let here = fakes.path().display();
    contains(
        &refused(&[&fake("old", "sys.version_info = (3, 9, 2)")]),
        &["old is Python 3.9, and the package needs 3.11"],
    );
    let managed = fake("managed", &format!("sys.prefix = sys.base_prefix; sysconfig.get_path = lambda _: '{here}'"));
    contains(
        &refused(&[&managed]),
        &["belongs to the system", "python3 -m venv ~/tensorlend, then scripts/install --python="],
    );
    let foreign = fake("foreign", "sys.prefix = '/elsewhere'; sysconfig.get_path = lambda _: '/proc/none'");
    contains(&refused(&[&foreign]), &["cannot write to /proc/none"]);
}

/// Shows cargo's counts while it builds, and its messages if it fails.
/// From another folder, by a relative path.
#[test]
fn help_and_wrong_options_install_nothing() {
    let script = workspace("scripts/install");
    let above = script.ancestors().nth(3).unwrap();
    for (option, status) in [("--help", 0), ("--bogus", 2)] {
        let output = run(Command::new("bash").arg(script.strip_prefix(above).unwrap()).arg(option).current_dir(above));
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains("usage: scripts/install") && !said.contains("[1/"), "{said}");
    }
}

#[test]
fn progress_and_failures_of_the_build_are_shown() {
    if skip_without("script") {
        return;
    }
    let (folder, path) = (tempfile::tempdir().unwrap(), bare_path());
    program(path.path(), "cc", "exit 0");
    program(path.path(), "rustc", "echo 'rustc 9.0.0 (x)'");
    program(
        path.path(),
        "cargo",
        "for i in 40 60; do printf '   Compiling serde v1.0.0\\n    Building [==>   ] %s/200: serde, syn\\r' $i >&2; /bin/sleep 1.2; done
         echo 'error: the disk is full' >&2; exit 101",
    );
    let prefix = folder.path().join("prefix");
    let line = format!("{} --prefix {}", workspace("scripts/install").display(), prefix.display());
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]).env("SHELL", "/bin/sh");
    let output = run(command.env("PATH", format!("{}:/usr/bin:/bin", path.path().display())));
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("[1 of 2] building the daemon") && said.contains(" of 200 crates after "), "{said}");
    assert!(said.contains("error: the disk is full") && !said.contains("Building ["), "{said}");
    assert!(said.contains("stopped at step 1") && files(&prefix).is_empty(), "{said}");
}

/// Creates the folder that the archive of a release unpacks to, with the programs of this build.
fn unpack(folder: &Path) {
    let at = |name: &str| folder.join(name);
    for name in ["bin", "scripts"] {
        std::fs::create_dir_all(at(name)).unwrap();
    }
    done(Command::new("cp").arg("-t").arg(at("bin")).args(["tensorlendd", "tensorlend"].map(binary)));
    done(Command::new("cp").arg("-t").arg(at("scripts")).arg(workspace("scripts/install")));
    done(Command::new("cp").arg("-rt").arg(folder).arg(workspace("packaging")));
    done(Command::new(binary("tensorlend-pages")).arg(at("share")));
}

/// Returns the `sh` blocks of a section of docs/service.md, in their order.
fn blocks_of_the_manual(heading: &str) -> Vec<String> {
    let page = std::fs::read_to_string(workspace("docs/service.md")).unwrap();
    let section = page.split("\n## ").find(|section| section.starts_with(heading)).expect("the page has the section");
    let block = |rest: &str| rest.split("\n```").next().unwrap().to_owned();
    section.split("```sh\n").skip(1).map(block).collect()
}

/// A user who follows the manual literally gets a daemon, without a configuration and then with one.
#[test]
fn a_user_installs_a_service_as_the_manual_says() {
    if skip_without_systemd() {
        return;
    }
    let manager = Manager::start(Scope::User, "");
    // Creates the state that the page presumes, but nothing that it explains how to make.
    let root = manager.root().join("run/test");
    for unit in [SERVICE, SOCKET] {
        std::fs::remove_file(root.join("units").join(unit)).unwrap();
    }
    manager.ok(&["daemon-reload"]);
    unpack(&root.join("clone"));
    let home = "/run/test";
    let follow = |block: &str| {
        let mut shell = manager.command("sh");
        shell.args(["-euc", &format!("cd {home}/clone\n{block}")]).env("HOME", home).env_remove("XDG_CONFIG_HOME");
        done(shell.env_remove("TENSORLEND_SOCKET"))
    };
    let blocks = blocks_of_the_manual("Install: a user's");
    let [install, configure] = &blocks[..] else { panic!("other blocks than this test knows: {blocks:#?}") };
    follow(install);
    assert_eq!(manager.property(SERVICE, "ActiveState"), "active", "the first client has started it");
    assert_eq!(manager.property(SOCKET, "UnitFileState"), "enabled");
    assert!(root.join(".config/systemd/user/tensorlend-backup.timer").exists());
    let before = manager.daemon();
    follow(configure);
    manager.restarted(before);
    manager.ok(&["reload", SERVICE]);
    let command = std::fs::read_to_string(manager.root().join(format!("proc/{}/cmdline", manager.daemon()))).unwrap();
    let words: Vec<&str> = command.split_terminator('\0').collect();
    let config = format!("{home}/.config/tensorlend/tensorlendd.toml");
    assert_eq!(words, [&format!("{home}/.local/bin/tensorlendd"), "--config", &config]);
    follow("~/.local/bin/tensorlend ping");
}

/// Root gets the system's daemon. An update restarts it, and its tensors stay.
#[test]
fn root_installs_and_updates_a_service() {
    const USER: u32 = 64_014;
    const CONTROL: &str = "/run/tensorlend/tensorlend.sock";
    if skip_without_systemd() {
        return;
    }
    let system = match System::start() {
        Ok(system) => system,
        Err(why) => return skip(&format!("no system of its own here: {why}")),
    };
    unpack(&system.share().join("release"));
    done(Command::new("cp").arg("-t").arg(system.share()).arg(binary("tensorlend-agent")));
    let script = format!("{INSIDE}/release/scripts/install");
    let daemon = || system.ok("systemctl", &["show", "--value", "--property", "MainPID", SERVICE]);
    let agent = || {
        let mut agent: Agent = system.agent_as(USER);
        agent.ok(&format!("connect {CONTROL}"));
        agent
    };

    let said = system.ok(&script, &["--service"]);
    assert!(said.contains("[2 of 2] starting the service"), "{said}");
    assert_eq!(system.ok("systemctl", &["is-enabled", SOCKET]), "enabled");
    let first = daemon();
    assert_eq!(system.ok("stat", &["--format=%U", &format!("/proc/{first}")]), "tensorlend");
    let mut producer = agent();
    let sum = producer.ok("put kept 30000000 1");
    system.ok("sh", &["-c", "echo '# mine' >>/etc/tensorlend/tensorlendd.toml"]);

    system.ok(&script, &["--service"]);
    assert_ne!(daemon(), first);
    assert!(agent().ok("sum kept").ends_with(&sum), "clients and tensors stay");
    assert!(system.ok("tail", &["-n1", "/etc/tensorlend/tensorlendd.toml"]).contains("mine"));
    producer.exit();

    system.ok("systemctl", &["disable", "--now", SOCKET, SERVICE]);
    system.ok("sh", &["-c", "cd /usr/local && xargs rm -f <share/tensorlend/files"]);
    assert!(!system.has("/usr/local/bin/tensorlendd") && !system.has(&format!("/etc/systemd/system/{SERVICE}")));
    assert!(system.has("/etc/tensorlend/tensorlendd.toml"));
}
