//! The reserve for administrators: the daemon admits their sessions although a limit refuses them.
//!
//! An administrator who wants to know what fills the pool needs a session. A session takes a line of the table of clients,
//! descriptors and three sheets. Other users may have taken all lines, descriptors or sheets. So the daemon admits
//! [`RESERVED_SESSIONS`](crate::core::settings::RESERVED_SESSIONS) sessions of administrators beyond every limit. The daemon
//! charges these sessions like all others, so the totals may exceed the limits. Segments, streams and names of these sessions are
//! not part of the reserve.

use super::{Accounts, Charge, Kind, NamespaceId};
use tensorlend_layout::wire::Refusal;

impl Accounts {
    /// Charges a sheet of a session that the daemon admits. `beyond`: beyond the limits for a session of the reserve.
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
