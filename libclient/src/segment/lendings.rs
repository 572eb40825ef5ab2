//! The loans of device memory that the daemon has made to this session, and their unmapping.
//!
//! The daemon regards a session as a holder of all device memory that it lent to that session, until it receives
//! [`Request::Unmapped`]. So the session reports the loans that it has unmapped. Between finding a segment unmapped and
//! reporting it, the session must not receive the same segment again. [`Lendings::telling`] excludes that.

use crate::control::Control;
use std::sync::{Mutex, MutexGuard};
use tensorlend_layout::wire::Request;
use tensorlend_os::mutex::lock;

#[cfg(feature = "cuda")]
use super::{janitor::Janitor, map::DeviceMap, map::Use};
#[cfg(feature = "cuda")]
use crate::error::Result;
#[cfg(feature = "cuda")]
use std::collections::BTreeMap;
#[cfg(feature = "cuda")]
use std::os::fd::OwnedFd;
#[cfg(feature = "cuda")]
use std::sync::{Arc, Weak};
#[cfg(feature = "cuda")]
use std::time::{Duration, Instant};
#[cfg(feature = "cuda")]
use tensorlend_layout::wire::{DeviceSegment, LendingId};

/// Maximum number of loans in one report.
#[cfg(feature = "cuda")]
const NAMED_MAX: usize = 1024;

/// Time for which an unmapping is regarded as recent.
#[cfg(feature = "cuda")]
const LATELY: Duration = Duration::from_secs(1);

/// The loans of one session.
#[derive(Default)]
pub struct Lendings {
    #[cfg(feature = "cuda")]
    list: Mutex<List>,
    /// Serializes unmap reports with segment requests. A thread locks this mutex before a request, and holds it until
    /// the received segment is in `list`.
    telling: Mutex<()>,
    /// The janitor, which starts when the session gets its first device memory.
    #[cfg(feature = "cuda")]
    pub janitor: Arc<Janitor>,
}

#[cfg(feature = "cuda")]
#[derive(Default)]
struct List {
    lent: BTreeMap<LendingId, Weak<DeviceMap>>,
    gone: Vec<LendingId>,
    /// The time of the last unmapping.
    gone_at: Option<Instant>,
}

#[cfg(feature = "cuda")]
impl List {
    fn is_held(&self, lending: &LendingId) -> bool {
        self.lent.get(lending).is_some_and(|map| map.strong_count() > 0)
    }
}

impl Lendings {
    /// Excludes unmap reports while the guard exists.
    pub fn telling(&self) -> MutexGuard<'_, ()> {
        lock(&self.telling)
    }

    /// Returns the first requests to a new daemon after the daemon was replaced. They report the mapped loans.
    #[cfg(feature = "cuda")]
    pub fn mapped(&self, asked: bool) -> Vec<Request> {
        let list = lock(&self.list);
        let held: Vec<LendingId> = list.lent.keys().filter(|id| list.is_held(id)).copied().collect();
        if held.is_empty() && !asked {
            return Vec::new();
        }
        let parts: Vec<&[LendingId]> = if held.is_empty() { vec![&[]] } else { held.chunks(NAMED_MAX).collect() };
        let last = parts.len() - 1;
        let part = |(at, part): (usize, &&[LendingId])| Request::Mapped { lendings: part.to_vec(), last: at == last };
        parts.iter().enumerate().map(part).collect()
    }

    /// Returns the first requests to a new daemon after the daemon was replaced. They report that no loan is mapped.
    #[cfg(not(feature = "cuda"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    pub fn mapped(&self, asked: bool) -> Vec<Request> {
        if asked { vec![Request::Mapped { lendings: Vec::new(), last: true }] } else { Vec::new() }
    }

    /// Reports that the session has no mapped device memory any more.
    #[cfg(feature = "cuda")]
    pub fn close(&self, control: &Control) {
        self.janitor.stop();
        let _ = self.tell(control);
    }

    /// Ends the session.
    #[cfg(not(feature = "cuda"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    pub fn close(&self, _: &Control) {}
}

#[cfg(feature = "cuda")]
impl Lendings {
    /// Returns the map of this loan: the existing map, or a new map from this descriptor. The caller must have held
    /// [`Lendings::telling`] since before its request. The map keeps `session` alive.
    pub fn find_or_add(
        self: &Arc<Self>,
        session: &Arc<impl Send + Sync + 'static>,
        lent: DeviceSegment,
        descriptor: OwnedFd,
        wanted: Use,
    ) -> Arc<DeviceMap> {
        let mut list = lock(&self.list);
        if let Some(map) = list.lent.get(&lent.lending).and_then(Weak::upgrade) {
            return map;
        }
        let lending = lent.lending;
        let map = Arc::new(DeviceMap::new(session.clone(), self.clone(), lent, descriptor, wanted));
        list.lent.insert(lending, Arc::downgrade(&map));
        drop(list);
        self.janitor.start();
        map
    }

    /// Records that the last holder in this process has unmapped a loan.
    pub fn gone(&self, lending: LendingId) {
        {
            let mut list = lock(&self.list);
            // If this session has fetched the loan again in the meantime, it is still a holder.
            if !list.is_held(&lending) {
                list.lent.remove(&lending);
            }
            list.gone.push(lending);
            list.gone_at = Some(Instant::now());
        }
        self.janitor.ring();
    }

    /// Records that this process could not map a loan. The caller must have released [`Lendings::telling`].
    pub fn never_mapped(&self, lending: LendingId) {
        let held = lock(&self.list).is_held(&lending);
        if !held {
            self.gone(lending);
            self.janitor.start();
        }
    }

    /// Returns whether this session unmapped a loan a moment ago, so that other processes may still have it mapped.
    pub fn is_lately_gone(&self) -> bool {
        lock(&self.list).gone_at.is_some_and(|at| at.elapsed() < LATELY)
    }

    /// Reports unmapped memory to the daemon.
    pub fn tell(&self, control: &Control) -> Result<()> {
        let _one = self.telling();
        let gone = {
            let mut list = lock(&self.list);
            let gone = std::mem::take(&mut list.gone);
            gone.into_iter().filter(|lending| !list.is_held(lending)).collect::<Vec<_>>()
        };
        for part in gone.chunks(NAMED_MAX) {
            let request = Request::Unmapped { lendings: part.to_vec() };
            // Without a daemon the report is lost. But the next daemon receives the list of mapped loans, which is
            // equivalent.
            control.call(&request, "release device memory", "")?;
        }
        Ok(())
    }
}
