//! The code in `docs/c.md`: every block marked as C or C++ is a program, or a part of one.

use super::built::{Kit, Language, Link};
use std::path::{Path, PathBuf};

/// The code around a block that is not a whole program: a connected client, and the macro that the guide shows.
const BEFORE: &str = "#include <tensorlend.h>
#include <stdio.h>
#include <string.h>
#define TRY(call) do { if ((call) != TENSORLEND_OK) { \\
    fprintf(stderr, \"%s\\n\", tensorlend_error_message()); return 1; } } while (0)
int main(void) {
    tensorlend_client *client;
    TRY(tensorlend_connect(NULL, &client));
";
const AFTER: &str = "\n    tensorlend_client_free(client);\n    return 0;\n}\n";

/// Compiles the blocks and returns the programs.
pub fn programs(kit: &Kit) -> Vec<PathBuf> {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/c.md");
    let guide = std::fs::read_to_string(guide).expect("the guide is there");
    let mut programs = Vec::new();
    for (number, block) in guide.split("\n```").skip(1).step_by(2).enumerate() {
        let (mark, code) = block.split_once('\n').expect("a mark and code");
        let (language, extension) = match mark {
            "c" => (Language::C, "c"),
            "cpp" => (Language::Cpp, "cpp"),
            "sh" => continue,
            other => panic!("block {number} of docs/c.md is marked {other:?}: c, cpp or sh"),
        };
        let indented: String = code.lines().flat_map(|line| ["    ", line, "\n"]).collect();
        let text = if code.contains("int main") { code.to_owned() } else { format!("{BEFORE}{indented}{AFTER}") };
        let file = kit.prefix().join(format!("guide-{number}.{extension}"));
        std::fs::write(&file, text).expect("a source file is written");
        programs.push(kit.compile(language, &[&file], &[], Link::Shared));
    }
    assert!(programs.len() >= 5, "the guide has only {} blocks", programs.len());
    programs
}
