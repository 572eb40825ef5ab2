//! Audiences: the members whose leases an owner scans before it reuses memory.
//!
//! A member leases a slot only in a segment that the member has mapped. The member receives another
//! member's segment only from the daemon. So the daemon records each member to which it shows an
//! owner's segments. The record is in the owner's entry in the directory. The owner scans only the
//! lease tables of these members.
//!
//! An entry has [`AUDIENCE`] bits. Members share a bit if their numbers are equal modulo
//! [`AUDIENCE`].

use super::Members;
use crate::core::context::Context;
use tensorlend_layout::directory::{AUDIENCE, audience_bit};
use tensorlend_layout::number::ClientNo;

impl Members {
    /// Records that the daemon shows reader R some memory of owner P. The daemon calls this
    /// function before the reply, and R leases a slot of P only after the reply. Every scan by P
    /// whose fence follows the fence of R's lease finds the lease.
    pub fn show(&mut self, context: &Context, owner: ClientNo, reader: ClientNo) {
        if owner == reader {
            // An owner scans its own lease table in any case.
            return;
        }
        let epoch = self.get(owner).map_or(0, |client| client.member.epoch());
        if let Some(shown) = &mut self.me(reader).shown {
            shown.insert(owner, epoch);
        }
        let (word, bit) = audience_bit(reader);
        context.directory.entry(owner).audience[word].set_bits(bit);
        tensorlend_layout::crash_point!("daemon: reader listed");
    }

    /// Removes a disconnected client from the audiences that contain it. The client's leases do not
    /// count any more.
    pub fn end_showing(&self, context: &Context, reader: ClientNo, shown: impl Iterator<Item = ClientNo>) {
        let (word, bit) = audience_bit(reader);
        // A client without a record of what it was shown is not in `shown` at all: its bits are the daemon's only record of
        // the memory that a previous daemon has shown to it. Such bits stay until their owners end.
        for owner in shown {
            let sharers = (reader.index() % usize::from(AUDIENCE)..context.directory.members.len())
                .step_by(usize::from(AUDIENCE));
            let mut sharers = sharers.filter_map(|number| self.get(ClientNo::at(number)?));
            if sharers.all(|other| other.shown.as_ref().is_some_and(|shown| !shown.contains_key(&owner))) {
                context.directory.entry(owner).audience[word].clear_bits(bit);
            }
        }
    }
}
