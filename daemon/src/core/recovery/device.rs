//! The recovery of device memory that a previous daemon lent.
//!
//! Only an fd store returns device memory. A descriptor from a client would not show the segment to
//! which it belongs. The daemon learns the holders from its clients' reports: see
//! [`super::holders`]. The blocks of a driver's pool, and the values in them, end with the daemon
//! that owned the pool.

use super::restore::{Descriptors, part};
use crate::core::account::Kind;
use crate::core::client::Residence;
use crate::core::client::Segment;
use crate::core::device::{DeviceLocation, OnDevice};
use crate::core::env::Env;
use crate::core::event::MemId;
use crate::core::length;
use crate::core::length::SLOTS_LOG2_MAX;
use crate::core::namespace::Namespace;
use crate::core::parts::Parts;
use crate::core::range::SegmentId;
use std::collections::BTreeSet;
use tensorlend_layout::number::{EntryNo, SegmentLine};
use tensorlend_layout::wire::{Allocator, Export, LendingId};
use tensorlend_layout::word::{OwnerWord, RangeWord, low8};

impl Namespace {
    /// Restores a segment that the directory places on a device. Returns true if the memory still
    /// exists.
    pub fn restore_on_device(
        &mut self,
        env: &mut Env,
        descriptors: &mut Descriptors,
        unused: &mut BTreeSet<MemId>,
        line: SegmentLine,
    ) -> bool {
        let segment_entry = &self.context.directory.segments[line.index()];
        let (range, bytes, since_ns) =
            (RangeWord(segment_entry.range.peek()), segment_entry.bytes.peek(), segment_entry.since_ns.peek());
        let key = SegmentId { owner: range.owner(), base: range.base() };
        let place = DeviceLocation::of(segment_entry.place.peek()).filter(|place| place.allocator != Allocator::Async);
        let number = place.and_then(|place| self.devices.device_at(place.device));
        let (Some(number), Some(segment), Some(slots)) =
            (number, descriptors.device_segments.remove(&key), descriptors.slots.remove(&key))
        else {
            return false;
        };
        let sound = segment.bytes == bytes
            && env.devices[number].pool.can_count(bytes)
            && (1..=1 << SLOTS_LOG2_MAX).contains(&range.slots())
            && slots.bytes == length::slots(range.slots() as usize);
        let Some(client) = self.members.get_mut(key.owner).filter(|_| sound) else { return false };
        let (mem, slots_mem) = (segment.mem, slots.mem);
        let Some(slots) = part(env, self.context.ledger.id(), client.uid, slots) else { return false };
        unused.remove(&mem);
        unused.remove(&slots_mem);
        let device = &mut env.devices[number];
        device.pool.count_recovered(bytes);
        device.segments += 1;
        let charge = env.accounts.charge_recovered(Some(client.uid), self.context.ledger.id(), Kind::Device, bytes);
        let slots_log2 = low8(range.slots().ilog2().into());
        let device = Some(OnDevice { number, since_ns, export: Export::Allocation });
        client.segments.insert(
            key.base,
            Segment {
                mem,
                bytes,
                charge,
                slots_log2,
                slots,
                line,
                residence: Residence::Memory,
                released_ns: None,
                tried_ns: None,
                wanted_ns: None,
                device,
            },
        );
        self.devices.lent(LendingId { owner: key.owner, base: key.base, since_ns }, None);
        env.devices.note_lending(since_ns);
        true
    }

    /// Ends the names that led into ranges whose memory is lost. The owners of these names may
    /// continue if they have never mapped these ranges: see [`super::client::Client::has_lost`].
    /// Returns the number of names.
    pub fn forget_lost(&mut self, env: &mut Env, lost: &[RangeWord]) -> usize {
        let mut names = 0;
        for range in lost {
            let owner = range.owner();
            let Some(client) = self.members.get_mut(owner) else { continue };
            client.has_lost = true;
            let client = &self.members[owner];
            let slots = range.base()..range.base() + range.slots();
            let leads_there = |entry: &EntryNo| {
                let owner_word = OwnerWord(self.context.directory.names[entry.index()].owner_word.peek());
                client.value(owner_word.cell()).is_some_and(|cell| cell.is_value() && slots.contains(&cell.slot()))
            };
            let gone: Vec<EntryNo> = self.bindings.names().owned().of(owner).into_iter().filter(leads_there).collect();
            names += gone.len();
            for entry in gone {
                self.bindings.remove(
                    &mut Parts { env, context: &mut self.context, members: &mut self.members },
                    entry,
                    false,
                );
            }
        }
        names
    }
}
