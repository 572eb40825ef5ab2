//! `docs/configuration.md` is generated from `daemon/src/config.toml`, and from the parser's
//! behaviour.

use std::fmt::Write as _;
use std::path::Path;
use tensorlend_daemon::{Config, EXAMPLE};

const UPDATE: &str = "TENSORLEND_UPDATE_DOCS=1 cargo test -p tensorlend-daemon --test configuration";

/// One option of the printed configuration.
struct Entry {
    /// The section's name without brackets; empty for the options before the first section.
    section: String,
    key: String,
    /// The default, or an example where the default depends on the machine.
    value: String,
    is_example: bool,
    comment: String,
}

/// Returns the sections with their comments, and the options.
fn entries() -> (Vec<(String, String)>, Vec<Entry>) {
    let (mut sections, mut entries) = (vec![(String::new(), String::new())], Vec::new());
    let (mut section, mut comment) = (String::new(), String::new());
    // The head explains the marks of the printed file only.
    let (_, options) = EXAMPLE.split_once("\n\n").expect("a head, then options");
    for line in options.lines() {
        let is_example = line.starts_with("#= ");
        let open = line.strip_prefix("#= ").unwrap_or(line);
        if let Some(name) = open.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.clone_into(&mut section);
            sections.push((section.clone(), std::mem::take(&mut comment)));
        } else if let Some((key, value)) = open.split_once(" = ").filter(|_| is_example || !line.starts_with('#')) {
            let (key, value) = (key.to_owned(), value.to_owned());
            let comment = std::mem::take(&mut comment);
            entries.push(Entry { section: section.clone(), key, value, is_example, comment });
        } else if let Some(text) = line.strip_prefix('#') {
            // A value of a choice with its meaning becomes a list item.
            let is_choice = text.starts_with(" \"") && text.contains("\": ");
            comment.push_str(if is_choice { "\n-" } else { "" });
            comment.push_str(text);
        } else {
            comment.clear();
        }
    }
    (sections, entries)
}

impl Entry {
    /// Returns the parser's result for another value.
    fn parse(&self, value: &str) -> Result<Config, String> {
        // A namespace needs at least one member.
        let besides = match self.section.strip_prefix("namespace.") {
            Some(_) if self.key != "readers" => "readers = [\"0\"]\n",
            _ => "",
        };
        let section = if self.section.is_empty() { String::new() } else { format!("[{}]\n", self.section) };
        Config::parse(&format!("{section}{besides}{} = {value}", self.key)).map_err(|error| error.to_string())
    }

    fn takes(&self, value: &str) -> bool {
        self.parse(value).is_ok()
    }

    /// Returns the minimum and the maximum accepted integer, found from a known valid one.
    fn range(&self, known: u64) -> (u64, u64) {
        let edge = |mut good: u64, mut bad: u64| {
            while good.abs_diff(bad) > 1 {
                let middle = good.min(bad) + good.abs_diff(bad) / 2;
                if self.takes(&middle.to_string()) { good = middle } else { bad = middle }
            }
            good
        };
        let most = i64::MAX.cast_unsigned();
        let least = if self.takes("0") { 0 } else { edge(known, 0) };
        (least, if self.takes(&most.to_string()) { most } else { edge(known, most) })
    }

    /// Describes the values that the parser accepts.
    fn takes_what(&self) -> String {
        if self.takes("true") {
            return "`true` or `false`".into();
        }
        if self.takes("[]") || self.takes("[\"0\"]") {
            return "a list of texts".into();
        }
        if self.takes("\"/x\"") {
            return "a path".into();
        }
        if self.takes("\"1GiB\"") {
            // Lengths may have to be multiples of a power of two, so the test tries powers of two only.
            let taken: Vec<u32> = (0..63).filter(|shift| self.takes(&(1_u64 << shift).to_string())).collect();
            return match (taken.first(), taken.last()) {
                (Some(0), Some(62)) => "bytes".into(),
                (Some(first), Some(last)) => format!("bytes, from {} to {}", bytes(*first), bytes(*last)),
                _ => unreachable!("1 GiB was taken"),
            };
        }
        let integer = if self.key == "socket_mode" { Some(0o600) } else { self.value.parse().ok() };
        if let Some(known) = integer {
            let (least, most) = self.range(known);
            return match (least, most) {
                _ if self.key == "socket_mode" => format!("permission bits, from {least:#o} to {most:#o}"),
                (least, most) if most >= u64::from(u32::MAX) => format!("a number, from {least}"),
                (least, most) => format!("a number, from {least} to {most}"),
            };
        }
        // The parser's error lists the valid choices.
        let error = self.parse("\"?\"").expect_err("a question mark is no choice");
        let (_, choices) = error.split_once("expected ").or_else(|| error.split_once(": use ")).unwrap_or_else(|| {
            panic!("{}.{}: what the parser takes cannot be told from its error: {error}", self.section, self.key)
        });
        let choices = choices.lines().next().expect("a line").replace('`', "\"");
        let quoted: Vec<&str> = choices.split('"').skip(1).step_by(2).collect();
        quoted.iter().map(|choice| format!("`\"{choice}\"`")).collect::<Vec<_>>().join(", ")
    }
}

