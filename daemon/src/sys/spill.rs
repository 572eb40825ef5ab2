//! The files of spilled segments. A file never has a name, so no other process can open it. Only
//! this process and the fd store have descriptors of the file. The kernel deletes the file when its
//! last descriptor is closed.
//!
//! After the segment's bytes, the file contains their number and their checksum. So the next daemon
//! can validate the file.

use crate::config::ConfigError;
use crate::core::Unwritten;
use crate::core::settings::{Settings, SpillSettings};
use rustix::fs::{Advice, fstat, statvfs};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tensorlend_layout::size::bytes_text;
use tensorlend_os::memfd;
use tensorlend_os::writeback::write_pages;
use xxhash_rust::xxh3::Xxh3;

/// Number of bytes copied at a time.
const CHUNK: usize = 1 << 20;

/// The first eight bytes of the trailer.
const MARK: u64 = u64::from_le_bytes(*b"tlspill1");
/// Length of the trailer: [`MARK`], the number of bytes, and their xxh3-64, all little-endian.
const TAIL: usize = 24;

/// The written file, or the reason why no file was written.
pub type Written = Result<Arc<Spilled>, Unwritten>;

/// A file with the bytes of a spilled segment.
#[derive(Debug)]
pub struct Spilled {
    file: File,
    pub bytes: u64,
    sum: u64,
}

impl Spilled {
    /// Takes ownership of a file that a previous daemon wrote, and validates its trailer.
    pub fn adopt(fd: OwnedFd) -> io::Result<Self> {
        let file = File::from(fd);
        let wrong = || io::Error::other("it is no file of a spilled segment");
        let length = u64::try_from(fstat(&file)?.st_size).map_err(io::Error::other)?;
        let bytes = length.checked_sub(TAIL as u64).ok_or_else(wrong)?;
        let mut tail = [0; TAIL];
        file.read_exact_at(&mut tail, bytes)?;
        let word = |at: usize| tail[at..at + 8].try_into().map(u64::from_le_bytes).map_err(io::Error::other);
        if (word(0)?, word(8)?) != (MARK, bytes) {
            return Err(wrong());
        }
        Ok(Self { file, bytes, sum: word(16)? })
    }

    /// Returns the file's descriptor, for the fd store.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Copies the segment's bytes into memory, and verifies their checksum.
    pub fn read_back(&self, memory: BorrowedFd<'_>, may_continue: &dyn Fn() -> bool) -> io::Result<()> {
        let to = |at, mut chunk: &[u8]| {
            let mut at: u64 = at;
            while !chunk.is_empty() {
                let written = rustix::io::pwrite(memory, chunk, at)?;
                (chunk, at) = (&chunk[written..], at + written as u64);
            }
            Ok(())
        };
        let found = copy(self.bytes, may_continue, |at, chunk| self.file.read_exact_at(chunk, at), to)?;
        let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed);
        if found != self.sum {
            return Err(io::Error::other("the file of a spilled segment has other bytes than were written"));
        }
        Ok(())
    }
}

/// The directory in which the daemon creates the files.
#[derive(Clone, Debug)]
pub struct Files {
    directory: Arc<Path>,
}

/// Checks that the daemon can create a file in the spill directory, if one is configured.
pub fn check(settings: &Settings) -> Result<(), ConfigError> {
    let Some(SpillSettings { directory, .. }) = &settings.spill else { return Ok(()) };
    let said = |e| ConfigError::Value(format!("spill.directory: no file can be made in {}: {e}", directory.display()));
    tempfile::tempfile_in(directory).map(drop).map_err(said)
}

impl Files {
    /// Returns a creator of files in this directory. The directory need not exist yet.
    pub fn of(directory: PathBuf) -> Self {
        Self { directory: directory.into() }
    }

    /// Writes memory to a new file. Fails if another process has the memory open or mapped.
    pub fn write(&self, memory: &OwnedFd, bytes: u64, may_continue: &dyn Fn() -> bool) -> Written {
        match memfd::is_unheld(memory.as_fd()) {
            Ok(true) => {}
            Ok(false) => return Err(Unwritten::default()),
            Err(error) => return Err(format!("asking who holds it: {error}").into()),
        }
        let folder = &self.directory;
        let said = |what: &'static str| {
            move |error: io::Error| {
                let free = statvfs(&**folder).map_or_else(
                    |error| format!("the free space cannot be read: {error}"),
                    |it| format!("{} free there", bytes_text(it.f_bavail.saturating_mul(it.f_frsize))),
                );
                Unwritten {
                    reason: format!("{what} a file of {}: {error}", bytes_text(bytes)),
                    place: format!("in {}; {free}", folder.display()),
                }
            }
        };
        // The text of this error contains the folder.
        let unmade = |error: io::Error| {
            let Unwritten { reason, place } = said("making")(error.kind().into());
            Unwritten { reason, place: format!("{place}; {error}") }
        };
        let file = tempfile::tempfile_in(&self.directory).map_err(unmade)?;
        let to = |at, chunk: &[u8]| file.write_all_at(chunk, at);
        let sum = copy(bytes, may_continue, |at, chunk| read(memory, at, chunk), to).map_err(said("writing"))?;
        let tail: Vec<u8> = [MARK, bytes, sum].into_iter().flat_map(u64::to_le_bytes).collect();
        file.write_all_at(&tail, bytes).map_err(said("writing"))?;
        // The kernel drops only clean pages from its cache. Otherwise the cache would occupy the memory that spilling
        // must free. A file without a name ends with the system, so its metadata need not reach the disk.
        write_pages(&file).map_err(said("flushing"))?;
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
        Ok(Arc::new(Spilled { file, bytes, sum }))
    }
}

