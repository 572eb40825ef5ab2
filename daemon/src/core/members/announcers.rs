//! Announcers: the writers that may announce names without a request to the daemon.
//!
//! A client reads the announcements of every announcer when it announces a name, or looks up a name
//! that is not in the directory. The client first maps the catalogue of each announcer. So a writer
//! becomes an announcer only after it has requested as many new names as there are announcers. From
//! then on announcing saves more than the reading costs.
//!
//! A member that only reads or overwrites never becomes an announcer, and costs other members
//! nothing. In a namespace with shares, a user gets only a share of the announcers. The user's
//! other writers request their names.

use super::Members;
use crate::core::client::Client;
use crate::core::context::Context;
use tensorlend_layout::catalogue::CELL_NAME_WORDS;
use tensorlend_layout::directory::Bitmap;
use tensorlend_layout::number::ClientNo;
use tensorlend_layout::word::{Absorbed, LifeWord, MemberState};

/// Maximum number of announcers of a namespace. Reading more announcers costs more than a request
/// to the daemon (docs/results/names.md).
const ANNOUNCERS_MAX: usize = 128;

impl Members {
    /// Returns the clients whose claims and announcements count.
    pub fn announcing(&self) -> impl Iterator<Item = (ClientNo, &Client)> {
        let announcers = self.announcers.iter().map(|&number| (number, &self[number]));
        announcers.filter(|(_, client)| client.announces())
    }

    /// Counts a new name that a writer requested and received. Once the writer has requested enough
    /// names, it may announce its next names.
    ///
    /// The daemon calls this function before the reply. So the daemon lists the client before the
    /// client announces, and a look-up that depends on the client's announcement has a later fence.
    pub fn count_new_name(&mut self, context: &Context, number: ClientNo, name: &str, life: LifeWord) {
        // No client can announce a long name or a name with a lifetime.
        if name.len() > CELL_NAME_WORDS * 8 || life != LifeWord::FOREVER {
            return;
        }
        let announcers = self.announcers.len();
        let client = self.me(number);
        let has_asked = client.announcements.count_requested() >= announcers;
        let uid = client.uid;
        if !client.publishes() || client.announcements.is_announcer() || !has_asked || announcers >= ANNOUNCERS_MAX {
            return;
        }
        let uids = self.announcers.iter().map(|&number| Some(self[number].uid));
        if !context.ledger.is_above_share(uid, ANNOUNCERS_MAX as u64, uids) {
            self.open_announcer(context, number);
        }
    }

    /// Makes a client an announcer. Sets the bit in the list first, then opens the client's own
    /// word.
    fn open_announcer(&mut self, context: &Context, number: ClientNo) {
        let announcements = &mut self.me(number).announcements;
        announcements.permit();
        let index = announcements.absorbed();
        self.announcers.insert(number);
        Bitmap(&context.directory.head().announcers).set(number);
        tensorlend_layout::crash_point!("daemon: announcer listed");
        context.directory.entry(number).absorbed.set(Absorbed::new(MemberState::Open, index).0);
        tensorlend_layout::crash_point!("daemon: announcer opened");
    }

    /// Ends a client's announcements. The directory contains all of them, and the client makes no
    /// more.
    pub fn close_announcer(&mut self, context: &Context, number: ClientNo) {
        let index = self.me(number).announcements.absorbed();
        context.directory.entry(number).absorbed.set(Absorbed::new(MemberState::Closed, index).0);
        tensorlend_layout::crash_point!("daemon: closed");
        // The daemon clears the bit after it has stored the owner words of the client's
        // announcements. So a look-up that does not see the bit finds these names in the directory.
        self.unlist_announcer(context, number);
    }

    /// Removes a client from the list of announcers.
    pub fn unlist_announcer(&mut self, context: &Context, number: ClientNo) {
        if self.announcers.remove(&number) {
            Bitmap(&context.directory.head().announcers).clear(number);
        }
    }

    /// Restores the bit of a member of the previous daemon according to the member's word
    /// `absorbed`. A daemon that was killed may have stored the bit and not the word.
    pub fn restore_announcer(&mut self, context: &Context, number: ClientNo) {
        let bitmap = Bitmap(&context.directory.head().announcers);
        if self.get(number).is_some_and(|client| client.announcements.is_announcer()) {
            bitmap.set(number);
            self.announcers.insert(number);
        } else {
            bitmap.clear(number);
        }
    }
}
