//! The wake-up of a thread that sleeps on a futex.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};
use rustix::time::Timespec;

use super::line::Line;
use crate::asleep::Observed;
use crate::duo::Duo;
use crate::end::{Alarm, Wake, spin_until};
use crate::{BaselineError, Cores, Meter};

/// Maximum time of one sleep, which limits the delay by a missed wake-up.
const NAP: Duration = Duration::from_secs(1);

/// The state that both ends share.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) stamp_ns: Line,
    pub(super) sent: AtomicU32,
    pub(super) acknowledged: Line,
    pub(super) receiver: AtomicU32,
}

impl Shared {
    /// Waits until the receiver has introduced itself, and returns the receiver. Called at the
    /// sending end.
    pub(super) fn observed(&self) -> Result<Observed, BaselineError> {
        let tid = spin_until(|| Ok(Some(self.receiver.load(Ordering::Acquire)).filter(|&tid| tid != 0)))?;
        Observed::new(std::process::id(), tid)
    }

    /// Introduces this thread as the receiver. Called at the receiving end.
    pub(super) fn introduce(&self) {
        self.receiver.store(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(), Ordering::Release);
    }

    pub(super) fn acknowledged(&self, count: u64) -> Result<(), BaselineError> {
        spin_until(|| Ok((self.acknowledged.0.load(Ordering::Acquire) >= count).then_some(())))
    }
}

struct End {
    shared: Arc<Shared>,
    /// The receiving thread; `None` at the receiving end.
    receiver: Option<Observed>,
    count: u32,
}

impl Wake for End {
    fn until_asleep(&mut self) -> Result<(), BaselineError> {
        self.receiver.as_ref().map_or(Ok(()), Observed::until_asleep)
    }

    fn send(&mut self, now: fn() -> u64) -> Result<(), BaselineError> {
        self.count += 1;
        self.shared.stamp_ns.0.store(now(), Ordering::Relaxed);
        self.shared.sent.store(self.count, Ordering::Release);
        // Use a shared futex, because the receiver of a real exchange is another process.
        futex::wake(&self.shared.sent, Flags::empty(), i32::MAX as u32).map_err(BaselineError::system("wake"))?;
        Ok(())
    }

    fn receive(&mut self) -> Result<u64, BaselineError> {
        while self.shared.sent.load(Ordering::Acquire) == self.count {
            let nap = Timespec { tv_sec: NAP.as_secs() as i64, tv_nsec: 0 };
            match futex::wait(&self.shared.sent, Flags::empty(), self.count, Some(&nap)) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
                Err(error) => return Err(BaselineError::system("sleep")(error)),
            }
        }
        self.count += 1;
        Ok(self.shared.stamp_ns.0.load(Ordering::Relaxed))
    }

    fn acknowledge(&mut self) -> Result<(), BaselineError> {
        self.shared.acknowledged.0.store(u64::from(self.count), Ordering::Release);
        Ok(())
    }

    fn acknowledged(&mut self) -> Result<(), BaselineError> {
        self.shared.acknowledged(u64::from(self.count))
    }
}

/// Measures one way, from just before a store until a receiver that slept on its futex has read the
/// clock.
///
/// # Errors
///
/// [`BaselineError`] if the threads cannot be started on these cores.
pub fn futex_wake(cores: Cores) -> Result<Box<dyn Meter>, BaselineError> {
    let here = Arc::new(Shared::default());
    let there = here.clone();
    let first = move || {
        let receiver = Some(here.observed()?);
        Ok(Alarm(End { shared: here, receiver, count: 0 }))
    };
    let second = move || {
        there.introduce();
        Ok(Alarm(End { shared: there, receiver: None, count: 0 }))
    };
    Ok(Box::new(Duo::start(cores, first, second)?))
}
