//! The reserve for administrators: sessions that come in although a limit refuses them.
//!
//! An administrator who has to find out what fills the pool needs a session, which takes a place in a table of clients, descriptors
//! and three sheets. Others may have taken all of these. So the daemon admits [`RESERVED_SESSIONS`](crate::core::settings::RESERVED_SESSIONS) sessions of administrators beyond every
//! limit. What they take is charged like everybody's, and the totals may exceed the limits by it. Segments, streams and names of
//! these sessions are not part of the reserve.

use super::{Accounts, Charge, Kind, NamespaceId};
use tensorlend_layout::wire::Refusal;

impl Accounts {
    /// Charges for a sheet of a session that the daemon admits; `beyond` the limits if its place is one of the reserve's.
    pub fn charge_admission(
        &mut self,
        uid: Option<u32>,
        namespace: NamespaceId,
        bytes: u64,
        beyond: bool,
    ) -> Result<Charge, Refusal> {
        if beyond {
            return Ok(self.charge_kept(uid, namespace, Kind::Sheet, bytes));
        }
        self.charge(uid, namespace, Kind::Sheet, bytes)
    }
}
