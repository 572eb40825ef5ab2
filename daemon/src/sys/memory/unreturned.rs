//! Pages that the daemon has freed and that the kernel still charges to it.
//!
//! A client can put the pages of a segment into a queue without a copy, for example with sendfile(2) into a socket that
//! nobody reads, and then return the segment. The daemon frees the pages. The kernel keeps them for the queue, and charges
//! them to the process that allocated them. The kernel reports no queue that keeps a page. So the daemon compares the sums, and
//! logs the difference with the user who returned memory last.

use std::sync::Mutex;
use std::time::{Duration, Instant};
use tensorlend_os::cgroup;

/// Smallest difference that is logged. The kernel's statistics of many processors lag behind by some MiB.
const BYTES_MIN: u64 = 64 << 20;
/// Pause between two comparisons.
const PAUSE: Duration = Duration::from_secs(1);

/// The comparisons so far.
#[derive(Debug, Default)]
struct Compared {
    last: Option<Instant>,
    /// The difference that was logged last, or 0 after it has become small again.
    logged_bytes: u64,
}

impl Compared {
    /// Returns true if a difference of this many bytes must be logged now.
    fn note(&mut self, bytes: u64) -> bool {
        if bytes < BYTES_MIN {
            self.logged_bytes = 0;
        }
        // One line for each doubling.
        let is_new = bytes >= BYTES_MIN && bytes >= self.logged_bytes.saturating_mul(2);
        if is_new {
            self.logged_bytes = bytes;
        }
        is_new
    }
}

/// Compares the kernel's charge with the existing memory. The caller has just freed memory that this user returned.
pub fn compare(uid: Option<u32>) {
    static COMPARED: Mutex<Compared> = Mutex::new(Compared { last: None, logged_bytes: 0 });
    // Another user's thread compares now.
    let Ok(mut compared) = COMPARED.try_lock() else { return };
    if compared.last.is_some_and(|last| last.elapsed() < PAUSE) {
        return;
    }
    compared.last = Some(Instant::now());
    let Some(bytes) = cgroup::unaccounted() else { return };
    if compared.note(bytes) {
        let mib = bytes >> 20;
        let uid = uid.map_or_else(|| "unknown".to_owned(), |uid| uid.to_string());
        tracing::warn!(
            %uid,
            "the kernel charges {mib} MiB to the daemon's control group that the daemon has freed: a process keeps \
             returned pages in a pipe or a socket. The user with this uid has returned memory last. With charge = \
             \"client\", each client's own control group pays for its pages"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_logged_again_when_it_has_doubled_or_was_gone() {
        let mut compared = Compared::default();
        let logged: Vec<bool> = [1, BYTES_MIN, BYTES_MIN + 1, 2 * BYTES_MIN, 3 * BYTES_MIN, 0, BYTES_MIN]
            .map(|bytes| compared.note(bytes))
            .to_vec();
        assert_eq!(logged, [false, true, false, true, false, false, true]);
    }
}
