//! Threads for work that may take long, apart for each user.
//!
//! The loop must not wait for a lock, a queue or a last reference that another process holds. Such work runs in a *lane*
//! of the user to whom it belongs. Work that blocks delays only that user's work.
//!
//! A lane has two queues. The first queue closes objects of other processes, and device memory. Such a close can block
//! without limit. For example, the object may be a socket with SO_LINGER, or a file of the client's own file system. The second
//! queue makes and frees host memory. It makes memory only after it has freed all memory that was released before. So a
//! user's memory that the kernel has not freed yet never exceeds what the user had before. Short memory that the loop makes
//! itself is an exception.

use crate::core::MemId;
use crate::core::account::NamespaceId;
use crate::core::owners::Owners;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;
use tensorlend_layout::number::ClientNo;
use tracing::Dispatch;

/// Maximum number of threads of all lanes. The daemon's own lane may exceed it.
const THREADS_MAX: usize = 256;
/// Maximum number of threads that close objects for one lane.
const CLOSING_MAX: usize = 4;
/// Maximum number of threads that make and free memory for one user. With two, one long order does not delay a short one.
const MAKING_MAX: usize = 2;
/// Time for which a thread without work waits for more.
const IDLE: Duration = Duration::from_millis(100);

/// The owner of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    Daemon,
    /// The members of the namespace with this directory. Work on the directory runs in the order in which it was given.
    Directory(MemId),
    /// A client of a previous daemon, by its namespace and its number. A further loan gives the memory to a user's lane.
    Recovered(NamespaceId, ClientNo),
    /// A user: see [`Owners`].
    User(u32),
}

impl Lane {
    /// Returns the user, or the owner of the user's range of uids.
    pub fn uid(self) -> Option<u32> {
        match self {
            Self::User(uid) => Some(uid),
            Self::Daemon | Self::Directory(_) | Self::Recovered(..) => None,
        }
    }
}

/// The queue of a lane in which work waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Queue {
    /// Objects of other processes are closed.
    Closing,
    /// Memory is made and freed.
    Making,
}

type Key = (Lane, Queue);

fn threads_max((lane, queue): Key) -> usize {
    match (lane, queue) {
        (Lane::Directory(_), _) => 1,
        (_, Queue::Closing) => CLOSING_MAX,
        (_, Queue::Making) => MAKING_MAX,
    }
}

/// The effect of work on the work behind it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Frees memory. Orders behind it wait.
    Free,
    /// Any other work.
    Order,
}

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Waiting {
    work: VecDeque<(Step, Work)>,
    threads: usize,
    idle: usize,
    /// Number of running steps that free memory.
    freeing: usize,
    news: Arc<Condvar>,
}

impl Waiting {
    /// Returns true if there is work that need not wait for memory that is being freed.
    fn is_ready(&self) -> bool {
        self.work.front().is_some_and(|&(step, _)| step == Step::Free || self.freeing == 0)
    }

    /// Takes the next work that is ready.
    fn take(&mut self) -> Option<(Step, Work)> {
        let (step, work) = self.is_ready().then(|| self.work.pop_front())??;
        self.freeing += usize::from(step == Step::Free);
        Some((step, work))
    }
}

#[derive(Default)]
struct State {
    queues: BTreeMap<Key, Waiting>,
    threads: usize,
    /// Whether the lanes were dropped.
    over: bool,
}

struct Shared {
    state: Mutex<State>,
    /// Notified when a queue has work and no thread could start for it.
    starved: Condvar,
    /// The log of the daemon's thread. An embedded daemon does not write to its program's log.
    log: Dispatch,
}

/// The lanes. The daemon does not wait for their threads, even when it ends, because they may be blocked.
pub struct Lanes {
    shared: Arc<Shared>,
    owners: Arc<Owners>,
}

impl Lanes {
    /// Starts the thread that always exists. It serves the queues for which no other thread can start.
    pub fn start(owners: Arc<Owners>) -> io::Result<Self> {
        let log = tracing::dispatcher::get_default(Clone::clone);
        let shared = Arc::new(Shared { state: Mutex::default(), starved: Condvar::new(), log });
        let spare = Arc::clone(&shared);
        Builder::new().name("tensorlend-lane".into()).spawn(move || spare.serve_starved())?;
        Ok(Self { shared, owners })
    }

    /// Replaces the assignment of uids to owners.
    pub fn set_owners(&mut self, owners: Arc<Owners>) {
        self.owners = owners;
    }

    pub fn of(&self, uid: u32) -> Lane {
        Lane::User(self.owners.of(uid))
    }

