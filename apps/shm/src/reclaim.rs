//! The removal of shared memory that no process holds.
//!
//! # Why no program loses a file that it opened
//!
//! The names: remover V, opener O, file F. O has opened F successfully when its open(2) returns. The claim is: if O has
//! opened F by its name, the name still leads to F afterwards.
//!
//! 1. *Descriptors and mappings.* V opens F and requests a write lease (`F_SETLEASE`, `F_WRLCK`). The kernel counts the
//!    open files of an inode, and refuses the lease if there is one beside V's. A mapping keeps its open file, so a mapping
//!    whose descriptor is closed counts, too; so do the mappings of forked children, descriptors that travel in the queue
//!    of a socket, processes that V may not read, and other pid namespaces, none of which /proc shows completely. V
//!    therefore relies on the lease, and not on the scan. The kernel does not count descriptors with `O_PATH`: the scan
//!    sees those of readable processes.
//! 2. *Openers during the lease.* O increments the count before it looks for a lease, and the kernel counts again after it
//!    has inserted V's lease. So either V gets no lease, or O finds it and waits in open(2) (with `O_NONBLOCK`, O gets
//!    `EWOULDBLOCK`). The kernel marks the lease: `F_GETLEASE` no longer returns `F_WRLCK`. The same holds for truncate(2).
//!    If V finds the mark, it puts the name back, and only then closes its descriptor, which lets O continue.
//! 3. *Openers on their way.* O may have resolved the name, but not reached the lease yet. If V removed the name now, O
//!    would get a file without a name. So V first *renames* F to a name that no program knows. From then on, no further
//!    process can resolve the old name to F. V keeps the lease for [`Options::settle`] and only then removes F, if the lease
//!    is unmarked. An O that had resolved the name reaches the lease in this time, marks it, and V renames F back.
//! 4. *Limits.* Between the resolution and the lease, O executes some hundred instructions without sleeping. V's wait of
//!    one second is a bound on how long the scheduler may suspend O there, not a proof without time: the kernel shows no
//!    process the references to a name. While F has the private name, a process that does not create finds nothing, as
//!    after a removal. If a process creates a new file under the name in this time, and O marks the lease, V cannot rename
//!    F back: V keeps F under the private name and reports it.
//! 5. *The end of V.* A signal waits until the removal is undone or complete. If V is killed, [`restore`] of the next
//!    reclaim renames the private names of ended processes back. A living V has a lease on each of its private files, even
//!    if it is in another pid namespace, and `restore` leaves these.
//!
//! # Why root moves no file of a user who did not leave it
//!
//! A user can plant any name, and can put another file in the place of an own one at any time. So root renames and removes
//! a file with the rights of its owner as scanned ([`as_user`]): in a folder with the sticky bit, the kernel then refuses
//! to move a file that another user has put there. The exception are files of the folder's owner, root itself: if root
//! removes its file between V's check and V's renaming, and another user creates the name, V finds the wrong inode under
//! the private name, and renames it back.
//!
//! A segment of System V has the count of its attachments in the kernel, and [`tensorlend_os::sysv`] describes its race.

use crate::inode::age;
use crate::object::{Kind, Object, State};
use crate::scan::{SHM, Scan};
use globset::GlobMatcher;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, Stat, fstat, openat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tensorlend_os::file_lease::WriteLease;
use tensorlend_os::sysv;

/// Between a private name and the pid of the process that gave it.
const PRIVATE: &str = ".tensorlend-reclaim-";
/// Maximum number of files that are renamed at a time. Each needs a descriptor.
const BATCH: usize = 256;
/// The default of [`Options::settle`].
pub const SETTLE: Duration = Duration::from_secs(1);

/// Conditions on the objects to remove.
pub struct Options<'a> {
    /// The folder of the files: /dev/shm.
    pub folder: PathBuf,
    /// Minimum time since the last change. A program that shares memory creates it in several steps.
    pub older: Duration,
    /// Whether the files of other users are removed, too.
    pub all_users: bool,
    /// Time between the renaming and the removal of a file.
    pub settle: Duration,
    /// Selects objects by name.
    pub names: Option<&'a GlobMatcher>,
    /// Returns true if files should not be removed any more, and renamed files should get their names back.
    pub is_interrupted: &'a dyn Fn() -> bool,
}

