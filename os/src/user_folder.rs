//! The folder of a user's own sockets.
//!
//! A process trusts the daemon that listens in this folder, so no other user may create files there.

use rustix::fs::{FileType, Mode, Stat, lstat, stat};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::fmt;
use std::path::{Path, PathBuf};

/// The reason why a user has no folder for sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoFolder {
    folder: PathBuf,
    fault: String,
}

impl fmt::Display for NoFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.folder.display(), self.fault)
    }
}

/// Returns the path of the user's socket: `tensorlend.sock` in `$XDG_RUNTIME_DIR`, else in `/run/user/UID`, else in
/// `/tmp/tensorlend-UID`, which this function creates. It skips the first two if they are missing, or if other users can
/// write to them, as after `su` without a login.
///
/// # Errors
/// [`NoFolder`] if `/tmp/tensorlend-UID` cannot be created, or another user can write to it.
pub fn socket() -> Result<PathBuf, NoFolder> {
    let set = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_absolute());
    folder(set, Path::new("/run/user"), Path::new("/tmp")).map(|it| it.join("tensorlend.sock"))
}

fn folder(set: Option<PathBuf>, run: &Path, temporary: &Path) -> Result<PathBuf, NoFolder> {
    let uid = geteuid().as_raw();
    let systemds = run.join(uid.to_string());
    if let Some(folder) = set.into_iter().chain([systemds]).find(|folder| fault(stat(folder), 0o022).is_none()) {
        return Ok(folder);
    }
    create(temporary)
}

/// Creates the user's folder in a temporary folder, unless it exists.
fn create(temporary: &Path) -> Result<PathBuf, NoFolder> {
    let folder = self::temporary(temporary);
    let refused = |fault: String| NoFolder { folder: folder.clone(), fault };
    // Otherwise another user could rename this user's folder, and put another one in its place.
    let is_kept = |stat: Stat| stat.st_mode & 0o022 == 0 || stat.st_mode & 0o1000 != 0;
    if !stat(temporary).is_ok_and(is_kept) {
        return Err(refused("lies in a folder in which others can rename it".into()));
    }
    match rustix::fs::mkdir(&folder, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(refused(format!("cannot be created: {error}"))),
    }
    // Another user may have created the folder, or a link in its place, before.
    match fault(lstat(&folder), 0o077) {
        None => Ok(folder),
        Some(fault) => Err(refused(fault)),
    }
}

/// Creates the folder of `socket` if it is `/tmp/tensorlend-UID`, and somebody has removed it.
///
/// # Errors
/// [`NoFolder`] if this folder cannot be created, or another user can write to it.
pub fn create_again(socket: &Path) -> Result<(), NoFolder> {
    let temporary = Path::new("/tmp");
    if socket.parent() == Some(&self::temporary(temporary)) { create(temporary).map(drop) } else { Ok(()) }
}

/// Returns the user's folder in a temporary folder.
fn temporary(folder: &Path) -> PathBuf {
    folder.join(format!("tensorlend-{}", geteuid().as_raw()))
}

/// Returns true for a file of this user or of root that no other user can replace: neither the file nor a folder above it is
/// writable by others, except folders such as `/tmp` in which users cannot rename each other's files.
pub fn is_trusted(file: &Path) -> bool {
    let Ok(file) = file.canonicalize() else { return false };
    let is_safe = |(above, path): (usize, &Path)| {
        stat(path).is_ok_and(|stat| {
            let own_group = stat.st_gid == rustix::process::getegid().as_raw();
            let others = if own_group { 0o002 } else { 0o022 };
            // The direct folder must not let others create files next to this one.
            let is_shared = above > 1 && stat.st_mode & 0o1000 != 0;
            [0, geteuid().as_raw()].contains(&stat.st_uid) && (stat.st_mode & others == 0 || is_shared)
        })
    };
    file.is_file() && file.ancestors().enumerate().all(is_safe)
}

/// Returns the reason why others can create files in a folder, or why it is none. `forbidden` are the permissions that
/// others must not have.
fn fault(stat: rustix::io::Result<Stat>, forbidden: u32) -> Option<String> {
    let stat = match stat {
        Ok(stat) => stat,
        Err(error) => return Some(format!("cannot be read: {error}")),
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Some("is no folder".into());
    }
    if stat.st_uid != geteuid().as_raw() {
        return Some(format!("belongs to another user (uid {})", stat.st_uid));
    }
    let mode = stat.st_mode & 0o777;
    (mode & forbidden != 0).then(|| format!("has mode {mode:o}, so that others can use it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn mode(folder: &Path, mode: u32) {
        std::fs::set_permissions(folder, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_first_folder_of_which_this_user_is_the_only_writer_is_used() {
        let root = tempfile::tempdir().unwrap();
        let uid = geteuid().as_raw();
        let (set, run, tmp) = (root.path().join("set"), root.path().join("run"), root.path().join("tmp"));
        let (own, last) = (run.join(uid.to_string()), tmp.join(format!("tensorlend-{uid}")));
        for folder in [&set, &own, &tmp] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let found = |set: Option<&PathBuf>| folder(set.cloned(), &run, &tmp);
        mode(&set, 0o755);
        assert_eq!(found(Some(&set)), Ok(set.clone()));
        mode(&set, 0o777);
        assert_eq!(found(Some(&set)), Ok(own.clone()));
        std::fs::remove_dir(&own).unwrap();
        mode(&tmp, 0o777);
        assert!(found(None).is_err(), "others could rename it");
        mode(&tmp, 0o1777);
        for _ in 0..2 {
            assert_eq!(found(None), Ok(last.clone()), "created once, and found again");
        }
        assert_eq!(last.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_file_that_others_can_replace_is_not_trusted() {
        let root = tempfile::tempdir().unwrap();
        let (folder, file) = (root.path().join("folder"), root.path().join("folder/file"));
        std::fs::create_dir(&folder).unwrap();
        assert!(!is_trusted(&file) && !is_trusted(&folder));
        std::fs::write(&file, "").unwrap();
        assert!(is_trusted(&file));
        for (wrong, bits) in [(&file, 0o666), (&folder, 0o1777), (&folder, 0o777)] {
            mode(wrong, bits);
            assert!(!is_trusted(&file), "{}", wrong.display());
            mode(wrong, 0o755);
        }
        symlink(&file, root.path().join("link")).unwrap();
        assert!(is_trusted(&root.path().join("link")));
    }

    #[test]
    fn a_folder_that_others_made_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let last = root.path().join(format!("tensorlend-{}", geteuid().as_raw()));
        let refusal = || folder(None, &root.path().join("run"), root.path()).unwrap_err().to_string();
        symlink(root.path(), &last).unwrap();
        assert!(refusal().ends_with("is no folder"));
        std::fs::remove_file(&last).unwrap();
        std::fs::create_dir(&last).unwrap();
        mode(&last, 0o755);
        assert!(refusal().ends_with("has mode 755, so that others can use it"));
        std::fs::remove_dir(&last).unwrap();
        assert!(folder(None, root.path(), &root.path().join("missing")).is_err());
    }
}
