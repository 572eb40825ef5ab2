//! The binary interface: functions and their signatures, constants, fields. `bindings/c/abi/tensorlend.N.txt` lists it,
//! and nothing in the list may be removed or changed while the library's number is N.

use super::built::Kit;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Structures in the program's own memory: they cannot even grow. The library allocates all others.
const CALLERS: &[&str] = &["tensorlend_version", "tensorlend_statistics"];

/// Returns the header's declarations, without comments and preprocessor lines.
fn declarations(header: &str) -> Vec<String> {
    let mut text = String::new();
    let mut rest = header;
    while let Some((before, comment)) = rest.split_once("/*") {
        text.push_str(before);
        rest = comment.split_once("*/").expect("comments end").1;
    }
    text.push_str(rest);
    let (mut all, mut depth, mut one) = (Vec::new(), 0, String::new());
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.starts_with("extern \"C\"")) {
        for c in line.chars() {
            depth += i32::from(c == '{') - i32::from(c == '}');
            one.push(c);
            if c == ';' && depth == 0 {
                all.push(std::mem::take(&mut one));
            }
            // The brace that closes `extern "C"`.
            if depth < 0 {
                (depth, one) = (0, String::new());
            }
        }
        one.push(' ');
    }
    let plain = |one: String| one.split_whitespace().collect::<Vec<_>>().join(" ").replace("* ", "*");
    all.into_iter().map(plain).collect()
}

/// Returns the facts that a compiled program depends on, one per line.
fn facts(header: &str) -> BTreeSet<String> {
    let mut facts = BTreeSet::new();
    for line in header.lines() {
        if let Some(constant) = line.strip_prefix("#define TENSORLEND_").filter(|rest| rest.contains(' ')) {
            facts.insert(format!("constant TENSORLEND_{constant}"));
        }
    }
    for one in declarations(header) {
        let (head, body, name) = match one.split_once('{') {
            Some((head, rest)) => {
                let (body, name) = rest.split_once('}').expect("braces pair");
                (head.trim(), Some(body), name.trim_matches([' ', ';']))
            }
            None => (one.trim_end_matches(';'), None, ""),
        };
        match body {
            Some(body) if head.contains("enum") => {
                // "enum NAME : TYPE" in languages with such syntax; a typedef names the type for the others.
                let (name, of) = head.split_once(" : ").expect("an enumeration has a type");
                let name = name.trim_start_matches("enum ");
                facts.insert(format!("enum {name} is {of}"));
                let values = body.split(',').map(str::trim).filter(|value| !value.is_empty());
                facts.extend(values.map(|value| format!("enum {name}: {value}")));
            }
            Some(body) => {
                let fields: Vec<_> = body.split(';').map(str::trim).filter(|field| !field.is_empty()).collect();
                if CALLERS.contains(&name) {
                    facts.insert(format!("struct {name} has {} fields", fields.len()));
                }
                let fields = fields.iter().enumerate();
                facts.extend(fields.map(|(at, field)| format!("struct {name}, field {at:02}: {field}")));
            }
            None if head.contains('(') && !head.starts_with("typedef") => {
                facts.insert(format!("function {head}"));
            }
            None => {
                facts.insert(head.to_owned());
            }
        }
    }
    facts
}

fn lines(facts: &BTreeSet<String>) -> String {
    facts.iter().flat_map(|fact| [fact, "\n"]).collect()
}

fn number(header: &str) -> String {
    let line = header.lines().find_map(|line| line.strip_prefix("#define TENSORLEND_ABI "));
    line.expect("the header says its number").to_owned()
}

fn list(number: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../bindings/c/abi/tensorlend.{number}.txt"))
}

/// Returns the listed facts that the header no longer has.
fn broken<'a>(written: &'a str, facts: &BTreeSet<String>) -> Vec<&'a str> {
    written.lines().filter(|line| !line.is_empty() && !facts.contains(*line)).collect()
}

/// Compares the header with the list. With `TENSORLEND_UPDATE_DOCS` set, it writes additions, but never
/// removals.
pub fn compare() {
    let header = tensorlend_header::text();
    let (number, facts) = (number(&header), facts(&header));
    let written = std::fs::read_to_string(list(&number)).unwrap_or_default();
    let gone = broken(&written, &facts);
    assert!(
        gone.is_empty(),
        "programs built with libtensorlend.so.{number} rest on what is gone or changed. Keep it, or raise TENSORLEND_ABI in \
         bindings/c/src/version.rs:\n{gone:#?}"
    );
    let wanted = lines(&facts);
    if std::env::var_os("TENSORLEND_UPDATE_DOCS").is_some() {
        std::fs::write(list(&number), &wanted).expect("the list is written");
    }
    assert!(
        std::fs::read_to_string(list(&number)).unwrap_or_default() == wanted,
        "the list lacks what the header adds: run `just abi`"
    );
}

