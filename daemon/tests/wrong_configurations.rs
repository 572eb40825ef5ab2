//! Wrong configurations: each error names the file, the line and the fault.

use std::process::Command;

/// Texts of files, the number of the wrong line, and a part of the error.
const WRONG: &[(&str, usize, &str)] = &[
    // Not TOML.
    ("[pool\n", 1, "TL-1102"),
    ("mode = \"user\"\nmode = \"system\"\n", 2, "duplicate key"),
    ("\n\nmode = user\n", 3, "TL-1102"),
    ("[pool]\nspare_segments = 1\n\n[pool]\n", 4, "duplicate key"),
    // Types.
    ("socket = 3\n", 1, "string"),
    ("mode = 1\n", 1, "mode"),
    ("observers = \"root\"\n", 1, "sequence"),
    ("pool = 3\n", 1, "pool"),
    ("[pool]\nspare_segments = \"one\"\n", 2, "spare_segments"),
    ("[pool]\npage_lock = 1\n", 2, "page_lock"),
    ("[spill]\nhigh_water_percent = 300\n", 2, "high_water_percent"),
    ("[uid]\nsessions_max = -1\n", 2, "sessions_max"),
    ("[namespace.lab]\nreaders = [\"root\", 7]\n", 2, "readers"),
    ("[pool]\n\nbytes_max = \"256 buckets\"\n", 3, "256 buckets"),
    ("[pool]\nbytes_max = 1.5\n", 2, "bytes_max"),
    // Unknown options and choices.
    ("sockets = \"/tmp/s\"\n", 1, "sockets"),
    ("[pool]\nbytes_most = 3\n", 2, "bytes_most"),
    ("[spil]\n", 1, "spil"),
    ("mode = \"other\"\n", 1, "other"),
    ("[cuda]\nallocator = \"slab\"\n", 2, "slab"),
    ("[pool]\nhuge_pages = \"4M\"\n", 2, "4M"),
    ("[pool]\nnuma = \"node:x\"\n", 2, "node:N"),
    ("[namespace_default]\ncharge = \"reader\"\n", 2, "reader"),
    ("[cuda]\nallow_fake = true\n", 2, "allow_fake"),
    // Ranges.
    ("# a comment\n[pool]\nsegment_bytes = 5000\n", 3, "pool.segment_bytes is 5000"),
    ("[pool]\nspare_segments = 65\n", 2, "pool.spare_segments is 65"),
    ("socket_mode = 0o1000\n", 1, "socket_mode is 0o1000"),
    ("[uid]\nbytes_max = \"1GiB\"\nsessions_max = 0\n", 3, "uid.sessions_max is 0"),
    ("uid.lease_ms_max = 10\n", 1, "uid.lease_ms_max"),
    ("[streams]\ngrace_ms = 86400001\n", 2, "streams.grace_ms"),
    ("[spill]\nhigh_water_percent = 100\n", 2, "use 1 to 99"),
    ("[namespace_default]\nnames_max = 100\n", 2, "namespace_default.names_max is 100"),
    ("[namespace.lab]\nreaders = [\"0\"]\nmembers_max = 0\n", 3, "namespace.lab.members_max is 0"),
    ("[cuda]\nquarantine_ms = 60001\n", 2, "cuda.quarantine_ms"),
    ("cuda = { segment_bytes = \"3MiB\" }\n", 1, "cuda.segment_bytes"),
    ("[cuda]\n\ndevices = [\"first\"]\n", 3, "cuda.devices"),
    // Contradictions.
    ("[spill]\nhigh_water_percent = 50\nlow_water_percent = 60\n", 3, "spill.low_water_percent is 60"),
    ("[pool]\nhuge_pages = \"2M\"\n[spill]\ndirectory = \"/tmp\"\n", 4, "spill.directory"),
    ("[pool]\nbytes_max = \"1MiB\"\nsegment_bytes = \"2MiB\"\n", 3, "pool.segment_bytes"),
    ("[pool]\nbytes_max = \"32MiB\"\n", 2, "pool.bytes_max only"),
    ("[pool]\nhuge_pages = \"2M\"\nsegment_bytes = \"1MiB\"\n", 3, "pool.segment_bytes"),
    ("[pool]\nsheet_bytes_max = \"1MiB\"\n", 2, "pool.sheet_bytes_max"),
    ("[namespace_default]\nnames_max = 16777216\n[pool]\nsheet_bytes_max = \"64MiB\"\n", 4, "pool.sheet_bytes_max"),
    ("[pool]\nnuma = \"node:4000\"\n", 2, "pool.numa"),
    // Namespaces and paths.
    ("[pool]\n[namespace.lab]\n", 2, "namespace.lab has neither"),
    ("[namespace.\"uid:7\"]\nreaders = [\"a\"]\n", 1, "kept for private"),
    ("[namespace.\"a b\\n\"]\nreaders = [\"a\"]\n", 1, "namespace."),
    ("[spill]\ndirectory = \"/no/such/directory\"\n", 2, "/no/such/directory"),
    ("[spill]\n\n\ndirectory = \"/proc\"\n", 4, "/proc"),
];

/// Returns the status and the error of `--check-config` for the text of a file.
fn check(text: &str) -> (Option<i32>, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("wrong.toml");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorlendd"));
    command.arg("--check-config").arg("--config").arg(&file).arg("--socket").arg(folder.path().join("s"));
    let done = command.output().unwrap();
    (done.status.code(), String::from_utf8(done.stderr).unwrap(), file.display().to_string())
}

#[test]
fn each_error_names_the_file_and_the_line() {
    let mut faults = Vec::new();
    for &(text, line, part) in WRONG {
        let (code, error, file) = check(text);
        // The parser and the check of the values write the line in their own ways.
        let has_line = [',', ':', '\n'].iter().any(|end| error.contains(&format!(" line {line}{end}")));
        if code != Some(2) || !error.contains(&file) || !has_line || !error.contains(part) {
            faults.push(format!("{text:?}, line {line}, {part:?}: {code:?} {error}"));
        }
    }
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), WRONG.len(), faults.join("\n"));
}

#[test]
fn warnings_about_users_name_the_file_and_the_line() {
    for (text, line, part) in [
        ("observers = [\"no-such-user\"]\n", 1, "no-such-user"),
        ("[namespace.lab]\nreaders = [\"0\"]\nwriters = [\"@no-such-group\"]\n", 3, "no-such-group"),
    ] {
        let (code, error, file) = check(text);
        let found = error.lines().any(|it| it.contains(&format!("{file}, line {line}: ")) && it.contains(part));
        assert!(code == Some(0) && found, "{text:?}: {error}");
    }
}
