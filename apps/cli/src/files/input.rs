//! An opened file. Its length is read once. This length bounds all lengths that the file's contents
//! claim.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::FileError;
use super::error::Fault;
use crate::progress;

/// An open regular file. Clones share the descriptor and have no common position.
#[derive(Clone, Debug)]
pub(super) struct Input {
    file: Arc<File>,
    path: Arc<Path>,
    bytes: u64,
}

impl Input {
    /// Opens a regular file. Rejects pipes and devices, because their length is unknown, and
    /// headers are checked against the length.
    pub(super) fn open(path: &Path) -> Result<Self, FileError> {
        let io = |e: io::Error| Fault::Io(e).at(path, "read");
        let regular = |meta: fs::Metadata| {
            if meta.is_file() {
                return Ok(meta.len());
            }
            Err(FileError::Usage {
                path: path.to_owned(),
                what: "it is not a regular file".to_owned(),
                remedy: "give the path of one; copy a pipe's output to a file first",
            })
        };
        // Also check before opening, because opening a pipe would block until a writer opens it.
        regular(fs::metadata(path).map_err(io)?)?;
        let file = File::open(path).map_err(io)?;
        let bytes = regular(file.metadata().map_err(io)?)?;
        Ok(Self { file: Arc::new(file), path: path.into(), bytes })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file's length in bytes at the time of opening.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns a reader that starts at byte `at` of the file.
    pub(super) fn reader(&self, at: u64) -> InputReader {
        InputReader { input: self.clone(), at }
    }

    /// Reads up to `most` bytes from offset `at`. Returns fewer bytes at the end of the file.
    pub(super) fn some(&self, at: u64, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.reader(at).take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn fault(&self, fault: impl Into<Fault>) -> FileError {
        fault.into().at(&self.path, "read")
    }
}

/// Maximum bytes of one read. A progress bar shows new bytes after each read.
const PIECE: usize = 8 << 20;

#[derive(Clone, Debug)]
pub(super) struct InputReader {
    input: Input,
    at: u64,
}

impl Read for InputReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = self.input.bytes.saturating_sub(self.at);
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(out.len()).min(PIECE);
        if most == 0 {
            return Ok(0);
        }
        let done = self.input.file.read_at(&mut out[..most], self.at)?;
        self.at += done as u64;
        progress::count(done);
        Ok(done)
    }
}

impl Seek for InputReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.input.bytes.checked_add_signed(by),
        };
        self.at = target.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a position before the start"))?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_of_one_file_have_positions_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        fs::write(&path, b"abcdef").unwrap();
        let input = Input::open(&path).unwrap();
        let (mut one, mut two) = (input.reader(0), input.reader(4));
        let mut text = String::new();
        two.read_to_string(&mut text).unwrap();
        one.seek(SeekFrom::End(-3)).unwrap();
        one.read_to_string(&mut text).unwrap();
        assert_eq!(text, "efdef");
        assert_eq!(input.some(2, 2).unwrap(), b"cd");
        assert_eq!(input.some(5, 9).unwrap(), b"f");
        assert!(one.seek(SeekFrom::Current(-9)).is_err());
    }

    #[test]
    fn a_folder_and_a_device_are_not_files() {
        for path in ["/", "/dev/zero"] {
            let error = Input::open(Path::new(path)).unwrap_err();
            assert!(matches!(error, FileError::Usage { .. }), "{error}");
        }
    }
}
