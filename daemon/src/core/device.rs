//! Devices of which memory is lent: what the core is told of each, and how long its segments are.

use super::account::{Kind, bytes_text, limit};
use super::answer::{Answer, Lent, Outcome, What, Work};
use super::effect::{Effect, Lending};
use super::env::{Env, Making, Purpose};
use super::event::{ConnId, MemId};
use super::label::Label;
use super::namespace::Namespace;
use super::pool::Pool;
use super::settings::DeviceSettings;
use crate::core::account::NamespaceId;
use tensorlend_layout::Uuid;
use tensorlend_layout::directory::DEVICES;
use tensorlend_layout::wire::{Allocator, DeviceOffer, DeviceSegment, DeviceUse, Export, LendingId, Refusal, Reply};
use tensorlend_layout::word::RangeWord;

/// A device's place among those of the configuration.
pub type DeviceNumber = usize;

/// Every length of an allocation that a daemon after this one may have to know is a multiple of it.
pub const UNIT: u64 = 2 << 20;
/// Blocks of the driver's pools have multiples of it.
const BLOCK_UNIT: u64 = 512;
/// Longest block of the driver's pool that is lent: for longer ones nobody has shown yet that importing them is safe.
const BLOCK_BYTES_MAX: u64 = 4 << 30;

/// A device of which memory is lent.
#[derive(Debug)]
pub struct Device {
    /// What it was told of it.
    pub settings: DeviceSettings,
    /// Its segments: without spares, which would take memory from programs that are not our clients.
    pub pool: Pool,
    /// Segments that are lent.
    pub segments: u32,
}

impl Device {
    pub fn new(settings: &DeviceSettings) -> Self {
        let pool = Pool::new(settings.bytes_max, settings.segment_bytes, 0, settings.idle_bytes_max);
        Self { settings: settings.clone(), pool, segments: 0 }
    }

    /// What clients are told.
    pub fn offer(&self) -> DeviceOffer {
        let it = &self.settings;
        let (segment_bytes, segment_bytes_max) = match it.allocator {
            Allocator::Pool | Allocator::Arena => (it.segment_bytes, it.bytes_max / it.unit_bytes * it.unit_bytes),
            Allocator::Async => (BLOCK_UNIT, it.bytes_max.min(BLOCK_BYTES_MAX)),
        };
        let (uuid, name, allocator) = (it.uuid, it.name.clone(), it.allocator);
        DeviceOffer { uuid, name, allocator, segment_bytes, segment_bytes_max }
    }

    /// What is in use of it.
    pub fn usage(&self) -> DeviceUse {
        DeviceUse {
            offer: self.offer(),
            bytes_max: self.pool.bytes_max(),
            bytes: self.pool.bytes(),
            bytes_in_use: self.pool.lent_bytes(),
            segments: self.segments,
        }
    }

    /// The length of a segment for which at least `bytes` were asked.
    fn length(&self, bytes: u64) -> Result<u64, Refusal> {
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

    fn full(&self) -> Refusal {
        let (uuid, in_use) = (self.settings.uuid, bytes_text(self.pool.lent_bytes()));
        limit(
            format!("memory lent of device {uuid} ({in_use} in use)"),
            "cuda.bytes_max",
            bytes_text(self.pool.bytes_max()),
        )
    }
}

/// A segment that is on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnDevice {
    /// On which.
    pub number: DeviceNumber,
    /// Since when it is lent: see [`LendingId`].
    pub since_ns: u64,
    /// What its descriptor is.
    pub export: Export,
}

/// What a directory says of where a segment is: see `SegmentEntry::place`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The device, by its place in the directory's list.
    pub device: u64,
    /// Who allocated it.
    pub allocator: Allocator,
}

impl Place {
    pub fn word(self) -> u64 {
        self.device << 8 | self.allocator.code()
    }

    /// `None`: in host memory, or nowhere that this version knows.
    pub fn of(word: u64) -> Option<Self> {
        Some(Self { device: word >> 8, allocator: Allocator::from_code(word & 0xFF)? })
    }
}

impl Env {
    /// The devices, as clients are told.
    pub fn offers(&self) -> Vec<DeviceOffer> {
        self.devices.iter().map(Device::offer).collect()
    }

    /// Which device this is.
    pub fn device(&self, uuid: Uuid) -> Result<DeviceNumber, Refusal> {
        let found = self.devices.iter().position(|device| device.settings.uuid == uuid);
        found.ok_or_else(|| {
            let why = if self.devices.is_empty() { format!(": {}", self.settings.no_device) } else { String::new() };
            Refusal::NotFound(format!("device {uuid} of which memory is lent{why}"))
        })
    }

