//! Pins, which keep a draft's memory in place after its producer has published it.

use crate::error::{Error, Result};
use crate::lease::take::Miss;
use crate::lease::take::hold;
use crate::link::shards::LeaseEntry;
use crate::session::Session;
use crate::tensor::draft::Draft;
use std::sync::Arc;
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::word::Cell;

/// Keeps the memory of a [`Draft`] in place, whatever happens to the published value. No other tensor uses the
/// memory. Language bindings use a pin while their users may hold an address in the memory. A pin uses one of the
/// client's 4096 leases. Dropping the pin ends it.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// let draft = client.create(tensorlend::DType::U8, [4096])?;
/// let pin = draft.pin()?;
/// draft.publish("page")?;
/// client.delete("page")?;
/// assert_eq!(client.instruments().leased()?, 4096); // nobody reads it by its name any more, but its memory stays
/// drop(pin);
/// assert_eq!(client.instruments().leased()?, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pin {
    session: Arc<Session>,
    entry: LeaseEntry,
    slot: SlotNo,
}

impl Draft {
    /// Pins the draft's memory for the life of the returned value, whether the draft is published or dropped.
    ///
    /// # Errors
    /// [`Error::Leases`] if the client holds 4096 leases already; [`Error::SessionEnded`]; [`Error::Forked`].
    pub fn pin(&self) -> Result<Pin> {
        Pin::new(self.session(), self.cell())
    }
}

impl Pin {
    /// Pins the value of a draft. The caller must hold the draft until this function returns.
    pub(crate) fn new(session: &Arc<Session>, cell: Cell) -> Result<Self> {
        session.check()?;
        let me = session.me();
        loop {
            let guard = session.shards.epoch_guard();
            let geometry = session.directory.members[me.index()].geometry.read();
            // No check of words is necessary: while the slot is a draft, only its owner, the caller, can free it.
            match hold(session, &guard, me, cell.lease(me), &[], geometry) {
                Ok(entry) => {
                    session.alloc().pin(cell.slot());
                    return Ok(Self { session: session.clone(), entry, slot: cell.slot() });
                }
                Err(Miss::Full) => return Err(Error::Leases(session.shards.held())),
                Err(Miss::Ended) => return Err(session.control.ended("read", Error::SessionEnded)),
                Err(_) => {}
            }
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if !self.session.is_forked() {
            self.session.shards.release(self.entry);
            self.session.alloc().unpin(self.slot);
        }
    }
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pin").finish_non_exhaustive()
    }
}
