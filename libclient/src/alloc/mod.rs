//! This client's own memory: slots from a heap of segments that the daemon lends.

mod extents;
pub mod heap;
pub mod magazines;
mod memory;
#[cfg(feature = "cuda")]
mod on_device;
mod placement;
mod recent;
mod reclaim;
pub mod release;
mod watched;

use crate::error::Result;
use crate::instruments::{self, Instruments};
use crate::link::Link;
use crate::link::descriptors::Descriptors;
use crate::peers::PeerTable;
use heap::Heap;
use magazines::Magazines;
use reclaim::Reclaiming;
use release::Release;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tensorlend_layout::word::Cell;
use tensorlend_os::mutex::lock;

/// The parts of the session that the allocator needs when memory is short. The supertrait deletes names for the program's
/// callback.
pub trait Outside: instruments::Names + Sized {
    /// Retires the values of names that the daemon has taken from this client.
    fn notices(&self) -> Result<()>;
    /// Retires the messages of closed streams that no subscriber can reach any more.
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
    /// Whether this daemon has refused a release for spill, because it spills nothing.
    release_refused: AtomicBool,
    /// Locked by the one thread that releases segments for spill.
    release: Mutex<Release>,
    /// One thread of the client at a time reclaims, for all its threads, and holds this lock until it has finished.
    reclaiming: Mutex<Reclaiming>,
    /// The number of pins in the heap, readable without its lock.
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
            release_refused: AtomicBool::new(false),
            release: Mutex::default(),
            reclaiming: Mutex::default(),
            pins: AtomicUsize::new(0),
            link,
            peers,
            descriptors,
            instruments,
        }
    }

    /// Chains `next` behind `slot`: both are freed together.
    #[inline]
    pub fn chain(&self, slot: u32, next: u32) {
        lock(&self.heap).chain(slot, next);
    }

    /// Adds a holder to a value; false if its last holder has released it in the meantime.
    #[inline]
    pub fn hold_again(&self, value: Cell) -> bool {
        lock(&self.heap).hold_again(value)
    }

    /// Removes a holder of a value that no reader has seen. If it was the last holder, the slot is free at once.
    #[inline]
    pub fn take_back(&self, value: Cell) {
        if lock(&self.heap).let_go(value) {
            self.drop_slot(value.slot());
        }
    }

    /// Pins a slot: readers may map it from now on, whatever happens to the slot.
    pub fn pin(&self, slot: u32) {
        lock(&self.heap).pin(slot);
        // Relaxed: the thread that drops the draft received it from the thread that pinned it.
        self.pins.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a pin.
    pub fn unpin(&self, slot: u32) {
        lock(&self.heap).unpin(slot);
        self.pins.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether any slot is pinned.
    #[inline]
    pub fn has_pins(&self) -> bool {
        self.pins.load(Ordering::Relaxed) != 0
    }

    /// Returns the bases that a replaced daemon needs: of all segments, and of those released for spill.
    pub fn bases(&self) -> (Option<Vec<u32>>, Vec<u32>) {
        lock(&self.heap).bases()
    }

    /// Forgets the refusals of the former daemon.
    pub fn daemon_replaced(&self) {
        self.release_refused.store(false, Ordering::Relaxed);
    }
}
