//! The object that an output path names: a file to replace, or a device, a pipe or a descriptor to write to.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::error::Fault;

/// Maximum number of links from a name in /dev to a descriptor.
const LINKS_MAX: usize = 4;

/// The object that an output path names.
pub enum Destination {
    /// Nothing, a regular file, or a symbolic link. A new file replaces it.
    File(Mode),
    /// A device, a pipe or a descriptor of this process. The output is written to it in place.
    Stream(File),
}

pub struct Mode {
    /// The mode with which the file is created. The umask applies to it.
    create: u32,
    /// The mode that the file gets after its creation, whatever the umask is.
    exact: Option<u32>,
}

impl Mode {
    pub fn at_creation(&self) -> Permissions {
        Permissions::from_mode(self.create)
    }

    pub fn exact(&self) -> Option<Permissions> {
        self.exact.map(Permissions::from_mode)
    }
}

/// The mode of a file that replaces nothing, or replaces a link.
const NEW: Mode = Mode { create: 0o666, exact: None };

pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Finds the object without following a symbolic link at the end of the path.
///
/// In a folder that several users may write to, such as /tmp, another user may have put a link to one of this user's
/// files there. The kernel (`fs.protected_symlinks`) prevents a program from following such a link, but not from reading
/// it and writing to its target. So no part of the program may resolve an output path itself.
pub fn find(path: &Path) -> Result<Destination, Fault> {
    let meta = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Destination::File(NEW)),
        other => other?,
    };
    let kind = meta.file_type();
    if kind.is_symlink() {
        return Ok(descriptor(path)?.map_or(Destination::File(NEW), Destination::Stream));
    }
    if kind.is_file() {
        return Ok(Destination::File(mode_of(&meta)));
    }
    if kind.is_fifo() && is_planted(path, &meta)? {
        return Err(Fault::unsupported(
            "another user has put a pipe there, and would read the data",
            "remove it, or choose another name",
        ));
    }
    if kind.is_char_device() || kind.is_fifo() {
        return Ok(Destination::Stream(open(path, &meta)?));
    }
    Err(Fault::unsupported("another object than a file has this name", "choose another name"))
}

/// Returns the mode of the file that replaces this one. Omits the bits that give rights to whoever runs the file.
///
/// The new file belongs to this user. So it keeps the mode of this user's own file exactly. Another user's file may give
/// rights that this user's umask denies, so the umask applies to its mode.
fn mode_of(meta: &Metadata) -> Mode {
    let mode = meta.mode() & 0o777;
    let is_own = meta.uid() == rustix::process::geteuid().as_raw();
    Mode { create: mode, exact: is_own.then_some(mode) }
}

/// Returns true for a pipe of another user in a folder that several users may write to, and that does not belong to the
/// pipe's user. The kernel refuses to open such a pipe (`fs.protected_fifos`), but only for a program that would create
/// it.
fn is_planted(path: &Path, pipe: &Metadata) -> io::Result<bool> {
    let folder = fs::metadata(folder_of(path))?;
    let is_shared = folder.mode() & 0o1000 != 0 && folder.mode() & 0o022 != 0;
    Ok(is_shared && pipe.uid() != folder.uid() && pipe.uid() != rustix::process::geteuid().as_raw())
}

/// Opens a device or a pipe. The flag prevents that the program follows a link that replaced it in the meantime.
fn open(path: &Path, found: &Metadata) -> Result<File, Fault> {
    let file = OpenOptions::new().write(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path)?;
    let opened = file.metadata()?;
    if (opened.dev(), opened.ino()) != (found.dev(), found.ino()) {
        return Err(Fault::unsupported("it was replaced while the command opened it", "choose a folder of your own"));
    }
    Ok(file)
}

/// Returns the descriptor of this process to which a link in /dev or /proc/self/fd leads, such as /dev/stdout.
///
/// The rule concerns the place of the link and not its target: only root and the kernel create links in these two
/// folders, so no other user can plant one. A link elsewhere is replaced, even if it leads to a device. /dev/shm is a
/// folder of its own, in which every user may create links.
fn descriptor(path: &Path) -> io::Result<Option<File>> {
    let Ok(own) = fs::canonicalize("/proc/self/fd") else { return Ok(None) };
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let (Ok(folder), Some(name)) = (fs::canonicalize(folder_of(&path)), path.file_name()) else { return Ok(None) };
        let link: PathBuf = folder.join(name);
        if folder == own {
            // A copy of the descriptor shares the position in the file with what the command prints.
            return match name.to_str() {
                Some("1") => {
                    io::stdout().flush()?;
                    io::stdout().as_fd().try_clone_to_owned().map(|fd| Some(fd.into()))
                }
                Some("2") => io::stderr().as_fd().try_clone_to_owned().map(|fd| Some(fd.into())),
                _ => OpenOptions::new().append(true).open(link).map(Some),
            };
        }
        if folder != Path::new("/dev") {
            return Ok(None);
        }
        let Ok(target) = fs::read_link(&link) else { return Ok(None) };
        path = folder.join(target);
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Gid, Uid, chown, mknodat};

    /// A user who is neither root nor the owner of these tests' files.
    const OTHER: u32 = 54_321;

    fn own(path: &Path) {
        chown(path, Some(Uid::from_raw(OTHER)), Some(Gid::from_raw(OTHER))).unwrap();
    }

    #[test]
    fn pipes_and_modes_of_other_users() {
        if !rustix::process::geteuid().is_root() {
            tensorlend_os::skip::skip("only root can create files of other users");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (pipe, file) = (folder.path().join("pipe"), folder.path().join("file"));
        mknodat(CWD, &pipe, FileType::Fifo, 0o666.into(), 0).unwrap();
        own(&pipe);
        for (mode, is_refused) in [(0o1777, true), (0o1775, true), (0o1755, false), (0o777, false)] {
            fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
            let meta = fs::symlink_metadata(&pipe).unwrap();
            assert_eq!(is_planted(&pipe, &meta).unwrap(), is_refused, "{mode:o}");
        }
        fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
        assert!(matches!(find(&pipe), Err(Fault::Unsupported { .. })));
        fs::write(&file, "").unwrap();
        for is_own in [true, false] {
            if !is_own {
                own(&file);
            }
            fs::set_permissions(&file, Permissions::from_mode(0o4777)).unwrap();
            let Ok(Destination::File(mode)) = find(&file) else { panic!("a file can be replaced") };
            assert_eq!((mode.create, mode.exact), (0o777, is_own.then_some(0o777)));
        }
    }

    #[test]
    fn only_links_of_the_system_lead_to_descriptors() {
        let folder = tempfile::tempdir().unwrap();
        let link = |target: &str| {
            let path = folder.path().join(target.replace('/', "_"));
            std::os::unix::fs::symlink(target, &path).unwrap();
            path
        };
        for target in ["/dev/null", "/dev/stdout", "/proc/self/fd/1", "/dev/shm/nothing"] {
            assert!(matches!(find(&link(target)), Ok(Destination::File(_))), "{target}");
        }
        for path in ["/dev/null", "/dev/stdout", "/dev/stderr", "/proc/self/fd/1", "/dev/fd/2"] {
            assert!(matches!(find(Path::new(path)), Ok(Destination::Stream(_))), "{path}");
        }
        assert!(find(Path::new("/dev")).is_err());
    }
}
