//! A file that appears whole or not at all.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;

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

/// Calls `fill` with a temporary file in the directory of `path`, flushes the file to the disk and
/// renames it to `path`.
///
/// The rename replaces an existing file in one step, so a reader sees the old bytes or the new
/// ones. The file keeps its mode. If `path` is a symbolic link, the file replaces the link, and the
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
    let mut builder = tempfile::Builder::new();
    builder.prefix(".tensorlend-").permissions(mode.at_creation());
    let mut temporary = Temporary::create(|| builder.tempfile_in(folder), |file| file.path())?;
    let file = temporary.get_mut().as_file_mut();
    if let Some(mode) = mode.exact() {
        file.set_permissions(mode)?;
    }
    write_to(file, fill)?;
    file.sync_all()?;
    temporary.keep(|file| file.persist(path)).map_err(io::Error::from)?;
    // Until this flush, a crash of the machine may restore the old file. Ignore errors, because not
    // every file system flushes directories. Also, a user who may write to a directory may lack the
    // right to open it. The file is complete in any case.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

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
