//! The service manager as the keeper of descriptors: what it keeps outlives this daemon, and comes back to the next one.
//!
//! systemd's file descriptor store (sd_notify(3), `FDSTORE=1` and `FDSTOREREMOVE=1`): it holds a duplicate of each, under a
//! name, as long as the unit lives, and hands all of them over at the next start. Without a manager nothing is kept.

use crate::core::MemId;
use crate::core::label::Label;
use sd_notify::NotifyState;
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Longest name that systemd takes.
const NAME_BYTES_MAX: usize = 255;

/// What is kept elsewhere.
#[derive(Debug, Default)]
pub struct Keeper {
    /// Whether there is anybody.
    on: bool,
    names: BTreeMap<MemId, String>,
    failed: bool,
}

/// A descriptor that came back.
pub type Heirloom = (Label, OwnedFd);

impl Keeper {
    /// The service manager that started this process, if one did.
    pub fn of_this_process() -> Self {
        Self { on: super::notify::is_heard(), ..Self::default() }
    }

    /// Has a descriptor kept. What it was kept as before, it no longer is.
    pub fn keep(&mut self, mem: MemId, label: &Label, fd: BorrowedFd<'_>) {
        self.forget(mem);
        let name = label.to_string();
        if !self.on {
            return;
        }
        if name.len() > NAME_BYTES_MAX {
            tracing::warn!("a restart will lose this namespace, whose name is too long to be kept: {name}");
            return;
        }
        // It waits while the manager's queue is full: what is lent before it is kept would be lost with us.
        match sd_notify::notify_with_fds(&[NotifyState::FdStore, NotifyState::FdName(&name)], &[fd]) {
            Ok(()) => {
                self.names.insert(mem, name);
            }
            Err(error) if !std::mem::replace(&mut self.failed, true) => {
                tracing::warn!("the service manager does not keep descriptors, a restart will lose tensors: {error}");
            }
            Err(_) => {}
        }
    }

    /// It is kept already, under this label.
    pub fn has(&mut self, mem: MemId, label: &Label) {
        if self.on {
            self.names.insert(mem, label.to_string());
        }
    }

    /// Has it kept no longer, if it was.
    pub fn forget(&mut self, mem: MemId) {
        if let Some(name) = self.names.remove(&mem) {
            self.forget_name(&name);
        }
    }

    /// As [`Keeper::forget`], of what this daemon did not take over.
    pub fn forget_name(&self, name: &str) {
        if self.on {
            let _ = sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
        }
    }
}