fn bytes(shift: u32) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    format!("{} {}", 1_u64 << (shift % 10), units[shift as usize / 10])
}

/// Returns the text of docs/configuration.md.
fn page() -> String {
    let (sections, entries) = entries();
    let mut page = String::from(
        "# Configuration\n\nThis page lists every option of `tensorlendd`. A test generates it from `daemon/src/config.toml` \
         and the parser. `tensorlendd --print-config` prints all options as a TOML file. Set yours,\nand pass its path with `--config`. All other options have their \
         defaults. `tensorlendd --check-config --config FILE` checks a file, and names\nthe first wrong option. Sizes are bytes: \
         integers, or strings with B, KiB, MiB, GiB or TiB. [Sizing](operations.md) explains which values to choose.\n",
    );
    for (section, comment) in sections {
        let title = if section.is_empty() { "At the top".into() } else { format!("`[{section}]`") };
        let title = title.replace("namespace.lab", "namespace.NAME");
        let _ = write!(page, "\n## {title}\n");
        if !comment.is_empty() {
            let _ = write!(page, "\n{}\n", comment.trim());
        }
        for entry in entries.iter().filter(|entry| entry.section == section) {
            let kind = if entry.is_example { "such as" } else { "default" };
            let (takes, value) = (entry.takes_what(), &entry.value);
            let _ = write!(page, "\n### `{}`\n\n{}; {kind} `{value}`.\n", entry.key, capital(&takes));
            if !entry.comment.is_empty() {
                let _ = write!(page, "\n{}\n", entry.comment.trim());
            }
        }
    }
    page
}

fn capital(text: &str) -> String {
    let (first, rest) = text.split_at(1);
    first.to_uppercase() + rest
}

#[test]
fn the_reference_is_what_the_code_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let wanted = page();
    if std::env::var_os("TENSORLEND_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &wanted).expect("the page is written");
    }
    let is = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(is == wanted, "docs/configuration.md is out of date: write it anew with\n    {UPDATE}");
}

#[test]
fn the_limits_are_the_parsers() {
    let (_, entries) = entries();
    let takes = |section: &str, key: &str| {
        let entry = entries.iter().find(|entry| entry.section == section && entry.key == key);
        entry.unwrap_or_else(|| panic!("{section}.{key} is not printed")).takes_what()
    };
    assert_eq!(takes("namespace_default", "names_max"), "a number, from 512 to 16777216");
    assert_eq!(takes("pool", "segment_bytes"), "bytes, from 4 KiB to 1 TiB");
    assert_eq!(takes("uid", "lease_ms_max"), "a number, from 100");
    assert_eq!(takes("", "mode"), "`\"auto\"`, `\"system\"`, `\"user\"`");
    assert_eq!(takes("pool", "numa"), "`\"local\"`, `\"interleave\"`, `\"node:N\"`");
}

/// The program prints the stable code of the fault, and each kind of fault has its own code.
#[test]
fn a_wrong_configuration_has_a_code() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tensorlendd.toml");
    let check = |text: Option<&str>| {
        if let Some(text) = text {
            std::fs::write(&file, text).expect("a file is written");
        }
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tensorlendd"));
        let done = command.arg("--check-config").arg("--config").arg(&file).output().expect("the daemon starts");
        assert_eq!(done.status.code(), Some(2));
        String::from_utf8(done.stderr).expect("text").trim_end().to_owned()
    };
    let missing = check(None);
    assert!(
        missing.starts_with("tensorlendd: cannot read the configuration ") && missing.ends_with(" [TL-1101]"),
        "{missing}"
    );
    let unknown = check(Some("[pool]\nbytes_most = 3\n"));
    assert!(unknown.contains("unknown field `bytes_most`") && unknown.ends_with(" [TL-1102]"), "{unknown}");
    let misplaced = check(Some("pool.bytes_max = 3\n[namespace_default]\npool.bytes_max = 3\n"));
    let remedy = "pool is a section: write the option under the line [pool], without pool. [TL-1102]";
    assert!(misplaced.contains("unknown field `pool`") && misplaced.ends_with(remedy), "{misplaced}");
    let twice = check(Some("pool.bytes_max = 3\n[pool]\nspare_segments = 1\n"));
    assert!(twice.contains("duplicate key") && twice.ends_with("under one line, such as [pool] [TL-1102]"), "{twice}");
    let range = check(Some("[spill]\nhigh_water_percent = 100\n"));
    let expected = format!(
        "tensorlendd: the configuration {} is wrong, line 2: spill.high_water_percent is 100: use 1 to 99 [TL-1103]",
        file.display()
    );
    assert_eq!(range, expected);
}
