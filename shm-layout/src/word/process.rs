//! The process of a client.

use super::low32;

/// The process of a client, in its entry of the directory. Fields, highest first: pid (32 bits), uid (32).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessWord(pub u64);

impl ProcessWord {
    /// Returns the word with these fields.
    pub const fn new(pid: u32, uid: u32) -> Self {
        Self((pid as u64) << 32 | uid as u64)
    }

    /// Returns the process's number, in the daemon's pid namespace. 0: unknown.
    pub const fn pid(self) -> u32 {
        low32(self.0 >> 32)
    }

    /// Returns the process's user.
    pub const fn uid(self) -> u32 {
        low32(self.0)
    }

    /// Returns the word of an unknown process of the same user.
    pub const fn without_pid(self) -> Self {
        Self::new(0, self.uid())
    }
}
