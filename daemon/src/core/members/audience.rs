//! Audiences: whose leases an owner has to look for before it reuses memory.
//!
//! A member leases a slot only in a segment that it has mapped, and it has another's segment only from the daemon. So the daemon
//! notes in the owner's line of the directory to whom it shows the owner's segments, and the owner scans the lease tables of these
//! members alone. A line has [`AUDIENCE`] bits; members whose numbers are equal modulo that share a bit.

use super::Members;
use crate::core::context::Context;
use tensorlend_layout::directory::{AUDIENCE, audience_bit};

impl Members {
    /// Notes that a client is shown something of an owner's. Called before the reply that shows it: a lease that the reader takes
    /// later is found by every scan whose fence comes behind that of the lease.
    pub fn show(&mut self, context: &Context, owner: u16, reader: u16) {
        if owner == reader {
            // An owner scans its own lease table in any case.
            return;
        }
        if let Some(shown) = &mut self.me(reader).shown {
            shown.insert(owner);
        }
        let (word, bit) = audience_bit(reader);
        context.directory.entry(owner).audience[word].set_bits(bit);
        tensorlend_layout::crash_point!("daemon: reader listed");
    }

    /// Takes a client that is gone off the lists that it stands on. Its leases do not count any more.
    pub fn show_no_more(&self, context: &Context, reader: u16, shown: Option<impl IntoIterator<Item = u16>>) {
        let (word, bit) = audience_bit(reader);
        // What an earlier daemon has shown to whom only its bits tell: they stay until their owners are gone.
        for owner in shown.into_iter().flatten() {
            let sharers = (reader % AUDIENCE..=u16::MAX).step_by(usize::from(AUDIENCE));
            let sharers = sharers.take_while(|&number| usize::from(number) < context.directory.members.len());
            let mut sharers = sharers.filter_map(|number| self.get(number));
            if sharers.all(|other| other.shown.as_ref().is_some_and(|shown| !shown.contains(&owner))) {
                context.directory.entry(owner).audience[word].clear_bits(bit);
            }
        }
    }
}
