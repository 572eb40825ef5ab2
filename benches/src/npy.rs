//! `.npy` files of float32 arrays, written and read with the minimum number of system calls.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

/// Offset of the data: version 1.0, a header padded to 128 bytes.
const HEAD_BYTES: usize = 128;

fn head(elements: usize) -> [u8; HEAD_BYTES] {
    let mut head = [b' '; HEAD_BYTES];
    head[..8].copy_from_slice(b"\x93NUMPY\x01\x00");
    head[8..10].copy_from_slice(&(HEAD_BYTES as u16 - 10).to_le_bytes());
    let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({elements},), }}");
    head[10..10 + text.len()].copy_from_slice(text.as_bytes());
    head[HEAD_BYTES - 1] = b'\n';
    head
}

/// Writes an array, in place of the file's contents.
///
/// # Errors
/// The system's error.
pub fn write(path: &Path, array: &[f32]) -> io::Result<()> {
    let bytes: &[u8] = bytemuck::cast_slice(array);
    let mut file = File::create(path)?;
    let written = file.write_vectored(&[io::IoSlice::new(&head(array.len())), io::IoSlice::new(bytes)])?;
    // A write may be partial, but not within the header.
    file.write_all(&bytes[written - HEAD_BYTES..])
}

/// Reads an array of exactly this length.
///
/// # Errors
/// The system's; or the file has other contents.
pub fn read_into(path: &Path, target: &mut [f32]) -> io::Result<()> {
    let wanted = head(target.len());
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(target);
    let mut file = File::open(path)?;
    let mut found = [0; HEAD_BYTES];
    let read = file.read_vectored(&mut [io::IoSliceMut::new(&mut found), io::IoSliceMut::new(bytes)])?;
    if read < HEAD_BYTES || found != wanted {
        return Err(io::Error::other(format!("{} is no array of this length", path.display())));
    }
    file.read_exact(&mut bytes[read - HEAD_BYTES..])
}

/// Returns the number of files in a folder; 0 if there is none.
pub fn count(folder: &Path) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}

#[cfg(test)]
mod tests {
    use super::{count, read_into, write};

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npy");
        let array: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        write(&path, &array).unwrap();
        let mut read = vec![0.0; 1000];
        read_into(&path, &mut read).unwrap();
        assert_eq!(read, array);
        assert_eq!(count(folder.path()), 1);
        assert!(read_into(&path, &mut read[1..]).is_err());
        let bytes = std::fs::read(&path).unwrap();
        let text = "\u{93}NUMPY";
        assert_eq!((bytes.len(), bytes[127], &bytes[1..6]), (4128, b'\n', &text.as_bytes()[2..]));
    }
}