impl Default for Options<'_> {
    fn default() -> Self {
        let (folder, older) = (PathBuf::from(SHM), Duration::from_mins(1));
        Self { folder, older, all_users: false, settle: SETTLE, names: None, is_interrupted: &|| false }
    }
}

/// The result for one object.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub name: String,
    pub kind: Kind,
    pub bytes: u64,
    /// The reason why the object stays. `None` if it was removed.
    pub kept: Option<String>,
}

/// Removes the objects of a scan that no process holds, and reports each.
///
/// # Errors
/// The error of opening the folder of the files.
pub fn reclaim(scan: &Scan, options: &Options<'_>, report: &mut dyn FnMut(Outcome)) -> std::io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let is_candidate = |object: &&Object| {
        // shm_open(3) creates no files in folders.
        let is_named = !object.name.contains('/') && options.names.is_none_or(|names| names.is_match(&object.name));
        let is_own = object.uid == Some(own) || options.all_users;
        is_named && is_own && object.holders.is_empty() && object.state != State::InUse
    };
    let is_old = |object: &Object| object.age.is_some_and(|age| age.age >= options.older);
    let is_removable = |object: &&Object| matches!(object.kind, Kind::Shm | Kind::Sysv) && is_candidate(object);
    for young in scan.objects.iter().filter(|object| is_removable(object) && !is_old(object)) {
        report(outcome(young, Err(CHANGED.into())));
    }
    let candidates = || scan.objects.iter().filter(|object| is_removable(object) && is_old(object));
    for segment in candidates().filter(|object| object.kind == Kind::Sysv) {
        let Some(history) = &segment.history else { continue };
        let removed = match sysv::remove_unattached(segment.key.inode as i32, history) {
            Ok(sysv::Removal::Removed) => Ok(()),
            Ok(sysv::Removal::Attached) => Err("a process has attached it".to_owned()),
            Ok(sysv::Removal::Changed) => Err("a process has just used it, or created another one".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        report(outcome(segment, removed));
    }
    let folder = open_folder(options)?;
    let removal = Removal { folder: folder.as_fd(), options };
    let files: Vec<&Object> = candidates().filter(|object| object.kind == Kind::Shm).collect();
    for batch in files.chunks(BATCH) {
        removal.remove(batch, report);
    }
    Ok(())
}

fn open_folder(options: &Options<'_>) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(&options.folder, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Gives the files their names back that a killed reclaim has renamed. A scan after this call finds them.
///
/// # Errors
/// The error of reading the folder of the files.
pub fn restore(options: &Options<'_>) -> std::io::Result<()> {
    let folder = open_folder(options)?;
    for entry in Dir::read_from(&folder)?.flatten() {
        let private = entry.file_name().to_bytes();
        let Some(former) = former_name(private) else { continue };
        let matches = |names: &GlobMatcher| names.is_match(Path::new(OsStr::from_bytes(former)));
        if options.names.is_none_or(matches) {
            // If the name is taken, the file stays under its private name, and this reclaim may remove it.
            let _ = restore_one(folder.as_fd(), options, private, former);
        }
    }
    Ok(())
}

/// Returns the former name of a private name, if the process that gave it has ended.
fn former_name(private: &[u8]) -> Option<&[u8]> {
    let at = private.windows(PRIVATE.len()).rposition(|part| part == PRIVATE.as_bytes())?;
    let pid: u32 = std::str::from_utf8(&private[at + PRIVATE.len()..]).ok()?.parse().ok()?;
    (at > 0 && !Path::new(&format!("/proc/{pid}")).exists()).then_some(&private[..at])
}

fn restore_one(folder: BorrowedFd<'_>, options: &Options<'_>, private: &[u8], former: &[u8]) -> rustix::io::Result<()> {
    let file = statat(folder, private, AtFlags::SYMLINK_NOFOLLOW)?;
    let is_own = file.st_uid == rustix::process::geteuid().as_raw();
    if !FileType::from_raw_mode(file.st_mode).is_file() || !(is_own || options.all_users) {
        return Ok(());
    }
    // A lease of a living reclaim makes this fail. It then gives the file its name back itself.
    match openat(folder, private, FLAGS, Mode::empty()) {
        Ok(_) | Err(Errno::ACCESS) => {}
        Err(error) => return Err(error),
    }
    as_user(file.st_uid, || renameat_with(folder, private, folder, former, RenameFlags::NOREPLACE))
}

/// Calls a function with the rights of a user: this one, or another one if this is root.
fn as_user<T>(uid: u32, act: impl FnOnce() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    let own = rustix::process::geteuid();
    if own.as_raw() == uid {
        return act();
    }
    // Of this thread only. Without the effective user 0, the kernel takes root's capabilities away until it is back.
    set_thread_res_uid(None, Some(Uid::from_raw(uid)), None)?;
    let done = act();
    set_thread_res_uid(None, Some(own), None).expect("the saved user is the former one");
    done
}

fn outcome(object: &Object, removed: Result<(), String>) -> Outcome {
    Outcome { name: object.name.clone(), kind: object.kind, bytes: object.bytes(), kept: removed.err() }
}

struct Removal<'a> {
    folder: BorrowedFd<'a>,
    options: &'a Options<'a>,
}

/// A file under its private name, with the lease.
struct Renamed<'a> {
    object: &'a Object,
    owner: u32,
    lease: WriteLease,
    private: String,
}