    /// A segment of `bytes` for a request: one that this uid let go of in this namespace, or a new one. `None`: the device
    /// has no room.
    fn order_on_device(
        &mut self,
        conn: ConnId,
        (namespace, uid): (NamespaceId, u32),
        number: DeviceNumber,
        bytes: u64,
    ) -> Option<(MemId, Option<Export>)> {
        let pool = &mut self.devices[number].pool;
        if let Some(mem) = pool.take_idle(namespace, uid, bytes) {
            return Some((mem, Some(Export::Allocation)));
        }
        for mem in pool.reserve(bytes)? {
            self.release(mem);
        }
        let mem = self.name_order(Purpose::Request(conn));
        self.effects.push(Effect::CreateOnDevice { mem, device: number, whose: (namespace, uid), bytes });
        Some((mem, None))
    }

    /// A moment that no lending before it has: two lendings of the same slots differ by it.
    pub fn lending_ns(&mut self) -> u64 {
        self.last_lending_ns = self.now_ns.max(self.last_lending_ns + 1);
        self.last_lending_ns
    }

    /// Nobody has this memory of a device mapped any more.
    pub fn let_go(&mut self, number: DeviceNumber, mem: MemId, bytes: u64, (namespace, uid): (NamespaceId, u32)) {
        let device = &mut self.devices[number];
        // A block's memory stays with the driver's pool in any case, which lends it on in the same namespace.
        let idles = device.settings.allocator != Allocator::Async && self.accounts.is_open(namespace);
        if !idles {
            device.pool.forget(bytes);
            self.release(mem);
            return;
        }
        let released = device.pool.keep_idle(mem, bytes, (namespace, uid));
        if !released.contains(&mem) {
            self.effects.push(Effect::Forget { mem });
        }
        for mem in released {
            self.release(mem);
        }
    }
}

impl Namespace {
    /// Tells whoever maps the directory which devices there are. A directory that has a list keeps it, as far as it has been
    /// written: lines of segments lead there.
    pub fn list_devices(&mut self, env: &Env) {
        let words = &self.context.directory.head().devices;
        self.places.clear();
        for place in 0..DEVICES {
            let uuid = Uuid::from_words([words[2 * place].peek(), words[2 * place + 1].peek()]);
            if uuid != Uuid([0; 16]) {
                self.places.push(env.device(uuid).ok());
            }
        }
        for number in 0..env.devices.len() {
            let place = self.places.len();
            if place < DEVICES && !self.places.contains(&Some(number)) {
                let [low, high] = env.devices[number].settings.uuid.words();
                words[2 * place].put(low);
                words[2 * place + 1].put(high);
                self.places.push(Some(number));
            }
        }
    }

    /// Where a directory's line says that a segment is, if its device is there still.
    pub fn device_at(&self, place: u64) -> Option<DeviceNumber> {
        *self.places.get(usize::try_from(place).ok()?)?
    }

    fn place_of(&self, number: DeviceNumber) -> Option<u64> {
        self.places.iter().position(|it| *it == Some(number)).map(|place| place as u64)
    }

    /// The label of a device's memory that is lent.
    fn device_label(&self, owner: u16, base: u32, number: DeviceNumber, bytes: u64) -> Label {
        let place = self.place_of(number).expect("it was lent under its place") as u8;
        Label::DeviceSegment { namespace: self.context.ledger.id(), owner, base, place, bytes }
    }

