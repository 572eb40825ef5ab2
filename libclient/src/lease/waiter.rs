//! The thread that waits for names and lists on behalf of tasks.
//!
//! The thread sleeps as `wait_until` in `lease/wait.rs` does. It sleeps on the bells of all owners of the awaited names, on
//! the directory's bell, and on a bell of its own. Its own bell rings when a task adds a wait, or when the program drops the
//! last handle. A task that stops waiting drops the ticket of its wait, and the thread sees this in its next turn.

use crate::error::{Error, Result};
use crate::session::Session;
use crate::wait::{Deadline, NAP_MAX};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tensorlend_layout::catalogue::Catalogue;
use tensorlend_layout::number::ClientNo;
use tensorlend_layout::raw::Sheet;
use tensorlend_layout::word::{Bell, PARKED_ANY, parked_bit};
use tensorlend_os::futex;
use tensorlend_os::mutex::lock;

/// Maximum number of bells in one wait (the kernel's limit).
const BELLS_MAX: usize = 128;
/// Longest sleep if there are more owners than bells: at this interval the thread polls the other names.
const NAP_CROWDED: Duration = Duration::from_millis(10);
/// Longest sleep between two polls of many names.
const NAP_LONG: Duration = Duration::from_secs(1);
/// Ratio of the sleep to the duration of a poll. So all waits together take at most a ten-thousandth of a processor, unless the
/// longest sleep limits the ratio.
const NAP_RATIO: u32 = 10_000;
/// Longest sleep while no task waits. The thread's own bell ends this sleep, but the system call needs a timeout.
const IDLE: Duration = Duration::from_hours(1);

/// A handle on the thread. The first wait starts the thread, and dropping the last handle ends it.
#[derive(Debug)]
pub struct Waiter {
    session: Arc<Session>,
    shared: Arc<Shared>,
}

/// State that the handle and the thread share.
#[derive(Default)]
struct Shared {
    /// A task rings this bell after it has added a wait to the inbox. Dropping the last handle also rings it.
    bell: Bell,
    ending: AtomicBool,
    inbox: Mutex<Inbox>,
}

#[derive(Default)]
struct Inbox {
    waits: Vec<Wait>,
    /// True while the thread is running.
    started: bool,
}

/// The state of an awaited event, read without a lease.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventState {
    /// True if the event has happened.
    pub is_over: bool,
    /// The clients, in addition to the daemon, that ring their bells when the event may have happened.
    pub owners: [Option<ClientNo>; 2],
}

/// A function that reads the state of the awaited event. It must not take a lock that a caller of [`Waiter::wait`]
/// holds.
type Watch = Box<dyn FnMut(&Session) -> Result<EventState> + Send>;
/// A function that reports the end of a wait to its task. It must not block.
type Tell = Box<dyn FnOnce(Result<()>) + Send>;

/// One wait of a task.
struct Wait {
    poll: Watch,
    tell: Option<Tell>,
    cancelled: Arc<AtomicBool>,
}

/// A wait of a task. Dropping the ticket ends the wait.
#[derive(Debug)]
pub struct Ticket(Arc<AtomicBool>);

impl Drop for Ticket {
    fn drop(&mut self) {
        // Relaxed: the thread polls this flag, and the flag orders no other memory.
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Waiter {
    pub fn new(session: Arc<Session>) -> Self {
        Self { session, shared: Arc::default() }
    }

    /// Calls `tell` once, in the waiting thread, when `poll` has found the event or failed. The thread calls `poll` at least
    /// once after this call, so an event that precedes the call also ends the wait.
    ///
    /// # Errors
    /// [`Error::System`] if this process cannot start the waiting thread.
    pub fn wait(&self, poll: Watch, tell: Tell) -> Result<Ticket> {
        self.session.check()?;
        let cancelled = Arc::default();
        let ticket = Ticket(Arc::clone(&cancelled));
        self.add(Wait { poll, tell: Some(tell), cancelled })?;
        Ok(ticket)
    }

    fn add(&self, wait: Wait) -> Result<()> {
        let mut inbox = lock(&self.shared.inbox);
        if !inbox.started {
            let (session, shared) = (self.session.clone(), self.shared.clone());
            tensorlend_os::thread::spawn("tensorlend-wait", move || shared.run(&session))
                .map_err(Error::system("start the thread that waits for names"))?;
            inbox.started = true;
        }
        inbox.waits.push(wait);
        drop(inbox);
        self.shared.wake();
        Ok(())
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Release);
        self.shared.wake();
    }
}

impl Shared {
    fn wake(&self) {
        self.bell.ring();
        futex::wake_all(&self.bell);
    }

