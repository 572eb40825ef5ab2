//! Segments of device memory.

use super::Segments;
use crate::core::account::Kind;
use crate::core::client::Segment;
use crate::core::device::{DeviceLocation, OnDevice};
use crate::core::devices::Devices;
use crate::core::effect::Lending;
use crate::core::label::Label;
use crate::core::orders::{Making, Order};
use crate::core::outcome::{Lent, Outcome, RequestResult, Requester, Task, Work};
use crate::core::parts::Parts;
use crate::core::range::{SegmentSize, SizeOnDevice, SlotRange};
use tensorlend_layout::directory::DEVICES;
use tensorlend_layout::number::{ClientNo, SegmentLine, SlotNo};
use tensorlend_layout::wire::{Allocator, DeviceSegment, LendingId, Refusal, Reply};
use tensorlend_layout::word::RangeWord;

impl Segments {
    /// Handles a request for a segment of device memory.
    pub fn device_segment(
        &mut self,
        parts: &mut Parts<'_>,
        devices: &Devices,
        Requester { conn, number: owner }: Requester,
        SizeOnDevice { device: uuid, size: SegmentSize { bytes, log2 } }: SizeOnDevice,
    ) -> RequestResult {
        let number = parts.env.devices.number_of(uuid, &parts.env.settings.no_device)?;
        if devices.index_of(number).is_none() {
            let why = format!(
                "device {uuid} in this namespace: its directory lists {DEVICES} others, which were there before"
            );
            return Err(Refusal::NotFound(why));
        }
        parts.members.check_watched(owner)?;
        let bytes = parts.env.devices[number].length(bytes)?;
        let base = self.range_for_segment(parts.context, parts.members, owner, log2)?;
        let uid = parts.members[owner].uid;
        if bytes > parts.env.devices[number].pool.bytes_max() {
            return Err(parts.env.devices[number].full(bytes));
        }
        let charge = parts.env.accounts.charge(Some(uid), parts.context.ledger.id(), Kind::Device, bytes)?;
        let (slots_bytes, slots_charge) = match Self::charge_slots(parts.env, parts.context, uid, log2) {
            Ok(charged) => charged,
            Err(refusal) => {
                parts.env.accounts.refund(charge);
                return Err(refusal);
            }
        };
        let Some((mem, export)) = parts.env.order_on_device(conn, parts.context.ledger.borrower(uid), number, bytes)
        else {
            parts.env.accounts.refund(charge);
            parts.env.accounts.refund(slots_charge);
            return Err(parts.env.devices[number].full(bytes));
        };
        let order = Order::slots(slots_bytes, SlotRange { owner, base, log2 }, conn);
        let slots = parts.env.orders.sheet(&mut parts.env.effects, order, slots_charge);
        let segment = Making {
            mem,
            charge,
            segment_bytes: Some(bytes),
            device: Some(number),
            made: export.is_some(),
            export,
            view: None,
        };
        Ok(Outcome::Working(Work { task: Task::Segment { base, log2 }, making: vec![segment, slots] }))
    }
}

impl Segments {
    /// Completes a request for a segment of device memory, after the segment and its slots have
    /// been made.
    pub fn device_segment_made(
        parts: &mut Parts<'_>,
        devices: &mut Devices,
        SlotRange { owner, base, log2 }: SlotRange,
        [segment, slots]: [Making; 2],
        line: SegmentLine,
    ) -> Outcome {
        let bytes = segment.segment_bytes.expect("it is a segment");
        let number = segment.device.expect("it is on a device");
        let export = segment.export.expect("it is there");
        let since_ns = parts.env.devices.lending_ns(parts.env.clock.now_ns());
        let allocator = parts.env.devices[number].settings.allocator;
        let place = DeviceLocation { device: devices.index_of(number).expect("seen when it was asked for"), allocator };
        let segment_entry = &parts.context.directory.segments[line.index()];
        segment_entry.bytes.put(bytes);
        segment_entry.since_ns.put(since_ns);
        segment_entry.place.put(place.word());
        tensorlend_layout::crash_point!("device: range about to be lent");
        segment_entry.range.set(RangeWord::new(log2, owner, base).0);
        tensorlend_layout::crash_point!("device: range lent");
        parts.env.devices[number].segments += 1;
        if allocator != Allocator::Async {
            let (namespace, device) = (parts.context.ledger.id(), place.device);
            parts.env.effects.keep(segment.mem, Label::DeviceSegment { namespace, owner, base, device, bytes });
        }
        parts.env.effects.keep(slots.mem, Label::Slots { namespace: parts.context.ledger.id(), owner, base });
        let lend = vec![(segment.mem, Lending::Device), (slots.mem, Lending::Write)];
        let on_device = OnDevice { number, since_ns, export };
        let lending = LendingId { owner, base, since_ns };
        devices.lent(lending, Some(owner));
        let segment = segment.into_segment(log2, slots.into_part(), line);
        let segment = Segment { device: Some(on_device), ..segment };
        let client = parts.members.me(owner);
        client.segments.insert(base, segment);
        client.lent_ns = parts.env.clock.now_ns();
        let reply = Self::describe_on_device(parts, owner, base).expect("it is there");
        Outcome::Lend(Reply::DeviceSegment(reply), lend, Lent::Segment(base))
    }

    /// Returns the response that describes a device segment to its owner or a reader. Returns
    /// `None` for host memory.
    pub fn describe_on_device(parts: &Parts<'_>, owner: ClientNo, base: SlotNo) -> Option<DeviceSegment> {
        let segment = parts.members.get(owner)?.segments.get(&base)?;
        let OnDevice { number, since_ns, export } = segment.device?;
        Some(DeviceSegment {
            uuid: parts.env.devices[number].settings.uuid,
            bytes: segment.bytes,
            slots_log2: segment.slots_log2,
            geometry: parts.context.directory.entry(owner).geometry.peek(),
            lending: LendingId { owner, base, since_ns },
            export,
        })
    }
}
