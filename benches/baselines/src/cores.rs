//! The cores of the two parties of an exchange.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::BaselineError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cores {
    /// The core of the party that sends first.
    pub first: usize,
    /// The core of the party that responds.
    pub second: usize,
}

impl Cores {
    /// Returns the first two cores that this thread may use. If it may use only one core, returns
    /// that core twice.
    ///
    /// # Errors
    ///
    /// [`BaselineError::System`] if the kernel does not report the cores.
    pub fn find() -> Result<Self, BaselineError> {
        let set = sched_getaffinity(None).map_err(BaselineError::system("learn which cores may be used"))?;
        let mut allowed = (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core));
        let first = allowed.next().unwrap_or(0);
        Ok(Self { first, second: allowed.next().unwrap_or(first) })
    }

    /// Returns true if both parties share one core.
    pub fn are_one(self) -> bool {
        self.first == self.second
    }
}

/// Pins this thread, and all threads that it starts later, to one core.
///
/// # Errors
///
/// [`BaselineError::System`] if the thread may not run on this core.
pub fn pin(core: usize) -> Result<(), BaselineError> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).map_err(BaselineError::system("keep a thread on one core"))
}

/// Lets this thread run on every core that the system grants it.
///
/// # Errors
///
/// [`BaselineError::System`] if the kernel refuses.
pub fn unpin() -> Result<(), BaselineError> {
    let mut set = CpuSet::new();
    for core in 0..CpuSet::MAX_CPU {
        set.set(core);
    }
    sched_setaffinity(None, &set).map_err(BaselineError::system("let a thread run anywhere"))
}

#[cfg(test)]
mod tests {
    use super::{Cores, pin, unpin};

    #[test]
    fn a_pinned_thread_finds_its_core_only() {
        let cores = Cores::find().unwrap();
        std::thread::spawn(move || {
            pin(cores.second).unwrap();
            assert_eq!(Cores::find().unwrap(), Cores { first: cores.second, second: cores.second });
            assert_eq!(rustix::thread::sched_getcpu(), cores.second);
            unpin().unwrap();
            assert_eq!(Cores::find().unwrap().are_one(), cores.are_one());
        })
        .join()
        .unwrap();
    }
}
