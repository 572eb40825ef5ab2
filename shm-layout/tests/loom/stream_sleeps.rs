//! The sleeps of a stream's producer and of its subscribers.

use crate::streams::{World, message, summary};
use crate::{holds, reached, refuted, spawn};
use loom::sync::Mutex;
use std::sync::Arc;
use tensorlend_layout::stream::Found;
use tensorlend_layout::wake::{declare, news_fence, park};
use tensorlend_layout::word::{Bell, Word};

/// The steps that may be left out of a sleep.
#[derive(Clone, Copy, PartialEq)]
enum Sleep {
    Right,
    SleeperFence,
    WakerFence,
    SampledLate,
}

/// Declares a sleep in `parked`, and polls `fresh` for news. Returns the sample of `bell` with which the thread would sleep.
fn sleep(how: Sleep, bell: &Bell, parked: &Word, fresh: impl Fn() -> bool) -> Option<u32> {
    let mut sample = match how {
        Sleep::SleeperFence => {
            let sample = bell.read();
            parked.set(1);
            sample
        }
        Sleep::SampledLate => {
            declare(parked, 1);
            0
        }
        _ => park(bell, parked, 1),
    };
    let asleep = !fresh();
    if how == Sleep::SampledLate {
        sample = bell.read();
    }
    asleep.then_some(sample)
}

fn wake(how: Sleep, bell: &Bell, parked: &Word) {
    if how != Sleep::WakerFence {
        news_fence();
    }
    if parked.read() != 0 {
        bell.ring();
    }
}

/// The producer of a full ring waits for the subscriber's cursor.
fn producer_waits(how: Sleep) {
    let w = Arc::new(World::new(1));
    w.send(0);
    let subscriber = {
        let w = w.clone();
        spawn(move || {
            w.next().set(1);
            wake(how, &w.leases.cursors[0].bell, &w.head.producer_parked);
        })
    };
    let bell = &w.leases.cursors[0].bell;
    let asleep = sleep(how, bell, &w.head.producer_parked, || w.next().read() > 0);
    subscriber.join().unwrap();
    if let Some(sample) = asleep {
        reached();
        assert_ne!(bell.read(), sample, "asleep for ever");
    }
}

/// One thread of the producer wakes from its sleep while another one waits for the subscriber's cursor.
fn two_threads_wait(counted: bool) {
    let w = Arc::new(World::new(1));
    w.send(0);
    // The lock of the producer's state, and the number of its threads that have declared their sleep: one has done so.
    let asleep = Arc::new(Mutex::new(1));
    declare(&w.head.producer_parked, 1);
    let subscriber = {
        let w = w.clone();
        spawn(move || {
            w.next().set(1);
            wake(Sleep::Right, &w.leases.cursors[0].bell, &w.head.producer_parked);
        })
    };
    let first = {
        let (w, asleep) = (w.clone(), asleep.clone());
        spawn(move || {
            let mut asleep = asleep.lock().unwrap();
            *asleep -= 1;
            if *asleep == 0 || !counted {
                w.head.producer_parked.set(0);
            }
        })
    };
    let bell = &w.leases.cursors[0].bell;
    let sample = {
        let mut asleep = asleep.lock().unwrap();
        *asleep += 1;
        sleep(Sleep::Right, bell, &w.head.producer_parked, || w.next().read() > 0)
    };
    first.join().unwrap();
    subscriber.join().unwrap();
    if let Some(sample) = sample {
        reached();
        assert_ne!(bell.read(), sample, "asleep for ever");
    }
}

#[test]
fn a_thread_of_a_blocked_producer_wakes_although_another_woke_first() {
    holds("two threads of a blocked producer", Some(3), || two_threads_wait(true));
    refuted("a thread that wakes ends the other's declaration", "asleep for ever", || two_threads_wait(false));
}

/// A subscriber waits for the next message.
fn subscriber_waits(how: Sleep) {
    let w = Arc::new(World::new(1));
    let producer = {
        let w = w.clone();
        spawn(move || {
            w.ring().send(0, message(0), &summary(0));
            wake(how, &w.head.bell, &w.leases.cursors[0].parked);
        })
    };
    let fresh = || w.ring().find(0) != Found::NotYet;
    let asleep = sleep(how, &w.head.bell, &w.leases.cursors[0].parked, fresh);
    producer.join().unwrap();
    if let Some(sample) = asleep {
        reached();
        assert_ne!(w.head.bell.read(), sample, "asleep for ever");
    }
}

#[test]
fn a_blocked_producer_wakes() {
    holds("blocked producer", None, || producer_waits(Sleep::Right));
    for how in [Sleep::SleeperFence, Sleep::WakerFence, Sleep::SampledLate] {
        refuted("blocked producer, a step left out", "asleep for ever", move || producer_waits(how));
    }
}

#[test]
fn a_waiting_subscriber_wakes() {
    holds("waiting subscriber", None, || subscriber_waits(Sleep::Right));
    for how in [Sleep::SleeperFence, Sleep::WakerFence, Sleep::SampledLate] {
        refuted("waiting subscriber, a step left out", "asleep for ever", move || subscriber_waits(how));
    }
}
