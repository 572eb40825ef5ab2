//! Devices whose memory the daemon lends: the core's data about each device, and the lengths of the
//! device's segments.

use super::account::BytesLimit;
use super::pool::Pool;
use super::settings::DeviceSettings;
use tensorlend_layout::Uuid;
use tensorlend_layout::size::bytes_text;
use tensorlend_layout::wire::{Allocator, DeviceOffer, DeviceUse, Export, LimitKind, Refusal};

/// The index of a device in the configuration.
pub type DeviceNumber = usize;

/// Unit of the lengths of allocations. Labels in the fd store contain lengths in this unit: see
/// `label.rs`.
pub const UNIT: u64 = 2 << 20;
/// Unit of the lengths of blocks of the driver's pools.
const BLOCK_UNIT: u64 = 512;
/// Maximum length of a block of the driver's pool. No test has shown yet that clients can import
/// longer blocks safely.
const BLOCK_BYTES_MAX: u64 = 4 << 30;

/// A device whose memory the daemon lends.
#[derive(Debug)]
pub struct Device {
    pub settings: DeviceSettings,
    /// The pool of the device's segments. The pool has no spare segments, because a spare would
    /// take memory from programs that are not clients.
    pub pool: Pool,
    /// Number of segments that are lent.
    pub segments: u32,
}

impl Device {
    pub fn new(settings: &DeviceSettings) -> Self {
        let pool = Pool::new(settings.bytes_max, settings.segment_bytes, 0, settings.idle_bytes_max);
        Self { settings: settings.clone(), pool, segments: 0 }
    }

    pub fn offer(&self) -> DeviceOffer {
        let it = &self.settings;
        let (segment_bytes, segment_bytes_max) = match it.allocator {
            Allocator::Pool | Allocator::Arena => (it.segment_bytes, it.bytes_max / it.unit_bytes * it.unit_bytes),
            Allocator::Async => (BLOCK_UNIT, it.bytes_max.min(BLOCK_BYTES_MAX)),
        };
        let (uuid, name, allocator) = (it.uuid, it.name.clone(), it.allocator);
        DeviceOffer { uuid, name, allocator, segment_bytes, segment_bytes_max }
    }

    pub fn usage(&self) -> DeviceUse {
        DeviceUse {
            offer: self.offer(),
            bytes_max: self.pool.bytes_max(),
            bytes: self.pool.bytes(),
            bytes_in_use: self.pool.lent_bytes(),
            segments: self.segments,
        }
    }

    /// Returns the length of a segment for a request of at least `bytes`.
    pub fn length(&self, bytes: u64) -> Result<u64, Refusal> {
        let it = &self.settings;
        let wanted = bytes.max(1);
        let length = match it.allocator {
            Allocator::Async if wanted > BLOCK_BYTES_MAX => {
                let most = bytes_text(BLOCK_BYTES_MAX);
                return Err(Refusal::Bad(format!(
                    "with cuda.allocator \"async\" a segment has at most {most}: use \"pool\" for longer ones"
                )));
            }
            Allocator::Async => wanted.checked_next_multiple_of(BLOCK_UNIT),
            Allocator::Pool | Allocator::Arena => wanted.max(it.segment_bytes).checked_next_multiple_of(it.unit_bytes),
        };
        length.ok_or_else(|| Refusal::Bad("no device has that many bytes".into()))
    }

    /// Returns the refusal of a request for `asked` bytes.
    pub fn full(&self, asked: u64) -> Refusal {
        let full = BytesLimit { used: self.pool.lent_bytes(), asked, most: self.pool.bytes_max() };
        let what = format!("the memory lent of device {}", self.settings.uuid);
        full.refusal(LimitKind::DeviceBytes, what, "cuda.bytes_max")
    }
}

/// The devices whose memory the daemon lends, by their numbers.
#[derive(Debug)]
pub struct DeviceTable {
    devices: Vec<Device>,
    /// Time of the last lending of a segment: see [`DeviceTable::lending_ns`].
    last_lending_ns: u64,
}

