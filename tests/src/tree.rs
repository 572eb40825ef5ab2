//! The files of the source tree.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Returns the root of the repository.
///
/// # Panics
/// If the package has no folder above it.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the repository")
}

/// Returns the files below a folder whose names have this extension, with their texts. Leaves out build output, hidden
/// folders and links to folders.
///
/// # Panics
/// If a file cannot be read.
pub fn texts(folder: &Path, extension: &str) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            if path.is_dir() {
                // cargo, pip and others mark their folders with this file.
                let is_output = name == "target" || name == "node_modules" || path.join("CACHEDIR.TAG").exists();
                if !is_output && !name.starts_with('.') && !path.is_symlink() {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|it| it == extension) {
                let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                found.insert(path, text);
            }
        }
    }
    found
}
