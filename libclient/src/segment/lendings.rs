//! Which device memory this session was lent, and what of it is gone.
//!
//! The daemon takes a session for a holder of whatever device memory it lent it, until it hears [`Request::Unmapped`]. So what
//! is gone is told; and nobody may be lent a segment between the moment in which it is found gone and the one in which that
//! is told: hence [`Lendings::telling`].

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

/// As many as one message may name.
#[cfg(feature = "cuda")]
const NAMED_MAX: usize = 1024;

/// As long ago at most.
#[cfg(feature = "cuda")]
const LATELY: Duration = Duration::from_secs(1);

/// What one session was lent.
#[derive(Default)]
pub struct Lendings {
    #[cfg(feature = "cuda")]
    list: Mutex<List>,
    /// Held by who tells what is gone, and by who asks for a segment until what came is listed.
    telling: Mutex<()>,
    /// Sees to what ends later; started with the first device memory.
    #[cfg(feature = "cuda")]
    pub janitor: Arc<Janitor>,
}

#[cfg(feature = "cuda")]
#[derive(Default)]
struct List {
    lent: BTreeMap<LendingId, Weak<DeviceMap>>,
    gone: Vec<LendingId>,
    /// When the last of them went.
    gone_at: Option<Instant>,
}

#[cfg(feature = "cuda")]
impl List {
    fn is_held(&self, lending: &LendingId) -> bool {
        self.lent.get(lending).is_some_and(|map| map.strong_count() > 0)
    }
}

impl Lendings {
    /// While it lives, nothing is told to be gone.
    pub fn telling(&self) -> MutexGuard<'_, ()> {
        lock(&self.telling)
    }

    /// What a daemon that has taken over is to hear first: what is mapped here.
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

    /// What a daemon that has taken over is to hear first: that nothing is mapped here.
    #[cfg(not(feature = "cuda"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    pub fn mapped(&self, asked: bool) -> Vec<Request> {
        if asked { vec![Request::Mapped { lendings: Vec::new(), last: true }] } else { Vec::new() }
    }

    /// The session ends, and nothing is mapped any more.
    #[cfg(feature = "cuda")]
    pub fn close(&self, control: &Control) {
        self.janitor.stop();
        let _ = self.tell(control);
    }

    /// The session ends.
    #[cfg(not(feature = "cuda"))]
    #[expect(clippy::unused_self, reason = "as with the feature")]
    pub fn close(&self, _: &Control) {}
}

#[cfg(feature = "cuda")]
impl Lendings {
    /// The segment of this lending: the one that is mapped already, or a new one of this descriptor. The caller holds
    /// [`Lendings::telling`] since before it asked for it. What is mapped keeps `session`.
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

    /// It was unmapped, by its last holder here.
    pub fn gone(&self, lending: LendingId) {
        {
            let mut list = lock(&self.list);
            // Fetched anew since: then it is not gone.
            if !list.is_held(&lending) {
                list.lent.remove(&lending);
            }
            list.gone.push(lending);
            list.gone_at = Some(Instant::now());
        }
        self.janitor.ring();
    }

    /// It was lent, and could not be mapped. The caller holds [`Lendings::telling`] no more.
    pub fn never_mapped(&self, lending: LendingId) {
        let held = lock(&self.list).is_held(&lending);
        if !held {
            self.gone(lending);
            self.janitor.start();
        }
    }

    /// Whether something went a moment ago, so that others may not have let go of it yet.
    pub fn is_lately_gone(&self) -> bool {
        lock(&self.list).gone_at.is_some_and(|at| at.elapsed() < LATELY)
    }

    /// Tells the daemon what is gone.
    pub fn tell(&self, control: &Control) -> Result<()> {
        let _one = self.telling();
        let gone = {
            let mut list = lock(&self.list);
            let gone = std::mem::take(&mut list.gone);
            gone.into_iter().filter(|lending| !list.is_held(lending)).collect::<Vec<_>>()
        };
        for part in gone.chunks(NAMED_MAX) {
            let request = Request::Unmapped { lendings: part.to_vec() };
            // Without a daemon: the next one is told what is mapped, which is the same.
            control.call(&request, "let go of device memory", "")?;
        }
        Ok(())
    }
}
