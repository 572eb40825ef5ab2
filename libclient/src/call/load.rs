//! How much a server has to do: one word, by which callers choose among servers.
//!
//! The word is `next` of a cursor of the server's own that is in no stream (`stream` is 0). It lies in the server's lease table, which
//! its session alone writes and all others can map for reading; to producers and to the daemon a cursor without a stream says nothing.
//! A server tells which cursor it is beside its process, in the value of `SERVICE/.server/S`: u32 of (pid, catalogue, cursor).
//!
//! *Load* is the requests that it has taken and not answered, and those that lay in its lines when it last looked. What comes while it
//! computes is not in it, so that a load is too low rather than too high, and a hint: a caller that believes a wrong one waits longer,
//! and nothing else.
//!
//! | when | what the word says |
//! |---|---|
//! | the server's process dies | its last load, until its session ends; then the member is gone, and with it the load |
//! | the server ends | that it has ended; then nothing, and another cursor's count once the client uses this one again |
//! | its catalogue has another owner already, and its name is still there | some word of another's table, for as long |
//! | the server is an older one, or had no cursor left | nothing: such a server is taken by the old rule alone |

use crate::client::Client;
use crate::session::Session;
use std::sync::{Arc, Mutex};
use tensorlend_layout::leases::CURSORS;
use tensorlend_os::mutex::lock;

/// No cursor.
const NONE: u32 = u32::MAX;
/// Of a server that has ended.
const ENDED: u64 = u64::MAX;

/// A server's own load.
#[derive(Debug)]
pub struct Load {
    client: Client,
    cursor: Option<u16>,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    taken: u64,
    queued: u64,
}

impl Load {
    /// Of a server that has nothing to do.
    pub fn new(client: &Client) -> Self {
        let session = client.session();
        let cursor = session.streams().take_cursor();
        let load = Self { client: client.clone(), cursor, counts: Mutex::default() };
        if let Some(cursor) = cursor {
            let words = &session.shards.table().cursors[usize::from(cursor)];
            // As a subscription that ended has left them.
            words.stream.set(0);
            words.next.set(0);
            words.lost.set(0);
            words.parked.set(0);
        }
        load
    }

    /// What is said of a server, for callers to find its load.
    pub fn presence(&self) -> [u32; 3] {
        let cursor = self.cursor.map_or(NONE, u32::from);
        [std::process::id(), self.client.session().me().into(), cursor]
    }

    /// A request was taken, and so many lie there still.
    pub fn taken(&self, queued: u64) {
        self.change(|counts| *counts = Counts { taken: counts.taken + 1, queued });
    }

    /// A request is about to be answered.
    ///
    /// Before the answer is sent: whoever has read it (an acquire, of the ring's head, which was stored with release after this) finds
    /// this word changed, and does not take its own request for another's.
    pub fn answered(&self) {
        self.change(|counts| counts.taken = counts.taken.saturating_sub(1));
    }

    /// So many lie there.
    pub fn queued(&self, queued: u64) {
        self.change(|counts| counts.queued = queued);
    }

    /// The store is inside the lock: of two threads that answer, the one that has counted last has the last word.
    fn change(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = lock(&self.counts);
        change(&mut counts);
        if let Some(cursor) = self.cursor {
            let words = &self.client.session().shards.table().cursors[usize::from(cursor)];
            words.next.set(counts.taken.saturating_add(counts.queued));
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let session = self.client.session();
        if let (Some(cursor), false) = (self.cursor, session.is_forked()) {
            session.shards.table().cursors[usize::from(cursor)].next.set(ENDED);
            session.streams().give_cursor(cursor);
        }
    }
}

/// Where the load of a server stands, as it has said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauge(Option<(u16, u16)>);

impl Gauge {
    /// From the value of a server's name.
    pub fn parse(presence: &[u32]) -> Self {
        let &[_pid, catalogue, cursor, ..] = presence else { return Self(None) };
        let place = u16::try_from(catalogue).ok().zip(u16::try_from(cursor).ok());
        Self(place.filter(|(_, cursor)| usize::from(*cursor) < CURSORS))
    }

    /// What stands there; `None`: nobody says.
    ///
    /// No system call once the table is mapped, which it is for whoever sends requests to that server.
    pub fn read(self, session: &Arc<Session>) -> Option<u64> {
        let (catalogue, cursor) = self.0?;
        let read = session.peers().with_leases(catalogue, |table| table.cursors[usize::from(cursor)].next.read());
        read.ok().flatten().filter(|&load| load != ENDED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_server_is_an_allegation() {
        assert_eq!(Gauge::parse(&[1, 2, 3]), Gauge(Some((2, 3))));
        for bad in [&[][..], &[1], &[1, 2], &[1, 2, NONE], &[1, 1 << 16, 3], &[1, 2, CURSORS as u32]] {
            assert_eq!(Gauge::parse(bad), Gauge(None), "{bad:?}");
        }
    }
}
