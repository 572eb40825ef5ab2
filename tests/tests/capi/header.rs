//! `tensorlend.h`, as `bindings/c/header` generates it from `bindings/c/src`.

use std::path::Path;
use std::process::Command;
use tensorlend_tests::skip_without;

/// Every source file with an item of the interface is a part of the header.
pub fn is_whole() {
    let listed = |entry: &std::fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().trim_end_matches(".rs").to_owned();
        tensorlend_header::FILES.contains(&name.as_str()) || matches!(name.as_str(), "lib" | "arguments" | "process")
    };
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bindings/c/src");
    let folder = std::fs::read_dir(sources).expect("the folder is there");
    let forgotten: Vec<_> = folder.map(|entry| entry.expect("an entry")).filter(|entry| !listed(entry)).collect();
    assert!(forgotten.is_empty(), "not in the header: {forgotten:?}");
}

/// Every constant, function and structure, and every value of an enumeration has a comment.
pub fn is_described() {
    let header = tensorlend_header::text();
    let (mut before, mut count, mut silent) = ("", 0, Vec::new());
    for line in header.lines() {
        let declares = line.starts_with("#define TENSORLEND_") && line.contains(' ')
            || line.starts_with("    TENSORLEND_")
            || ["enum tensorlend_", "typedef struct "].iter().any(|start| line.starts_with(start))
            || line.contains(" tensorlend_")
                && line.contains('(')
                && line.starts_with(|c: char| c.is_ascii_lowercase());
        if declares && line != "#define TENSORLEND_H" {
            count += 1;
            if !before.ends_with("*/") {
                silent.push(line);
            }
        }
        before = line;
    }
    assert!(count > 300, "{count}");
    assert!(silent.is_empty(), "without a comment: {silent:#?}");
}

/// The header compiles in every language that a program may use.
pub fn compiles() {
    if skip_without("gcc") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("tensorlend.h"), tensorlend_header::text()).expect("the header is written");
    let source = folder.path().join("program.c");
    std::fs::write(&source, "#include \"tensorlend.h\"\nint number = TENSORLEND_ABI;\n").expect("a source is written");
    for (language, standard) in [("c", "c99"), ("c", "c11"), ("c++", "c++11"), ("c++", "c++17")] {
        if language == "c++" && skip_without("g++") {
            continue;
        }
        let mut compiler = Command::new(if language == "c" { "gcc" } else { "g++" });
        compiler.args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-pedantic", "-x", language]);
        let done = compiler.arg(format!("-std={standard}")).arg(&source).output().expect("the compiler runs");
        assert!(done.status.success(), "{standard}: {}", String::from_utf8_lossy(&done.stderr));
    }
}
