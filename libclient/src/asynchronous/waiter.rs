//! The thread that waits for names on behalf of tasks.
//!
//! It sleeps as `wait_key` in `lease/wait.rs` does: on the bells of all owners of the awaited names, on the directory's bell,
//! and on a bell of its own, which rings when a task adds a wait or the last handle is dropped. A task that stops waiting drops
//! the receiving end of its wait, which the thread sees in its next turn.

use crate::error::{Error, Result};
use crate::lease::by_name::Peeked;
use crate::lease::by_name::peek;
use crate::names::version::Version;
use crate::session::Session;
use crate::wait::{Deadline, NAP_MAX};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tensorlend_layout::catalogue::Catalogue;
use tensorlend_layout::raw::Sheet;
use tensorlend_layout::word::{Bell, PARKED_ANY, parked_bit};
use tensorlend_os::futex;
use tensorlend_os::mutex::lock;
use tokio::sync::oneshot;

/// Maximum number of bells in one wait (the kernel's limit).
const BELLS_MAX: usize = 128;
/// Longest sleep if there are more owners than that: the thread polls the other names this often.
const NAP_CROWDED: Duration = Duration::from_millis(10);
/// Longest sleep while no task waits. The thread's own bell ends it; the system call needs a timeout.
const IDLE: Duration = Duration::from_hours(1);

/// A handle on the thread. The first wait starts the thread, and the drop of the last handle ends it.
#[derive(Debug)]
pub struct Waiter {
    session: Arc<Session>,
    shared: Arc<Shared>,
}

/// State that the handle and the thread share.
#[derive(Default)]
struct Shared {
    /// Rings when the inbox has a wait, and at the end.
    bell: Bell,
    ending: AtomicBool,
    inbox: Mutex<Inbox>,
}

#[derive(Default)]
struct Inbox {
    waits: Vec<Wait>,
    /// Whether the thread is running.
    started: bool,
}

/// A task that waits for a value of `name` other than `seen`.
struct Wait {
    name: String,
    seen: Version,
    tell: oneshot::Sender<Result<()>>,
}

fn is_newer(now: &Peeked, seen: Version) -> bool {
    now.exists && now.seen != Some(seen)
}

impl Waiter {
    pub fn new(session: Arc<Session>) -> Self {
        Self { session, shared: Arc::default() }
    }

    /// Waits for a value of `name` other than `seen`.
    pub async fn wait_newer(&self, name: &str, seen: Version) -> Result<()> {
        // A task that always finds news still yields from time to time.
        tokio::task::coop::consume_budget().await;
        self.session.check()?;
        if is_newer(&peek(&self.session, name.as_bytes())?, seen) {
            return Ok(());
        }
        let (tell, told) = oneshot::channel();
        self.add(Wait { name: name.to_owned(), seen, tell })?;
        told.await.expect("the thread answers every wait before its last handle is gone")
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
            // Sampled before any check: a later event rings again.
            let sample = self.bell.read();
            if self.ending.load(Ordering::Acquire) {
                return;
            }
            waits.append(&mut lock(&self.inbox).waits);
            waits.retain(|wait: &Wait| !wait.tell.is_closed());
            if waits.is_empty() {
                futex::wait(&self.bell, sample, IDLE);
            } else if let Err(e) = session.waiter().enlist(Deadline::new(None)) {
                // The error ends the wait of one task. If the cause persists, the next turn ends the wait of another task.
                let _ = waits.swap_remove(0).tell.send(Err(e));
            } else {
                self.turn(session, sample, &mut waits);
            }
        }
    }

    /// Checks every name, and sleeps if none has news.
    fn turn(&self, session: &Session, sample: u32, waits: &mut Vec<Wait>) {
        let directory = &session.directory.head().bell;
        // Sample the bells before the deciding check; an owner that is gone has no bell.
        let news = directory.read();
        let mut owners: BTreeMap<u16, Option<(Sheet<Catalogue>, u32)>> = BTreeMap::new();
        settle(waits, |wait| {
            let now = peek(session, wait.name.as_bytes())?;
            if let Some(owner) = now.owner.filter(|owner| !owners.contains_key(owner)) {
                owners.insert(owner, session.peers().with_bell(owner, |sheet| (sheet.clone(), sheet.bell.read()))?);
            }
            Ok(is_newer(&now, wait.seen))
        });
        let mask = owners.keys().fold(PARKED_ANY, |mask, &owner| mask | parked_bit(owner));
        let _parked = session.waiter().park(mask);
        let mut moved = false;
        settle(waits, |wait| {
            let now = peek(session, wait.name.as_bytes())?;
            moved |= now.owner.is_some_and(|owner| !owners.contains_key(&owner));
            Ok(is_newer(&now, wait.seen))
        });
        if moved || waits.is_empty() {
            return;
        }
        let mut bells = vec![(&self.bell, sample), (directory, news)];
        bells.extend(owners.values().flatten().map(|(sheet, sample)| (&sheet.bell, *sample)));
        let nap = if bells.len() > BELLS_MAX { NAP_CROWDED } else { NAP_MAX };
        bells.truncate(BELLS_MAX);
        futex::wait_any(&bells, nap);
    }
}

/// Checks every wait and completes those that are over.
fn settle(waits: &mut Vec<Wait>, mut look: impl FnMut(&Wait) -> Result<bool>) {
    let mut at = 0;
    while let Some(wait) = waits.get(at) {
        let outcome = match look(wait) {
            Ok(false) => {
                at += 1;
                continue;
            }
            Ok(true) => Ok(()),
            Err(e) => Err(e),
        };
        // The task may have stopped waiting.
        let _ = waits.swap_remove(at).tell.send(outcome);
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the thread that waits for names")
    }
}