impl Removal<'_> {
    fn remove(&self, batch: &[&Object], report: &mut dyn FnMut(Outcome)) {
        let mut renamed = Vec::new();
        for object in batch {
            if (self.options.is_interrupted)() {
                break;
            }
            match self.rename(object) {
                Ok(it) => renamed.push(it),
                Err(reason) => report(outcome(object, Err(reason))),
            }
        }
        if !renamed.is_empty() {
            std::thread::sleep(self.options.settle);
        }
        for it in renamed {
            let removed = self.end(&it);
            report(outcome(it.object, removed));
            // Processes that wait for the lease continue here.
            drop(it.lease);
        }
    }

    /// Takes a lease on a file, and renames it. Returns the reason if the file stays as it is.
    fn rename<'o>(&self, object: &'o Object) -> Result<Renamed<'o>, String> {
        let text = |errno: Errno| errno.to_string();
        // The scan has put it in the place of other bytes.
        if object.name.contains(char::REPLACEMENT_CHARACTER) {
            return Err("its name is not UTF-8".into());
        }
        let private = format!("{}{PRIVATE}{}", object.name, std::process::id());
        if private.len() > NAME_MAX {
            return Err("its name is too long to be extended during the removal".into());
        }
        let name = Path::new(&object.name);
        let fd = openat(self.folder, name, FLAGS, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT => "another process has removed it".to_owned(),
            Errno::AGAIN => "another process has a lease on it".to_owned(),
            // A link or a socket.
            Errno::LOOP | Errno::NXIO => REPLACED.to_owned(),
            other => text(other),
        })?;
        if !FileType::from_raw_mode(fstat(&fd).map_err(text)?.st_mode).is_file() {
            return Err(REPLACED.into());
        }
        let Some(lease) = WriteLease::take(fd).map_err(text)? else {
            return Err("a process has opened or mapped it".into());
        };
        let file = fstat(&lease).map_err(text)?;
        self.check(object, &file)?;
        // A process that has opened the file up to now needs no renaming.
        if !lease.is_whole() {
            return Err(OPENED.into());
        }
        let owner = file.st_uid;
        as_user(owner, || renameat_with(self.folder, name, self.folder, &private, RenameFlags::NOREPLACE)).map_err(
            |errno| match errno {
                Errno::PERM | Errno::ACCESS => REPLACED.to_owned(),
                other => text(other),
            },
        )?;
        let renamed = Renamed { object, owner, lease, private };
        // Another process may have put another file in the place of this one.
        let is_same = self.is_at(&renamed, &file);
        if !is_same || !renamed.lease.is_whole() {
            return Err(self.put_back(&renamed, OPENED));
        }
        Ok(renamed)
    }

    /// Checks that the file is the scanned one, and that it has not changed since.
    fn check(&self, object: &Object, file: &Stat) -> Result<(), String> {
        let age = age((file.st_mtime, file.st_mtime_nsec as i64), (file.st_ctime, file.st_ctime_nsec as i64));
        if (file.st_dev, file.st_ino) != (object.key.device, object.key.inode) {
            return Err(REPLACED.into());
        }
        if object.uid != Some(file.st_uid) {
            return Err("it has another owner now".into());
        }
        if file.st_nlink != 1 {
            return Err("it has more than one name".into());
        }
        if age < self.options.older {
            return Err(CHANGED.into());
        }
        Ok(())
    }

    fn is_at(&self, renamed: &Renamed<'_>, file: &Stat) -> bool {
        statat(self.folder, &renamed.private, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|found| (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino))
    }

    /// Removes a renamed file, or puts its name back if a process waits for it.
    fn end(&self, renamed: &Renamed<'_>) -> Result<(), String> {
        if (self.options.is_interrupted)() {
            return Err(self.put_back(renamed, "the command was stopped"));
        }
        let file = fstat(&renamed.lease).map_err(|errno| errno.to_string())?;
        if !renamed.lease.is_whole() || file.st_nlink != 1 || !self.is_at(renamed, &file) {
            return Err(self.put_back(renamed, OPENED));
        }
        as_user(renamed.owner, || unlinkat(self.folder, &renamed.private, AtFlags::empty()))
            .map_err(|errno| self.put_back(renamed, &errno.to_string()))
    }

    /// Gives a file its name back. Returns the reason why it stays.
    fn put_back(&self, renamed: &Renamed<'_>, reason: &str) -> String {
        let (name, private) = (&renamed.object.name, &renamed.private);
        // The present file, which another user may have put there, belongs to nobody but its owner.
        let owner = statat(self.folder, private, AtFlags::SYMLINK_NOFOLLOW).map_or(renamed.owner, |file| file.st_uid);
        match as_user(owner, || renameat_with(self.folder, private, self.folder, name, RenameFlags::NOREPLACE)) {
            Ok(()) => reason.to_owned(),
            Err(error) => format!("{reason}; it is {private} now, since it cannot get its name back: {error}"),
        }
    }
}

