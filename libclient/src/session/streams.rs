//! A session's cursors for its subscriptions, the streams that it produces, and the rings that its producers have closed.

use crate::alloc::Allocator;
use crate::error::{Error, Result};
use crate::peers::PeerTable;
use std::sync::{Arc, Mutex};
use tensorlend_layout::leases::{self, CURSORS, LeaseTable};
use tensorlend_layout::number::{CursorNo, EntryNo, StreamLine};
use tensorlend_layout::raw::Records;
use tensorlend_layout::stream::RingEntry;
use tensorlend_layout::wire::Refusal;
use tensorlend_layout::word::{Cell, OwnerWord};
use tensorlend_os::mutex::lock;

/// Cursors, open streams and closed rings of one session.
pub struct StreamTable {
    peers: Arc<PeerTable>,
    alloc: Arc<Allocator>,
    /// Numbers of the cursors that are free.
    cursors: Mutex<Vec<CursorNo>>,
    /// Streams that this client produces, or opens at present. The daemon does not refuse a client's second producer of a
    /// stream, because it cannot know whether the client has closed the first one.
    produced: Mutex<Vec<Produced>>,
    /// Streams that were closed here and still hold messages.
    closed: Mutex<Vec<ClosedRing>>,
}

impl StreamTable {
    pub fn new(alloc: Arc<Allocator>, peers: Arc<PeerTable>) -> Self {
        let cursors = Mutex::new((0..CURSORS).rev().filter_map(CursorNo::at).collect());
        Self { peers, alloc, cursors, produced: Mutex::default(), closed: Mutex::default() }
    }

    /// Takes a free cursor of this client's lease table.
    pub fn take_cursor(&self) -> Option<CursorNo> {
        let mut cursors = lock(&self.cursors);
        cursors.extend(self.peers.control.late().take_cursors());
        cursors.pop()
    }

    /// Frees a cursor that no stream lists.
    pub fn give_cursor(&self, cursor: CursorNo) {
        lock(&self.cursors).push(cursor);
    }

    /// Reserves the name of a stream that this client opens, until [`StreamTable::release`].
    ///
    /// # Errors
    /// [`Error::Refused`] if this client produces the stream already.
    pub fn reserve(&self, name: &str) -> Result<()> {
        let mut produced = lock(&self.produced);
        produced.retain(|one| one.word.is_none_or(|word| leads(&self.peers, word)));
        if produced.iter().any(|one| one.name == name) {
            return Err(Error::Refused {
                doing: format!("open stream {name:?}"),
                refusal: Refusal::StreamTaken(name.to_owned()),
            });
        }
        produced.push(Produced { name: name.to_owned(), word: None });
        Ok(())
    }

    /// Records that the daemon has opened a stream whose name this client has reserved.
    pub fn opened(&self, name: &str, word: NameWord) {
        let mut produced = lock(&self.produced);
        if let Some(one) = produced.iter_mut().find(|one| one.name == name) {
            one.word = Some(word);
        }
    }

    /// Releases a name that this client has reserved. `word` is `None` if the stream was not opened.
    pub fn release(&self, name: &str, word: Option<NameWord>) {
        lock(&self.produced).retain(|one| one.name != name || one.word != word);
    }

    /// Adds a ring that a producer has closed.
    pub fn close(&self, ring: ClosedRing) {
        lock(&self.closed).push(ring);
    }

    /// Retires the messages of streams that were closed here and have since been deleted or opened again. Keeps the messages
    /// that a subscriber still reads by its cursor alone.
    pub fn retire_closed(&self) {
        let gone: Vec<ClosedRing> = {
            let mut closed = lock(&self.closed);
            closed.extract_if(.., |ring| ring.is_gone(&self.peers)).collect()
        };
        for value in gone.iter().flat_map(ClosedRing::values) {
            self.alloc.retire(value);
        }
    }
}

/// The directory's entry of a name, and its owner word while the name leads to a certain stream.
pub type NameWord = (EntryNo, OwnerWord);

/// Returns whether a name still leads to the stream for which the word was read.
fn leads(peers: &PeerTable, (entry, word): NameWord) -> bool {
    peers.directory.names.get(entry.index()).is_some_and(|entry| entry.owner_word.read() == word.0)
}

/// A stream that this client produces.
struct Produced {
    name: String,
    /// `None` before the daemon has opened the stream.
    word: Option<NameWord>,
}

/// The ring of a stream that its producer has closed. Its messages stay until no client can reach them by the stream's name.
pub struct ClosedRing {
    pub entries: Records<RingEntry>,
    pub index: StreamLine,
    pub id: u64,
    pub name: NameWord,
    pub sent: u64,
}

impl ClosedRing {
    /// Returns true if the stream was deleted or opened again, and no subscriber reads its messages by a cursor alone.
    pub fn is_gone(&self, peers: &PeerTable) -> bool {
        let directory = &peers.directory;
        // A subscriber leases the messages by the owner word. The daemon changes the words of the stream's line before it.
        if leads(peers, self.name) {
            return false;
        }
        leases::scan_fence();
        // While the daemon is down, a lease table may be unreadable. Assume that an unreadable table holds a lease.
        let keeps = |table: &LeaseTable| table.cursors.iter().any(|cursor| cursor.keeps(self.id, self.sent));
        let free = |number| peers.with_leases(number, keeps).is_ok_and(|keeps| keeps != Some(true));
        // The daemon has shown the ring to every client that has a cursor in the ring.
        let me = peers.me();
        directory.audience(me).chain([me]).all(free)
    }

    /// Returns the messages in the ring.
    pub fn values(&self) -> impl Iterator<Item = Cell> + '_ {
        self.entries.iter().map(|entry| Cell(entry.cell.peek())).filter(|value| value.is_value())
    }
}