impl DeviceTable {
    pub fn new(settings: &[DeviceSettings]) -> Self {
        Self { devices: settings.iter().map(Device::new).collect(), last_lending_ns: 0 }
    }

    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// Returns the devices in the order of their numbers.
    pub fn iter(&self) -> std::slice::Iter<'_, Device> {
        self.devices.iter()
    }

    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Device> {
        self.devices.iter_mut()
    }

    /// Returns the number of a device. `no_device` is the reason why the daemon has no device.
    pub fn number_of(&self, uuid: Uuid, no_device: &str) -> Result<DeviceNumber, Refusal> {
        let found = self.iter().position(|device| device.settings.uuid == uuid);
        found.ok_or_else(|| {
            let why = if self.devices.is_empty() { format!(": {no_device}") } else { String::new() };
            Refusal::NotFound(format!("device {uuid} of which memory is lent{why}"))
        })
    }

    /// Returns a time later than that of every earlier lending. The time distinguishes two lendings of the same slots.
    pub fn lending_ns(&mut self, now_ns: u64) -> u64 {
        self.last_lending_ns = now_ns.max(self.last_lending_ns + 1);
        self.last_lending_ns
    }

    /// Records a lending by the previous daemon. The times of this daemon's lendings must be later.
    pub fn note_lending(&mut self, since_ns: u64) {
        self.last_lending_ns = self.last_lending_ns.max(since_ns);
    }

    /// Returns true if a lending may have begun at this time.
    pub fn may_have_lent(&self, since_ns: u64, now_ns: u64) -> bool {
        since_ns <= self.last_lending_ns.max(now_ns)
    }
}

impl std::ops::Index<DeviceNumber> for DeviceTable {
    type Output = Device;

    fn index(&self, number: DeviceNumber) -> &Device {
        &self.devices[number]
    }
}

impl std::ops::IndexMut<DeviceNumber> for DeviceTable {
    fn index_mut(&mut self, number: DeviceNumber) -> &mut Device {
        &mut self.devices[number]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnDevice {
    pub number: DeviceNumber,
    /// The time of lending: see [`LendingId`].
    pub since_ns: u64,
    /// The kind of the segment's descriptor.
    pub export: Export,
}

/// A segment's location in the directory: see `SegmentEntry::place`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLocation {
    /// The index of the device in the directory's list.
    pub device: u8,
    pub allocator: Allocator,
}

impl DeviceLocation {
    pub fn word(self) -> u64 {
        u64::from(self.device) << 8 | self.allocator.code()
    }

    /// Decodes a location. Returns `None` for host memory, and for a location that this version
    /// does not know.
    pub fn of(word: u64) -> Option<Self> {
        Some(Self { device: (word >> 8).try_into().ok()?, allocator: Allocator::from_code(word & 0xFF)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_follow_the_allocator() {
        let of = |allocator, bytes| {
            let settings = DeviceSettings { allocator, ..crate::core::tests::world::device() };
            Device::new(&settings).length(bytes).map_err(|refusal| refusal.to_string())
        };
        let ordinary = crate::core::tests::world::device().segment_bytes;
        for allocator in [Allocator::Pool, Allocator::Arena] {
            assert_eq!(of(allocator, 0), Ok(ordinary));
            assert_eq!(of(allocator, ordinary), Ok(ordinary));
            assert_eq!(of(allocator, ordinary + 1), Ok(ordinary + UNIT));
            assert!(of(allocator, u64::MAX).is_err());
        }
        assert_eq!(of(Allocator::Async, 0), Ok(512));
        assert_eq!(of(Allocator::Async, 513), Ok(1024));
        assert_eq!(of(Allocator::Async, 4 << 30), Ok(4 << 30));
        assert!(of(Allocator::Async, (4 << 30) + 1).unwrap_err().contains("at most 4 GiB"));
    }

    #[test]
    fn places_come_back_from_their_words() {
        for allocator in [Allocator::Pool, Allocator::Async, Allocator::Arena] {
            let place = DeviceLocation { device: 15, allocator };
            assert_eq!(DeviceLocation::of(place.word()), Some(place));
        }
        assert_eq!([0, 4, 256 << 8 | 1].map(DeviceLocation::of), [None; 3]);
        assert_eq!(DeviceLocation { device: 0, allocator: Allocator::Pool }.word(), 1);
    }
}
