//! Plain allocations: one memfd each, so that each can be shared alone.

use crate::args::Out;
use crate::backing::{Backing, Use};
use crate::code::{Code, Done, INVALID_CONTEXT, INVALID_VALUE};
use crate::pages::{self, PAGE};
use crate::regions::{self, Kind, Region};
use crate::{context, control, pool, settings, stream};

fn allocate(bytes: u64, kind: Kind) -> Result<u64, Code> {
    let context = context::current().ok_or(INVALID_CONTEXT)?;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let length = bytes.checked_next_multiple_of(PAGE).ok_or(crate::code::OUT_OF_MEMORY)?;
    let backing = Backing::create(Use::Alloc, context.device, length, length)?;
    let start = pages::map(&backing.file, 0, length, PAGE, 3)?;
    let region = Region::new(start, bytes, kind, context.device);
    regions::insert(Region { context: context.handle, backing: Some(backing), ..region });
    Ok(start)
}

fn free(at: u64) -> Done {
    if at == 0 {
        return Ok(());
    }
    let region = regions::find(at).filter(|region| region.start == at).ok_or(INVALID_VALUE)?;
    // As in CUDA, no work of the device uses the memory after the call. No context needs to be current, because
    // libraries free their remaining memory after they have released their contexts.
    stream::synchronize_all(region.device)?;
    if matches!(region.kind, Kind::Pool | Kind::PoolImport) {
        return pool::free_now(&region);
    }
    let region = regions::remove(at, &[Kind::Device, Kind::Managed])?;
    pages::unmap(region.start, region.bytes.next_multiple_of(PAGE));
    if let Some(backing) = &region.backing
        && control::held_elsewhere(backing.inode)
    {
        control::violation();
        backing.fill(0, backing.bytes, 0xDD)?;
    }
    Ok(())
}

driver! {
    fn cuMemAlloc_v2(place: Out<u64>, bytes: u64) {
        place.put(allocate(bytes, Kind::Device)?)
    }

    fn cuMemAllocManaged(place: Out<u64>, bytes: u64, flags: u32) {
        if !matches!(flags, 1 | 2) {
            return Err(INVALID_VALUE);
        }
        place.put(allocate(bytes, Kind::Managed)?)
    }

    fn cuMemAllocPitch_v2(place: Out<u64>, pitch: Out<u64>, width_bytes: u64, height: u64, _element: u32) {
        let row = width_bytes.next_multiple_of(512);
        place.put(allocate(row.checked_mul(height).ok_or(INVALID_VALUE)?, Kind::Device)?)?;
        pitch.put(row)
    }

    fn cuMemFree_v2(at: u64) {
        free(at)
    }

    fn cuMemGetInfo_v2(free: Out<u64>, total: Out<u64>) {
        let context = context::current().ok_or(INVALID_CONTEXT)?;
        let most = settings::get().memory_bytes;
        free.offer(most.saturating_sub(control::used(context.device)));
        total.offer(most);
        Ok(())
    }

    fn cuMemGetAddressRange_v2(start: Out<u64>, bytes: Out<u64>, at: u64) {
        let region = regions::find(at).ok_or(INVALID_VALUE)?;
        start.offer(region.start);
        bytes.offer(region.bytes);
        Ok(())
    }

    fn cuMemAdvise_v2(_at: u64, _bytes: u64, _advice: u32, _location: u64) {
        Ok(())
    }

    fn cuMemPrefetchAsync_v2(_at: u64, _bytes: u64, _location: u64, _flags: u32, stream: u64) {
        stream::find(stream).map(drop)
    }
}
