//! The process to which a handle belongs.

use tensorlend::{Error, Result};
use tensorlend_os::fork;

/// The process in which a handle was created. In the child of a fork, this is the parent.
#[derive(Clone, Copy)]
pub struct Process(u64);

impl Process {
    /// Returns the calling process.
    pub fn current() -> Self {
        Self(fork::generation())
    }

    /// Returns [`Error::Forked`] in the child of a fork that did not inherit the process's leases.
    pub fn check_readable(self) -> Result<()> {
        if fork::is_readable(self.0) { Ok(()) } else { Err(Error::Forked) }
    }

    /// Returns [`Error::Forked`] in the child of a fork.
    pub fn check(self) -> Result<()> {
        if self.0 == fork::generation() { Ok(()) } else { Err(Error::Forked) }
    }
}
