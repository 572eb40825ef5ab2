//! Bounded waits for the other process.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::BaselineError;

/// About 5 us of spinning, longer than the exchange of a small tensor, before it yields the core to others: first of all to the
/// other process, if the scheduler has put both on one core.
const SPINS: u32 = 200;

/// Yields between the costlier checks of a wait: they are system calls.
const YIELDS_PER_CHECK: u32 = 256;

/// Sleep of a consumer at rest between two polls, so that it takes no core from the present measurement.
const REST: Duration = Duration::from_millis(1);

/// A condition that ends a wait.
pub enum Lookout {
    /// In the producer: until the session reports that the consumer has ended. The session also holds the timeout.
    Producer(Arc<AtomicBool>),
    /// In the consumer: as long as the parent process is the one that started it.
    Consumer { parent: u32 },
}

impl Lookout {
    /// Makes a lookout for a consumer that process `parent` started.
    pub fn consumer(parent: u32) -> Self {
        Self::Consumer { parent }
    }

    /// Waits until `ready`: spinning first, then yielding.
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
            // The session replaces this error by the cause of the consumer's end.
            Self::Producer(gone) if gone.load(Ordering::Relaxed) => Err(BaselineError::ProducerGone),
            Self::Consumer { parent } if std::os::unix::process::parent_id() != *parent => {
                Err(BaselineError::ProducerGone)
            }
            _ => Ok(()),
        }
    }
}
