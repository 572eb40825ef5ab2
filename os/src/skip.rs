//! Reports of tests that cannot run. Not part of the interface; the tests of all crates use it.

use std::io::Write;

/// Reports that the calling test cannot run here. Writes to standard error, and to the file that
/// the variable `TENSORLEND_SKIPS` names, because cargo hides the output of a test that passes.
///
/// # Panics
/// If the file cannot be written.
pub fn skip(why: &str) {
    let thread = std::thread::current();
    let line = format!("{}: {why}\n", thread.name().unwrap_or("a test"));
    eprint!("SKIPPED: {line}");
    if let Some(file) = std::env::var_os("TENSORLEND_SKIPS") {
        let file = std::fs::File::options().append(true).create(true).open(file);
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("TENSORLEND_SKIPS names a file to write to");
    }
}
