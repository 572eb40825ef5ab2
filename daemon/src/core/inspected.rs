//! The parts of a namespace that observers see. Each response costs the daemon a bounded time.

use super::client::Client;
use super::namespace::Namespace;
use std::collections::BTreeMap;
use tensorlend_layout::dataset::MEMBERS_MAX;
use tensorlend_layout::leases::{LeaseTable, scan_fence};
use tensorlend_layout::name::{KeyKind, parse};
use tensorlend_layout::number::{ClientNo, EntryNo, SlotNo};
use tensorlend_layout::size;
use tensorlend_layout::tensor::{NDIM_INLINE, SlotInfo, SlotKind};
use tensorlend_layout::wire::{
    Holds, INSPECTED_CLIENTS_MAX, INSPECTED_LEASES_MAX, INSPECTED_NAMES_MAX, Inspected, InspectedClient,
    InspectedLease, InspectedName,
};
use tensorlend_layout::word::{Cell, OwnerWord, SLOT_NONE};

/// Maximum number of directory entries that one response reads.
const ENTRIES_MAX: usize = 4096;
/// Number of read slot records after which a response ends.
const RECORDS_MAX: usize = 4096;
/// Maximum number of lease tables that one response reads.
const TABLES_MAX: usize = 16;
/// Maximum number of slots of a value. A dataset has an index, its members, and one extension for
/// each of these.
const CHAIN_MAX: usize = 2 * (1 + MEMBERS_MAX);

impl Namespace {
    pub fn show_clients(&self, from: ClientNo) -> Inspected {
        let mut all = self.members.iter().filter(|&(number, _)| number >= from);
        let clients = all.by_ref().take(INSPECTED_CLIENTS_MAX);
        let clients = clients.map(|(number, client)| {
            let entry = self.context.directory.entry(number);
            InspectedClient {
                number,
                epoch: client.member.epoch(),
                pid: client.pid,
                uid: client.uid,
                label: client.label.clone(),
                command: client.command.clone(),
                connected: client.is_live(),
                since_ns: entry.since_ns.peek(),
                bytes: entry.bytes.peek(),
                segments: size::count(client.segments.len()),
            }
        });
        Inspected::Clients { clients: clients.collect(), next: all.next().map(|(number, _)| number) }
    }

    /// Returns the names and lists from this entry on, without the items of lists.
    pub fn show_names(&self, from: EntryNo) -> Inspected {
        let (mut names, mut records) = (Vec::new(), 0);
        for (read, (at, entry)) in self.context.directory.entries().skip(from.index().saturating_sub(1)).enumerate() {
            if read == ENTRIES_MAX || names.len() == INSPECTED_NAMES_MAX || records >= RECORDS_MAX {
                return Inspected::Names { names, next: Some(at) };
            }
            let owner_word = OwnerWord(entry.owner_word.peek());
            if !owner_word.is_live() {
                continue;
            }
            let Some(key) = self.context.directory.key(entry) else { continue };
            let (name, holds) = match parse(&key) {
                Some((KeyKind::Name, name)) => {
                    let client = self.members.get(owner_word.owner());
                    let Some(cell) = client.and_then(|client| client.value(owner_word.cell())) else { continue };
                    if !cell.is_value() {
                        continue;
                    }
                    (name, client.map(|client| client.holds(owner_word.owner(), cell, &mut records)))
                }
                Some((KeyKind::List, name)) => {
                    let list = self.context.directory.lists.get(owner_word.cell().index());
                    (name, list.map(|list| Holds::List(list.end.peek())))
                }
                _ => continue,
            };
            names.extend(holds.map(|holds| InspectedName { name: name.to_owned(), holds }));
        }
        Inspected::Names { names, next: None }
    }

    pub fn show_leases(&self, from: ClientNo) -> Inspected {
        let (mut leases, mut truncated) = (Vec::new(), false);
        let tables = self.members.iter().filter(|&(number, _)| number >= from);
        let tables = tables.filter_map(|(number, client)| Some((number, client.lease_table()?)));
        for (read, (holder, table)) in tables.enumerate() {
            let mut held: BTreeMap<u64, u32> = BTreeMap::new();
            if read < TABLES_MAX {
                LeaseTable::scan_view(table, |lease| *held.entry(lease.0).or_default() += 1);
            }
            if read == TABLES_MAX || !leases.is_empty() && leases.len() + held.len() > INSPECTED_LEASES_MAX {
                return Inspected::Leases { leases, next: Some(holder), truncated };
            }
            truncated |= held.len() > INSPECTED_LEASES_MAX;
            let some = held.into_iter().take(INSPECTED_LEASES_MAX);
            leases.extend(some.map(|(lease, count)| InspectedLease { holder, lease, count }));
        }
        Inspected::Leases { leases, next: None, truncated }
    }
}

impl Client {
    /// Returns the content of a cell of this client: type, shape and size. Omits the metadata that
    /// the record contains.
    fn holds(&self, number: ClientNo, cell: Cell, records: &mut usize) -> Holds {
        let lease = cell.lease(number).0;
        let unknown = Holds::Value {
            client: number,
            lease,
            dtype: None,
            is_dataset: false,
            shape: None,
            bytes: 0,
            timestamp_ns: 0,
            in_file: false,
        };
        let in_host_memory = self.segment_of(cell.slot()).is_some_and(|(_, segment)| segment.device.is_none());
        let first = self.info(cell.slot(), records).filter(|info| info.generation == cell.generation());
        let Some(first) = first.filter(|_| in_host_memory) else { return unknown };
        let (mut bytes, mut next) = (first.data_bytes, first.next);
        for _ in 1..CHAIN_MAX {
            let Some(info) = Some(next).filter(|&next| next != SLOT_NONE).and_then(|next| self.info(next, records))
            else {
                break;
            };
            (bytes, next) = (bytes.saturating_add(info.data_bytes), info.next);
        }
        scan_fence();
        let is_tensor = first.kind == SlotKind::Tensor;
        let ndim = usize::from(first.ndim);
        let has_shape = is_tensor && !first.extended && ndim <= NDIM_INLINE;
        Holds::Value {
            client: number,
            lease,
            dtype: is_tensor.then(|| first.dtype.pack()),
            is_dataset: first.kind == SlotKind::Dataset,
            shape: has_shape.then(|| first.dims[..ndim].to_vec()),
            bytes,
            timestamp_ns: first.timestamp_ns,
            in_file: self.is_any_in_file(cell.slot(), records),
        }
    }

    /// Returns a slot's record, if the record is valid.
    fn info(&self, slot: SlotNo, records: &mut usize) -> Option<SlotInfo> {
        *records += 1;
        let (_, segment) = self.segment_of(slot).filter(|(_, it)| it.slots.acked)?;
        let bytes = segment.bytes;
        let info = SlotInfo::unpack(&self.slot(slot)?.1).ok()?;
        info.check(info.generation, bytes).is_ok().then_some(info)
    }
}
