//! The producer's side of a ring: the check for room, the message, and the wake-ups.

use crate::error::{Error, Result};
use crate::session::Session;
use crate::wait::{Deadline, NAP_MAX, Waking};
use std::sync::Arc;
use std::time::Duration;
use tensorlend_layout::directory::StreamEntry;
use tensorlend_layout::leases::{CURSORS, Cursor, LeaseTable};
use tensorlend_layout::number::{EntryNo, StreamLine};
use tensorlend_layout::raw::{Records, Sheet};
use tensorlend_layout::stream::{HeaderSummary, Ring, RingEntry, StreamRing};
use tensorlend_layout::wake;
use tensorlend_layout::wire::{Policy, Request};
use tensorlend_layout::word::{Cell, OwnerWord, SubscriberWord, Word};
use tensorlend_os::futex;
use tensorlend_os::mutex::lock;

struct Subscriber {
    word: SubscriberWord,
    table: Sheet<LeaseTable>,
    wake: Option<Waking>,
}

impl Subscriber {
    fn cursor(&self) -> &Cursor {
        &self.table.cursors[self.word.cursor().index() % CURSORS]
    }

    /// Returns a copy that keeps the cursor mapped while a thread sleeps on this subscriber's bell.
    fn to_watch(&self) -> Self {
        Self { word: self.word, table: self.table.clone(), wake: None }
    }
}

/// The producer's counters and its cached list of subscribers.
pub(super) struct State {
    /// The number of the next message.
    pub next: u64,
    /// The version of the cached list of subscribers.
    version: u64,
    subscribers: Vec<Subscriber>,
    /// The number of a message that every subscriber had reached at the last check.
    slowest: u64,
    /// Number of this producer's threads that have declared their sleep.
    asleep: u32,
}

impl State {
    pub fn new() -> Self {
        Self { next: 0, version: u64::MAX, subscribers: Vec::new(), slowest: 0, asleep: 0 }
    }

    /// Reads how far the subscribers in the cached list are.
    #[inline]
    fn read_cursors(&mut self) {
        self.slowest = self.subscribers.iter().map(|s| s.cursor().next.read()).min().unwrap_or(u64::MAX);
    }
}

/// A stream's ring as its producer has it. All methods that send or check for room require exclusive access to the
/// producer's [`State`].
pub(super) struct Writer {
    pub session: Arc<Session>,
    pub name: String,
    /// The directory's entry of the name, and its owner word while the name leads to this stream.
    pub entry: (EntryNo, OwnerWord),
    pub head: Sheet<StreamRing>,
    pub entries: Records<RingEntry>,
    pub capacity: u32,
    pub policy: Policy,
    /// The index of the stream's row in the directory's table of streams, and the id in this row.
    pub index: StreamLine,
    pub id: u64,
}

/// A producer that has declared its sleep: see [`Writer::park`].
pub(super) struct Asleep {
    behind: Vec<Subscriber>,
    /// The values of these subscribers' bells before the declaration.
    samples: Vec<u32>,
    /// True if a subscriber was still a whole ring behind after the declaration.
    is_full: bool,
    /// True if the list of subscribers was still the cached one.
    is_same: bool,
}

impl Asleep {
    /// Sleeps until one of the subscribers advances, for at most `nap`. Does not sleep if one has advanced already.
    pub fn sleep(&self, nap: Duration) {
        if self.is_full && self.is_same {
            let bells: Vec<_> =
                self.behind.iter().map(|s| &s.cursor().bell).zip(self.samples.iter().copied()).collect();
            // A subscriber that leaves rings no bell, so sleep briefly and read the list again.
            futex::wait_any(&bells, nap.min(NAP_MAX / 4));
        } else if !self.is_same {
            // The daemon has probably ended. Without the daemon, the producer cannot map the cursors of new
            // subscribers.
            std::thread::sleep(nap.min(Duration::from_millis(1)));
        }
    }
}

impl Writer {
    /// Returns the stream's entry in the directory, while the entry belongs to this stream.
    #[inline]
    pub fn listed(&self) -> Result<&StreamEntry> {
        self.entry_in_directory().ok_or_else(|| Error::StreamEnded(self.name.clone()))
    }

