//! The driver's functions about itself and its devices.

use crate::args::{Out, Text};
use crate::code::{INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, NOT_FOUND, NOT_SUPPORTED};
use crate::context::device;
use crate::{attributes, call, settings};

/// Returns a UUID that is stable, and different for each ordinal.
fn uuid(device: u32) -> [u8; 16] {
    let mut uuid = *b"fake-cuda-card-0";
    uuid[15] += device as u8;
    uuid
}

fn bus_id(device: u32) -> String {
    format!("0000:{:02X}:00.0", 0xFA + device)
}

fn put_text(place: &Out<u8>, room: i32, text: &str) -> crate::code::Done {
    let room = usize::try_from(room).ok().filter(|room| *room > 0).ok_or(INVALID_VALUE)?;
    let mut bytes = text.as_bytes()[..text.len().min(room - 1)].to_vec();
    bytes.push(0);
    place.fill(&bytes)
}

driver! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if settings::get().devices == 0 {
            return Err(NO_DEVICE);
        }
        call::initialise()
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.put(13000)
    }

    fn cuDeviceGetCount(count: Out<i32>) {
        count.put(settings::get().devices as i32)
    }

    fn cuDeviceGet(place: Out<i32>, ordinal: i32) {
        place.put(device(ordinal)? as i32)
    }

    fn cuDeviceGetName(name: Out<u8>, room: i32, ordinal: i32) {
        put_text(&name, room, &format!("tensorlend fake device {}", device(ordinal)?))
    }

    fn cuDeviceGetUuid(place: Out<[u8; 16]>, ordinal: i32) {
        place.put(uuid(device(ordinal)?))
    }

    fn cuDeviceGetUuid_v2(place: Out<[u8; 16]>, ordinal: i32) {
        place.put(uuid(device(ordinal)?))
    }

    fn cuDeviceGetLuid(_luid: u64, _mask: u64, _ordinal: i32) {
        Err(NOT_SUPPORTED)
    }

    fn cuDeviceTotalMem_v2(bytes: Out<u64>, ordinal: i32) {
        device(ordinal)?;
        bytes.put(settings::get().memory_bytes)
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, ordinal: i32) {
        value.put(attributes::get(attribute, device(ordinal)?).ok_or(INVALID_VALUE)?)
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, ordinal: i32) {
        device(ordinal)?;
        major.put(9)?;
        minor.put(0)
    }

    fn cuDeviceGetPCIBusId(name: Out<u8>, room: i32, ordinal: i32) {
        put_text(&name, room, &bus_id(device(ordinal)?))
    }

    fn cuDeviceGetByPCIBusId(place: Out<i32>, name: Text) {
        let name = name.get()?.to_uppercase();
        let device = (0..settings::get().devices).find(|device| bus_id(*device).ends_with(&name)).ok_or(INVALID_DEVICE)?;
        place.put(device as i32)
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, one: i32, other: i32) {
        can.put(i32::from(device(one)? != device(other)?))
    }

    fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: i32, one: i32, other: i32) {
        if device(one)? == device(other)? {
            return Err(INVALID_DEVICE);
        }
        value.put(i32::from(matches!(attribute, 2 | 3)))
    }

    fn cuDeviceGetExecAffinitySupport(supported: Out<i32>, _kind: u32, ordinal: i32) {
        device(ordinal)?;
        supported.put(0)
    }

    fn cuDeviceGetDevResource(_ordinal: i32, _resource: u64, _kind: u32) {
        Err(NOT_SUPPORTED)
    }

    fn cuProfilerStart() {
        Ok(())
    }

    fn cuProfilerStop() {
        Ok(())
    }

    fn cuGetExportTable(table: Out<u64>, _id: u64) {
        table.offer(0);
        Err(NOT_FOUND)
    }
}
