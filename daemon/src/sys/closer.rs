//! Threads that close descriptors. A client can make the last close of its descriptor block without
//! limit. For example, the descriptor may be a socket with SO_LINGER or a file of the client's own
//! file system. The release of a long segment also takes time. The loop must wait for neither.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

/// Maximum number of closing threads. If all of them are blocked, further descriptors wait in the
/// queue.
const THREADS_MAX: usize = 32;

/// A value whose drop closes a descriptor or frees memory.
type Closing = Box<dyn Send>;

#[derive(Default)]
struct State {
    queue: VecDeque<Closing>,
    threads: usize,
    idle: usize,
    /// Whether the closer was dropped. No more values follow then.
    over: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    news: Condvar,
}

/// The closing threads. The daemon does not wait for them, even when it ends, because they may be blocked.
pub struct Closer(Arc<Shared>);

impl Closer {
    /// Starts the first thread, which runs until the closer is dropped.
    pub fn start() -> io::Result<Self> {
        let closer = Self(Arc::default());
        closer.0.lock().threads = 1;
        closer.spawn(true)?;
        Ok(closer)
    }

    fn spawn(&self, stays: bool) -> io::Result<()> {
        let shared = Arc::clone(&self.0);
        Builder::new().name("tensorlend-close".into()).spawn(move || shared.work(stays))?;
        Ok(())
    }

    /// Drops `thing` on a closing thread.
    pub fn close(&self, thing: impl Send + 'static) {
        let mut state = self.0.lock();
        state.queue.push_back(Box::new(thing));
        // Another thread starts unless enough threads are idle, because all others may be blocked.
        let more = state.queue.len() > state.idle && state.threads < THREADS_MAX;
        state.threads += usize::from(more);
        drop(state);
        self.0.news.notify_one();
        if more && let Err(error) = self.spawn(false) {
            self.0.lock().threads -= 1;
            tracing::warn!("starting a thread: {error}");
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, stays: bool) {
        let mut state = self.lock();
        loop {
            if let Some(thing) = state.queue.pop_front() {
                drop(state);
                drop(thing);
                state = self.lock();
            } else if state.over || !stays {
                state.threads -= 1;
                return;
            } else {
                state.idle += 1;
                state = self.news.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.0.lock().over = true;
        self.0.news.notify_all();
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    /// A value whose drop blocks until its sender is dropped.
    struct Stuck(Receiver<()>);

    impl Drop for Stuck {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    /// Closes this many values whose drops block until the returned senders are dropped.
    pub fn block(closer: &Closer, count: usize) -> Vec<Sender<()>> {
        let one = |_| {
            let (release, wait) = channel();
            closer.close(Stuck(wait));
            release
        };
        (0..count).map(one).collect()
    }

    struct Tells(Sender<()>);

    impl Drop for Tells {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    #[test]
    fn what_is_stuck_keeps_nobody_waiting() {
        let closer = Closer::start().unwrap();
        let (told, hear) = channel();
        let stuck = block(&closer, 8);
        for _ in 0..8 {
            closer.close(Tells(told.clone()));
        }
        for _ in 0..8 {
            hear.recv_timeout(Duration::from_secs(10)).unwrap();
        }
        drop(stuck);
        closer.close(Tells(told));
        drop(closer);
        hear.recv_timeout(Duration::from_secs(10)).unwrap();
    }
}
