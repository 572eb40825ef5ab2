//! A stream-ordered pool: one sparse memfd whose ranges are the allocations. A process that has the descriptor maps
//! single ranges, so the exporter need not be alive.
//!
//! Invariants in the owner's process: `used == sum of ranges that are used, or freed in a stream that has not reached
//! the free`, and `used <= reserved`. The device counts reserved memory as used.

use crate::backing::{Backing, Use};
use crate::code::{Code, Done, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY};
use crate::handles::Table;
use crate::pages::{self, PAGE};
use crate::regions::{self, Kind, Region};
use crate::stream::{Piece, Stream};
use crate::{control, settings};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that a pool takes from the device at a time.
const STEP: u64 = 2 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Range {
    Free,
    Used,
    /// Freed in a stream that has not reached the free. The same stream may allocate it again earlier.
    Pending {
        stream: u64,
    },
}

pub struct State {
    ranges: BTreeMap<u64, (u64, Range)>,
    pub used: u64,
    pub used_high: u64,
    pub reserved: u64,
    pub reserved_high: u64,
    pub threshold: u64,
    pub reuse: [i32; 3],
    /// Access flags by device. The pool's own device always has full access.
    pub access: HashMap<i32, u32>,
    destroyed: bool,
    /// True if the pool can be exported. Only then does the driver export the pool's pointers.
    pub exported: bool,
}

pub struct Pool {
    pub backing: Arc<Backing>,
    pub exportable: bool,
    pub imported: bool,
    base: u64,
    most: u64,
    state: Mutex<State>,
}

pub static POOLS: Table<Pool> = Table::new();

/// By device: its default pool, and the pool that allocations use.
static DEFAULTS: Mutex<Option<HashMap<u32, u64>>> = Mutex::new(None);
static CURRENT: Mutex<Option<HashMap<u32, u64>>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn create(device: u32, exportable: bool, most: u64) -> Result<u64, Code> {
    // Leaves space for fragmentation: addresses and holes of a file cost nothing.
    let bytes = (settings::get().memory_bytes.saturating_mul(4)).next_multiple_of(STEP);
    let backing = Backing::create(Use::Pool, device, bytes, 0)?;
    let base = pages::map(&backing.file, 0, bytes, STEP, 3)?;
    let most = if most == 0 { u64::MAX } else { most };
    let ranges = BTreeMap::from([(0, (bytes, Range::Free))]);
    Ok(POOLS.add(Pool { backing, exportable, imported: false, base, most, state: Mutex::new(State::new(ranges)) }))
}

pub fn import(backing: Arc<Backing>) -> u64 {
    let state = Mutex::new(State::new(BTreeMap::new()));
    POOLS.add(Pool { backing, exportable: true, imported: true, base: 0, most: 0, state })
}

pub fn get(handle: u64) -> Result<Arc<Pool>, Code> {
    POOLS.get(handle).ok().filter(|pool| !pool.state().destroyed).ok_or(INVALID_VALUE)
}

pub fn default(device: u32) -> Result<u64, Code> {
    let mut defaults = lock(&DEFAULTS);
    let defaults = defaults.get_or_insert_default();
    if let Some(handle) = defaults.get(&device) {
        return Ok(*handle);
    }
    let handle = create(device, false, 0)?;
    defaults.insert(device, handle);
    Ok(handle)
}

pub fn current(device: u32) -> Result<u64, Code> {
    let set = lock(&CURRENT).as_ref().and_then(|current| current.get(&device).copied());
    set.map_or_else(|| default(device), Ok)
}

pub fn set_current(device: u32, handle: u64) {
    lock(&CURRENT).get_or_insert_default().insert(device, handle);
}

pub fn destroy(handle: u64) -> Done {
    let pool = get(handle)?;
    if lock(&DEFAULTS).as_ref().is_some_and(|defaults| defaults.values().any(|default| *default == handle)) {
        return Err(INVALID_VALUE);
    }
    if let Some(current) = lock(&CURRENT).as_mut() {
        current.retain(|_, set| *set != handle);
    }
    pool.state().destroyed = true;
    pool.leave_if_empty(handle);
    Ok(())
}