fn read(memory: &OwnedFd, mut at: u64, mut chunk: &mut [u8]) -> io::Result<()> {
    while !chunk.is_empty() {
        let read = rustix::io::pread(memory, &mut *chunk, at)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        (chunk, at) = (&mut chunk[read..], at + read as u64);
    }
    Ok(())
}

/// Copies `bytes` bytes, and returns their checksum (xxh3-64).
fn copy(
    bytes: u64,
    may_continue: &dyn Fn() -> bool,
    from: impl Fn(u64, &mut [u8]) -> io::Result<()>,
    to: impl Fn(u64, &[u8]) -> io::Result<()>,
) -> io::Result<u64> {
    let mut buffer = vec![0; CHUNK];
    let mut sum = Xxh3::new();
    let mut at = 0;
    while at < bytes {
        if !may_continue() {
            return Err(io::Error::other("it was called off"));
        }
        let chunk = &mut buffer[..CHUNK.min(usize::try_from(bytes - at).unwrap_or(CHUNK))];
        from(at, chunk)?;
        sum.update(chunk);
        to(at, chunk)?;
        at += chunk.len() as u64;
    }
    Ok(sum.digest())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlend_os::map;
    use tensorlend_os::memfd::{Access, create, reopen, seal_writers};

    const BYTES: u64 = (1 << 20) + 8192;

    fn filled() -> OwnedFd {
        let memory = create("test", BYTES).unwrap();
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
        assert_eq!(rustix::io::pwrite(&memory, &bytes, 0).unwrap() as u64, BYTES);
        memory
    }

    fn same(a: &OwnedFd, b: &OwnedFd) -> bool {
        let (mut one, mut two) = (vec![0; BYTES as usize], vec![1; BYTES as usize]);
        read(a, 0, &mut one).unwrap();
        read(b, 0, &mut two).unwrap();
        one == two
    }

    #[test]
    fn what_is_written_comes_back_and_leaves_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::of(folder.path().to_owned());
        for sealed in [false, true] {
            let memory = filled();
            if sealed {
                seal_writers(memory.as_fd()).unwrap();
            }
            let spilled = files.write(&memory, BYTES, &|| true).unwrap();
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
            let fresh = create("test", BYTES).unwrap();
            spilled.read_back(fresh.as_fd(), &|| true).unwrap();
            assert!(same(&memory, &fresh));
            // Adopt the file from its contents only, as another daemon does.
            let adopted = Spilled::adopt(spilled.fd().try_clone_to_owned().unwrap()).unwrap();
            drop(spilled);
            let fresh = create("test", BYTES).unwrap();
            adopted.read_back(fresh.as_fd(), &|| true).unwrap();
            assert!(same(&memory, &fresh) && adopted.bytes == BYTES);
        }
    }

    #[test]
    fn what_somebody_holds_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::of(folder.path().to_owned());
        for sealed in [false, true] {
            let memory = filled();
            if sealed {
                seal_writers(memory.as_fd()).unwrap();
            }
            let reader = reopen(memory.as_fd(), Access::Read).unwrap();
            let view = map::sheet(&reader, BYTES as usize, Access::Read).unwrap();
            assert_eq!(files.write(&memory, BYTES, &|| true).unwrap_err(), Unwritten::default());
            drop(reader);
            assert_eq!(
                files.write(&memory, BYTES, &|| true).unwrap_err(),
                Unwritten::default(),
                "a mapping alone holds it"
            );
            drop(view);
            files.write(&memory, BYTES, &|| true).unwrap();
        }
    }

    #[test]
    fn other_bytes_and_fewer_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let files = Files::of(folder.path().to_owned());
        let spilled = files.write(&filled(), BYTES, &|| true).unwrap();
        let again = || Spilled::adopt(spilled.fd().try_clone_to_owned().unwrap());
        let fresh = create("test", BYTES).unwrap();
        assert!(spilled.read_back(fresh.as_fd(), &|| false).is_err(), "called off");
        spilled.file.write_all_at(&[255], 4096).unwrap();
        for it in [&*spilled, &again().unwrap()] {
            let error = it.read_back(fresh.as_fd(), &|| true).unwrap_err();
            assert!(error.to_string().contains("other bytes"), "{error}");
        }
        // The file is truncated, too long, or too short for the trailer.
        for length in [BYTES + TAIL as u64 - 1, BYTES + TAIL as u64 + 1, 4096, 3, 0] {
            spilled.file.set_len(length).unwrap();
            assert!(again().is_err(), "{length} bytes");
        }
        assert!(spilled.read_back(fresh.as_fd(), &|| true).is_err());
        assert!(Spilled::adopt(fresh).is_err());
        let missing = Files::of(folder.path().join("missing"));
        let error = missing.write(&filled(), BYTES, &|| true).unwrap_err();
        let folder = folder.path().to_str().unwrap();
        assert!(error.reason.contains("making a file") && !error.reason.contains(folder), "{error:?}");
        assert!(error.place.contains(folder), "{error:?}");
    }
}
