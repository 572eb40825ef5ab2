//! A mailbox of events for a state that one thread at a time changes.
//!
//! Any thread may post an event. The posting thread then tries the combiner lock. If it gets the
//! lock, it applies the events of the mailbox itself. Otherwise the lock's holder applies them. So
//! an event of an idle gateway wakes no other thread, which would take longer than most events. The
//! clock's thread sleeps until the state is due. It calls [`State::on_tick`], and applies the
//! events that were posted for later. The transport's threads always post for later, because
//! applying an event may wait for the daemon or for the transport itself. A transport that does not
//! read while its thread waits would block both nodes.
//!
//! | word | writers | readers |
//! |---|---|---|
//! | `events` | posters append; the holder of `slot` removes the oldest | the same, under its lock |
//! | `slot` | its holder | its holder; all take it without waiting, except the clock's thread |
//! | `alarm` | the last holder of `slot`: when the state is due; `post_later`: now | the clock's thread, under its lock |
//!
//! *No event is lost.* Poster P appends its event and then tries `slot`. Holder H releases `slot`
//! and then reads `events`. If P finds `slot` taken by H, then H's read follows P's append, and
//! finds the event. A holder that stops early (its batch is used up, or the state is over) wakes
//! the clock's thread. `post_later` also takes `slot` for a moment, and wakes the clock's thread
//! after it has released `slot`. If P finds `slot` taken in that moment, the clock's thread applies
//! P's event.
//!
//! *No thread waits* for `slot` except the clock's. If the holder posts an event, it applies the event itself before it
//! stops. A part of the state must not post an event while it holds a lock that the handling of its own events takes.
//!
//! *A send does not hold up the state.* A state defers its sends into the transport ([`State::take_deferred`]). A thread runs
//! them after it has released `slot`, or hands them to workers. The clock is a [`Role`] of two threads. The thread with
//! the role runs the sends of the events that it has applied. If a send waits because the transport is full, the other
//! thread takes over.
//!
//! A panic of a holder poisons `slot`. The clock's thread then ends the gateway.

use super::role::Role;
use super::workers::Deferred;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use tensorlend_os::mutex::lock;

/// Maximum number of events that a poster applies in a row. Then the clock's thread continues, so
/// that the poster can return.
const BATCH: usize = 32;

/// The state to which a mailbox's events are applied.
pub trait State: Send + Sized + 'static {
    /// The type of the posted events.
    type Event: Send + 'static;

    fn on_event(&mut self, event: Self::Event, now: Instant);

    /// Performs the work that is due: see [`State::due`].
    fn on_tick(&mut self, now: Instant);

    /// Takes the jobs that the last events have deferred.
    fn take_deferred(&mut self) -> Vec<Deferred>;

    /// Returns the latest time at which [`State::on_tick`] must be called next.
    fn due(&self, now: Instant) -> Instant;

    /// Returns true once the state must end.
    fn is_over(&self) -> bool;

    /// Ends the state when [`State::is_over`] returns true.
    fn end(self);

    /// Ends the state after one of its methods has panicked.
    fn abort(self);
}

/// The mailbox of one state. Clones share the same mailbox.
pub struct Mailbox<S: State>(Arc<Inner<S>>);

struct Inner<S: State> {
    events: Mutex<VecDeque<S::Event>>,
    /// The combiner lock. Its holder applies the events of all threads.
    slot: Mutex<Slot<S>>,
    alarm: Mutex<Alarm>,
    rung: Condvar,
}

enum Slot<S> {
    /// The state has not started. Events wait for its start.
    Empty,
    Taken(Box<S>),
    /// The state has ended. New events are dropped.
    Over,
}

#[derive(Default)]
struct Alarm {
    /// Time at which the clock's thread wakes; `None` means at once.
    due: Option<Instant>,
}

impl<S: State> Clone for Mailbox<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: State> Default for Mailbox<S> {
    fn default() -> Self {
        Self(Arc::new(Inner {
            events: Mutex::default(),
            slot: Mutex::new(Slot::Empty),
            alarm: Mutex::default(),
            rung: Condvar::new(),
        }))
    }
}

impl<S: State> Mailbox<S> {
    /// Posts an event, and applies it on this thread unless another thread holds the combiner lock. Workers run the jobs that
    /// the applied events defer.
    pub fn post(&self, event: S::Event) {
        self.apply(event).into_iter().for_each(Deferred::hand_over);
    }

    /// Posts an event like [`Mailbox::post`]. Returns the jobs that the applied events have deferred.
    fn apply(&self, event: S::Event) -> Vec<Deferred> {
        lock(&self.0.events).push_back(event);
        self.0.combine()
    }

    /// Posts an event for another thread to apply. The transport's threads use this method, because they must not wait.
    pub fn post_later(&self, event: S::Event) {
        lock(&self.0.events).push_back(event);
        // After the end, no thread reads the mailbox. Dropping the event here reports to its sender
        // that no response will come.
        let is_over = matches!(self.0.slot.try_lock().as_deref(), Ok(Slot::Over));
        if is_over {
            return drop(self.0.combine());
        }
        // Ring after the attempt to take `slot`. A poster that found `slot` taken by this thread
        // may have left its event to this thread.
        self.0.ring(None);
    }