impl State {
    fn new(ranges: BTreeMap<u64, (u64, Range)>) -> Self {
        let access = HashMap::new();
        let (used, used_high, reserved, reserved_high, threshold) = (0, 0, 0, 0, 0);
        State {
            ranges,
            used,
            used_high,
            reserved,
            reserved_high,
            threshold,
            reuse: [1; 3],
            access,
            exported: false,
            destroyed: false,
        }
    }

    /// Returns a range of this number of bytes, and true if it was free. If false, the same stream has freed it.
    fn take(&mut self, bytes: u64, stream: u64) -> Option<(u64, bool)> {
        let again = |range: &(u64, Range)| *range == (bytes, Range::Pending { stream });
        if let Some((at, range)) = self.ranges.iter_mut().find(|(_, range)| again(range)) {
            range.1 = Range::Used;
            return Some((*at, false));
        }
        let fits = |range: &(u64, Range)| range.0 >= bytes && range.1 == Range::Free;
        let (at, length) = self.ranges.iter().find(|(_, range)| fits(range)).map(|(at, range)| (*at, range.0))?;
        self.ranges.insert(at, (bytes, Range::Used));
        if length > bytes {
            self.ranges.insert(at + bytes, (length - bytes, Range::Free));
        }
        Some((at, true))
    }

    fn give(&mut self, at: u64) {
        let Some((mut bytes, _)) = self.ranges.remove(&at) else { return };
        self.used -= bytes;
        let mut start = at;
        if let Some((next, Range::Free)) = self.ranges.get(&(at + bytes)).copied() {
            self.ranges.remove(&(at + bytes));
            bytes += next;
        }
        if let Some((before, (length, Range::Free))) =
            self.ranges.range(..at).next_back().map(|(at, range)| (*at, *range))
        {
            self.ranges.remove(&before);
            start = before;
            bytes += length;
        }
        self.ranges.insert(start, (bytes, Range::Free));
    }
}

impl Pool {
    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub fn allocate(&self, handle: u64, bytes: u64, stream: &Stream) -> Result<u64, Code> {
        if self.imported {
            return Err(NOT_SUPPORTED);
        }
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let length = bytes.checked_next_multiple_of(PAGE).ok_or(OUT_OF_MEMORY)?;
        let mut state = self.state();
        let again = state.ranges.values().any(|range| *range == (length, Range::Pending { stream: stream.id }));
        let used = if again { state.used } else { state.used.checked_add(length).ok_or(OUT_OF_MEMORY)? };
        if used > self.most {
            return Err(OUT_OF_MEMORY);
        }
        if used > state.reserved {
            let reserved = used.next_multiple_of(STEP);
            control::resize(self.backing.inode, self.backing.device, reserved)?;
            state.reserved = reserved;
            state.reserved_high = state.reserved_high.max(reserved);
        }
        let (at, fresh) = state.take(length, stream.id).ok_or(OUT_OF_MEMORY)?;
        state.used = used;
        state.used_high = state.used_high.max(used);
        // Earlier work in the stream may access more bytes of the range, within the same pages.
        let before = if fresh { None } else { regions::find(self.base + at) };
        let known = before.map_or(bytes, |region| region.bytes.max(bytes));
        let region = Region::new(self.base + at, known, Kind::Pool, self.backing.device);
        regions::insert(Region { backing: Some(self.backing.clone()), pool: handle, offset: at, ..region });
        // Unlock only now: until the region is listed, [`Self::give`] could free the range for its previous allocation.
        drop(state);
        if fresh {
            self.backing.soil(at, length)?;
        }
        Ok(self.base + at)
    }

    /// Frees an allocation when its stream has reached the free. A range that the stream has allocated again stays in
    /// use.
    fn give(&self, handle: u64, region: &Region) {
        let mut state = self.state();
        let mut map = regions::lock();
        let same = map.get(&region.start).is_some_and(|now| now.id == region.id);
        if same {
            map.remove(&region.start);
        }
        drop(map);
        if same {
            if control::shared(self.backing.inode, region.offset) {
                control::violation();
                let _ = self.backing.fill(region.offset, region.bytes, 0xDD);
            }
            state.give(region.offset);
        }
        let keep = state.threshold;
        drop(state);
        self.shrink(keep);
        self.leave_if_empty(handle);
    }

