//! Page-locked host segments, so that devices copy from and to them at full speed while the program continues.
//!
//! A segment is registered with the driver at most once while it is mapped. The contract has two parts:
//! 1. A [`PageLock`] is a field next to its mapping and declared before the mapping, so that Rust drops it first.
//! 2. The owner of a device copy holds the draft or lease until the copy is done.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::gpu::{Gpu, trouble};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};
use tensorlend_cuda::copy::HostRegistration;
use tensorlend_os::map::Segment;
use tensorlend_os::mutex::lock;

const DOING: &str = "lock a segment's pages";

/// Keeps a host segment's pages locked. No page is locked until the first use.
#[derive(Clone, Default)]
pub struct PageLock(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    registered: Option<Registered>,
    /// True if the program has requested the lock. Then the segment stays mapped and locked until the client returns
    /// it.
    wanted: bool,
    /// True if the driver has refused, so that no thread asks the driver again without need.
    refused: bool,
}

struct Registered {
    _registration: HostRegistration,
    bytes: usize,
}

/// The host memory whose pages this process has locked for its devices: the result of [`page_locks`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageLocks {
    /// Number of mappings.
    pub segments: usize,
    /// Bytes of these mappings.
    pub bytes: u64,
    /// The latest reason why the driver could not lock a mapping. Copies from such a mapping use the driver's own
    /// memory.
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
    /// Returns the lock of a segment that was just mapped. With `wanted`, registers the segment now if this process already
    /// has a context on a device, and otherwise at the first copy to a device. [`page_locks`] reports a refusal.
    pub fn of_mapped(map: &Segment, wanted: bool, read_only: bool) -> Self {
        let locked = Self::default();
        if wanted && let Some(gpu) = Gpu::in_use() {
            locked.try_lock(&gpu, range_of(map), read_only);
        }
        locked
    }

    /// Returns whether the program itself has locked the segment.
    pub fn is_locked(&self) -> bool {
        let state = lock(&self.0);
        state.wanted && state.registered.is_some()
    }

    /// Registers the segment with the driver, unless it is already registered. `range` is the segment's start and
    /// length in bytes.
    pub fn lock(&self, gpu: &Gpu, range: (*mut u8, usize), read_only: bool, doing: &str) -> Result<()> {
        let mut state = lock(&self.0);
        state.wanted = true;
        state.register(gpu, range, read_only, doing)
    }

    /// Registers the segment if the daemon's configuration requests it. Does not try again after a refusal.
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
        // SAFETY: the range stays mapped until this registration is dropped, because the lock is declared before its
        // mapping. No device uses the range at that time, because the owner of each copy holds its draft or lease until the
        // copy is done.
        let made = unsafe { HostRegistration::register(&context, &gpu.device, start, bytes, read_only) };
        self.registered = Some(Registered::new(made.map_err(trouble(doing))?, bytes));
        Ok(())
    }
}

/// Returns the address range of a segment.
pub fn range_of(map: &Segment) -> (*mut u8, usize) {
    (map.start(), map.bytes())
}
