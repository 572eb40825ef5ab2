//! The descriptor of a mapped segment, for further mappings of the segment.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use tensorlend_os::fork::{self, Unshared};

/// Maximum number of descriptors that all sessions of this process keep. Some programs run with a limit of 256 open files.
const KEPT_MAX: usize = 32;

static KEPT: AtomicUsize = AtomicUsize::new(0);

/// The place for the descriptor of one mapped segment. The descriptor does not outlive the mapping, so it keeps no memory
/// that the mapping does not keep.
#[derive(Debug, Default)]
pub struct KeptDescriptor(OnceLock<Kept>);

#[derive(Debug)]
struct Kept {
    /// `None` only during the drop.
    descriptor: Option<Unshared>,
    forks: u64,
}

impl KeptDescriptor {
    /// Returns the kept descriptor. Returns `None` in a forked child, which has no such descriptor.
    pub fn get(&self) -> Option<&OwnedFd> {
        let kept = self.0.get()?;
        if kept.forks == fork::generation() { kept.descriptor.as_deref() } else { None }
    }

    /// Keeps a descriptor, unless the process keeps its maximum number, or one for this segment.
    pub fn keep(&self, descriptor: OwnedFd) {
        // Relaxed: the counter orders no other memory.
        if KEPT.fetch_add(1, Ordering::Relaxed) >= KEPT_MAX {
            KEPT.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        // A second thread may have kept another descriptor in the meantime. Then the drop of this one corrects the counter.
        let _ = self.0.set(Kept { descriptor: Some(Unshared::new(descriptor)), forks: fork::generation() });
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        KEPT.fetch_sub(1, Ordering::Relaxed);
        if self.forks != fork::generation() {
            // The child closed the descriptor at the fork, and may use its number for another file.
            std::mem::forget(self.descriptor.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::fcntl_getfd;

    #[test]
    fn a_process_keeps_a_limited_number_of_descriptors() {
        let open = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let places: Vec<KeptDescriptor> = (0..KEPT_MAX + 3).map(|_| KeptDescriptor::default()).collect();
        for place in &places {
            place.keep(open());
            place.keep(open());
        }
        let kept: Vec<_> = places.iter().filter_map(KeptDescriptor::get).collect();
        assert!(kept.iter().all(|fd| fcntl_getfd(fd).is_ok()));
        assert_eq!(kept.len(), KEPT_MAX);
        drop(kept);
        drop(places);
        assert_eq!(KEPT.load(Ordering::Relaxed), 0);
        let place = KeptDescriptor::default();
        place.keep(open());
        assert!(place.get().is_some());
    }
}