    fn run(&self, session: &Session) {
        let mut waits = Vec::new();
        loop {
            // Sample the bell before any check, so that a later event changes it.
            let sample = self.bell.read();
            if self.ending.load(Ordering::Acquire) {
                return;
            }
            waits.append(&mut lock(&self.inbox).waits);
            waits.retain(|wait: &Wait| !wait.cancelled.load(Ordering::Relaxed));
            if waits.is_empty() {
                futex::wait(&self.bell, sample, IDLE);
            } else if let Err(e) = session.waiter().enlist(Deadline::new(None)) {
                // The error ends the wait of only one task. If the cause persists, the next turn ends the wait of another
                // task.
                waits.swap_remove(0).end(Err(e));
            } else {
                self.turn(session, sample, &mut waits);
            }
        }
    }

    /// Polls every event, and sleeps if none has happened.
    fn turn(&self, session: &Session, sample: u32, waits: &mut Vec<Wait>) {
        let began = Instant::now();
        let directory = &session.directory.head().bell;
        // Sample the bells before the deciding poll. An owner that has ended has no bell.
        let news = directory.read();
        let mut owners: BTreeMap<ClientNo, Option<(Sheet<Catalogue>, u32)>> = BTreeMap::new();
        settle(waits, session, |state| {
            for owner in state.owners.into_iter().flatten() {
                if let Entry::Vacant(vacant) = owners.entry(owner) {
                    vacant.insert(session.peers().with_bell(owner, |sheet| (sheet.clone(), sheet.bell.read()))?);
                }
            }
            Ok(())
        });
        let mask = owners.keys().fold(PARKED_ANY, |mask, &owner| mask | parked_bit(owner));
        let _parked = session.waiter().park(mask);
        let mut moved = false;
        settle(waits, session, |state| {
            moved |= state.owners.into_iter().flatten().any(|owner| !owners.contains_key(&owner));
            Ok(())
        });
        if moved || waits.is_empty() {
            return;
        }
        let mut bells = vec![(&self.bell, sample), (directory, news)];
        bells.extend(owners.values().flatten().map(|(sheet, sample)| (&sheet.bell, *sample)));
        let nap =
            if bells.len() > BELLS_MAX { NAP_CROWDED } else { (began.elapsed() * NAP_RATIO).clamp(NAP_MAX, NAP_LONG) };
        bells.truncate(BELLS_MAX);
        futex::wait_any(&bells, nap);
    }
}

impl Wait {
    fn end(mut self, outcome: Result<()>) {
        if let Some(tell) = self.tell.take() {
            tell(outcome);
        }
    }
}

/// Polls every event, and ends the waits that are over. Calls `note` with the state of every other event.
fn settle(waits: &mut Vec<Wait>, session: &Session, mut note: impl FnMut(&EventState) -> Result<()>) {
    let mut at = 0;
    while let Some(wait) = waits.get_mut(at) {
        let outcome = match (wait.poll)(session).and_then(|state| note(&state).map(|()| state.is_over)) {
            Ok(false) => {
                at += 1;
                continue;
            }
            Ok(true) => Ok(()),
            Err(e) => Err(e),
        };
        waits.swap_remove(at).end(outcome);
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the thread that waits for names and lists")
    }
}