/// How a file is opened: without following a link, and without waiting for a FIFO or a lease.
const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
/// Maximum number of bytes of a file name.
const NAME_MAX: usize = 255;

const REPLACED: &str = "another file has its name now";
const OPENED: &str = "a process has just opened it";
const CHANGED: &str = "it has changed a short time ago (see --older)";

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

    #[test]
    fn a_private_name_has_a_former_name() {
        let dead = u32::MAX;
        let of = |name: &[u8]| {
            former_name(&[name, PRIVATE.as_bytes(), dead.to_string().as_bytes()].concat()).map(<[u8]>::len)
        };
        assert_eq!((of(b"a"), of(b"\xff\xfe"), of(b"")), (Some(1), Some(2), None));
        let living = format!("a{PRIVATE}{}", std::process::id());
        assert_eq!((former_name(living.as_bytes()), former_name(b"a")), (None, None));
    }

    /// User 1 left a file, and user 2 has put another one in its place.
    #[test]
    fn the_rights_of_an_owner_move_no_file_of_another_user() {
        if !rustix::process::geteuid().is_root() {
            tensorlend_os::skip::skip("it needs root");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
        let file = folder.path().join("a");
        std::fs::write(&file, "").unwrap();
        chown(&file, Some(64_032), None).unwrap();
        let private = folder.path().join("b");
        let rename = |uid| as_user(uid, || rustix::fs::rename(&file, &private));
        assert_eq!(rename(64_031), Err(Errno::PERM));
        assert_eq!((rename(64_032), std::fs::metadata(&private).unwrap().uid()), (Ok(()), 64_032));
        assert!(rustix::process::geteuid().is_root());
    }
}
