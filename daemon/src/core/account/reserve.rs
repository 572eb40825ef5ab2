//! The reserve for administrators: the daemon admits some sessions of administrators beyond the
//! limits.
//!
//! An administrator who wants to know what fills the pool needs a session. A session needs a row in
//! the table of clients, descriptors and three sheets. Other users may have taken all rows,
//! descriptors or sheets. So the daemon admits
//! [`RESERVED_SESSIONS`](crate::core::settings::RESERVED_SESSIONS) sessions of administrators
//! beyond every limit. The daemon charges these sessions like all others, so the totals may exceed
//! the limits. Segments, streams and names of these sessions are not part of the reserve.

use super::{Accounts, Charge, Kind, NamespaceId};
use tensorlend_layout::wire::Refusal;

impl Accounts {
    /// Charges a sheet of a session that the daemon admits. `beyond` is true for a session of the
    /// reserve, which may exceed the limits.
    pub fn charge_admission(
        &mut self,
        uid: Option<u32>,
        namespace: NamespaceId,
        bytes: u64,
        beyond: bool,
    ) -> Result<Charge, Refusal> {
        if beyond {
            return Ok(self.charge_recovered(uid, namespace, Kind::Sheet, bytes));
        }
        self.charge(uid, namespace, Kind::Sheet, bytes)
    }
}
