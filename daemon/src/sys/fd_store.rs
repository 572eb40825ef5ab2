//! The service manager's file descriptor store: stored descriptors outlive this daemon and are passed to the next one.
//!
//! systemd's store (sd_notify(3), `FDSTORE=1` and `FDSTOREREMOVE=1`) holds a duplicate of each descriptor, under a
//! name, as long as the unit lives, and passes all of them at the next start. Without a manager nothing is stored.

use crate::core::MemId;
use crate::core::label::Label;
use sd_notify::NotifyState;
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Maximum length of a name in systemd.
const NAME_BYTES_MAX: usize = 255;

/// The descriptors in the store.
#[derive(Debug, Default)]
pub struct FdStore {
    /// Whether there is a store.
    on: bool,
    names: BTreeMap<MemId, String>,
    failed: bool,
}

/// A recovered descriptor.
pub type Stored = (Label, OwnedFd);

impl FdStore {
    /// Returns the store of the service manager that started this process, if one did.
    pub fn of_this_process() -> Self {
        Self { on: super::notify::is_heard(), ..Self::default() }
    }

    /// Stores a descriptor. A previous label of the same memory is removed.
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
        // This call blocks while the manager's queue is full: memory that is lent before it is stored would be lost if
        // the daemon were killed.
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

    /// Records that the store has the descriptor already, under this label.
    pub fn has(&mut self, mem: MemId, label: &Label) {
        if self.on {
            self.names.insert(mem, label.to_string());
        }
    }

    /// Removes the descriptor from the store, if the store has it.
    pub fn forget(&mut self, mem: MemId) {
        if let Some(name) = self.names.remove(&mem) {
            self.forget_name(&name);
        }
    }

    /// As [`FdStore::forget`], for a descriptor that this daemon did not take over.
    pub fn forget_name(&self, name: &str) {
        if self.on {
            let _ = sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
        }
    }
}
