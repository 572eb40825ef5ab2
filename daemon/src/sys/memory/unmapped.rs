//! Views of sheets that clients write. The daemon copies each word that it reads, and does not map these sheets.
//!
//! A process with write access to a memfd can punch holes into it without a pause, and can map it very often, which makes each
//! punch slow. An access through a mapping waits until no punch of its page is in progress. Nothing limits this time: one access
//! took 26 s while four processes with 60,000 mappings each punched a page. pread(2) does not wait for punches: it took 80 ms
//! at most.
//!
//! A copy fails if a page of the sheet is in the swap and the control group that pays for the page has no memory. A client can
//! choose that group. Then the copy is zero, and the daemon ends the client before it acts on what it has read: see
//! [`take_unreadable`].

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tensorlend_layout::raw::{Source, View};
use tensorlend_os::mutex::lock;

/// Sheets of this process whose copies have failed. Several daemons may run in one process.
static UNREADABLE: Mutex<Vec<Arc<OwnedFd>>> = Mutex::new(Vec::new());
/// Whether the list has entries.
static ANY: AtomicBool = AtomicBool::new(false);

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
            match rustix::io::retry_on_intr(|| rustix::io::pread(&*self.fd, &mut *into, offset as u64)) {
                Ok(read) if read > 0 => (offset, into) = (offset + read, &mut into[read..]),
                failed => {
                    tracing::warn!("reading a sheet of a client: {failed:?}");
                    into.fill(0);
                    lock(&UNREADABLE).push(Arc::clone(&self.fd));
                    ANY.store(true, Ordering::Release);
                    return;
                }
            }
        }
    }
}

pub fn view(fd: &Arc<OwnedFd>, bytes: usize) -> View {
    View::unmapped(Arc::new(Unmapped { fd: Arc::clone(fd), bytes }))
}

/// Removes the sheets whose copies have failed and that belong to the caller. `id_of` returns the id of such a sheet.
pub fn take_unreadable<T>(id_of: impl Fn(&Arc<OwnedFd>) -> Option<T>) -> Vec<T> {
    if !ANY.load(Ordering::Acquire) {
        return Vec::new();
    }
    let mut list = lock(&UNREADABLE);
    let mut mine = Vec::new();
    // A sheet that only the list holds has ended.
    list.retain(|fd| id_of(fd).map(|id| mine.push(id)).is_none() && Arc::strong_count(fd) > 1);
    ANY.store(!list.is_empty(), Ordering::Release);
    mine
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sheet_that_cannot_be_read_is_zero_and_reported_once_to_its_daemon() {
        // A file without bytes, for which a view claims a page.
        let empty = Arc::new(tensorlend_os::memfd::create_empty("unreadable", 0).unwrap());
        assert_eq!(view(&empty, 4096).word(8), Some(0));
        let its = |fd: &Arc<OwnedFd>| Arc::ptr_eq(fd, &empty).then_some(7);
        assert!(take_unreadable(|_| None::<u32>).is_empty(), "it is another daemon's");
        assert_eq!(take_unreadable(its).first(), Some(&7));
        assert!(take_unreadable(its).is_empty());
    }
}