/// The comparison finds every incompatible change, and no others.
pub fn changes_are_noticed() {
    let header = tensorlend_header::text();
    let written = lines(&facts(&header));
    let gone = |from: &str, to: &str| {
        assert!(header.contains(from), "{from}");
        broken(&written, &facts(&header.replacen(from, to, 1))).len()
    };
    assert_eq!(gone("tensorlend_status tensorlend_ping(", "int tensorlend_ping("), 1);
    assert_eq!(gone("TENSORLEND_TIMEOUT = 2", "TENSORLEND_TIMEOUT = 3"), 1);
    assert_eq!(gone("  : int32_t", "  : int64_t"), 1);
    assert_eq!(gone("typedef int32_t tensorlend_status;", "typedef int64_t tensorlend_status;"), 1);
    assert_eq!(gone("#define TENSORLEND_POLLABLE 1", "#define TENSORLEND_POLLABLE 2"), 1);
    assert_eq!(gone("uint32_t device_number;", "uint32_t device_number; int more;"), 0);
    assert_eq!(gone("uint64_t total_count;", "uint64_t total_count; int more;"), 1);
    assert!(gone("bool row_major;", "int first; bool row_major;") > 0);
    assert_eq!(gone("tensorlend_status tensorlend_ping(", "int another(void); tensorlend_status tensorlend_ping("), 0);
}

/// Returns the names of the header's functions.
fn functions(header: &str) -> BTreeSet<String> {
    let facts = facts(header);
    let functions = facts.iter().filter_map(|fact| fact.strip_prefix("function "));
    let name = |function: &str| {
        let before = function.split_once('(').expect("a function").0;
        before.rsplit([' ', '*']).next().expect("a name").to_owned()
    };
    functions.map(name).collect()
}

/// Functions without a method in `tensorlend.hpp`: those that need no object, and those that another method covers.
const WITHOUT_METHOD: [&str; 14] = [
    "tensorlend_abi",
    "tensorlend_dtype_bytes",
    "tensorlend_library_version",
    "tensorlend_limit_name",
    "tensorlend_status_name",
    // Other names of calls that have a method.
    "tensorlend_list_get",
    "tensorlend_list_remote",
    "tensorlend_list_wait",
    // `get_value` and `wait_newer`.
    "tensorlend_get",
    "tensorlend_get_dataset",
    "tensorlend_wait_for",
    // `draft`, which is then published.
    "tensorlend_put",
    "tensorlend_put_dlpack",
    "tensorlend_put_remote",
];

/// Each function of C has a method in C++.
pub fn methods() {
    let header = tensorlend_header::text();
    let methods = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bindings/c/include/tensorlend.hpp");
    let methods = std::fs::read_to_string(methods).expect("the header is there");
    let words: BTreeSet<&str> = methods.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let missing: Vec<String> = functions(&header).into_iter().filter(|name| !words.contains(name.as_str())).collect();
    let mut known = WITHOUT_METHOD.to_vec();
    known.sort_unstable();
    assert_eq!(missing, known);
}

/// Compares the exported symbols of the built library with the header.
pub fn exported(kit: &Kit) {
    let header = tensorlend_header::text();
    let declared = functions(&header);
    assert!(declared.len() > 80, "{declared:?}");
    let said = |program: &str, arguments: &[&str]| {
        let file = kit.libraries().join("libtensorlend.so");
        let done = Command::new(program).args(arguments).arg(file).output();
        let done = done.unwrap_or_else(|e| panic!("{program} comes with the compiler: {e}"));
        assert!(done.status.success());
        String::from_utf8(done.stdout).expect("names are text")
    };
    let symbols = said("nm", &["-D", "--defined-only", "--format=posix"]);
    let symbols: BTreeSet<String> =
        symbols.lines().filter_map(|line| line.split(' ').next()).map(String::from).collect();
    assert_eq!(symbols, declared);
    let soname = format!("[libtensorlend.so.{}]", number(&header));
    let dynamic = said("objdump", &["-p"]);
    let named = dynamic.lines().find(|line| line.contains("SONAME")).expect("the library has a soname");
    assert_eq!(format!("[{}]", named.split_whitespace().last().expect("a name")), soname);
}