    #[inline(always)]
    fn entry_in_directory(&self) -> Option<&StreamEntry> {
        self.session.directory.streams.get(self.index.index()).filter(|entry| entry.id.read() == self.id)
    }

    /// Returns whether the producer may replace the oldest message.
    #[inline(always)]
    pub fn room(&self, state: &mut State) -> Result<bool> {
        if self.has_room(state) { Ok(true) } else { self.look_for_room(state) }
    }

    /// Returns true if the cursors that the producer has read before show that it may send.
    #[inline(always)]
    fn has_room(&self, state: &State) -> bool {
        // The session is over, and no process reads this ring any more. Check here, because a message without subscribers
        // sends no request and so would not detect the end of the session.
        let is_over = self.session.is_forked() || self.session.control.is_dead();
        !is_over
            && self.entry_in_directory().is_some_and(|entry| entry.subscribers_version.read() == state.version)
            && self.oldest(state).is_none_or(|oldest| state.slowest > oldest)
    }

    /// Returns whether the producer may send, by the present list of subscribers and their cursors.
    #[inline(never)]
    fn look_for_room(&self, state: &mut State) -> Result<bool> {
        self.session.check()?;
        if self.session.control.is_dead() {
            return Err(self.session.control.ended("send", Error::SessionEnded));
        }
        self.listed()?;
        let Some(oldest) = self.oldest(state) else { return Ok(true) };
        if !self.refresh(state) {
            // The cursor of a listed subscriber is not mapped, so that subscriber may need the oldest message.
            return self.listed().map(|_| false);
        }
        state.read_cursors();
        Ok(state.slowest > oldest)
    }

    /// Returns the number of the message that the next one replaces, if subscribers must have taken that message.
    #[inline]
    fn oldest(&self, state: &State) -> Option<u64> {
        if self.policy == Policy::DropOldest { None } else { state.next.checked_sub(self.entries.len() as u64) }
    }

    /// Returns how long the producer may sleep before it checks for room again.
    ///
    /// # Errors
    /// [`Error::StreamFull`] if the policy is [`crate::Policy::Error`]; [`Error::Timeout`] after the deadline; the errors of
    /// [`crate::control::Control::check_daemon`], because only the daemon notices the death of the slowest subscriber.
    pub fn nap(&self, deadline: &Deadline) -> Result<Duration> {
        if self.policy == Policy::Error {
            return Err(Error::StreamFull(self.name.clone()));
        }
        self.session.control.check_daemon("send")?;
        deadline.nap().ok_or_else(|| {
            deadline.error(format!("room in stream {:?}: its slowest subscriber is a whole ring behind", self.name))
        })
    }

    /// Declares that the producer sleeps until a slow subscriber advances. After [`Asleep::sleep`], the caller must call
    /// [`Writer::unpark`].
    pub fn park(&self, state: &mut State) -> Asleep {
        state.asleep += 1;
        let behind: Vec<Subscriber> = state.subscribers.iter().take(128).map(Subscriber::to_watch).collect();
        let samples = behind.iter().map(|s| s.cursor().bell.read()).collect();
        wake::declare(&self.head.producer_parked, 1);
        let oldest = state.next - self.entries.len() as u64;
        let is_full = state.subscribers.iter().any(|s| s.cursor().next.read() <= oldest);
        let is_same = self.listed().is_ok_and(|entry| entry.subscribers_version.read() == state.version);
        Asleep { behind, samples, is_full, is_same }
    }

    /// Ends the sleep that [`Writer::park`] declared. The next check for room reads all cursors.
    pub fn unpark(&self, state: &mut State) {
        state.asleep -= 1;
        if state.asleep == 0 {
            // Another thread that sleeps would not be woken.
            self.head.producer_parked.set(0);
        }
        state.slowest = 0;
    }

