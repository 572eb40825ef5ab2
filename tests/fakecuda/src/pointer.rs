//! The driver's information about an address.

use crate::args::{Any, In};
use crate::code::{Code, Done, INVALID_VALUE, NOT_SUPPORTED};
use crate::regions::{self, Kind, Region};

/// Writes one attribute of an address. The address may be unknown to the driver.
fn put(data: &Any, attribute: u32, at: u64, region: Option<&Region>) -> Done {
    let known = || region.ok_or(INVALID_VALUE);
    match attribute {
        // The context. Memory without a context, such as that of pools and mapped handles, returns an error.
        1 => data.put(known()?.context),
        // Host or device.
        2 => data.put::<u32>(if known()?.kind.is_host() { 1 } else { 2 }),
        3 => {
            known()?;
            data.put(at)
        }
        4 => match known()?.kind {
            Kind::Pinned | Kind::Registered | Kind::Managed => data.put(at),
            _ => Err(INVALID_VALUE),
        },
        5 => Err(NOT_SUPPORTED),
        6 => {
            known()?;
            data.put(0u32)
        }
        7 | 20 => data.put(known()?.id),
        8 => data.put(u32::from(region.is_some_and(|region| region.kind == Kind::Managed))),
        9 => data.put(region.map_or(-2, |region| region.device as i32)),
        10 => data.put(u32::from(region.is_some_and(|region| region.kind == Kind::Device))),
        11 | 19 => data.put(known()?.start),
        12 | 18 => data.put(known()?.bytes),
        13 => data.put(u32::from(region.is_some())),
        // Handle types: POSIX descriptors, for memory that can be exported as one.
        14 => data.put(u64::from(matches!(known()?.kind, Kind::Vmm | Kind::Pool))),
        15 | 21 => data.put(0u32),
        16 => data.put(known()?.access),
        17 => data.put(region.map_or(0, |region| region.pool)),
        _ => Err(INVALID_VALUE),
    }
}

/// Writes the result of `cuPointerGetAttributes`. It is zero where the call for a single attribute returns an error.
fn put_or_zero(data: &Any, attribute: u32, at: u64, region: Option<&Region>) -> Result<(), Code> {
    match put(data, attribute, at, region) {
        Err(INVALID_VALUE) if matches!(attribute, 1 | 3 | 4 | 7 | 11 | 12 | 14 | 18..=20) => data.put(0u64),
        Err(INVALID_VALUE) if matches!(attribute, 2 | 6 | 16) => data.put(0u32),
        other => other,
    }
}

driver! {
    fn cuPointerGetAttribute(data: Any, attribute: u32, at: u64) {
        put(&data, attribute, at, regions::find(at).as_ref())
    }

    fn cuPointerGetAttributes(count: u32, attributes: In<u32>, places: In<u64>, at: u64) {
        let region = regions::find(at);
        let attributes = attributes.array(count as usize)?;
        for (attribute, place) in attributes.into_iter().zip(places.array(count as usize)?) {
            put_or_zero(&Any::at(place), attribute, at, region.as_ref())?;
        }
        Ok(())
    }

    fn cuPointerSetAttribute(_value: u64, attribute: u32, at: u64) {
        // Only SYNC_MEMOPS can be set, and this driver's synchronous copies are always in order.
        if attribute == 6 && regions::is_known(at) { Ok(()) } else { Err(INVALID_VALUE) }
    }
}
