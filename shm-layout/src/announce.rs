//! First publications without the daemon: a name is claimed, announced in its client's ring, and absorbed by the daemon
//! into the directory. It travels in this order, so whoever must not miss it looks in this order.

use crate::catalogue::{Catalogue, RING};
use crate::sync::{Ordering, fence};
use crate::word::{Absorbed, MemberState, Word};

/// The part of a name's hash that stands in a ring.
#[inline]
const fn tag(hash: u64) -> u64 {
    hash >> 24
}

impl Catalogue {
    /// Owner: claims the name with this hash. What the others say is read after this: of two that claim one name, one at
    /// least sees the other.
    ///
    /// Crash after this: the claim stands until the daemon ends this client.
    #[inline]
    pub fn claim_name(&self, hash: u64) {
        self.claim.set(hash);
        fence(Ordering::SeqCst);
        crate::crash_point!("first: claimed");
    }

    /// Owner: gives the claim up, announced or not.
    #[inline]
    pub fn unclaim(&self) {
        self.claim.set(0);
        crate::crash_point!("first: unclaimed");
    }

    /// Owner: announces the name with this hash, which leads to this cell; returns the announcement's number. The store of
    /// the head is the moment of the publication. The caller has a claim on the name, found nobody else's, and room in its
    /// ring.
    ///
    /// Crash before the head: nothing was published, and the entry is written again. After it: published.
    #[inline]
    pub fn announce(&self, hash: u64, cell: u32) -> u64 {
        let number = self.ring_head.peek();
        self.ring[(number % RING as u64) as usize].put(tag(hash) << 24 | u64::from(cell));
        crate::crash_point!("first: entry written");
        self.ring_head.set(number + 1);
        crate::crash_point!("first: announced");
        number
    }
}

/// What of a client's ring is not in the directory yet.
#[derive(Clone, Copy)]
pub struct Waiting<'a> {
    catalogue: &'a Catalogue,
    /// The client's `absorbed` as it was read first. A route over an announcement holds only as long as this stands.
    pub absorbed: Absorbed,
    head: u64,
}

/// The daemon is taking the last announcements of a client over: look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending;

impl<'a> Waiting<'a> {
    /// Looks at a client's ring. `None`: its announcements do not count any more.
    #[inline]
    pub fn read(catalogue: &'a Catalogue, absorbed: &Word) -> Result<Option<Self>, Ending> {
        // Before the head: what is absorbed between the two is looked for in vain here, and found in the directory.
        let absorbed = Absorbed(absorbed.read());
        match absorbed.state() {
            MemberState::Open => Ok(Some(Self { catalogue, absorbed, head: catalogue.ring_head.read() })),
            MemberState::Ending => Err(Ending),
            _ => Ok(None),
        }
    }

    /// How many announcements wait. An allegation of the client; never more than a ring holds.
    #[inline]
    pub fn count(&self) -> u64 {
        self.head.wrapping_sub(self.absorbed.index()).min(RING as u64)
    }

    /// The cells that were announced under names with this hash's tag, the oldest first. Other names may have it too.
    #[inline]
    pub fn cells(self, hash: u64) -> impl Iterator<Item = u32> + 'a {
        self.words().filter(move |word| word >> 24 == tag(hash)).map(|word| word as u32 & 0xFF_FFFF)
    }

    /// All cells that were announced, the oldest first.
    pub fn all_cells(self) -> impl Iterator<Item = u32> + 'a {
        self.words().map(|word| word as u32 & 0xFF_FFFF)
    }

    #[inline]
    fn words(self) -> impl Iterator<Item = u64> + 'a {
        let first = self.absorbed.index();
        (0..self.count()).map(move |n| self.catalogue.ring[(first.wrapping_add(n) % RING as u64) as usize].read())
    }
}
