//! The regions of this process's "device" address space, and the access that each permits.

use crate::backing::Backing;
use crate::code::{Code, INVALID_VALUE};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `cuMemAlloc`.
    Device,
    Managed,
    /// `cuMemHostAlloc`.
    Pinned,
    Registered,
    Vmm,
    /// Memory of a pool of this process.
    Pool,
    PoolImport,
    Ipc,
}

impl Kind {
    pub fn is_host(self) -> bool {
        matches!(self, Self::Pinned | Self::Registered)
    }
}

#[derive(Clone)]
pub struct Region {
    pub start: u64,
    pub bytes: u64,
    pub kind: Kind,
    pub device: u32,
    /// The context in which the region was allocated; 0 for memory without one.
    pub context: u64,
    /// CUDA's access flags: 0, 1 (read) or 3.
    pub access: u32,
    pub backing: Option<Arc<Backing>>,
    /// The pool to which the region belongs.
    pub pool: u64,
    /// The region's offset in its backing.
    pub offset: u64,
    /// For host memory, its flags. For an IPC handle, the number of times that it was opened.
    pub extra: u32,
    pub id: u64,
}

impl Region {
    pub fn new(start: u64, bytes: u64, kind: Kind, device: u32) -> Self {
        let id = crate::handles::fresh();
        Self { start, bytes, kind, device, context: 0, access: 3, backing: None, pool: 0, offset: 0, extra: 0, id }
    }

    pub fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

static REGIONS: Mutex<BTreeMap<u64, Region>> = Mutex::new(BTreeMap::new());

pub fn lock() -> MutexGuard<'static, BTreeMap<u64, Region>> {
    REGIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn insert(region: Region) {
    lock().insert(region.start, region);
}

fn within(map: &BTreeMap<u64, Region>, address: u64) -> Option<&Region> {
    let (_, region) = map.range(..=address).next_back()?;
    (address < region.end()).then_some(region)
}

pub fn find(address: u64) -> Option<Region> {
    within(&lock(), address).cloned()
}

/// Removes the region that begins at this address, if it is of one of these kinds.
pub fn remove(start: u64, kinds: &[Kind]) -> Result<Region, Code> {
    let mut map = lock();
    match map.get(&start) {
        Some(region) if kinds.contains(&region.kind) => Ok(map.remove(&start).expect("found above")),
        _ => Err(INVALID_VALUE),
    }
}

/// Returns true if the range contains part of a region.
pub fn any_in(start: u64, bytes: u64) -> bool {
    let map = lock();
    map.range(..start + bytes).next_back().is_some_and(|(_, region)| region.end() > start)
}

/// Returns the regions that exactly fill the range.
pub fn exactly(start: u64, bytes: u64) -> Result<Vec<Region>, Code> {
    let map = lock();
    let found: Vec<Region> = map.range(start..start + bytes).map(|(_, region)| region.clone()).collect();
    let mut at = start;
    for region in &found {
        if region.start != at {
            return Err(INVALID_VALUE);
        }
        at = region.end();
    }
    if at == start + bytes { Ok(found) } else { Err(INVALID_VALUE) }
}

/// Memory that a piece of work reads or writes.
#[derive(Clone, Copy)]
pub struct Touch {
    pub at: u64,
    pub bytes: u64,
    pub write: bool,
}

impl Touch {
    pub fn read(at: u64, bytes: u64) -> Self {
        Self { at, bytes, write: false }
    }

    pub fn write(at: u64, bytes: u64) -> Self {
        Self { at, bytes, write: true }
    }

    /// Returns true if the driver knows the memory and the access is granted.
    pub fn is_allowed(&self) -> bool {
        let map = lock();
        let Some(end) = self.at.checked_add(self.bytes) else { return false };
        let mut at = self.at;
        while at < end {
            match within(&map, at) {
                Some(region) if region.access & 1 != 0 && (!self.write || region.access & 2 != 0) => at = region.end(),
                _ => return false,
            }
        }
        true
    }
}

/// Returns true if the address belongs to the driver. Any other address is the program's own pageable memory.
pub fn is_known(address: u64) -> bool {
    within(&lock(), address).is_some()
}
