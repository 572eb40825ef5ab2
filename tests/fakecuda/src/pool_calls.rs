//! The driver's functions for pools and stream-ordered memory.

use crate::args::{Any, In, Out};
use crate::backing::{Backing, Use};
use crate::code::{INVALID_VALUE, NOT_SUPPORTED};
use crate::context::device;
use crate::regions::{self, Kind};
use crate::vmm::{Access, Location};
use crate::{pool, stream};
use std::os::fd::IntoRawFd;

const POSIX_DESCRIPTOR: u32 = 1;
const MAGIC: u64 = u64::from_le_bytes(*b"fakepool");

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    win32: u64,
    most_bytes: u64,
    usage: u16,
    reserved: [u8; 54],
}

/// `CUmemPoolPtrExportData`: a range of a pool.
#[repr(C)]
#[derive(Clone, Copy)]
struct Exported {
    magic: u64,
    inode: u64,
    offset: u64,
    bytes: u64,
    reserved: [u64; 4],
}

driver! {
    fn cuDeviceGetDefaultMemPool(place: Out<u64>, ordinal: i32) {
        place.put(pool::default(device(ordinal)?)?)
    }

    fn cuDeviceGetMemPool(place: Out<u64>, ordinal: i32) {
        place.put(pool::current(device(ordinal)?)?)
    }

    fn cuDeviceSetMemPool(ordinal: i32, pool: u64) {
        let device = device(ordinal)?;
        if pool::get(pool)?.backing.device != device {
            return Err(INVALID_VALUE);
        }
        pool::set_current(device, pool);
        Ok(())
    }

    fn cuMemGetDefaultMemPool(place: Out<u64>, location: In<Location>, kind: u32) {
        let location = location.get()?;
        if location.kind != 1 || kind != 1 {
            return Err(NOT_SUPPORTED);
        }
        place.put(pool::default(device(location.id)?)?)
    }

    fn cuMemGetMemPool(place: Out<u64>, location: In<Location>, kind: u32) {
        let location = location.get()?;
        if location.kind != 1 || kind != 1 {
            return Err(NOT_SUPPORTED);
        }
        place.put(pool::current(device(location.id)?)?)
    }

    fn cuMemPoolCreate(place: Out<u64>, properties: In<Properties>) {
        let properties = properties.get()?;
        if properties.kind != 1 {
            return Err(INVALID_VALUE);
        }
        if properties.location.kind != 1 || properties.handle_types & !POSIX_DESCRIPTOR != 0 {
            return Err(NOT_SUPPORTED);
        }
        let exportable = properties.handle_types == POSIX_DESCRIPTOR;
        place.put(pool::create(device(properties.location.id)?, exportable, properties.most_bytes)?)
    }

    fn cuMemPoolDestroy(pool: u64) {
        pool::destroy(pool)
    }

    fn cuMemPoolTrimTo(pool: u64, keep: u64) {
        pool::get(pool)?.shrink(keep);
        Ok(())
    }

    fn cuMemPoolSetAttribute(pool: u64, attribute: u32, value: Any) {
        let pool = pool::get(pool)?;
        if pool.imported {
            return Err(INVALID_VALUE);
        }
        let mut state = pool.state();
        match attribute {
            1..=3 => state.reuse[attribute as usize - 1] = value.get()?,
            4 => state.threshold = value.get()?,
            // The high-water marks can only be reset.
            6 if value.get::<u64>()? == 0 => state.reserved_high = state.reserved,
            8 if value.get::<u64>()? == 0 => state.used_high = state.used,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: u64, attribute: u32, value: Any) {
        let pool = pool::get(pool)?;
        let state = pool.state();
        match attribute {
            1..=3 => value.put(state.reuse[attribute as usize - 1]),
            4 => value.put(state.threshold),
            5 => value.put(state.reserved),
            6 => value.put(state.reserved_high),
            7 => value.put(state.used),
            8 => value.put(state.used_high),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuMemPoolSetAccess(handle: u64, access: In<Access>, count: u64) {
        let pool = pool::get(handle)?;
        for one in access.array(count as usize)? {
            if one.location.kind != 1 || !matches!(one.flags, 0 | 1 | 3) {
                return Err(INVALID_VALUE);
            }
            device(one.location.id)?;
            pool.set_access(handle, one.location.id, one.flags)?;
        }
        Ok(())
    }

    fn cuMemPoolGetAccess(flags: Out<u32>, pool: u64, location: In<Location>) {
        let (pool, location) = (pool::get(pool)?, location.get()?);
        if location.kind != 1 {
            return Err(INVALID_VALUE);
        }
        let own = device(location.id)? == pool.backing.device;
        let set = pool.state().access.get(&location.id).copied();
        flags.put(set.unwrap_or(if own { 3 } else { 0 }))
    }

    fn cuMemPoolExportToShareableHandle(place: Out<i32>, pool: u64, kind: u32, flags: u64) {
        let pool = pool::get(pool)?;
        if kind != POSIX_DESCRIPTOR || flags != 0 || !pool.exportable || pool.imported || place.is_null() {
            return Err(INVALID_VALUE);
        }
        let fd = pool.backing.file.try_clone()?.into_raw_fd();
        pool.state().exported = true;
        place.put(fd)
    }

    fn cuMemPoolImportFromShareableHandle(place: Out<u64>, descriptor: u64, kind: u32, flags: u64) {
        // The driver treats descriptor 0 as a null pointer.
        if kind != POSIX_DESCRIPTOR || flags != 0 || descriptor == 0 {
            return Err(INVALID_VALUE);
        }
        place.put(pool::import(Backing::adopt(Use::Pool, Backing::duplicate(descriptor as i32)?)?))
    }

    fn cuMemPoolExportPointer(data: Out<Exported>, at: u64) {
        let region = regions::find(at).filter(|region| region.kind == Kind::Pool).ok_or(INVALID_VALUE)?;
        let pool = pool::get(region.pool)?;
        if !pool.exportable || !pool.state().exported || region.start != at {
            return Err(INVALID_VALUE);
        }
        let (inode, offset, bytes) = (pool.backing.inode, region.offset, region.bytes);
        data.put(Exported { magic: MAGIC, inode, offset, bytes, reserved: [0; 4] })
    }

    fn cuMemPoolImportPointer(place: Out<u64>, handle: u64, data: In<Exported>) {
        let (pool, data) = (pool::get(handle)?, data.get()?);
        if data.magic != MAGIC || data.inode != pool.backing.inode {
            return Err(INVALID_VALUE);
        }
        place.put(pool.import_pointer(handle, data.offset, data.bytes)?)
    }

    fn cuMemAllocAsync(place: Out<u64>, bytes: u64, stream: u64) {
        let stream = stream::find(stream)?;
        let pool = pool::current(stream.device)?;
        place.put(pool::get(pool)?.allocate(pool, bytes, &stream)?)
    }

    fn cuMemAllocFromPoolAsync(place: Out<u64>, bytes: u64, pool: u64, stream: u64) {
        let stream = stream::find(stream)?;
        place.put(pool::get(pool)?.allocate(pool, bytes, &stream)?)
    }

    fn cuMemFreeAsync(at: u64, stream: u64) {
        if at == 0 {
            return Err(INVALID_VALUE);
        }
        pool::free(at, &stream::find(stream)?)
    }
}
