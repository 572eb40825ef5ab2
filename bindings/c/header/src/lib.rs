//! The generator of `tensorlend.h`: declarations and comments from `bindings/c/src`, the rest from `cbindgen.toml`.

use std::path::Path;

/// The source files of the interface, in the order of the header.
pub const FILES: [&str; 24] = [
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
    "fault",
    "stat",
    "instruments",
];

/// Returns the header's text. The same sources give the same text.
///
/// # Panics
///
/// If the sources are missing, or cbindgen does not understand them.
pub fn text() -> String {
    let capi = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let config = cbindgen::Config::from_file(capi.join("cbindgen.toml")).expect("cbindgen.toml is a configuration");
    let files = FILES.iter().map(|file| capi.join(format!("src/{file}.rs")));
    let builder = files.fold(cbindgen::Builder::new().with_config(config), cbindgen::Builder::with_src);
    let mut text = Vec::new();
    builder.generate().expect("cbindgen understands the files").write(&mut text);
    // Backquotes mean nothing in C and C++ comments.
    String::from_utf8(text).expect("a header is text").replace('`', "")
}
