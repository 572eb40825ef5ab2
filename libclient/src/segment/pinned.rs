//! Page-locked host segments, so that devices copy from and to them at full speed while the program continues.
//!
//! A segment is registered with the driver at most once, as long as it is mapped. The contract: 1. a [`PageLock`] is a
//! field next to its mapping, declared before it, so that it is dropped first; 2. the owner of a device copy holds the
//! draft or lease until the copy is done.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::gpu::{Gpu, trouble};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use tensorlend_cuda::copy::HostRegistration;
use tensorlend_os::map::Segment;
use tensorlend_os::mutex::lock;

const DOING: &str = "lock a segment's pages";

/// Keeps a host segment's pages locked; empty until the first use.
#[derive(Clone, Default)]
pub struct PageLock(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    registered: Option<Registered>,
    /// Whether the program has asked for it: then the segment stays mapped and locked until the client returns it.
    wanted: bool,
    /// Whether the driver has refused, so that no thread asks again without need.
    refused: bool,
}

struct Registered {
    _registration: HostRegistration,
    bytes: usize,
}

/// The host memory whose pages this process has locked for its devices. [`page_locks`] returns it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageLocks {
    /// Number of mappings.
    pub segments: usize,
    /// Bytes of these mappings.
    pub bytes: u64,
    /// The latest reason why a mapping could not be locked. Copies from it work, through memory of the driver's own.
    pub refusal: Option<String>,
}

static ALL: Mutex<PageLocks> = Mutex::new(PageLocks { segments: 0, bytes: 0, refusal: None });

/// Returns the host memory that this process has locked for its devices, and the latest refusal.
///
/// ```
/// let locks = tensorlend::page_locks();
/// assert_eq!((locks.segments, locks.bytes, locks.refusal), (0, 0, None)); // this program uses no device
/// ```
pub fn page_locks() -> PageLocks {
    lock(&ALL).clone()
}

impl Registered {
    fn new(registration: HostRegistration, bytes: usize) -> Self {
        let mut all = lock(&ALL);
        (all.segments, all.bytes) = (all.segments + 1, all.bytes + bytes as u64);
        Self { _registration: registration, bytes }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut all = lock(&ALL);
        (all.segments, all.bytes) = (all.segments - 1, all.bytes - self.bytes as u64);
    }
}

impl PageLock {
    /// Returns the lock of a segment that was just mapped. With `wanted`, the segment is registered now if this process has a
    /// context on a device already, otherwise at the first copy to a device. A refusal goes into [`page_locks`].
    pub fn of_mapped(map: &Segment, wanted: bool, read_only: bool) -> Self {
        let locked = Self::default();
        if wanted && let Some(gpu) = Gpu::in_use() {
            locked.try_lock(&gpu, range_of(map), read_only);
        }
        locked
    }

    /// Returns whether the program has locked the segment itself.
    pub fn is_locked(&self) -> bool {
        let state = lock(&self.0);
        state.wanted && state.registered.is_some()
    }

    /// Registers the segment with the driver, unless it is registered already. `start` and `bytes` are the segment's.
    pub fn lock(&self, gpu: &Gpu, range: (*mut u8, usize), read_only: bool, doing: &str) -> Result<()> {
        let mut state = lock(&self.0);
        state.wanted = true;
        state.register(gpu, range, read_only, doing)
    }

    /// Registers the segment, as the daemon's configuration wants it; not again after a refusal.
    pub fn try_lock(&self, gpu: &Gpu, range: (*mut u8, usize), read_only: bool) {
        let mut state = lock(&self.0);
        if state.refused {
            return;
        }
        if let Err(error) = state.register(gpu, range, read_only, DOING) {
            state.refused = true;
            lock(&ALL).refusal = Some(refusal(&error));
        }
    }
}

fn refusal(error: &Error) -> String {
    format!("{error}: copies from such segments are slower, and the caller waits for a part of each")
}

impl State {
    fn register(&mut self, gpu: &Gpu, range: (*mut u8, usize), read_only: bool, doing: &str) -> Result<()> {
        let (start, bytes) = range;
        let Some(start) = NonNull::new(start).filter(|_| self.registered.is_none()) else { return Ok(()) };
        let context = gpu.context(doing)?;
        // SAFETY: the range is mapped until this registration is dropped (contract 1), and no device uses it by then (contract
        // 2).
        let made = unsafe { HostRegistration::register(&context, &gpu.device, start, bytes, read_only) };
        self.registered = Some(Registered::new(made.map_err(trouble(doing))?, bytes));
        Ok(())
    }
}

/// Returns the address range of a segment.
pub fn range_of(map: &Segment) -> (*mut u8, usize) {
    (map.start(), map.bytes())
}
