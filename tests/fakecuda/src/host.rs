//! Host memory that the card can reach: pinned or registered. Its device address is its address.

use crate::args::Out;
use crate::backing::Backing;
use crate::code::{
    Code, Done, HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_CONTEXT, INVALID_VALUE,
    NOT_SUPPORTED,
};
use crate::pages::{self, PAGE};
use crate::regions::{self, Kind, Region};
use crate::{call, context, stream};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

const READ_ONLY: u32 = 8;

fn allocate(bytes: u64, flags: u32) -> Result<u64, Code> {
    let context = context::current().ok_or(INVALID_CONTEXT)?;
    if bytes == 0 || flags & !7 != 0 {
        return Err(INVALID_VALUE);
    }
    let length = bytes.next_multiple_of(PAGE);
    let file = pages::memfd("fakecuda-host", length)?;
    // No process holds this inode, so the memory counts on no device.
    let inode = file.metadata()?.ino();
    let backing = Arc::new(Backing { file, bytes: length, device: context.device, inode });
    let start = pages::map(&backing.file, 0, length, PAGE, 3)?;
    let region = Region::new(start, bytes, Kind::Pinned, context.device);
    regions::insert(Region { context: context.handle, backing: Some(backing), extra: flags, ..region });
    Ok(start)
}

/// Whether every page of the range is mapped, and writable if need be.
fn is_mapped(at: u64, bytes: u64, writable: bool) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut reached = at;
    for line in maps.lines() {
        let mut fields = line.split(' ');
        let range = fields.next().and_then(|range| range.split_once('-'));
        let Some((start, end)) = range else { continue };
        let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        let access = fields.next().unwrap_or("");
        let fits = access.starts_with('r') && (!writable || access.as_bytes().get(1) == Some(&b'w'));
        if number(start) <= reached && reached < number(end) && fits {
            reached = number(end);
        }
    }
    reached >= at + bytes
}

fn register(at: u64, bytes: u64, flags: u32) -> Done {
    let context = context::current().ok_or(INVALID_CONTEXT)?;
    if at == 0 || bytes == 0 || flags & !15 != 0 {
        return Err(INVALID_VALUE);
    }
    if regions::any_in(at, bytes) {
        return Err(HOST_MEMORY_ALREADY_REGISTERED);
    }
    if flags & 4 != 0 {
        return Err(NOT_SUPPORTED);
    }
    if !is_mapped(at, bytes, flags & READ_ONLY == 0) {
        return Err(INVALID_VALUE);
    }
    let access = if flags & READ_ONLY == 0 { 3 } else { 1 };
    let region = Region::new(at, bytes, Kind::Registered, context.device);
    regions::insert(Region { context: context.handle, extra: flags, access, ..region });
    Ok(())
}

driver! {
    fn cuMemAllocHost_v2(place: Out<u64>, bytes: u64) {
        place.put(allocate(bytes, 0)?)
    }

    fn cuMemHostAlloc(place: Out<u64>, bytes: u64, flags: u32) {
        place.put(allocate(bytes, flags)?)
    }

    fn cuMemFreeHost(at: u64) {
        if at == 0 {
            return Ok(());
        }
        let found = regions::find(at).filter(|region| region.start == at && region.kind == Kind::Pinned);
        stream::synchronize_all(found.ok_or(INVALID_VALUE)?.device)?;
        let region = regions::remove(at, &[Kind::Pinned])?;
        pages::unmap(region.start, region.bytes.next_multiple_of(PAGE));
        Ok(())
    }

    fn cuMemHostRegister_v2(at: u64, bytes: u64, flags: u32) {
        register(at, bytes, flags)?;
        call::note(&format!("cuMemHostRegister flags {flags}"));
        Ok(())
    }

    fn cuMemHostUnregister(at: u64) {
        let found = regions::find(at).filter(|region| region.start == at && region.kind == Kind::Registered);
        let found = found.ok_or(HOST_MEMORY_NOT_REGISTERED)?;
        if !is_mapped(at, found.bytes, false) {
            // The driver still locks the pages of the former mapping, and devices may still access them.
            call::note("cuMemHostUnregister after the unmapping");
        }
        stream::synchronize_all(found.device)?;
        regions::remove(at, &[Kind::Registered]).map(drop).map_err(|_| HOST_MEMORY_NOT_REGISTERED)
    }

    fn cuMemHostGetDevicePointer_v2(place: Out<u64>, at: u64, _flags: u32) {
        regions::find(at).filter(|region| region.kind.is_host()).ok_or(INVALID_VALUE)?;
        place.put(at)
    }

    fn cuMemHostGetFlags(flags: Out<u32>, at: u64) {
        // As in CUDA, all host memory is portable and mapped if addresses are unified.
        let region = regions::find(at).filter(|region| region.kind.is_host()).ok_or(INVALID_VALUE)?;
        flags.put(region.extra | 3)
    }
}
