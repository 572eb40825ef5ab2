//! Tests of the manual: its blocks run, its configurations are accepted, its links resolve.
//!
//! Each page is executed as its reader would do it: `sh` blocks in order, in the page's own folder, with the files that
//! blocks with `file=PATH` contain. `documents/decisions.rs` lists the blocks that cannot be run.

// Shared with the tests of the C interface; not all of it is used here.
#[allow(dead_code, reason = "shared with the tests of the interface for C")]
#[path = "capi/built.rs"]
mod built;
mod documents {
    pub mod commands;
    pub mod decisions;
    pub mod links;
    pub mod pages;
    pub mod session;
    pub(crate) use super::built;
}

use documents::commands::{commands, is_ours, misunderstood};
use documents::decisions::{DECISIONS, Decision, ELSEWHERE};
use documents::pages::{Block, Page, all, manual, root};
use documents::session::{Needs, Session, decision, is_run, starts_daemon};
use std::path::{Path, PathBuf};
use std::process::Command;
use tensorlend_tests::{binary, run, skip, skip_without};

/// Returns true if another test uses this block.
fn is_elsewhere(block: &Block) -> bool {
    let fits = |page: &str| if page.ends_with('/') { block.page.starts_with(page) } else { block.page == page };
    block.file().is_none() && ELSEWHERE.iter().any(|(page, language, _)| *language == block.language && fits(page))
}

fn blocks() -> Vec<Block> {
    manual().iter().flat_map(Page::blocks).collect()
}

#[test]
fn every_block_has_a_test() {
    let blocks = blocks();
    let without = |block: &&Block| match block.language.as_str() {
        // `text` is output or a picture of memory; the others are run, parsed or validated by the tests below.
        "text" | "sh" | "toml" | "ini" | "yaml" | "json" => false,
        _ => block.file().is_none() && !is_elsewhere(block),
    };
    let without: Vec<String> =
        blocks.iter().filter(without).map(|b| format!("{} ({})", b.location(), b.language)).collect();
    assert!(
        without.is_empty(),
        "nothing runs these blocks: name the `file=` that they are and run it in a `sh` block, or add a line to \
         tests/tests/documents/decisions.rs: {without:#?}"
    );
    // A file that no block uses would not be tested by being written.
    for page in manual() {
        let blocks = page.blocks();
        let run: String = blocks.iter().filter(|b| is_run(b)).map(|b| b.text.as_str()).collect();
        for block in blocks.iter().filter(|b| b.file().is_some()) {
            let file = block.file().expect("filtered");
            let is_tools =
                file == "Cargo.toml" && run.contains("cargo ") || file == "CMakeLists.txt" && run.contains("cmake ");
            let stem = Path::new(file).file_stem().expect("a file has a name").to_string_lossy();
            assert!(is_tools || run.contains(&*stem), "{}: no sh block of the page uses {file}", block.location());
        }
    }
}

/// The book's page of commands, which scripts/book makes of the output of `--help`.
#[test]
fn the_page_of_commands_has_each_command() {
    if skip_without("python3") {
        return;
    }
    let programs = binary("tensorlend").parent().expect("a program lies in a folder").to_owned();
    let page = run(Command::new("python3").arg(root().join("scripts/commands-page")).arg(programs));
    assert!(page.status.success(), "{}", String::from_utf8_lossy(&page.stderr));
    let page = String::from_utf8_lossy(&page.stdout);
    let help = run(Command::new(binary("tensorlend")).arg("--help"));
    let help = String::from_utf8_lossy(&help.stdout);
    let listed =
        help.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a list of commands");
    // The description of a command continues on lines that are indented further.
    let names = listed.lines().filter_map(|line| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')));
    let names: Vec<&str> = names.filter_map(|line| line.split(' ').next()).filter(|name| *name != "help").collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        assert!(page.contains(&format!("\n## tensorlend {name}\n\n```text\n")), "{name} in\n{page}");
    }
    for text in ["## tensorlend model add\n", "## tensorlendd\n", "Usage: tensorlend put ", "  5  timed out"] {
        assert!(page.contains(text), "{text:?} in\n{page}");
    }
    assert_eq!(page.matches("\nConnection:\n").count(), 1, "the options of the connection come once");
}

#[test]
fn every_decision_is_about_a_block() {
    let blocks = blocks();
    for (page, begins, _) in DECISIONS {
        let fits = blocks.iter().filter(|b| b.language == "sh" && b.page == *page && b.begins() == *begins).count();
        assert_eq!(fits, 1, "decisions.rs: {page} has {fits} sh blocks that begin with {begins:?}");
    }
    for (page, language, test) in ELSEWHERE {
        assert!(root().join(test).exists(), "decisions.rs: there is no {test}");
        let fits = |b: &&Block| b.page.starts_with(page) && b.language == *language;
        assert!(blocks.iter().any(|b| fits(&b)), "decisions.rs: {page} has no block of {language}");
    }
}

