//! Virtual memory management: handles of memory, reserved addresses, and mappings of handles at addresses.

use crate::args::{Any, In, Out};
use crate::backing::{Backing, Use};
use crate::code::{Code, Done, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED};
use crate::context::device;
use crate::handles::Table;
use crate::pages;
use crate::regions::{self, Kind, Region};
use crate::stream;
use std::collections::BTreeMap;
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const GRANULARITY: u64 = 2 << 20;
const POSIX_DESCRIPTOR: u32 = 1;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location {
    pub kind: u32,
    pub id: i32,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    win32: u64,
    compression: u8,
    rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Access {
    pub location: Location,
    pub flags: u32,
}

struct Memory {
    backing: Arc<Backing>,
    handle_types: u32,
    /// Number of references. Each retained handle needs its own release.
    references: AtomicU32,
}

static MEMORY: Table<Memory> = Table::new();
static RESERVED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

fn reserved() -> MutexGuard<'static, BTreeMap<u64, u64>> {
    RESERVED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_reserved(at: u64, bytes: u64) -> bool {
    let map = reserved();
    map.range(..=at).next_back().is_some_and(|(start, length)| at + bytes <= start + length)
}

/// Returns the device of an allocation. Fails if this card cannot make the allocation.
fn check(properties: &Properties) -> Result<u32, Code> {
    const DEVICE: u32 = 1;
    if properties.kind != 1 || properties.handle_types & !POSIX_DESCRIPTOR != 0 && properties.handle_types > 8 {
        return Err(INVALID_VALUE);
    }
    if properties.location.kind != DEVICE || properties.handle_types & !POSIX_DESCRIPTOR != 0 {
        return Err(NOT_SUPPORTED);
    }
    device(properties.location.id)
}

fn is_whole(bytes: u64) -> bool {
    bytes != 0 && bytes.is_multiple_of(GRANULARITY)
}

fn memory(handle: u64) -> Result<Arc<Memory>, Code> {
    MEMORY.get(handle).map_err(|_| INVALID_VALUE)
}

/// Returns the handle of a mapping's memory. Makes a new handle if the first was released.
fn retain(region: &Region) -> Result<u64, Code> {
    let backing = region.backing.as_ref().ok_or(INVALID_VALUE)?;
    if let Some((handle, memory)) = MEMORY.all().into_iter().find(|(_, memory)| memory.backing.inode == backing.inode) {
        memory.references.fetch_add(1, Ordering::Relaxed);
        return Ok(handle);
    }
    let references = AtomicU32::new(1);
    Ok(MEMORY.add(Memory { backing: backing.clone(), handle_types: region.extra, references }))
}

driver! {
    fn cuMemGetAllocationGranularity(bytes: Out<u64>, properties: In<Properties>, _option: u32) {
        check(&properties.get()?)?;
        bytes.put(GRANULARITY)
    }

    fn cuMemCreate(handle: Out<u64>, bytes: u64, properties: In<Properties>, flags: u64) {
        let properties = properties.get()?;
        let device = check(&properties)?;
        if !is_whole(bytes) || flags != 0 || handle.is_null() {
            return Err(INVALID_VALUE);
        }
        let backing = Backing::create(Use::Vmm, device, bytes, bytes)?;
        let references = AtomicU32::new(1);
        handle.put(MEMORY.add(Memory { backing, handle_types: properties.handle_types, references }))
    }

    fn cuMemRelease(handle: u64) {
        let memory = memory(handle)?;
        if memory.references.fetch_sub(1, Ordering::Relaxed) == 1 {
            MEMORY.remove(handle)?;
        }
        Ok(())
    }

    fn cuMemRetainAllocationHandle(handle: Out<u64>, at: u64) {
        let region = regions::find(at).filter(|region| region.kind == Kind::Vmm).ok_or(INVALID_VALUE)?;
        handle.put(retain(&region)?)
    }

    fn cuMemGetAllocationPropertiesFromHandle(properties: Out<Properties>, handle: u64) {
        let memory = memory(handle)?;
        properties.put(Properties {
            kind: 1,
            handle_types: memory.handle_types,
            location: Location { kind: 1, id: memory.backing.device as i32 },
            win32: 0,
            compression: 0,
            rdma: 0,
            usage: 0,
            reserved: [0; 4],
        })
    }

    fn cuMemExportToShareableHandle(place: Out<i32>, handle: u64, kind: u32, flags: u64) {
        let memory = memory(handle)?;
        if kind != POSIX_DESCRIPTOR || memory.handle_types & kind == 0 || flags != 0 || place.is_null() {
            return Err(INVALID_VALUE);
        }
        place.put(memory.backing.file.try_clone()?.into_raw_fd())
    }

    fn cuMemImportFromShareableHandle(handle: Out<u64>, descriptor: u64, kind: u32) {
        if kind != POSIX_DESCRIPTOR {
            return Err(NOT_SUPPORTED);
        }
        // The driver treats descriptor 0 as a null pointer.
        if descriptor == 0 {
            return Err(INVALID_VALUE);
        }
        let backing = Backing::adopt(Use::Vmm, Backing::duplicate(descriptor as i32)?)?;
        handle.put(MEMORY.add(Memory { backing, handle_types: kind, references: AtomicU32::new(1) }))
    }

    fn cuMemAddressReserve(place: Out<u64>, bytes: u64, alignment: u64, near: u64, flags: u64) {
        if !is_whole(bytes) || flags != 0 || (alignment != 0 && !alignment.is_power_of_two()) {
            return Err(INVALID_VALUE);
        }
        let start = pages::reserve(bytes, alignment.max(GRANULARITY), near)?;
        reserved().insert(start, bytes);
        place.put(start)
    }

    fn cuMemAddressFree(start: u64, bytes: u64) {
        let mut reserved = reserved();
        if reserved.get(&start) != Some(&bytes) || regions::any_in(start, bytes) {
            return Err(INVALID_VALUE);
        }
        reserved.remove(&start);
        pages::unmap(start, bytes);
        Ok(())
    }

    fn cuMemMap(at: u64, bytes: u64, offset: u64, handle: u64, flags: u64) {
        let memory = memory(handle)?;
        // As in CUDA 13.0, a mapping begins at the start of the memory.
        if !is_whole(bytes) || !is_whole(at) || offset != 0 || flags != 0 || bytes > memory.backing.bytes {
            return Err(INVALID_VALUE);
        }
        if !is_reserved(at, bytes) || regions::any_in(at, bytes) {
            return Err(INVALID_VALUE);
        }
        pages::map_at(&memory.backing.file, 0, at, bytes, 0)?;
        let region = Region::new(at, bytes, Kind::Vmm, memory.backing.device);
        let backing = Some(memory.backing.clone());
        regions::insert(Region { access: 0, backing, extra: memory.handle_types, ..region });
        Ok(())
    }

    fn cuMemUnmap(at: u64, bytes: u64) {
        let found = regions::exactly(at, bytes)?;
        if found.is_empty() || found.iter().any(|region| region.kind != Kind::Vmm) {
            return Err(INVALID_VALUE);
        }
        for region in found {
            // As in CUDA, the call waits for work that still uses the mapping.
            let _ = stream::synchronize_all(region.device);
            regions::remove(region.start, &[Kind::Vmm])?;
            pages::vacate(region.start, region.bytes);
        }
        Ok(())
    }

    fn cuMemSetAccess(at: u64, bytes: u64, access: In<Access>, count: u64) {
        set_access(at, bytes, &access.array(count as usize)?)
    }

    fn cuMemGetAccess(flags: Out<u64>, location: In<Location>, at: u64) {
        let location = location.get()?;
        let region = regions::find(at).filter(|region| region.kind == Kind::Vmm).ok_or(INVALID_VALUE)?;
        let here = location.kind == 1 && device(location.id)? == region.device;
        flags.put(if here { u64::from(region.access) } else { 0 })
    }

    fn cuMemGetHandleForAddressRange(_handle: Any, _at: u64, _bytes: u64, _kind: u32, _flags: u64) {
        Err(NOT_SUPPORTED)
    }
}

/// Sets the access of a range. The pages get the widest access that any device was granted, because kernels of all
/// devices run on the same processor.
fn set_access(at: u64, bytes: u64, access: &[Access]) -> Done {
    let found = regions::exactly(at, bytes)?;
    if access.is_empty() || found.iter().any(|region| region.kind != Kind::Vmm) {
        return Err(INVALID_VALUE);
    }
    for one in access {
        if one.location.kind != 1 || !matches!(one.flags, 0 | 1 | 3) {
            return Err(INVALID_VALUE);
        }
        device(one.location.id).map_err(|_| INVALID_DEVICE)?;
    }
    let most = access.iter().map(|one| one.flags).max().unwrap_or(0);
    for region in found {
        pages::protect(region.start, region.bytes, most)?;
        if let Some(region) = regions::lock().get_mut(&region.start) {
            region.access = most;
        }
    }
    Ok(())
}