    /// Returns unused memory to the device, but keeps `keep` bytes. Keeps all memory of a pool that other processes may
    /// have mapped.
    pub fn shrink(&self, keep: u64) {
        let mut state = self.state();
        let least = state.used.max(keep.min(state.reserved)).next_multiple_of(STEP);
        if !self.exportable && state.reserved > least {
            state.reserved = least;
            let _ = control::resize(self.backing.inode, self.backing.device, least);
        }
    }

    fn leave_if_empty(&self, handle: u64) {
        let state = self.state();
        if state.destroyed && state.used == 0 {
            let _ = POOLS.remove(handle);
        }
    }

    pub fn import_pointer(&self, handle: u64, offset: u64, bytes: u64) -> Result<u64, Code> {
        let length = bytes.next_multiple_of(PAGE);
        if !self.imported || bytes == 0 || offset.checked_add(length).is_none_or(|end| end > self.backing.bytes) {
            return Err(INVALID_VALUE);
        }
        // The driver imports an allocation once per process, so one free ends all imports.
        let is_same = |region: &Region| {
            region.kind == Kind::PoolImport
                && region.offset == offset
                && region.backing.as_ref().is_some_and(|backing| backing.inode == self.backing.inode)
        };
        if let Some(start) = regions::lock().values().find(|region| is_same(region)).map(|region| region.start) {
            return Ok(start);
        }
        let access = self.state().access.get(&(self.backing.device as i32)).copied().unwrap_or(3);
        control::share(self.backing.inode, offset)?;
        let start = pages::map(&self.backing.file, offset, length, PAGE, access)?;
        let region = Region::new(start, bytes, Kind::PoolImport, self.backing.device);
        regions::insert(Region { backing: Some(self.backing.clone()), pool: handle, offset, access, ..region });
        Ok(start)
    }

    /// Sets the access, also for existing mappings.
    pub fn set_access(&self, handle: u64, device: i32, flags: u32) -> Done {
        let own = device == self.backing.device as i32;
        if own && !self.imported && flags != 3 {
            return Err(INVALID_VALUE);
        }
        self.state().access.insert(device, flags);
        if own && self.imported {
            for region in regions::lock().values_mut().filter(|region| region.pool == handle) {
                pages::protect(region.start, region.bytes.next_multiple_of(PAGE), flags)?;
                region.access = flags;
            }
        }
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.imported {
            pages::unmap(self.base, self.backing.bytes);
        }
    }
}

fn forget_import(region: &Region) {
    if regions::remove(region.start, &[Kind::PoolImport]).is_ok() {
        pages::unmap(region.start, region.bytes.next_multiple_of(PAGE));
        if let Some(backing) = &region.backing {
            control::unshare(backing.inode, region.offset);
        }
    }
}

/// Frees an allocation when the stream reaches this call.
pub fn free(at: u64, stream: &Arc<Stream>) -> Done {
    const FREED: u32 = 1;
    let mut map = regions::lock();
    let ours = |region: &&mut Region| matches!(region.kind, Kind::Pool | Kind::PoolImport) && region.extra != FREED;
    let region = map.get_mut(&at).filter(ours).ok_or(INVALID_VALUE)?;
    region.extra = FREED;
    let region = region.clone();
    drop(map);
    if region.kind == Kind::PoolImport {
        stream.enqueue(Piece::host(move || forget_import(&region)));
        return Ok(());
    }
    let pool = POOLS.get(region.pool)?;
    if let Some(range) = pool.state().ranges.get_mut(&region.offset) {
        range.1 = Range::Pending { stream: stream.id };
    }
    stream.enqueue(Piece::host(move || pool.give(region.pool, &region)));
    Ok(())
}

/// Frees an allocation for `cuMemFree`, which has waited for the device.
pub fn free_now(region: &Region) -> Done {
    match region.kind {
        Kind::PoolImport => forget_import(region),
        _ => POOLS.get(region.pool)?.give(region.pool, region),
    }
    Ok(())
}
