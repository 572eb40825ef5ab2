//! The fd store of the service manager, which keeps descriptors when this daemon ends, and passes them to the next one.
//!
//! systemd's fd store (sd_notify(3), `FDSTORE=1` and `FDSTOREREMOVE=1`) has a duplicate of each stored descriptor,
//! under a name, until the unit is unloaded. It passes all of them to the daemon's next start. Without a service
//! manager, the daemon stores nothing.

use crate::core::MemId;
use crate::core::label::Label;
use sd_notify::NotifyState;
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Maximum length in bytes of a name in systemd's store.
const NAME_BYTES_MAX: usize = 255;

/// The names of the descriptors that the daemon has stored.
#[derive(Debug, Default)]
pub struct FdStore {
    /// Whether a service manager offers a store.
    on: bool,
    names: BTreeMap<MemId, String>,
    failed: bool,
}

/// A descriptor that the store has passed, with its label.
pub type Stored = (Label, OwnedFd);

impl FdStore {
    /// Returns the store of the service manager that started this process, if one did.
    pub fn of_this_process() -> Self {
        Self { on: super::notify::is_heard(), ..Self::default() }
    }

    /// Stores a descriptor under this label. If the same memory was stored under another label, the daemon removes that
    /// entry.
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
        // This call blocks while the manager's queue is full. It must not be deferred: if the daemon lent memory before
        // it was stored, and were then killed, the memory would be lost.
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

    /// Removes a descriptor by its name in the store: one that this daemon has not taken over.
    pub fn forget_name(&self, name: &str) {
        if self.on {
            let _ = sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
        }
    }
}
