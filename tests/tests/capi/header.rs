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

/// Returns true for a line on which the declaration of a constant, a type, a field, a value or a function begins.
fn declares(line: &str) -> bool {
    let is_constant = line.starts_with("#define TENSORLEND_") && line != "#define TENSORLEND_H";
    let is_type = line.starts_with("enum ") || line.starts_with("typedef struct ");
    let member = line.strip_prefix("    ").filter(|member| member.starts_with(char::is_alphabetic));
    let is_member = member.is_some_and(|member| member.ends_with(';') || member.starts_with("TENSORLEND_"));
    let is_function = line.starts_with(char::is_alphabetic) && line.contains(" tensorlend_") && line.contains('(');
    is_constant || is_type || is_member || is_function
}

/// Each declaration of the header has a comment.
pub fn is_described() {
    let header = tensorlend_header::text();
    let lines = || std::iter::once("").chain(header.lines()).zip(header.lines()).filter(|(_, line)| declares(line));
    assert!(lines().count() > 350);
    let silent: Vec<_> = lines().filter(|(before, _)| !before.ends_with("*/")).map(|(_, line)| line).collect();
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
