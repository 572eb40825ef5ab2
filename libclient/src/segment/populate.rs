//! When the kernel enters the pages of a segment into the page table.
//!
//! A page that is entered with the mapping costs a later read nothing, and half of the time of a page fault. For short segments
//! this takes less than the request for the segment. For a GiB it takes 80 ms, and a private mapping of the same bytes has a
//! page table entry of its own for each page. So a client that wants only a private mapping maps long segments without their
//! pages, and a thread enters the pages of the private mapping afterwards.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use tensorlend_os::map::Private;
use tensorlend_os::thread;

/// Minimum bytes of a long segment or tensor.
const LONG: usize = 128 << 20;
/// Bytes of pages that the thread enters at once. A thread that maps or unmaps memory waits for at most one such step.
const STEP: usize = 2 << 20;

/// Maximum number of threads that enter pages. They compete for the address space, and count against the limit of a
/// container's processes.
const THREADS_MAX: usize = 4;
/// Number of such threads. A forked child inherits the number, and can have fewer threads of its own.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static LAZILY: Cell<bool> = const { Cell::new(false) };
}

/// Calls `lease`. Long segments that this call maps on this thread are mapped without their pages.
#[doc(hidden)]
pub fn lazily<R>(lease: impl FnOnce() -> R) -> R {
    struct Reset(bool);
    impl Drop for Reset {
        fn drop(&mut self) {
            LAZILY.set(self.0);
        }
    }
    let _reset = Reset(LAZILY.replace(true));
    lease()
}

/// Returns true if this thread maps a segment of this length with its pages.
pub fn is_wanted(bytes: usize) -> bool {
    bytes < LONG || !LAZILY.get()
}

/// Enters the pages of a long private mapping in a thread of its own, until the mapping is dropped. Copies no page. Does
/// nothing if [`THREADS_MAX`] threads run.
pub fn behind(map: &Arc<Private>) {
    // Relaxed: the number orders no other memory.
    let is_free = |threads: usize| (threads < THREADS_MAX).then_some(threads + 1);
    if map.bytes() < LONG || THREADS.fetch_update(Relaxed, Relaxed, is_free).is_err() {
        // Without a thread, the first access to a page enters it.
        return;
    }
    let map = Arc::downgrade(map);
    let started = thread::spawn("tensorlend-pages", move || {
        enter(map);
        THREADS.fetch_sub(1, Relaxed);
    });
    if started.is_err() {
        THREADS.fetch_sub(1, Relaxed);
    }
}

fn enter(map: Weak<Private>) {
    let mut at = 0;
    while let Some(map) = map.upgrade().filter(|map| at < map.bytes()) {
        let bytes = STEP.min(map.bytes() - at);
        if map.populate(at, bytes).is_err() {
            return;
        }
        at += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use tensorlend_os::{map, memfd};

    #[test]
    fn only_a_few_threads_enter_pages() {
        let fd = memfd::create_empty("test", LONG as u64).unwrap();
        let map = Arc::new(map::private(&fd, 0, LONG).unwrap());
        THREADS.store(THREADS_MAX, Relaxed);
        behind(&map);
        assert_eq!((Arc::weak_count(&map), THREADS.load(Relaxed)), (0, THREADS_MAX), "no thread has the mapping");
        THREADS.store(0, Relaxed);
        behind(&map);
        while THREADS.load(Relaxed) != 0 {
            std::thread::yield_now();
        }
        assert_eq!(Arc::weak_count(&map), 0);
        assert!(memfd::is_whole(fd.as_fd()).unwrap(), "the thread has entered all pages");
    }

    #[test]
    fn only_long_segments_are_mapped_without_pages_and_only_on_request() {
        assert!(is_wanted(LONG - 1) && is_wanted(LONG));
        lazily(|| {
            assert!(is_wanted(LONG - 1) && !is_wanted(LONG));
            lazily(|| ());
            assert!(!is_wanted(LONG));
        });
        assert!(is_wanted(LONG));
        assert!(std::panic::catch_unwind(|| lazily(|| panic!("a failed lease"))).is_err());
        assert!(is_wanted(LONG));
    }
}