    /// Returns a sender of events of one kind.
    pub fn sender<E: 'static>(&self, wrap: fn(E) -> S::Event) -> EventSender<E> {
        let mailbox = self.clone();
        EventSender(Arc::new(move |event, when| match when {
            When::Now => mailbox.apply(wrap(event)),
            When::Later => {
                mailbox.post_later(wrap(event));
                Vec::new()
            }
        }))
    }

    /// Starts the state behind the mailbox.
    pub fn begin(&self, state: S) {
        *lock(&self.0.slot) = Slot::Taken(Box::new(state));
    }

    /// Drops the queued events and all later ones, because the start of the state has failed.
    pub fn give_up(&self) {
        drop(self.0.close());
        drop(self.0.combine());
    }

    /// Runs one of the clock's two threads: the one with the role calls the state when it is due, until the state ends.
    /// Returns true if this thread has ended the state.
    pub fn run_clock(&self, clock: &Role<()>) -> bool {
        while clock.take_over().is_some() {
            loop {
                let Some(jobs) = self.0.tick() else {
                    clock.end();
                    return true;
                };
                if clock.run((), jobs).is_none() {
                    break;
                }
            }
        }
        false
    }
}

impl<S: State> Inner<S> {
    /// Sleeps until the state is due, and applies the events that were posted for later. Returns the jobs that they have
    /// deferred, or `None` once the state has ended.
    fn tick(&self) -> Option<Vec<Deferred>> {
        self.sleep();
        // Treat a panic here like a panic in a poster's thread, which poisons the lock.
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let (mut slot, mut jobs) = (self.slot.lock().ok()?, Vec::new());
            let is_done = self.work(&mut slot, &mut { BATCH }, &mut jobs);
            let is_running = matches!(&*slot, Slot::Taken(state) if !state.is_over());
            Some((is_done, is_running.then_some(jobs)))
        }));
        match polled {
            Ok(Some((is_done, Some(jobs)))) => {
                if !is_done || !lock(&self.events).is_empty() {
                    self.ring(None);
                }
                return Some(jobs);
            }
            // Close the slot before ending the state, because the threads that the state ends
            // may post events until then.
            Ok(Some((_, None))) => self.close().into_iter().for_each(|state| state.end()),
            Ok(None) | Err(_) => {
                tracing::error!("the gateway has failed, and ends");
                self.close().into_iter().for_each(|state| state.abort());
            }
        }
        drop(self.combine());
        None
    }

    /// Applies the posted events, unless another thread holds the combiner lock. Returns the jobs that they have deferred.
    fn combine(&self) -> Vec<Deferred> {
        let (mut left, mut jobs) = (BATCH, Vec::new());
        loop {
            let mut slot = match self.slot.try_lock() {
                Ok(slot) => slot,
                // The holder reads the events again after it has released the lock.
                Err(TryLockError::WouldBlock) => return jobs,
                Err(TryLockError::Poisoned(_)) => {
                    self.ring(None);
                    return jobs;
                }
            };
            match &*slot {
                Slot::Taken(state) if !state.is_over() => {}
                Slot::Over => {
                    drop(slot);
                    // Drop the events after the unlock, because the drop of an event may post
                    // another event.
                    let _dropped = std::mem::take(&mut *lock(&self.events));
                    return jobs;
                }
                _ => return jobs,
            }
            let is_done = self.work(&mut slot, &mut left, &mut jobs);
            drop(slot);
            if is_done && lock(&self.events).is_empty() {
                return jobs;
            }
            if left == 0 || !is_done {
                self.ring(None);
                return jobs;
            }
        }
    }

    /// Applies at most `left` events, and the work that is due. Adds the jobs that they have deferred. Returns false if events
    /// remain.
    fn work(&self, slot: &mut Slot<S>, left: &mut usize, jobs: &mut Vec<Deferred>) -> bool {
        let Slot::Taken(state) = slot else { return true };
        let is_done = loop {
            if state.is_over() {
                break false;
            }
            if *left == 0 {
                break lock(&self.events).is_empty();
            }
            let Some(event) = lock(&self.events).pop_front() else { break true };
            state.on_event(event, Instant::now());
            *left -= 1;
        };
        let now = Instant::now();
        state.on_tick(now);
        jobs.extend(state.take_deferred());
        if is_done {
            self.ring(Some(state.due(now)));
        }
        is_done
    }

    /// Takes the state out, if it is running. From now on, posted events are dropped.
    fn close(&self) -> Option<Box<S>> {
        let last = std::mem::replace(&mut *lock(&self.slot), Slot::Over);
        self.slot.clear_poison();
        match last {
            Slot::Taken(state) => Some(state),
            Slot::Empty | Slot::Over => None,
        }
    }

    /// Makes the clock's thread wake at `due`, unless it already wakes earlier. `None` means at
    /// once.
    fn ring(&self, due: Option<Instant>) {
        let mut alarm = lock(&self.alarm);
        // `None` (at once) compares as the earliest time.
        if due < alarm.due {
            alarm.due = due;
            self.rung.notify_one();
        }
    }

    /// Sleeps until the alarm is due.
    fn sleep(&self) {
        let mut alarm = lock(&self.alarm);
        loop {
            let now = Instant::now();
            let Some(left) = alarm.due.map(|due| due.saturating_duration_since(now)).filter(|left| !left.is_zero())
            else {
                // This alarm is a placeholder, because the poll that follows computes the next
                // alarm.
                alarm.due = Some(now + Duration::from_hours(1));
                return;
            };
            alarm = self.rung.wait_timeout(alarm, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The choice of the thread that applies an event.
enum When {
    /// The posting thread, unless another thread holds the combiner lock.
    Now,
    /// Another thread: the holder of the lock, or the clock's thread.
    Later,
}

/// Posts events of one kind to a mailbox whose state the sender does not know.
pub struct EventSender<E>(Arc<dyn Fn(E, When) -> Vec<Deferred> + Send + Sync>);

impl<E> Clone for EventSender<E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<E> EventSender<E> {
    /// Posts an event, and applies it on this thread unless another thread holds the combiner lock. Workers run the jobs that
    /// the applied events defer.
    pub fn post(&self, event: E) {
        self.apply(event).into_iter().for_each(Deferred::hand_over);
    }

    /// Posts an event like [`EventSender::post`]. Returns the jobs that the applied events have deferred.
    pub fn apply(&self, event: E) -> Vec<Deferred> {
        (self.0)(event, When::Now)
    }

    /// Posts an event for another thread to apply. The transport's threads use this method, because they must not wait.
    pub fn post_later(&self, event: E) {
        let _none = (self.0)(event, When::Later);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    const THREADS: usize = 4;
    const EVENTS: u64 = 2000;

    struct Counts {
        mailbox: Mailbox<Counts>,
        seen: [u64; THREADS],
        inner: u64,
        done: Sender<()>,
        is_over: bool,
        /// Interval of the clock.
        tick: Duration,
    }

    enum Event {
        Posted(usize, u64),
        /// Posted by the holder of the lock.
        Inner,
        Panic,
    }

    impl State for Counts {
        type Event = Event;

        fn on_event(&mut self, event: Event, _now: Instant) {
            match event {
                Event::Posted(thread, number) => {
                    assert_eq!(self.seen[thread], number, "out of order");
                    self.seen[thread] += 1;
                    self.mailbox.post(Event::Inner);
                }
                Event::Inner => self.inner += 1,
                Event::Panic => panic!("a part has failed"),
            }
            self.is_over = self.inner == THREADS as u64 * EVENTS;
        }

        fn on_tick(&mut self, _now: Instant) {}

        fn take_deferred(&mut self) -> Vec<Deferred> {
            Vec::new()
        }

        fn due(&self, now: Instant) -> Instant {
            now + self.tick
        }

        fn is_over(&self) -> bool {
            self.is_over
        }

        fn end(self) {
            assert_eq!(self.seen, [EVENTS; THREADS]);
            self.done.send(()).expect("the test waits");
        }

        fn abort(self) {
            self.done.send(()).expect("the test waits");
        }
    }

    fn start(tick: Duration) -> (Mailbox<Counts>, std::sync::mpsc::Receiver<()>) {
        let (mailbox, (done, ended)) = (Mailbox::default(), channel());
        mailbox.begin(Counts { mailbox: mailbox.clone(), seen: [0; THREADS], inner: 0, done, is_over: false, tick });
        let clock = mailbox.clone();
        std::thread::spawn(move || clock.run_clock(&Role::new(())));
        (mailbox, ended)
    }

    #[test]
    fn events_of_many_threads_are_applied_once_and_in_order() {
        // The clock comes too late to find a forgotten event.
        let (mailbox, ended) = start(Duration::from_hours(1));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let events = mailbox.sender(move |(thread, number)| Event::Posted(thread, number));
                scope.spawn(move || {
                    for number in 0..EVENTS {
                        if number % 3 == 0 {
                            events.post_later((thread, number));
                        } else {
                            events.post((thread, number));
                        }
                    }
                });
            }
        });
        ended.recv_timeout(Duration::from_mins(5)).expect("the state sees all events, and ends");
    }

    #[test]
    fn a_panic_ends_the_state() {
        let (mailbox, ended) = start(Duration::from_millis(20));
        // The panic occurs in the poster's thread, or in the clock's if that holds the lock.
        let _ = std::thread::spawn(move || mailbox.post(Event::Panic)).join();
        ended.recv_timeout(Duration::from_mins(5)).expect("the clock ends the state");
    }
}