#[test]
fn what_is_not_run_is_understood() {
    let mut wrong = Vec::new();
    let mut calls = 0;
    for page in manual() {
        for block in page.blocks() {
            if let ("sh", Some(Decision::Understood(why))) = (&*block.language, decision(&block)) {
                println!("{} is not run: {why}", block.location());
                for words in commands(&block.text).iter().filter(|words| is_ours(words)) {
                    calls += 1;
                    wrong.extend(misunderstood(words).map(|why| format!("{}: {why}", block.location())));
                }
            }
        }
        // Commands in the prose, such as `tensorlend stat --json`.
        for (number, line) in page.prose().iter().enumerate() {
            let is_shell =
                |code: &&str| code.contains(' ') && !code.contains("...") && !code.starts_with("find_package(");
            for code in line.split('`').skip(1).step_by(2).filter(is_shell) {
                for words in commands(code).iter().filter(|words| is_ours(words)) {
                    calls += 1;
                    wrong.extend(misunderstood(words).map(|why| format!("{}:{}: {why}", page.path, number + 1)));
                }
            }
            // Names of tests, such as `cargo test -p tensorlend-tests --test hostile`.
            let mut words = line.split([' ', '`']);
            while let Some(word) = words.next() {
                if word == "--test" && line.contains("-p tensorlend-tests ") {
                    let name = words.next().unwrap_or_default();
                    let is_there = [format!("{name}.rs"), format!("{name}/main.rs")];
                    if !is_there.iter().any(|file| root().join("tests/tests").join(file).exists()) {
                        wrong.push(format!("{}:{}: there is no test {name}", page.path, number + 1));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(calls >= 10, "only {calls} commands were found");
    // The check finds a mistake.
    let mistake = |line: &str| commands(line).iter().any(|words| is_ours(words) && misunderstood(words).is_some());
    assert!(
        mistake("cd x && tensorlend put --ttl-ms 3 name file  # comment") && mistake("FOO=1 tensorlendd --confg x &")
    );
    assert!(!mistake("tensorlend ls --json | cat; echo tensorlend --no-such >file"));
}

/// Runs the blocks of the pages that `chosen` selects.
fn work_through(chosen: impl Fn(Needs) -> bool, python: Option<&PathBuf>) {
    let mut failed = Vec::new();
    let mut ran = 0;
    for page in manual() {
        let blocks = page.blocks();
        let needs = Needs::of(&blocks);
        if !blocks.iter().any(is_run) || !chosen(needs) {
            continue;
        }
        let kit = if needs.c { documents::built::Kit::get() } else { None };
        if needs.c && kit.is_none() {
            continue;
        }
        let work = || {
            let session = Session::new(kit, python.map(PathBuf::as_path));
            if needs.cargo {
                // Uses the locked versions: the test fetches nothing.
                session.write("Cargo.lock", &std::fs::read_to_string(root().join("Cargo.lock")).unwrap());
            }
            if !blocks.iter().filter(|block| is_run(block)).any(|block| block.text.lines().any(starts_daemon)) {
                session.start_daemon();
            }
            for block in &blocks {
                if let Some(file) = block.file() {
                    session.write(file, &block.text);
                } else if is_run(block) {
                    if let Some(missing) = block.needs().find(|name| !session.has(name)) {
                        skip(&format!("{}: {missing} is missing", block.location()));
                        continue;
                    }
                    if let Some(Decision::After(commands)) = decision(block) {
                        session.run(&format!("what decisions.rs does before {}", block.location()), commands);
                    }
                    session.run(&block.location(), &block.text);
                }
            }
        };
        ran += blocks.iter().filter(|block| is_run(block)).count();
        if let Err(error) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
            failed.push(error.downcast_ref::<String>().cloned().unwrap_or_else(|| page.path.clone()));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
    assert!(ran > 0, "no block was run");
}

#[test]
fn pages_work() {
    if skip_without("bash") {
        return;
    }
    work_through(|needs| !needs.python, None);
}

#[test]
fn a_block_that_fails_is_noticed() {
    if skip_without("bash") {
        return;
    }
    let session = Session::new(None, None);
    session.start_daemon();
    session.run("page.md:1", "tensorlend ping\n");
    for wrong in
        ["tensorlend get nothing -o x.npy\ntensorlend ping\n", "tensorlend ls --no-such | cat\n", "echo $UNSET\n"]
    {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| session.run("page.md:7", wrong)));
        let said = done.expect_err("it fails").downcast::<String>().unwrap();
        assert!(said.starts_with("page.md:7: exit status") && said.contains(wrong), "{said}");
    }
}

/// Uses the Python that `TENSORLEND_PYTHON` names, in which the package is installed.
#[test]
fn pages_in_python_work() {
    let Some(python) = std::env::var_os("TENSORLEND_PYTHON").map(PathBuf::from) else {
        return skip("TENSORLEND_PYTHON names no Python with the package: scripts/test runs this again with one");
    };
    work_through(|needs| needs.python, Some(&python));
}

#[test]
fn configurations_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    let mut checked = |block: &Block, name: &str, command: &dyn Fn(&Path) -> Command| {
        let file = folder.path().join(name);
        std::fs::write(&file, &block.text).unwrap();
        let done = run(&mut command(&file));
        let said = String::from_utf8_lossy(&done.stderr);
        if !done.status.success() || said.contains("Unknown") {
            wrong.push(format!("{}: {said}", block.location()));
        }
    };
    for block in blocks().iter().filter(|block| block.file().is_none()) {
        match block.language.as_str() {
            "toml" => checked(block, "tensorlendd.toml", &|file| {
                // Only the gateway's configuration names its node.
                let is_gateways = block.text.starts_with("node = ");
                let mut command = Command::new(binary(if is_gateways { "tensorlend-gateway" } else { "tensorlendd" }));
                command.arg(if is_gateways { "--check" } else { "--check-config" }).arg("--config").arg(file);
                if !is_gateways {
                    command.arg("--socket").arg(file.with_file_name("socket"));
                }
                command
            }),
            "json" => checked(block, "block.json", &|file| {
                let mut command = Command::new("python3");
                command.args(["-m", "json.tool"]).arg(file);
                command
            }),
            "yaml" => {
                let has_yaml = Command::new("/usr/bin/python3").args(["-c", "import yaml"]).output();
                if !has_yaml.is_ok_and(|done| done.status.success()) {
                    skip("python3 has no yaml (apt-get install python3-yaml)");
                    continue;
                }
                checked(block, "block.yaml", &|file| {
                    let mut command = Command::new("/usr/bin/python3");
                    command.args(["-c", "import sys, yaml; assert yaml.safe_load(open(sys.argv[1]))"]).arg(file);
                    command
                });
            }
            "ini" => {
                if skip_without("systemd-analyze") {
                    continue;
                }
                // A drop-in for a user's unit, as `systemctl edit` makes one.
                checked(block, "drop-in.conf", &|file| {
                    let units = folder.path().join("units");
                    let drop_ins = units.join("tensorlendd.service.d");
                    std::fs::create_dir_all(&drop_ins).unwrap();
                    let text = std::fs::read_to_string(file).unwrap();
                    // The program of the unit need not exist here; another one takes its place.
                    let built = |text: &str| {
                        ["%h/.local/bin/tensorlendd", "/usr/bin/tensorlendd", "/usr/bin/tensorlend "].iter().fold(
                            text.to_owned(),
                            |text, path| {
                                let name = path.rsplit('/').next().unwrap();
                                let program = binary(name.trim_end()).display().to_string();
                                text.replace(path, &name.replace(name.trim_end(), &program))
                            },
                        )
                    };
                    std::fs::write(drop_ins.join("drop-in.conf"), built(&text)).unwrap();
                    let mut command = Command::new("systemd-analyze");
                    for unit in ["tensorlendd.service", "tensorlendd.socket"] {
                        let text = std::fs::read_to_string(root().join("packaging/user").join(unit)).unwrap();
                        std::fs::write(units.join(unit), built(&text)).unwrap();
                    }
                    command.args(["verify", "--man=no", "--recursive-errors=no", "--user"]);
                    command.arg(units.join("tensorlendd.service")).env("XDG_RUNTIME_DIR", folder.path());
                    command
                });
            }
            _ => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn links_lead_somewhere() {
    let pages = all();
    let broken = documents::links::broken(&pages);
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Pages for contributors. They are not in the book.
const INTERNALS: [&str; 10] = [
    "ARCHITECTURE.md",
    "docs/adr/",
    "docs/api-guidelines.md",
    "docs/dependencies.md",
    "docs/gpu-pack.md",
    "docs/internals/",
    "docs/layout.md",
    "docs/protocol.md",
    "docs/results/",
    "docs/torture.md",
];

#[test]
fn the_book_has_the_pages_for_users() {
    let contents = std::fs::read_to_string(root().join("docs/book/SUMMARY.md")).unwrap();
    let pages = all();
    let mut wrong = Vec::new();
    for Page { path, .. } in &pages {
        let belongs = path.starts_with("docs/") && path != "docs/book/SUMMARY.md" || !path.contains('/');
        let is_for_users = !INTERNALS.iter().any(|internal| path.starts_with(internal));
        if belongs && contents.contains(&format!("]({path})")) != is_for_users {
            wrong.push(path);
        }
    }
    assert!(wrong.is_empty(), "docs/book/SUMMARY.md has these, or leaves them out: {wrong:#?}");
}

#[test]
fn code_is_fenced() {
    let mut bare = Vec::new();
    for page in manual() {
        let lines = page.prose();
        for (number, pair) in lines.windows(2).enumerate() {
            // A list continues after such a line.
            if pair[0].is_empty() && pair[1].starts_with("    ") {
                bare.push(format!("{}:{}", page.path, number + 2));
            }
        }
    }
    assert!(bare.is_empty(), "code without a fence and a language is not tested: {bare:#?}");
}
