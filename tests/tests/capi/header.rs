//! `bindings/c/include/tensorlend.h` is generated from `bindings/c/src`, and must be up to date.

use std::path::{Path, PathBuf};

/// The source files, in the order of the header.
const FILES: &[&str] = &[
    "status",
    "version",
    "dtype",
    "options",
    "client",
    "lease",
    "leases",
    "draft",
    "names",
    "list",
    "queue",
    "stream",
    "subscription",
    "history",
    "listing",
    "dlpack",
    "caller",
    "server",
    "model",
    "remote",
    "device",
    "stat",
    "instruments",
];

fn capi() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../bindings/c")
}

/// Returns the path of the committed header.
pub fn path() -> PathBuf {
    capi().join("include/tensorlend.h")
}

fn generated() -> String {
    let config = cbindgen::Config::from_file(capi().join("cbindgen.toml")).expect("cbindgen.toml is one");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in FILES {
        builder = builder.with_src(capi().join(format!("src/{file}.rs")));
    }
    let mut text = Vec::new();
    builder.generate().expect("the files are understood").write(&mut text);
    // Backquotes mean nothing in C and C++ comments.
    String::from_utf8(text).expect("a header is text").replace('`', "")
}

/// Compares the committed header with the generated one, or writes it.
pub fn compare() {
    let wanted = generated();
    if std::env::var_os("TENSORLEND_UPDATE_DOCS").is_some() {
        std::fs::write(path(), &wanted).expect("the header is written");
    }
    assert!(
        std::fs::read_to_string(path()).unwrap_or_default() == wanted,
        "bindings/c/include/tensorlend.h is not what the code says: write it anew with\n    \
         TENSORLEND_UPDATE_DOCS=1 cargo test -p tensorlend-tests --test capi the_header"
    );
    let listed = |entry: &std::fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().trim_end_matches(".rs").to_owned();
        FILES.contains(&name.as_str()) || matches!(name.as_str(), "lib" | "arguments" | "process")
    };
    let folder = std::fs::read_dir(capi().join("src")).expect("the folder is there");
    let forgotten: Vec<_> = folder.map(|entry| entry.expect("an entry")).filter(|entry| !listed(entry)).collect();
    assert!(forgotten.is_empty(), "not in the header: {forgotten:?}");
}
