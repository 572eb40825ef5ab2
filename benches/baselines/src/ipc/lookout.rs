//! Bounded waits for the other process.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::BaselineError;

/// Number of spins before a wait yields the core. The spins take about 5 us, longer than the
/// exchange of a small tensor. The yield is necessary because the scheduler may have put the other
/// process on the same core.
const SPINS: u32 = 200;

/// Number of yields between two checks of the other process. Each check is a system call.
const YIELDS_PER_CHECK: u32 = 256;

/// Sleep of a resting consumer between two polls, so that it takes no CPU time from the present measurement.
const REST: Duration = Duration::from_millis(1);

/// Bounds waits for the other process: a wait ends early if that process has ended.
pub enum Lookout {
    /// For the producer. Waits end when the session reports that the consumer has ended. The
    /// session also holds the timeout.
    Producer(Arc<AtomicBool>),
    /// For the consumer. Waits end when its parent is no longer the process that started it.
    Consumer { parent: u32 },
}

impl Lookout {
    /// Makes the bound for a consumer that the process `parent` started.
    pub fn consumer(parent: u32) -> Self {
        Self::Consumer { parent }
    }

    /// Waits until `ready` returns true. Spins first, and then yields the core.
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

    /// Waits as [`until`](Self::until) does, but sleeps between polls.
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
