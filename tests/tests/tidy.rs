//! Rules of the source tree that no compiler checks: short files, modules without large circles, `unsafe` and shared words only
//! where docs/internals/unsafe.md lists them, and documents that name files that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use tensorlend_tests::tree::{root, texts};

#[path = "tidy/modules.rs"]
mod modules;
use modules::{Modules, has_word};

/// Maximum number of lines of a source file.
const LINES_MAX: usize = 600;

/// Maximum length of a file of the repository, in bytes.
const FILE_BYTES_MAX: u64 = 256 << 10;

/// Files that are longer, with their lengths when they were listed: they may only become shorter. A file that fits must leave the
/// list.
const LONG: [(&str, usize); 0] = [];

/// Crates whose modules are checked, with the number of modules of the largest circle. A number above 3 is the real one of today: it
/// may only fall.
const CIRCLES: [(&str, usize); 15] = [
    ("libclient", 3),
    ("apps/model", 3),
    ("apps/shm", 3),
    ("bindings/c", 3),
    ("daemon", 3),
    ("apps/gateway", 3),
    ("shm-layout", 3),
    ("os", 3),
    ("apps/web", 3),
    ("cuda", 3),
    ("apps/runner", 3),
    ("apps/cli", 3),
    ("benches/baselines", 3),
    ("bindings/python", 3),
    ("benches", 3),
];

/// Identifiers that the code no longer has, in place of them a word of the field.
const BANNED: [(&str, &str); 28] = [
    ("Brief", "HeaderSummary"),
    ("Crowd", "a shared shard"),
    ("Departure", "Draining"),
    ("Doom", "Eviction"),
    ("Doubt", "Revalidation"),
    ("Given", "what the value is, such as DriverDescriptor"),
    ("Heirloom", "Stored"),
    ("Herald", "Notifier"),
    ("HomeKind", "OwnerKind"),
    ("Hurry", "expedite"),
    ("Inlet", "Receiver"),
    ("Knock", "Connect"),
    ("Lingering", "Orphaned"),
    ("Nudge", "Wakeup"),
    ("Outlet", "Sender"),
    ("Outlived", "Orphaned"),
    ("Patience", "Timeout, or a budget"),
    ("Press", "Pressure"),
    ("Promise", "Invalidation"),
    ("Rooms", "per-device arenas"),
    ("Section", "an epoch guard"),
    ("Shelf", "released for spill"),
    ("Shelve", "ReleaseForSpill"),
    ("Shown", "Inspected"),
    ("Wish", "Parameters, Request"),
    ("bury", "end"),
    ("go_on", "continue"),
    ("goes_on", "continues"),
];

/// Files of the client library, below `libclient/src`, whose items a program can reach.
const PUBLIC: &str = "
    lib.rs error.rs glob.rs list.rs api/device.rs api/devices.rs api/instruments.rs api/overview.rs
    api/page_lock.rs api/streams.rs api/values.rs asynchronous/client.rs asynchronous/subscription.rs call/mod.rs
    call/caller.rs call/server.rs client/mod.rs gpu/stream.rs instruments/pressure.rs instruments/report.rs
    instruments/statistics.rs lease/copy_on_write.rs lease/device/lease.rs lease/device/pin.rs lease/lease.rs
    lease/pin.rs lease/value.rs lease/watch.rs listing/mod.rs names/lifetime.rs names/version.rs observe/mod.rs
    observe/meters.rs observe/observation.rs remote/api.rs remote/document.rs remote/mod.rs stream/borrowed.rs
    stream/history.rs stream/message.rs stream/mod.rs stream/open.rs stream/producer.rs stream/subscribe.rs
    stream/subscriber.rs tensor/dataset.rs tensor/device/draft.rs tensor/device/legacy.rs tensor/device/slice.rs
    tensor/draft.rs tensor/element.rs tensor/mod.rs tensor/sendable.rs tensor/shape.rs tensor/spec.rs
    tensor/value_draft.rs wait/timeout.rs
";

/// Minimum of lines of documentation for each line of code in those files, in percent.
const DOCUMENTED_PERCENT: usize = 60;

