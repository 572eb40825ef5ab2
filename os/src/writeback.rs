//! Writes a file's pages to its disk, so that the kernel can drop the pages.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Writes the file's changed pages to the disk, and waits for these writes.
///
/// This function writes no metadata, so the bytes are lost if the system crashes. `fdatasync` would also wait for the
/// file system's journal, and so for the writes of all other processes.
pub fn write_pages(file: impl AsFd) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the call takes only numbers, and `file` keeps the descriptor open. The length 0 means the whole file.
    let done = unsafe { libc::sync_file_range(file.as_fd().as_raw_fd(), 0, 0, flags) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_and_a_pipe_is_refused() {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let file = std::fs::File::from(rustix::fs::open(std::env::temp_dir(), flags, Mode::RUSR).unwrap());
        std::io::Write::write_all(&mut &file, &vec![7; 100_000]).unwrap();
        write_pages(&file).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 100_000);
        let (pipe, _other) = std::io::pipe().unwrap();
        assert_eq!(write_pages(&pipe).unwrap_err().raw_os_error(), Some(libc::ESPIPE));
    }
}
