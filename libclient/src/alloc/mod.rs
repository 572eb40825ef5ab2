//! This client's own memory: slots, from a heap of segments that the daemon lends.

mod extents;
pub mod heap;
pub mod magazines;
mod memory;
#[cfg(feature = "cuda")]
mod on_device;
mod placement;
mod recent;
mod reclaim;
pub mod shelving;
mod watched;

use crate::error::Result;
use crate::instruments::{self, Instruments};
use crate::link::Link;
use crate::link::descriptors::Descriptors;
use crate::peers::PeerTable;
use heap::Heap;
use magazines::Magazines;
use reclaim::Reclaiming;
use shelving::Shelving;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tensorlend_layout::word::Cell;
use tensorlend_os::mutex::lock;

/// What the allocator asks of the rest of its session when memory is short. The names are those that the program's callback may
/// delete.
pub trait Outside: instruments::Names + Sized {
    /// Retires the values of names that the daemon has taken from this client.
    fn notices(&self) -> Result<()>;
    /// Retires the messages of closed streams that nobody can reach any more.
    fn retire_closed(&self);
}

/// Owns this client's segments, and every slot of them.
pub struct Allocator {
    link: Arc<Link>,
    peers: Arc<PeerTable>,
    descriptors: Arc<Descriptors>,
    instruments: Arc<Instruments>,
    heap: Mutex<Heap>,
    magazines: Magazines,
    /// Whether this daemon spills nothing, as it has said when something was to be shelved.
    shelve_refused: AtomicBool,
    /// One thread looks for what can be shelved.
    shelving: Mutex<Shelving>,
    /// One thread looks for what can be freed, for all of them.
    reclaiming: Mutex<Reclaiming>,
    /// How many pins the heap knows, to be asked without its lock.
    pins: AtomicUsize,
}

impl Deref for Allocator {
    type Target = Link;

    #[inline]
    fn deref(&self) -> &Link {
        &self.link
    }
}

impl Allocator {
    pub fn new(
        link: Arc<Link>,
        peers: Arc<PeerTable>,
        descriptors: Arc<Descriptors>,
        instruments: Arc<Instruments>,
    ) -> Self {
        Self {
            heap: Mutex::new(Heap::new(instruments.clone(), link.welcome.segment_bytes)),
            magazines: Magazines::new(link.shards.clone()),
            shelve_refused: AtomicBool::new(false),
            shelving: Mutex::default(),
            reclaiming: Mutex::default(),
            pins: AtomicUsize::new(0),
            link,
            peers,
            descriptors,
            instruments,
        }
    }

    /// Chains `next` behind `slot`: both live and die together.
    #[inline]
    pub fn chain(&self, slot: u32, next: u32) {
        lock(&self.heap).chain(slot, next);
    }

    /// One more holder for a value; false if its last holder has let go of it meanwhile.
    #[inline]
    pub fn hold_again(&self, value: Cell) -> bool {
        lock(&self.heap).hold_again(value)
    }

    /// One holder less of a value that nobody has seen: without another one it is free.
    #[inline]
    pub fn take_back(&self, value: Cell) {
        if lock(&self.heap).let_go(value) {
            self.drop_slot(value.slot());
        }
    }

    /// From here on somebody may look at this slot, whatever becomes of it.
    pub fn pin(&self, slot: u32) {
        lock(&self.heap).pin(slot);
        // Relaxed: who drops the draft has it from who pinned it.
        self.pins.fetch_add(1, Ordering::Relaxed);
    }

    /// One pin less.
    pub fn unpin(&self, slot: u32) {
        lock(&self.heap).unpin(slot);
        self.pins.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether any slot is pinned.
    #[inline]
    pub fn has_pins(&self) -> bool {
        self.pins.load(Ordering::Relaxed) != 0
    }

    /// What a daemon that has taken over is to hear: the bases of the segments, and which of them are shelved.
    pub fn bases(&self) -> (Option<Vec<u32>>, Vec<u32>) {
        lock(&self.heap).bases()
    }

    /// Another daemon has refused nothing yet.
    pub fn daemon_replaced(&self) {
        self.shelve_refused.store(false, Ordering::Relaxed);
    }
}