/// The Rust files below a folder, with their text.
fn sources(folder: &Path) -> BTreeMap<PathBuf, String> {
    let found = texts(folder, "rs");
    assert!(!found.is_empty(), "{} has sources", folder.display());
    found
}

/// A file's path from the root of the repository.
fn name(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().display().to_string()
}

/// The folders with the source of the workspace's members.
fn crates() -> Vec<PathBuf> {
    members().iter().map(|member| member.join("src")).filter(|src| src.is_dir()).collect()
}

/// The folders of the workspace's members.
fn members() -> Vec<PathBuf> {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let listed = ["members", "exclude"].map(|key| manifest["workspace"][key].as_array().unwrap());
    listed.into_iter().flatten().map(|member| root().join(member.as_str().unwrap())).collect()
}

#[test]
fn files_are_short() {
    let long: BTreeMap<&str, usize> = LONG.into();
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for (path, text) in crates().iter().flat_map(|src| sources(src)) {
        let name = name(&path);
        // There the comments are the docstrings of Python, with a section for each parameter.
        let is_docstring =
            |line: &&str| name.starts_with("bindings/python/src/") && line.trim_start().starts_with("///");
        let lines = text.lines().filter(|line| !is_docstring(line)).count();
        match long.get(name.as_str()) {
            Some(&listed) if lines > listed => wrong.push(format!("{name} has grown from {listed} to {lines} lines")),
            Some(_) if lines <= LINES_MAX => wrong.push(format!("{name} has {lines} lines: take it off the list")),
            None if lines > LINES_MAX => wrong.push(format!("{name} has {lines} lines, more than {LINES_MAX}")),
            _ => {}
        }
        seen.insert(name);
    }
    wrong.extend(long.keys().filter(|name| !seen.contains(**name)).map(|name| format!("{name} does not exist")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A large file is a build product or a download that somebody added with its folder.
#[test]
fn the_repository_has_no_large_files() {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output().unwrap();
    let names = String::from_utf8(listed.stdout).unwrap();
    let bytes = |name: &str| std::fs::metadata(root().join(name)).map_or(0, |file| file.len());
    let large: Vec<&str> = names.split('\0').filter(|name| bytes(name) > FILE_BYTES_MAX).collect();
    assert!(large.is_empty(), "{large:?}: more than {FILE_BYTES_MAX} bytes");
}

#[test]
fn the_public_interface_is_documented() {
    let (mut documentation, mut code) = (0, 0);
    for name in PUBLIC.split_whitespace() {
        let path = root().join("libclient/src").join(name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        for line in text.lines().map(str::trim) {
            if line.starts_with("///") || line.starts_with("//!") {
                documentation += 1;
            } else if !line.is_empty() && !line.starts_with("//") {
                code += 1;
            }
        }
    }
    let percent = documentation * 100 / code;
    assert!(
        percent >= DOCUMENTED_PERCENT,
        "{percent} lines of documentation for 100 lines of code: {DOCUMENTED_PERCENT} at least"
    );
}

/// The modules that can be reached from each.
fn reached<'m>(
    arrows: &BTreeMap<&'m Vec<String>, BTreeSet<&'m Vec<String>>>,
) -> BTreeMap<&'m Vec<String>, BTreeSet<&'m Vec<String>>> {
    let from = |start: &'m Vec<String>| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![start]);
        while let Some(module) = next.pop() {
            next.extend(arrows[module].iter().filter(|to| seen.insert(**to)));
        }
        seen
    };
    arrows.keys().map(|module| (*module, from(module))).collect()
}

#[test]
fn modules_form_no_large_circles() {
    let mut wrong = Vec::new();
    for (member, most) in CIRCLES {
        let modules = Modules::of(&root().join(member).join("src"));
        let arrows = modules.arrows();
        let reached = reached(&arrows);
        let (mut circles, mut largest) = (BTreeSet::new(), 0);
        for (module, to) in &reached {
            let circle: BTreeSet<String> = to
                .iter()
                .filter(|other| reached[**other].contains(module))
                .map(|other| if other.is_empty() { "(root)".to_owned() } else { other.join("::") })
                .collect();
            largest = largest.max(circle.len());
            if circle.len() > most {
                circles.insert(circle);
            }
        }
        wrong
            .extend(circles.iter().map(|circle| format!("{member}: a circle of {} modules: {circle:?}", circle.len())));
        if most > 3 && largest < most {
            wrong.push(format!("{member}: the largest circle has {largest} modules: lower the listed {most}"));
        }
        println!("{member}: {} modules, {} arrows", arrows.len(), arrows.values().map(BTreeSet::len).sum::<usize>());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Folders whose parts import downwards only: a crate, and the module whose parts are compared. A part is a file or a folder.
const LAYERS: [(&str, &[&str]); 11] = [
    ("bindings/python", &[]),
    ("libclient", &[]),
    ("daemon", &[]),
    ("daemon", &["core"]),
    ("daemon", &["sys"]),
    ("apps/gateway", &[]),
    ("apps/gateway", &["import"]),
    ("apps/gateway", &["export"]),
    ("apps/runner", &[]),
    ("apps/shm", &[]),
    ("apps/web", &[]),
];

/// Returns the parts of a module that import each other in a circle: those that remain after every part that imports
/// downwards only is removed.
fn circular_parts(src: &Path, module: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let modules = Modules::of(src);
    let part = |path: &[String]| {
        let inside = path.len() > module.len() && path.iter().zip(module).all(|(one, other)| one == other);
        inside.then(|| path[module.len()].clone())
    };
    let mut parts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, to) in modules.arrows() {
        let Some(from) = part(from) else { continue };
        let imported = to.into_iter().filter_map(|to| part(to)).filter(|to| *to != from);
        parts.entry(from.clone()).or_default().extend(imported.collect::<Vec<_>>());
    }
    assert!(!parts.is_empty(), "{} has parts of {module:?}", src.display());
    loop {
        let lowest: Vec<String> = parts.iter().filter(|(_, to)| to.is_empty()).map(|(part, _)| part.clone()).collect();
        if lowest.is_empty() {
            // Those that nobody in a circle imports stand above it.
            let imported: BTreeSet<String> = parts.values().flatten().cloned().collect();
            let before = parts.len();
            parts.retain(|part, _| imported.contains(part));
            if parts.len() == before {
                return parts;
            }
        }
        parts.retain(|part, _| !lowest.contains(part));
        for to in parts.values_mut() {
            to.retain(|part| !lowest.contains(part));
        }
    }
}

#[test]
fn folders_import_downwards_only() {
    let mut wrong = Vec::new();
    for (member, module) in LAYERS {
        let circle = circular_parts(&root().join(member).join("src"), module);
        if !circle.is_empty() {
            wrong.push(format!("{member} {module:?}: {circle:?}"));
        }
    }
    assert!(wrong.is_empty(), "parts that import each other:\n{}", wrong.join("\n"));
}

/// The comments of an item that open a block of documentation, with their line numbers.
fn openings(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut inside = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let comment = line.trim_start().strip_prefix("///");
        let opens = comment.filter(|_| !inside);
        inside = comment.is_some();
        opens.map(|comment| (number + 1, comment.trim()))
    })
}

#[test]
fn documentation_opens_with_a_noun_or_a_verb() {
    let mut wrong = Vec::new();
    for (path, text) in members().iter().flat_map(|member| sources(member)) {
        for (number, comment) in openings(&text) {
            let first = comment.split(|c: char| !c.is_alphanumeric()).next().unwrap();
            if ["What", "Who", "Which", "Whoever"].contains(&first) {
                wrong.push(format!("{}:{number}: {comment}", name(&path)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn banned_words_name_nothing() {
    let mut wrong = Vec::new();
    for (path, text) in members().iter().flat_map(|member| sources(member)) {
        // This file lists them.
        let lines = text.lines().enumerate().filter(|_| !path.ends_with("tests/tests/tidy.rs"));
        for (number, line) in lines {
            let code = line.split("//").next().unwrap();
            for (word, instead) in BANNED.iter().filter(|(word, _)| code.contains(word) && has_word(code, word)) {
                wrong.push(format!("{}:{}: {word}: say {instead}", name(&path), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The words between backticks of a text.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn unsafe_code_stands_in_the_listed_files_only() {
    let page = std::fs::read_to_string(root().join("docs/internals/unsafe.md")).unwrap();
    let table: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    let listed = |file: &str| {
        let last = file.rsplit('/').next().unwrap();
        table.iter().any(|line| {
            let cell = line.split('|').nth(1).unwrap();
            // The first name of a row is a whole path; those after it may leave the folder out.
            quoted(cell).any(|it| {
                file == it || file.starts_with(&format!("{}/", it.trim_end_matches('/'))) || {
                    let folder = quoted(cell)
                        .filter_map(|path| path.rsplit_once('/'))
                        .any(|(folder, _)| file.starts_with(folder));
                    folder && (it == last || file.ends_with(&format!("/{it}")))
                }
            })
        })
    };
    let mut wrong = Vec::new();
    for member in members() {
        for (path, text) in sources(&member) {
            let allows = text.lines().any(|line| {
                line.trim_start().starts_with("#![allow(unsafe_code)")
                    || line.trim_start().starts_with("#[allow(unsafe_code)")
            });
            if allows && !listed(&name(&path)) {
                wrong.push(name(&path));
            }
        }
    }
    assert!(wrong.is_empty(), "not listed in docs/internals/unsafe.md: {wrong:?}");
}

#[test]
fn shared_words_are_atomics_of_one_module() {
    let atomics = sources(&root().join("shm-layout/src")).into_iter().filter(|(path, text)| {
        !path.ends_with("sync.rs") && !path.ends_with("crash.rs") && text.contains("sync::atomic")
    });
    let wrong: Vec<String> = atomics.map(|(path, _)| name(&path)).collect();
    assert!(wrong.is_empty(), "atomics of their own, beside shm-layout/src/sync.rs: {wrong:?}");
}

#[test]
fn the_architecture_names_files_that_exist() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let is_path = |word: &&str| {
        word.contains('/')
            && Path::new(word).extension().is_some_and(|it| it == "rs")
            && !word.contains(['*', '{', ' ', '<'])
    };
    let paths: BTreeSet<&str> = quoted(&text).filter(is_path).collect();
    let folders = [
        "",
        "libclient/src",
        "daemon/src",
        "daemon/src/core",
        "apps/gateway/src",
        "shm-layout/src",
        "shm-layout/tests/loom",
    ];
    let exists = |path: &str| folders.iter().any(|folder| root().join(folder).join(path).is_file());
    let wrong: Vec<&&str> = paths.iter().filter(|path| !exists(path)).collect();
    assert!(paths.len() > 5 && wrong.is_empty(), "no such files: {wrong:?}");
}

#[test]
fn the_architecture_names_each_part_of_the_client() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let named: BTreeSet<&str> = quoted(&text).collect();
    let mut parts = BTreeSet::new();
    for entry in std::fs::read_dir(root().join("libclient/src")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        match name.strip_suffix(".rs") {
            None => _ = parts.insert(format!("{name}/")),
            Some(stem) if entry.path().with_file_name(stem).is_dir() || stem == "lib" => {}
            Some(_) => _ = parts.insert(name),
        }
    }
    assert!(parts.len() > 20, "{parts:?}");
    let missing: Vec<&String> = parts.iter().filter(|part| !named.contains(part.as_str())).collect();
    assert!(missing.is_empty(), "add to the table of libclient/src in ARCHITECTURE.md: {missing:?}");
}

#[test]
fn the_first_pages_are_short() {
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"] {
        let lines = std::fs::read_to_string(root().join(name)).unwrap().lines().count();
        assert!(lines <= 150, "{name} has {lines} lines, of at most 150");
    }
}

#[test]
fn the_first_page_says_which_primitive_is_for_what() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    let (readme, choose) = (read("README.md"), read("docs/how-to/choose.md"));
    let line = readme.lines().find(|line| line.contains("](docs/how-to/choose.md)")).unwrap();
    let of_each = [
        ("name", "gives the latest value"),
        ("stream", "delivers every message"),
        ("dataset", "publishes several tensors as one"),
        ("list", "collects the results of many producers"),
        ("queue", "gives each item of work to one of several consumers"),
        ("service", "returns a response to each request"),
    ];
    for (primitive, purpose) in of_each {
        let defined = format!("*{primitive}* {purpose}");
        assert!(line.contains(&defined), "{defined:?} is missing in README.md: {line}");
        assert!(choose.contains(&format!("**{primitive}** |")), "docs/how-to/choose.md has no row for {primitive}");
    }
}

#[test]
fn full_runs_of_the_workflow_test_torch() {
    let workflow = std::fs::read_to_string(root().join(".github/workflows/test.yml")).unwrap();
    let kept = workflow.split("--preserve-env=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let kept: BTreeSet<&str> = kept.split(',').collect();
    // `sudo` drops every other variable.
    let set = workflow.lines().filter_map(|line| line.trim().split_once(": ${{")).map(|(name, _)| name);
    let set: BTreeSet<&str> = set.filter(|name| name.starts_with("TENSORLEND_")).collect();
    assert!(set.contains("TENSORLEND_TORCH") && set.is_subset(&kept), "set: {set:?}, handed on: {kept:?}");
}

/// The stable codes of errors in a text.
fn codes(text: &str) -> BTreeSet<&str> {
    let starts = text.match_indices("TL-").map(|(at, _)| at);
    starts.filter_map(|at| text.get(at..at + 7)).filter(|code| code[3..].bytes().all(|b| b.is_ascii_digit())).collect()
}

#[test]
fn the_page_on_errors_lists_each_code() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let page = read("docs/errors.md");
    let rows: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("| TL-")).collect();
    let listed: BTreeSet<String> = rows.iter().map(|row| format!("TL-{}", &row[..4])).collect();
    assert_eq!(rows.len(), listed.len(), "each code has one row");

    let texts = [
        "shm-layout/src/wire/refusal.rs",
        "libclient/src/error/code.rs",
        "daemon/src/embedded.rs",
        "bindings/c/src/status.rs",
        "bindings/python/tensorlend/_errors.py",
        "apps/cli/src/failure.rs",
        "daemon/src/code.rs",
        "apps/gateway/src/program.rs",
        "apps/runner/src/lib.rs",
    ]
    .map(read);
    let used: BTreeSet<String> = texts.iter().flat_map(|text| codes(text)).map(str::to_owned).collect();
    let difference: Vec<_> = listed.symmetric_difference(&used).collect();
    assert!(difference.is_empty(), "on the page or in the sources, but not in both: {difference:?}");

    // Each row names a language and the exceptions or types that it has.
    let version = read("bindings/c/src/version.rs");
    let abi = version.lines().find_map(|line| line.strip_prefix("pub const TENSORLEND_ABI: u32 = ")?.strip_suffix(';'));
    let interface = read(&format!("bindings/c/abi/tensorlend.{}.txt", abi.expect("the interface has a number")));
    let (library, python) = (read("libclient/src/error.rs"), &texts[4]);
    let words = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let mut wrong = Vec::new();
    for cells in rows.iter().map(|row| row.split('|').collect::<Vec<_>>()).filter(|cells| cells.len() == 8) {
        let (code, class, status) = (cells[0].trim(), words(cells[2]), words(cells[3]));
        if !class.first().is_none_or(|class| python.contains(&format!("class {class}("))) {
            wrong.push(format!("{code}: no class {class:?}"));
        }
        if !status.first().is_none_or(|status| interface.contains(&format!(" TENSORLEND_{status} = "))) {
            wrong.push(format!("{code}: no status {status:?}"));
        }
        for variant in words(cells[1]).iter().take(1).filter(|_| code != "0908") {
            if !library.contains(&format!("    {variant}")) {
                wrong.push(format!("{code}: no variant {variant}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
