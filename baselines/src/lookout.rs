//! Waiting for the other process without ever waiting for ever.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::BaselineError;

/// About 5 us of spinning, longer than the exchange of a small tensor, before the processor is offered to others: to
/// the other process first of all, if the scheduler has put both on one core.
const SPINS: u32 = 200;

/// How often, in yields, the costlier checks are made while waiting: they are system calls.
const YIELDS_PER_CHECK: u32 = 256;

/// What a consumer at rest sleeps between two looks, so that it does not take a core from what is measured meanwhile.
const REST: Duration = Duration::from_millis(1);

/// Decides when to stop waiting.
pub enum Lookout {
    /// In the producer: until the session says that the consumer is gone. The session also holds the limit.
    Producer(Arc<AtomicBool>),
    /// In the consumer: as long as the parent process is the one that started it.
    Consumer { parent: u32 },
}

impl Lookout {
    /// A lookout for a consumer that process `parent` started.
    pub fn consumer(parent: u32) -> Self {
        Self::Consumer { parent }
    }

    /// Waits until `ready` says so: spinning first, then yielding.
    pub fn until(&self, ready: impl Fn() -> bool) -> Result<(), BaselineError> {
        for _ in 0..SPINS {
            if ready() {
                return Ok(());
            }
            spin_loop();
        }
        loop {
            for _ in 0..YIELDS_PER_CHECK {
                if ready() {
                    return Ok(());
                }
                thread::yield_now();
            }
            self.check()?;
        }
    }

    /// Waits like [`until`](Self::until), but asleep.
    pub fn until_at_rest(&self, ready: impl Fn() -> bool) -> Result<(), BaselineError> {
        while !ready() {
            self.check()?;
            thread::sleep(REST);
        }
        Ok(())
    }

    fn check(&self) -> Result<(), BaselineError> {
        match self {
            // The session replaces this by what it knows about the consumer's end.
            Self::Producer(gone) if gone.load(Ordering::Relaxed) => Err(BaselineError::ProducerGone),
            Self::Consumer { parent } if std::os::unix::process::parent_id() != *parent => {
                Err(BaselineError::ProducerGone)
            }
            _ => Ok(()),
        }
    }
}
