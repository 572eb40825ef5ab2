//! Where events are posted, and who sees to them.
//!
//! The [`Hub`] is one, and who has it decides alone. Threads of the gateway that post an event (the service's, the watches', workers) take the hub, if
//! nobody has it, and do all that lies there; who finds it taken leaves the event to who has it. So what happens is seen to by the thread on
//! which it happened, where another would first have to be woken, which takes longer than nearly every event. The engine's threads never have
//! the hub: what they [deliver](Post::deliver), and what is due by the clock, is seen to by a thread that sleeps until then. For the hub may have to
//! wait for the local broker, and to drop a question may wait for the way; an engine that does not read meanwhile would hold up both sides.
//!
//! | word | who writes it | who reads it |
//! |---|---|---|
//! | `events` | who posts, at the end; who has the hub takes them, first in, first out | both, under its lock |
//! | `seat` | who has the hub | only who has it; taken without waiting, but by the clock |
//! | `alarm` | who has had the hub: when it is next due; who delivers: now | the clock, under its lock |
//!
//! *No event is left lying.* Who posts one looks for the hub after that; who has had the hub looks for events after it has given it back. Both
//! orders are those of the locks: if the hub was found taken, then it is given back later, and the look after that finds the event, since
//! it was there before. *Nobody waits* for the hub but the clock, and who posts while it has the hub (a part may post to itself) leaves
//! that to itself. A lock that some part holds while it posts may be one that the hub takes, too: no part may do that.
//!
//! A panic while somebody has the hub ends the gateway, by the clock.

use crate::hub::{Event, Hub};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Events that somebody sees to who came with one: then the clock goes on, so that nobody is kept for long.
const AT_ONCE: usize = 32;

/// What is to be done by who has the hub.
pub type Run = Box<dyn FnOnce(&mut Hub, Instant) + Send>;

/// Where events are posted.
#[derive(Clone, Default)]
pub struct Post(Arc<Desk>);

#[derive(Default)]
struct Desk {
    events: Mutex<VecDeque<Event>>,
    seat: Mutex<Seat>,
    alarm: Mutex<Alarm>,
    rung: Condvar,
}

/// Where the hub is.
#[derive(Default)]
enum Seat {
    /// Not there yet: events wait for it.
    #[default]
    Empty,
    Taken(Box<Hub>),
    /// Gone: nothing matters any more.
    Over,
}

#[derive(Default)]
struct Alarm {
    /// `None`: at once.
    due: Option<Instant>,
}

impl Post {
    /// Posts an event, and sees to it, unless somebody else does.
    pub fn event(&self, event: Event) {
        lock(&self.0.events).push_back(event);
        self.0.serve();
    }

    /// Has something done with the hub.
    pub fn run(&self, what: impl FnOnce(&mut Hub, Instant) + Send + 'static) {
        self.event(Event::Run(Box::new(what)));
    }

    /// Posts an event of a thread that must not wait: the engine's.
    pub fn deliver(&self, event: Event) {
        lock(&self.0.events).push_back(event);
        // After the end nobody else looks: what waits for an answer is to hear of it.
        let is_over = matches!(self.0.seat.try_lock().as_deref(), Ok(Seat::Over));
        if is_over {
            return self.0.serve();
        }
        // After that look, which others may have found in their way.
        self.0.ring(None);
    }

    /// The hub is there.
    pub(crate) fn begin(&self, hub: Hub) {
        *lock(&self.0.seat) = Seat::Taken(Box::new(hub));
    }

    /// There will be none: who has asked meanwhile is not to wait for it.
    pub(crate) fn give_up(&self) {
        drop(self.0.close());
        self.0.serve();
    }

    /// Sees to what is due, from the hub's begin to its end: the clock's thread.
    pub(crate) fn clock(&self) {
        let desk = &*self.0;
        loop {
            desk.sleep();
            // A panic here is as one of somebody else's, which leaves the lock poisoned.
            let looked = catch_unwind(AssertUnwindSafe(|| {
                let mut seat = desk.seat.lock().ok()?;
                let is_done = desk.work(&mut seat, &mut { AT_ONCE });
                Some((is_done, matches!(&*seat, Seat::Taken(hub) if !hub.is_over())))
            }));
            match looked {
                Ok(Some((is_done, true))) => {
                    if !is_done || !lock(&desk.events).is_empty() {
                        desk.ring(None);
                    }
                    continue;
                }
                // Its threads post to the end, and find nobody.
                Ok(Some((_, false))) => desk.close().into_iter().for_each(|hub| hub.end()),
                Ok(None) | Err(_) => {
                    tracing::error!("the gateway has failed, and ends");
                    desk.close().into_iter().for_each(|hub| hub.abort());
                }
            }
            return desk.serve();
        }
    }
}

impl Desk {
    /// Does what lies there, unless somebody is at it.
    fn serve(&self) {
        let mut left = AT_ONCE;
        loop {
            let mut seat = match self.seat.try_lock() {
                Ok(seat) => seat,
                // Who has it sees to it.
                Err(TryLockError::WouldBlock) => return,
                Err(TryLockError::Poisoned(_)) => return self.ring(None),
            };
            match &*seat {
                Seat::Taken(hub) if !hub.is_over() => {}
                Seat::Over => {
                    drop(seat);
                    // Outside of the lock: what is dropped may post.
                    let _gone = std::mem::take(&mut *lock(&self.events));
                    return;
                }
                _ => return,
            }
            let is_done = self.work(&mut seat, &mut left);
            drop(seat);
            if is_done && lock(&self.events).is_empty() {
                return;
            }
            if left == 0 || !is_done {
                return self.ring(None);
            }
        }
    }

    /// Sees to so many events at most, and to what is due. False: there is more.
    fn work(&self, seat: &mut Seat, left: &mut usize) -> bool {
        let Seat::Taken(hub) = seat else { return true };
        let is_done = loop {
            if hub.is_over() {
                break false;
            }
            if *left == 0 {
                break lock(&self.events).is_empty();
            }
            let Some(event) = lock(&self.events).pop_front() else { break true };
            hub.on_event(event, Instant::now());
            *left -= 1;
        };
        let now = Instant::now();
        hub.on_tick(now);
        if is_done {
            self.ring(Some(hub.due(now)));
        }
        is_done
    }

    /// Takes the hub away, if there is one: nothing matters from now on.
    fn close(&self) -> Option<Box<Hub>> {
        let last = std::mem::replace(&mut *lock(&self.seat), Seat::Over);
        self.seat.clear_poison();
        match last {
            Seat::Taken(hub) => Some(hub),
            Seat::Empty | Seat::Over => None,
        }
    }

    /// Wakes the clock, unless it wakes early enough by itself.
    fn ring(&self, due: Option<Instant>) {
        let mut alarm = lock(&self.alarm);
        // None is the earliest.
        if due < alarm.due {
            alarm.due = due;
            self.rung.notify_one();
        }
    }

    /// Until it is due.
    fn sleep(&self) {
        let mut alarm = lock(&self.alarm);
        loop {
            let now = Instant::now();
            let Some(left) = alarm.due.map(|due| due.saturating_duration_since(now)).filter(|left| !left.is_zero())
            else {
                // Whatever is due after this look says so itself.
                alarm.due = Some(now + Duration::from_hours(1));
                return;
            };
            alarm = self.rung.wait_timeout(alarm, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
