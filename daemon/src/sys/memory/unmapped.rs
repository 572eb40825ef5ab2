//! Views of sheets that clients write. The daemon copies each word that it reads, and does not map these sheets.
//!
//! A process with write access to a memfd can punch holes into it without a pause, and can map it very often, which makes each
//! punch slow. An access through a mapping waits until no punch of its page is in progress. Nothing limits this time: one access
//! took 26 s while four processes with 60,000 mappings each punched a page. pread(2) does not wait for punches: it took 80 ms
//! at most.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use tensorlend_layout::raw::{Source, View};

struct Unmapped {
    fd: Arc<OwnedFd>,
    bytes: usize,
}

impl Source for Unmapped {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn copy(&self, mut offset: usize, mut into: &mut [u8]) {
        while !into.is_empty() {
            // The file is sealed against shrinking. So only an error of the machine remains, such as one of its swap. For a
            // mapping, the kernel would end the process.
            let read = rustix::io::retry_on_intr(|| rustix::io::pread(&*self.fd, &mut *into, offset as u64));
            let read = read.ok().filter(|&read| read > 0).expect("the kernel reads the bytes of a memfd");
            (offset, into) = (offset + read, &mut into[read..]);
        }
    }
}

/// Returns the view of a sheet of this length.
pub fn view(fd: &Arc<OwnedFd>, bytes: usize) -> View {
    View::unmapped(Arc::new(Unmapped { fd: Arc::clone(fd), bytes }))
}
