//! Lets go of segments that the daemon wants out of memory.
//!
//! The daemon cannot spill a segment that a process has mapped. It sets the segment's bit in the directory, and rings a
//! bell: see `shm-layout/src/directory/wanted.rs`. A thread sleeps on the bell, because the program may make no call for
//! hours. The thread unmaps other clients' segments that no lease needs, and releases own segments that no thread writes.

use super::Session;
use crate::alloc::heap::Wanted;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tensorlend_layout::directory::{Directory, WANTED_OUT_SINCE};
use tensorlend_layout::word::Bell;
use tensorlend_os::{futex, thread};

/// Pause between two checks of the bits, if the bell does not ring. A lease may have ended in the meantime.
const POLL: Duration = Duration::from_secs(2);

/// The state that a session shares with its thread.
struct Shared {
    bell: Bell,
    started: AtomicBool,
    stopped: AtomicBool,
}

/// A session's thread. It ends with this value.
pub struct LettingGo(Arc<Shared>);

impl Default for LettingGo {
    fn default() -> Self {
        let (started, stopped) = (AtomicBool::new(false), AtomicBool::new(false));
        Self(Arc::new(Shared { bell: Bell::new(), started, stopped }))
    }
}

impl Drop for LettingGo {
    fn drop(&mut self) {
        // Relaxed: the bell orders this store.
        self.0.stopped.store(true, Ordering::Relaxed);
        self.0.bell.ring();
        futex::wake_all(&self.0.bell);
    }
}

impl LettingGo {
    /// Starts the thread, if the daemon spills. A session calls this when it opens, and for each new daemon.
    pub fn start(&self, session: &Arc<Session>) {
        let spills = session.layout() >= WANTED_OUT_SINCE && session.directory.head().wanted_out.read() != 0;
        // Relaxed: a caller that finds the thread started needs no data from it.
        if !spills || self.0.started.swap(true, Ordering::Relaxed) {
            return;
        }
        let shared = self.0.clone();
        let its = Thread { shared, directory: session.directory.clone(), session: Arc::downgrade(session) };
        if thread::spawn("tensorlend-unmap", move || its.run()).is_err() {
            // Without the thread, the segments stay mapped as long as the program's leases and publications keep them so.
            self.0.started.store(false, Ordering::Relaxed);
        }
    }
}

struct Thread {
    shared: Arc<Shared>,
    directory: Directory,
    session: Weak<Session>,
}

impl Thread {
    fn run(self) {
        let head = self.directory.head();
        loop {
            let (own, theirs) = (self.shared.bell.read(), head.wanted_out.read());
            // Relaxed: the bell orders the store in `drop`.
            if self.shared.stopped.load(Ordering::Relaxed) {
                return;
            }
            if head.wants_any_out() {
                let Some(session) = self.session.upgrade() else { return };
                session.let_go();
            }
            futex::wait_any(&[(&head.wanted_out, theirs), (&self.shared.bell, own)], POLL);
        }
    }
}

impl Session {
    fn let_go(&self) {
        // An older daemon leaves the words as its predecessor left them.
        if self.layout() < WANTED_OUT_SINCE {
            return;
        }
        self.peers().unmap_wanted();
        for base in self.peers().own_wanted() {
            self.alloc().release_for_spill(Wanted::Segment(base));
        }
    }
}
