//! First publications without a request to the daemon.
//!
//! A client claims a name and announces the name in the client's own catalogue. The daemon enters
//! the name into the directory later. So a name moves from the claim to the ring of announcements,
//! then to the directory. A reader that must not miss a name searches the three in this order.

#[cfg(not(loom))]
use crate::catalogue::{CELL_NAME_WORDS, CellRecord};
use crate::catalogue::{Catalogue, RING};
use crate::number::CellNo;
use crate::size;
use crate::sync::{Ordering, fence};
use crate::word::{Absorbed, MemberState, Word};

/// Returns the part of a name's hash that a ring entry contains.
#[inline]
const fn tag(hash: u64) -> u64 {
    hash >> 24
}

/// Returns the name in a cell's record, whose length and words its client reports. Returns `None` if they are no name.
#[cfg(not(loom))]
pub fn reported_name(bytes: u64, words: impl IntoIterator<Item = u64>) -> Option<String> {
    let mut name = Vec::with_capacity(size_of::<u64>() * CELL_NAME_WORDS);
    words.into_iter().for_each(|word| name.extend(word.to_le_bytes()));
    let bytes = usize::try_from(bytes).ok().filter(|&bytes| bytes <= name.len())?;
    name.truncate(bytes);
    let name = String::from_utf8(name).ok()?;
    crate::name::check(&name).is_ok().then_some(name)
}

impl Catalogue {
    /// Owner: claims the name with this hash. The owner reads the claims and announcements of other
    /// clients only afterwards. If two clients claim one name, at least one sees the other's claim.
    ///
    /// After a crash of the owner, the claim stays until the daemon ends this client.
    #[inline]
    pub fn claim_name(&self, hash: u64) {
        self.claim.set(hash);
        fence(Ordering::SeqCst);
        crate::crash_point!("first: claimed");
    }

    /// Owner: withdraws its claim. The owner may have announced the name or not.
    #[inline]
    pub fn unclaim(&self) {
        self.claim.set(0);
        crate::crash_point!("first: unclaimed");
    }

    /// Owner: announces the name with this hash for this cell, and returns the announcement's
    /// number. The store of the head publishes the name.
    ///
    /// The caller has claimed the name, has found no claim or announcement of another client, and
    /// has room in its ring.
    ///
    /// A crash before the store of the head publishes nothing, because no reader reads an entry
    /// beyond the head. A crash after that store leaves the name published.
    #[inline]
    pub fn announce(&self, hash: u64, cell: CellNo) -> u64 {
        let number = self.ring_head.peek();
        self.ring[size::index(number % RING as u64)].put(tag(hash) << 24 | u64::from(cell));
        crate::crash_point!("first: entry written");
        self.ring_head.set(number + 1);
        crate::crash_point!("first: announced");
        number
    }
}

/// A client's announcements that are not in the directory yet.
#[derive(Clone, Copy)]
pub struct Waiting<'a> {
    catalogue: &'a Catalogue,
    /// The client's word `absorbed`, as read before the announcements. A route over an announcement
    /// is valid only while that word is unchanged.
    pub absorbed: Absorbed,
    head: u64,
}

/// The error while the daemon enters the client's last announcements into the directory. The caller
/// tries again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending;

impl<'a> Waiting<'a> {
    /// Reads a client's announcements. Returns `None` if the client has ended or may not announce.
    ///
    /// # Errors
    /// [`Ending`] while the daemon enters the client's last announcements into the directory.
    #[inline]
    pub fn read(catalogue: &'a Catalogue, absorbed: &Word) -> Result<Option<Self>, Ending> {
        // This read precedes the read of the head. If the daemon enters an announcement into the
        // directory between the two reads, the caller misses the announcement here but finds the
        // name in the directory.
        let absorbed = Absorbed(absorbed.read());
        match absorbed.state() {
            MemberState::Open => Ok(Some(Self { catalogue, absorbed, head: catalogue.ring_head.read() })),
            MemberState::Ending => Err(Ending),
            _ => Ok(None),
        }
    }

    /// Reads a client's announcements for a list of names. Returns `None` if the client has ended or may not announce. While
    /// the daemon enters the client's last announcements into the directory, the result includes them.
    #[inline]
    pub fn read_also_ending(catalogue: &'a Catalogue, absorbed: &Word) -> Option<Self> {
        // As in `read`, this read precedes the read of the head.
        let absorbed = Absorbed(absorbed.read());
        matches!(absorbed.state(), MemberState::Open | MemberState::Ending).then(|| Self {
            catalogue,
            absorbed,
            head: catalogue.ring_head.read(),
        })
    }

    /// Copies the name of the n-th announcement of [`Waiting::all_cells`] from its cell's record. Returns `None` if the record has
    /// no name, or if the announcement waits no longer: the directory then has its name.
    #[cfg(not(loom))]
    pub fn name(&self, n: u64, record: &CellRecord, absorbed: &Word) -> Option<String> {
        let name = reported_name(record.name_bytes.peek(), record.name.iter().map(Word::peek));
        name.filter(|_| self.still_waits(n, absorbed))
    }

    /// Returns whether the announcement of this number, the n-th of [`Waiting::all_cells`], still waited after the caller had
    /// copied the name in its cell's record. If not, the directory has the name, and the cell may have another one.
    #[inline]
    pub fn still_waits(&self, n: u64, absorbed: &Word) -> bool {
        // Acquire pairs with the fence of the client before it stores another name in the cell's record. If the caller
        // copied a word of that name, the load below returns a later number.
        fence(Ordering::Acquire);
        Absorbed(absorbed.peek()).index() <= self.absorbed.index().wrapping_add(n)
    }

    /// Returns the number of pending announcements. The client writes this number, so the number
    /// may be false, but the result never exceeds the ring's capacity.
    #[inline]
    pub fn count(&self) -> u64 {
        self.head.wrapping_sub(self.absorbed.index()).min(RING as u64)
    }

    /// Returns the cells announced under names with this hash's tag, the oldest first. The result
    /// may include other names with the same tag.
    #[inline]
    pub fn cells(self, hash: u64) -> impl Iterator<Item = CellNo> + 'a {
        self.words().filter(move |word| word >> 24 == tag(hash)).map(CellNo::low)
    }

    /// Returns all announced cells, the oldest first.
    pub fn all_cells(self) -> impl Iterator<Item = CellNo> + 'a {
        self.words().map(CellNo::low)
    }

    #[inline]
    fn words(self) -> impl Iterator<Item = u64> + 'a {
        let first = self.absorbed.index();
        (0..self.count()).map(move |n| self.catalogue.ring[size::index(first.wrapping_add(n) % RING as u64)].read())
    }
}