    /// Drops an object of another process.
    pub fn close(&self, lane: Lane, thing: impl Send + 'static) {
        self.add((lane, Queue::Closing), Step::Order, Box::new(move || drop(thing)));
    }

    /// Closes descriptors that a client has sent or shares, if there are any.
    pub fn close_descriptors(&self, lane: Lane, descriptors: Vec<OwnedFd>) {
        if !descriptors.is_empty() {
            self.close(lane, descriptors);
        }
    }

    /// Drops a value whose drop frees memory.
    pub fn free(&self, lane: Lane, thing: impl Send + 'static) {
        self.add((lane, Queue::Making), Step::Free, Box::new(move || drop(thing)));
    }

    /// Runs work that makes memory, after the memory that was released before is free.
    pub fn order(&self, lane: Lane, work: impl FnOnce() + Send + 'static) {
        self.add((lane, Queue::Making), Step::Order, Box::new(work));
    }

    fn add(&self, key: Key, step: Step, work: Work) {
        let mut state = self.shared.lock();
        state.queues.entry(key).or_default().work.push_back((step, work));
        self.shared.start_thread(&mut state, key);
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.over = true;
        self.shared.starved.notify_all();
        for queue in state.queues.values() {
            queue.news.notify_all();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes or starts a thread for the work of a queue. All its other threads may be blocked.
    fn start_thread(self: &Arc<Self>, state: &mut State, key: Key) {
        let threads = state.threads;
        let Some(queue) = state.queues.get_mut(&key).filter(|queue| queue.is_ready()) else { return };
        if queue.work.len() <= queue.idle {
            queue.news.notify_one();
            return;
        }
        let is_allowed = threads < THREADS_MAX || (key.0 == Lane::Daemon && queue.threads == 0);
        if queue.threads >= threads_max(key) {
            return;
        }
        let shared = Arc::clone(self);
        let run = move || tracing::dispatcher::with_default(&shared.log.clone(), || shared.run(key));
        if is_allowed && Builder::new().name("tensorlend-lane".into()).spawn(run).is_ok() {
            queue.threads += 1;
            state.threads += 1;
        } else if queue.threads == 0 {
            self.starved.notify_one();
        }
    }

    /// Works on a queue, and then on others that have no thread. The caller has counted the thread.
    fn run(self: Arc<Self>, mut key: Key) {
        let mut state = self.lock();
        loop {
            state = self.work(state, key, true);
            let Some(next) = state.starved() else {
                state.threads -= 1;
                return;
            };
            key = next;
            state.queues.get_mut(&key).expect("it has work").threads += 1;
        }
    }

    /// Works on queues for which no thread could start, as long as the lanes exist.
    fn serve_starved(self: Arc<Self>) {
        let log = self.log.clone();
        tracing::dispatcher::with_default(&log, || {
            let mut state = self.lock();
            while !state.over {
                match state.starved() {
                    Some(key) => {
                        state.queues.get_mut(&key).expect("it has work").threads += 1;
                        state = self.work(state, key, false);
                    }
                    None => state = self.starved.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            }
        });
    }

    /// Works on a queue until no work is ready. With `waits`, then waits a moment for more.
    fn work<'s>(self: &'s Arc<Self>, mut state: MutexGuard<'s, State>, key: Key, waits: bool) -> MutexGuard<'s, State> {
        loop {
            let queue = state.queues.get_mut(&key).expect("a queue with a thread exists");
            if let Some((step, work)) = queue.take() {
                // Another thread does the following work.
                self.start_thread(&mut state, key);
                drop(state);
                // A bug in the work of one user must not stop the work that follows. The panic is in the log.
                let _ = catch_unwind(AssertUnwindSafe(work));
                state = self.lock();
                let queue = state.queues.get_mut(&key).expect("a queue with a thread exists");
                queue.freeing -= usize::from(step == Step::Free);
                continue;
            }
            let may_wait = waits && !state.over && state.starved().is_none();
            let queue = state.queues.get_mut(&key).expect("a queue with a thread exists");
            // Work that is not ready is taken by the thread that frees memory.
            if may_wait && queue.work.is_empty() {
                queue.idle += 1;
                let news = Arc::clone(&queue.news);
                let (guard, timeout) = news.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
                state = guard;
                let queue = state.queues.get_mut(&key).expect("a queue with a thread exists");
                queue.idle -= 1;
                if !timeout.timed_out() || !queue.work.is_empty() {
                    continue;
                }
            }
            let queue = state.queues.get_mut(&key).expect("a queue with a thread exists");
            queue.threads -= 1;
            if queue.threads == 0 && queue.work.is_empty() {
                state.queues.remove(&key);
            }
            return state;
        }
    }
}

impl State {
    /// Returns a queue that has work and no thread, because too many threads run, or because none could start.
    fn starved(&self) -> Option<Key> {
        self.queues.iter().find(|(_, it)| it.threads == 0 && !it.work.is_empty()).map(|(&key, _)| key)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const PATIENCE: Duration = Duration::from_mins(1);

    /// Starts lanes of users who each have one uid.
    pub fn lanes() -> Lanes {
        Lanes::start(Arc::default()).unwrap()
    }

    /// A value whose drop blocks until its sender is dropped.
    struct Stuck(Receiver<()>);

    impl Drop for Stuck {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    fn stuck() -> (Sender<()>, Stuck) {
        let (release, wait) = channel();
        (release, Stuck(wait))
    }

    /// Closes this many values in a lane. Their drops block until the returned senders are dropped.
    pub fn block(lanes: &Lanes, lane: Lane, count: usize) -> Vec<Sender<()>> {
        let one = |_| {
            let (release, stuck) = stuck();
            lanes.close(lane, stuck);
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
    fn blocked_work_of_a_user_delays_no_other_user() {
        let lanes = lanes();
        let (told, hear) = channel();
        let stuck = block(&lanes, Lane::User(1), 10_000);
        for lane in [Lane::User(2), Lane::Daemon, Lane::Directory(MemId(1))] {
            lanes.close(lane, Tells(told.clone()));
            hear.recv_timeout(PATIENCE).unwrap();
        }
        lanes.free(Lane::User(1), Tells(told.clone()));
        hear.recv_timeout(PATIENCE).expect("memory is freed although closes are blocked");
        assert!(lanes.shared.lock().threads <= CLOSING_MAX + 4 * MAKING_MAX);
        drop(stuck);
        lanes.close(Lane::User(1), Tells(told));
        drop(lanes);
        hear.recv_timeout(PATIENCE).expect("the lanes finish their work after their end");
    }

    #[test]
    fn memory_is_made_after_the_memory_released_before_is_free() {
        let lanes = lanes();
        let lane = Lane::User(1);
        let (release, blocked) = stuck();
        let (told, hear) = channel();
        lanes.free(lane, blocked);
        let tells = Tells(told.clone());
        lanes.order(lane, move || drop(tells));
        // Memory that is released later is freed behind the order.
        lanes.free(lane, Tells(told.clone()));
        let tells = Tells(told);
        lanes.order(Lane::User(2), move || drop(tells));
        hear.recv_timeout(PATIENCE).expect("the other user's order");
        assert!(hear.recv_timeout(IDLE / 2).is_err(), "the order waits");
        drop(release);
        for _ in 0..2 {
            hear.recv_timeout(PATIENCE).unwrap();
        }
    }

    #[test]
    fn work_that_panics_stops_no_work_behind_it() {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("a bug in the work of one user");
            }
        }
        let lanes = lanes();
        let (told, hear) = channel();
        for _ in 0..8 {
            lanes.free(Lane::User(1), Panics);
            lanes.close(Lane::User(1), Panics);
        }
        let tells = Tells(told.clone());
        lanes.order(Lane::User(1), move || drop(tells));
        lanes.close(Lane::User(1), Tells(told));
        for _ in 0..2 {
            hear.recv_timeout(PATIENCE).unwrap();
        }
    }

    #[test]
    fn work_on_a_directory_runs_in_its_order() {
        let lanes = lanes();
        let (told, hear) = channel();
        for number in 0..100 {
            let told = told.clone();
            lanes.order(Lane::Directory(MemId(1)), move || told.send(number).unwrap());
        }
        for number in 0..100 {
            assert_eq!(hear.recv_timeout(PATIENCE), Ok(number));
        }
    }

    #[test]
    fn idle_threads_end() {
        let lanes = lanes();
        for user in 0..50 {
            lanes.order(Lane::User(user), || {});
        }
        let start = std::time::Instant::now();
        while lanes.shared.lock().threads > 0 || !lanes.shared.lock().queues.is_empty() {
            assert!(start.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// More users than threads: each of them is served as soon as a thread is free.
    #[test]
    fn lanes_without_a_thread_are_served_when_one_is_free() {
        let lanes = lanes();
        let stuck: Vec<_> = (0..THREADS_MAX as u32).map(|user| block(&lanes, Lane::User(user), 1)).collect();
        let (told, hear) = channel();
        lanes.close(Lane::Daemon, Tells(told.clone()));
        hear.recv_timeout(PATIENCE).expect("the daemon's own lane always has a thread");
        lanes.close(Lane::User(9999), Tells(told));
        drop(stuck);
        hear.recv_timeout(PATIENCE).expect("the last user's work");
    }
}
