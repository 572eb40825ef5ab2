//! Waiting: spinning, sleeping, and the cost of waking others.

mod parking;
pub mod spin;
mod timeout;
mod toll;

pub use parking::Parked;
pub use spin::{Spin, spin};
use tensorlend_layout::number::ClientNo;
pub use timeout::{Deadline, NAP_MAX, Timeout, not_published};
pub use toll::Waking;

use crate::error::Result;
use crate::link::Link;
use parking::Parking;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tensorlend_layout::wire::Request;
use tensorlend_os::toll::Toll;
use toll::Tolls;

/// A session's state for waiting and waking: its parked threads, and the cost of waking other clients.
pub struct Waiter {
    link: Arc<Link>,
    parking: Parking,
    /// True if the daemon has listed this client among those that may be parked.
    listed: AtomicBool,
    tolls: Tolls,
}

impl Waiter {
    pub fn new(link: Arc<Link>) -> Self {
        let parking = Parking::new(link.shards.sheet().clone());
        Self { link, parking, listed: AtomicBool::new(false), tolls: Tolls::default() }
    }

    /// Registers with the daemon, once, that this client may be parked: publishers read its parked word from then on.
    pub fn enlist(&self, deadline: Deadline) -> Result<()> {
        self.link.check()?;
        if !self.listed.load(Ordering::Acquire) {
            self.link.control.call_within(deadline.left(), &Request::Wait, "wait")?;
            self.listed.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Declares that a thread waits for `mask`, until the caller drops the guard. The caller must sample the bells
    /// before this call, and check the awaited condition again after it.
    pub fn park(&self, mask: u64) -> Parked<'_> {
        self.parking.park(mask)
    }

    /// Returns the cost of waking this member.
    pub fn toll_of(&self, number: ClientNo) -> Arc<Mutex<Toll>> {
        self.tolls.of(&self.link, number)
    }
}
