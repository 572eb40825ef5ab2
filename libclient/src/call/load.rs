//! A server's load: one word, which callers read to choose a server.
//!
//! The word is the field `next` of a cursor that the server owns and that belongs to no stream (`stream` is 0). The
//! cursor is in the server's lease table, which only the server's session writes and all other clients can map for
//! reading. Producers and the daemon ignore a cursor without a stream. A server publishes the cursor's number in the
//! value of `SERVICE/.server/S`: u32 of (pid, catalogue, cursor).
//!
//! The *load* counts the requests that the server has taken and not yet responded to. It also counts the requests
//! that waited in the server's channels at its last poll. Requests that arrive while the server computes are missing,
//! so a load is usually too low rather than too high. It is only a hint: a caller that uses a wrong load may wait
//! longer, but nothing else happens.
//!
//! | event | the word |
//! |---|---|
//! | the server's process dies | its last load, until its session ends; then the member is gone, and with it the load |
//! | the server ends | a mark that it has ended; later another cursor's count, once the client reuses this one |
//! | its catalogue has another owner already, and its name still exists | some word of the other owner's table, for that time |
//! | the server is an older version, or had no free cursor | none: callers choose such a server by the number of its channels alone |

use crate::client::Client;
use crate::session::Session;
use std::sync::{Arc, Mutex};
use tensorlend_layout::leases::CURSORS;
use tensorlend_layout::number::{ClientNo, CursorNo};
use tensorlend_os::mutex::lock;

/// The value for a missing cursor.
const NONE: u32 = u32::MAX;
/// The load word of a server that has ended.
const ENDED: u64 = u64::MAX;

/// A server's own load.
#[derive(Debug)]
pub struct Load {
    client: Client,
    cursor: Option<CursorNo>,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    taken: u64,
    queued: u64,
}

impl Load {
    /// Creates the load of a server, which is idle at first.
    pub fn new(client: &Client) -> Self {
        let session = client.session();
        let cursor = session.streams().take_cursor();
        let load = Self { client: client.clone(), cursor, counts: Mutex::default() };
        if let Some(cursor) = cursor {
            let words = &session.shards.table().cursors[cursor.index()];
            // Set the words to the values that a closed subscription leaves.
            words.stream.set(0);
            words.next.set(0);
            words.lost.set(0);
            words.parked.set(0);
        }
        load
    }

    /// Returns the value that a server publishes, so that callers find its load.
    pub fn presence(&self) -> [u32; 3] {
        let cursor = self.cursor.map_or(NONE, |cursor| cursor.get().into());
        [std::process::id(), self.client.session().me().get().into(), cursor]
    }

    /// Records that the server took a request, and that `queued` requests still wait.
    pub fn taken(&self, queued: u64) {
        self.change(|counts| *counts = Counts { taken: counts.taken + 1, queued });
    }

    /// Records that the server is about to respond to a request.
    ///
    /// The server calls this before it sends the reply. A caller R that has received the reply sees the new value:
    /// R's acquire load of the ring's head pairs with the server's later release store. So R does not regard its own
    /// request as another caller's.
    pub fn answered(&self) {
        self.change(|counts| counts.taken = counts.taken.saturating_sub(1));
    }

    /// Records that `queued` requests wait.
    pub fn queued(&self, queued: u64) {
        self.change(|counts| counts.queued = queued);
    }

    /// Store the word inside the lock. Then, of two threads that respond, the one that counted last also stores last.
    fn change(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = lock(&self.counts);
        change(&mut counts);
        if let Some(cursor) = self.cursor {
            let words = &self.client.session().shards.table().cursors[cursor.index()];
            words.next.set(counts.taken.saturating_add(counts.queued));
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let session = self.client.session();
        if let (Some(cursor), false) = (self.cursor, session.is_forked()) {
            session.shards.table().cursors[cursor.index()].next.set(ENDED);
            session.streams().give_cursor(cursor);
        }
    }
}

/// The location of a server's load word, as the server has published it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauge(Option<(ClientNo, CursorNo)>);

impl Gauge {
    /// Parses the value of a server's name.
    pub fn parse(presence: &[u32]) -> Self {
        let &[_pid, number, cursor, ..] = presence else { return Self(None) };
        let place = ClientNo::try_from(u64::from(number)).ok().zip(CursorNo::try_from(u64::from(cursor)).ok());
        Self(place.filter(|(_, cursor)| cursor.index() < CURSORS))
    }

    /// Reads the load. Returns `None` if the server has no load word.
    ///
    /// Makes no system call if the table is mapped. For callers that send requests to that server, it is.
    pub fn read(self, session: &Arc<Session>) -> Option<u64> {
        let (number, cursor) = self.0?;
        let read = session.peers().with_leases(number, |table| table.cursors[cursor.index()].next.read());
        read.ok().flatten().filter(|&load| load != ENDED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_server_is_an_allegation() {
        assert_eq!(Gauge::parse(&[1, 2, 3]), Gauge(Some((ClientNo::new(2), CursorNo::new(3)))));
        for bad in [&[][..], &[1], &[1, 2], &[1, 2, NONE], &[1, 1 << 16, 3], &[1, 2, CURSORS as u32]] {
            assert_eq!(Gauge::parse(bad), Gauge(None), "{bad:?}");
        }
    }
}
