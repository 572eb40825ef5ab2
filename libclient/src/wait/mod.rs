//! Waiting: how long, asleep or awake, and what it costs to wake others.

mod deadline;
mod parking;
pub mod spin;
mod toll;

pub use deadline::{Deadline, NAP_MAX};
pub use parking::Parked;
pub use spin::{Spin, spin};
pub use toll::Waking;

use crate::error::Result;
use crate::link::Link;
use parking::Parking;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tensorlend_layout::wire::Request;
use tensorlend_os::toll::Toll;
use toll::Tolls;

/// What a session knows of waiting and waking: which of its threads are parked, and what it cost to wake others.
pub struct Waiter {
    link: Arc<Link>,
    parking: Parking,
    /// Whether the daemon has listed this client among those who may be parked.
    listed: AtomicBool,
    tolls: Tolls,
}

impl Waiter {
    pub fn new(link: Arc<Link>) -> Self {
        let parking = Parking::new(link.shards.sheet().clone());
        Self { link, parking, listed: AtomicBool::new(false), tolls: Tolls::default() }
    }

    /// Reports to the daemon, once, that this client may be parked: publishers look at its parked word from then on.
    pub fn enlist(&self) -> Result<()> {
        self.link.check()?;
        if !self.listed.load(Ordering::Acquire) {
            self.link.control.call(&Request::Wait, "wait", "")?;
            self.listed.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Declares that a thread waits for `mask`, until the guard is dropped. The bells were sampled before; what is
    /// waited for must be looked at again after.
    pub fn park(&self, mask: u64) -> Parked<'_> {
        self.parking.park(mask)
    }

    /// What the wake descriptors of this member have cost.
    pub fn toll_of(&self, catalogue: u16) -> Arc<Mutex<Toll>> {
        self.tolls.of(&self.link, catalogue)
    }
}