    /// A request for a segment of a device's memory.
    pub fn device_segment(
        &mut self,
        env: &mut Env,
        conn: ConnId,
        catalogue: u16,
        uuid: Uuid,
        (bytes, log2): (u64, u8),
    ) -> Answer {
        let number = env.device(uuid)?;
        if self.place_of(number).is_none() {
            let why = format!(
                "device {uuid} in this namespace: its directory lists {DEVICES} others, which were there before"
            );
            return Err(Refusal::NotFound(why));
        }
        self.check_watched(catalogue)?;
        let bytes = env.devices[number].length(bytes)?;
        let base = self.range_for_segment(catalogue, log2)?;
        let uid = self.members.me(catalogue).uid;
        if bytes > env.devices[number].pool.bytes_max() {
            return Err(env.devices[number].full());
        }
        let charge = env.accounts.charge(Some(uid), self.context.ledger.id(), Kind::Device, bytes)?;
        let (slots_bytes, slots_charge) = match self.charge_slots(env, uid, log2) {
            Ok(charged) => charged,
            Err(refusal) => {
                env.accounts.refund(charge);
                return Err(refusal);
            }
        };
        let Some((mem, export)) = env.order_on_device(conn, (self.context.ledger.id(), uid), number, bytes) else {
            env.accounts.refund(charge);
            env.accounts.refund(slots_charge);
            return Err(env.devices[number].full());
        };
        let slots = env.order_slots(conn, (catalogue, base, log2), slots_bytes, slots_charge);
        let segment = Making {
            mem,
            charge,
            segment_bytes: Some(bytes),
            device: Some(number),
            made: export.is_some(),
            export,
            view: None,
        };
        Ok(Outcome::Working(Work { what: What::Segment { base, log2 }, making: vec![segment, slots] }))
    }

    /// A client whose end nobody would hear of may have no device memory: its work there could go on unseen.
    pub fn check_watched(&self, catalogue: u16) -> Result<(), Refusal> {
        if self.members.client(catalogue)?.watched {
            return Ok(());
        }
        let why = "device memory is lent to processes that the daemon can watch: this one is in a pid namespace that it \
                   does not see, or had ended when it connected";
        Err(Refusal::Bad(why.into()))
    }

    /// A segment of a device's memory is there, and so are its slots.
    pub fn device_segment_made(
        &mut self,
        env: &mut Env,
        catalogue: u16,
        (base, log2): (u32, u8),
        segment: Making,
        slots: Making,
        entry: u32,
    ) -> Outcome {
        let bytes = segment.segment_bytes.expect("it is a segment");
        let number = segment.device.expect("it is on a device");
        let export = segment.export.expect("it is there");
        let since_ns = env.lending_ns();
        let allocator = env.devices[number].settings.allocator;
        let place = Place { device: self.place_of(number).expect("seen when it was asked for"), allocator };
        let line = &self.context.directory.segments[entry as usize];
        line.bytes.put(bytes);
        line.since_ns.put(since_ns);
        line.place.put(place.word());
        tensorlend_layout::crash_point!("device: range about to be lent");
        line.range.set(RangeWord::new(log2, catalogue, base).0);
        tensorlend_layout::crash_point!("device: range lent");
        env.devices[number].segments += 1;
        if allocator != Allocator::Async {
            env.keep(segment.mem, self.device_label(catalogue, base, number, bytes));
        }
        env.keep(slots.mem, Label::Slots { namespace: self.context.ledger.id(), owner: catalogue, base });
        let lend = vec![(segment.mem, Lending::Device), (slots.mem, Lending::Write)];
        let on_device = OnDevice { number, since_ns, export };
        let lending = LendingId { catalogue, base, since_ns };
        self.holders.lent(lending, Some(catalogue));
        let segment = super::client::Segment {
            mem: segment.mem,
            bytes,
            charge: segment.charge,
            slots_log2: log2,
            slots: slots.into_part(),
            entry,
            residence: super::spill::Residence::Memory,
            shelved_ns: None,
            tried_ns: None,
            device: Some(on_device),
        };
        let client = self.members.me(catalogue);
        client.segments.insert(base, segment);
        client.lent_ns = env.now_ns;
        let reply = self.describe_on_device(env, catalogue, base).expect("it is there");
        Outcome::Lend(Reply::DeviceSegment(reply), lend, Lent::Segment(base))
    }

    /// What whoever is lent this segment is told; `None`: it is in host memory.
    pub fn describe_on_device(&self, env: &Env, catalogue: u16, base: u32) -> Option<DeviceSegment> {
        let segment = self.members.get(catalogue)?.segments.get(&base)?;
        let OnDevice { number, since_ns, export } = segment.device?;
        Some(DeviceSegment {
            uuid: env.devices[number].settings.uuid,
            bytes: segment.bytes,
            slots_log2: segment.slots_log2,
            geometry: self.context.directory.entry(catalogue).geometry.peek(),
            lending: LendingId { catalogue, base, since_ns },
            export,
        })
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
            let place = Place { device: 15, allocator };
            assert_eq!(Place::of(place.word()), Some(place));
        }
        assert_eq!((Place::of(0), Place::of(4)), (None, None));
        assert_eq!(Place { device: 0, allocator: Allocator::Pool }.word(), 1);
    }
}