    /// Sends a sealed slot, and retires the message that it replaces. Returns the message's number.
    #[inline]
    pub fn push(&self, state: &mut State, value: Cell, summary: &HeaderSummary) -> u64 {
        let number = state.next;
        if let Some(replaced) = self.send(state, value, summary) {
            self.session.alloc().retire(replaced);
        }
        number
    }

    /// Sends a sealed slot. The ring takes over one of the slot's holders. Returns the value of the replaced message, which
    /// the caller must retire.
    #[inline(always)]
    pub fn send(&self, state: &mut State, value: Cell, summary: &HeaderSummary) -> Option<Cell> {
        tensorlend_layout::crash_point!("send: sealed");
        let number = state.next;
        let ring = Ring { head: &self.head, entries: &self.entries };
        let replaced = ring.send(number, value, summary);
        state.next += 1;
        tensorlend_layout::crash_point!("send: counted");
        // The message is sent, and later steps cannot undo that.
        self.settle(state);
        replaced
    }

    /// Does the work after a message that can wait.
    #[inline(never)]
    fn settle(&self, state: &mut State) {
        self.wake(state);
        // The cursors are in the subscribers' caches. Read them now, while no subscriber waits for this producer.
        if self.oldest(state).is_some_and(|oldest| state.slowest <= oldest) {
            state.read_cursors();
        }
    }

    /// Wakes the subscribers that sleep.
    #[inline]
    pub fn wake(&self, state: &mut State) {
        wake::news_fence();
        self.refresh(state);
        let mut sleepers = false;
        for subscriber in &mut state.subscribers {
            match subscriber.cursor().parked.read() {
                1 => sleepers = true,
                2 if subscriber.wake.as_ref().is_some_and(|wake| !wake.wake()) => subscriber.wake = None,
                _ => {}
            }
        }
        if sleepers {
            self.head.bell.ring();
            futex::wake_all(&self.head.bell);
        }
    }

    /// Reads the subscribers' list again if it has changed. Returns false if some subscribers are unknown. Without the
    /// daemon the producer cannot map new ones. It then keeps the old list and reads the list again the next time.
    fn refresh(&self, state: &mut State) -> bool {
        let Ok(entry) = self.listed() else {
            // The stream was deleted, or another producer has opened it again. So this producer has no subscribers
            // any more.
            state.subscribers.clear();
            return false;
        };
        let version = entry.subscribers_version.read();
        if version == state.version {
            return true;
        }
        let words: Vec<u64> = entry.subscribers.iter().map(Word::read).filter(|&w| w != 0).collect();
        // If the entry still belongs to this stream, so did the list.
        if self.listed().is_err() {
            state.subscribers.clear();
            return false;
        }
        let mut fetched = Vec::with_capacity(words.len());
        for word in words.into_iter().map(SubscriberWord) {
            if let Some(at) = state.subscribers.iter().position(|s| s.word == word) {
                fetched.push(state.subscribers.swap_remove(at));
                continue;
            }
            let Ok(subscriber) = self.fetch(word) else {
                fetched.append(&mut state.subscribers);
                state.subscribers = fetched;
                return false;
            };
            fetched.extend(subscriber);
        }
        state.subscribers = fetched;
        state.version = version;
        state.slowest = 0;
        true
    }

    fn fetch(&self, word: SubscriberWord) -> Result<Option<Subscriber>> {
        let Some(table) = self.session.peers().lease_table(word.client())? else { return Ok(None) };
        let wake = if word.has_wake() { self.fetch_wake(word)? } else { None };
        Ok(Some(Subscriber { word, table, wake }))
    }

    fn fetch_wake(&self, word: SubscriberWord) -> Result<Option<Waking>> {
        let toll = self.session.waiter().toll_of(word.client());
        if lock(&toll).is_excessive() {
            return Ok(None);
        }
        let request = Request::WakeDescriptor { stream: self.index, subscriber: word.client(), cursor: word.cursor() };
        let mut answer = self.session.control.ask(&request, "fetch a wake descriptor", &self.name)?;
        if !answer.has_descriptors() {
            return Ok(None);
        }
        let wake = answer.descriptor()?;
        answer.acknowledge()?;
        Ok(Some(Waking::new(wake, toll)))
    }
}
