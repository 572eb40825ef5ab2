//! Removal of the files that a peer creates in its own directory and in /dev/shm.

use std::fs;
use std::path::{Path, PathBuf};

use crate::BaselineError;

const SHM: &str = "/dev/shm";

/// The prefix of the names. The pid of the process that started the peer follows the prefix, and
/// then a number.
const PREFIX: &str = "tensorlend-peer-";

/// A directory for a peer's files. Dropping the object removes the directory, and the peer's names
/// in /dev/shm, even if the peer was killed.
pub(super) struct Leftovers {
    folder: PathBuf,
    prefix: String,
}

impl Leftovers {
    /// Makes the directory. Also removes the files of earlier processes that were killed before
    /// they could remove them.
    pub(super) fn new(tag: &str) -> Result<Self, BaselineError> {
        for folder in [Path::new(SHM), &std::env::temp_dir()] {
            remove(folder, &|name| starter(name).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()));
        }
        let prefix = prefix(tag);
        let folder = std::env::temp_dir().join(&prefix);
        fs::create_dir(&folder).map_err(BaselineError::system("make a folder for a peer's files"))?;
        Ok(Self { folder, prefix })
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Returns the prefix of the peer's names.
pub(super) fn prefix(tag: &str) -> String {
    format!("{PREFIX}{tag}_")
}

/// Returns the pid in a name. It belongs to the process that started the peer.
fn starter(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').find_map(|word| word.parse().ok())
}

fn remove(folder: &Path, is_it: &dyn Fn(&str) -> bool) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if is_it(&entry.file_name().to_string_lossy()) {
            // Ignore errors, because the file may belong to another user, or be removed already.
            let path = entry.path();
            let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        }
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
        remove(Path::new(SHM), &|name| name.starts_with(&self.prefix));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drop_removes_folder_and_names_and_a_start_those_of_the_dead() {
        let mut dead = std::process::Command::new("true").spawn().unwrap();
        dead.wait().unwrap();
        let stale = Path::new(SHM).join(format!("{}x", prefix(&format!("duel-{}-7", dead.id()))));
        fs::write(&stale, "x").unwrap();

        let tag = format!("duel-{}-leftovers", std::process::id());
        let leftovers = Leftovers::new(&tag).unwrap();
        assert!(!stale.exists());
        let (folder, name) = (leftovers.folder().to_owned(), Path::new(SHM).join(format!("{}x", prefix(&tag))));
        fs::write(&name, "x").unwrap();
        fs::write(folder.join("file"), "x").unwrap();
        drop(leftovers);
        assert!(!folder.exists() && !name.exists());
    }

    #[test]
    fn names_tell_who_started_it() {
        assert_eq!(starter(&prefix("duel-12-3")), Some(12));
        assert_eq!(starter("tensorlend-baseline-12-3"), None);
    }
}
