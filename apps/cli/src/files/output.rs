//! A file that appears whole or not at all.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, OFlags};
use rustix::io::Errno;

use super::FileError;
use super::destination::{self, Destination, Mode, folder_of};
use super::error::Fault;
use crate::interrupt::Temporary;
use crate::progress;

/// The writer to which formats write. Large slices bypass its buffer.
pub(super) type Output<'a> = BufWriter<Counted<'a>>;

/// Maximum bytes of one write. A progress bar shows new bytes after each write.
pub(super) const PIECE: usize = 8 << 20;

/// A file that adds its written bytes to the progress bar.
pub(super) struct Counted<'a>(&'a mut File);

impl Counted<'_> {
    pub(super) fn file(&self) -> &File {
        self.0
    }
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.0.write(&bytes[..bytes.len().min(PIECE)])?;
        progress::count(done);
        Ok(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Seek for Counted<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

/// Calls `fill` with a file without a name in the directory of `path`, flushes the file to the disk
/// and gives it the name `path`.
///
/// An existing file is replaced in one step, so a reader sees the old bytes or the new ones. The file keeps its mode. If `path` is a symbolic link, the file replaces the link, and the
/// link's target stays as it is. After an error, and after a signal that ends the program, nothing
/// has changed. If `path` is a device, a pipe or a descriptor of this process, `fill` writes to it
/// directly.
pub(super) fn replace(path: &Path, fill: impl FnOnce(&mut Output<'_>) -> Result<(), Fault>) -> Result<(), FileError> {
    write(path, fill).map_err(|fault| fault.at(path, "write"))
}

fn write(path: &Path, fill: impl FnOnce(&mut Output<'_>) -> Result<(), Fault>) -> Result<(), Fault> {
    match destination::find(path)? {
        Destination::Stream(mut file) => write_to(&mut file, fill),
        Destination::File(mode) => write_new(path, &mode, fill),
    }
}

fn write_to(file: &mut File, fill: impl FnOnce(&mut Output<'_>) -> Result<(), Fault>) -> Result<(), Fault> {
    let mut output = BufWriter::with_capacity(64 << 10, Counted(file));
    fill(&mut output)?;
    Ok(output.flush()?)
}

fn write_new(path: &Path, mode: &Mode, fill: impl FnOnce(&mut Output<'_>) -> Result<(), Fault>) -> Result<(), Fault> {
    let folder = folder_of(path);
    match unnamed(folder, mode) {
        Some(mut file) => {
            complete(&mut file, mode, fill)?;
            if name(&file, path).is_err() {
                // This file system has files without names, but cannot give them one.
                file.rewind()?;
                write_named(path, mode, |output| Ok(io::copy(&mut file, output).map(drop)?))?;
            }
        }
        None => write_named(path, mode, fill)?,
    }
    // Until this flush, a crash of the machine may restore the old file. Ignore errors, because not
    // every file system flushes directories. Also, a user who may write to a directory may lack the
    // right to open it. The file is complete in any case.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(())
}

/// Creates a file without a name, which the kernel deletes if the program ends before it names the file. Returns `None`
/// if the file system has no such files, or if /proc, which names them, is not mounted.
fn unnamed(folder: &Path, mode: &Mode) -> Option<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(folder, flags, mode.at_creation().mode().into()).ok()?);
    fs::exists(descriptor(&file)).ok()?.then_some(file)
}

/// Returns the link to a file in /proc.
fn descriptor(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Gives a file without a name the name `path`, or replaces the file at `path` by it.
fn name(file: &File, path: &Path) -> io::Result<()> {
    let link = |to: &Path| rustix::fs::linkat(CWD, descriptor(file), CWD, to, AtFlags::SYMLINK_FOLLOW);
    match link(path) {
        // Only a rename replaces a file, and it needs a name.
        Err(Errno::EXIST) => {
            let create = || temporary_names().make_in(folder_of(path), |to| Ok(link(to)?));
            Temporary::create(create, |file| file.path())?.keep(|file| file.persist(path))?;
            Ok(())
        }
        linked => Ok(linked?),
    }
}

/// Writes a temporary file with a name, and renames it.
fn write_named(path: &Path, mode: &Mode, fill: impl FnOnce(&mut Output<'_>) -> Result<(), Fault>) -> Result<(), Fault> {
    let mut names = temporary_names();
    names.permissions(mode.at_creation());
    let mut temporary = Temporary::create(|| names.tempfile_in(folder_of(path)), |file| file.path())?;
    complete(temporary.get_mut().as_file_mut(), mode, fill)?;
    Ok(temporary.keep(|file| file.persist(path)).map(drop).map_err(io::Error::from)?)
}

fn temporary_names() -> tempfile::Builder<'static, 'static> {
    let mut names = tempfile::Builder::new();
    names.prefix(".tensorlend-");
    names
}

/// Writes a new file and flushes it to the disk.
fn complete(
    file: &mut File,
    mode: &Mode,
    fill: impl FnOnce(&mut Output<'_>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    if let Some(mode) = mode.exact() {
        file.set_permissions(mode)?;
    }
    write_to(file, fill)?;
    Ok(file.sync_all()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        fs::write(&path, "old").unwrap();
        let error = replace(&path, |out| {
            out.write_all(b"new")?;
            Err(Fault::damaged("on purpose"))
        });
        assert!(error.is_err());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_keeps_its_mode_and_a_link_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("f"), folder.path().join("l"));
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        symlink(&path, &link).unwrap();
        replace(&link, |out| Ok(out.write_all(b"new")?)).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_file());
        assert_eq!((fs::read(&path).unwrap(), fs::read(&link).unwrap()), (b"old".to_vec(), b"new".to_vec()));
        replace(&path, |out| Ok(out.write_all(b"new")?)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_folder_in_the_way_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = replace(folder.path(), |_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("another object than a file"), "{error}");
    }
}
