//! Contents of names, for a client that lists them. The daemon reads the contents from the owners'
//! memory, so the client maps no memory of the owners.
//!
//! No lease protects these reads. Daemon D accepts a record only if the same value was in the cell
//! before and after D read the record. Owner P fences between its exchange of the cell and the
//! slot's next use, when P reads the lease tables.

use super::bindings::Bindings;
use super::client::{Client, Residence};
use super::context::Context;
use super::members::Members;
use super::outcome::{Outcome, RequestResult};
use tensorlend_layout::dataset::MEMBERS_MAX;
use tensorlend_layout::leases::scan_fence;
use tensorlend_layout::name::KeyKind;
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::wire::{NameAt, Refusal, Reply, VALUES_MAX, ValueAt};
use tensorlend_layout::word::{Cell, OwnerWord, SLOT_NONE};

/// Maximum number of slots of a chain. A dataset has an index, its members, and one extension for
/// each of these.
const CHAIN_MAX: usize = 2 * (1 + MEMBERS_MAX);
/// Number of read records after which a response ends. The records of the last name may exceed it.
const RECORDS_MAX: usize = 4096;

impl Members {
    /// Handles a request for the contents of names.
    pub fn values_of(&self, context: &Context, bindings: &Bindings, names: &[NameAt]) -> RequestResult {
        if names.len() > VALUES_MAX {
            let why = format!("a request is for the contents of at most {VALUES_MAX} names, not {}", names.len());
            return Err(Refusal::Bad(why));
        }
        let (mut values, mut records) = (Vec::with_capacity(names.len()), 0);
        for name in names {
            if records >= RECORDS_MAX {
                break;
            }
            values.push(self.value_at(context, bindings, *name, &mut records));
        }
        Ok(Outcome::Reply(Reply::Values(values)))
    }

    fn value_at(&self, context: &Context, bindings: &Bindings, name: NameAt, records: &mut usize) -> ValueAt {
        *records += 1;
        let (directory, owner_word) = (&context.directory, OwnerWord(name.owner_word));
        let entry = directory.names.get(name.entry.index()).filter(|_| bindings.has_memory(name.entry));
        let Some(entry) = entry.filter(|entry| entry.owner_word.peek() == owner_word.0 && owner_word.is_live()) else {
            return ValueAt::Unknown;
        };
        if !KeyKind::of(entry).leads_to_cell() {
            return ValueAt::Unknown;
        }
        let Some(client) = self.get(owner_word.owner()) else { return ValueAt::Unknown };
        let Some(cell) = client.value(owner_word.cell()) else { return ValueAt::Nowhere };
        if !cell.is_value() {
            return ValueAt::Deleted;
        }
        let value = client.value_in(cell, records);
        scan_fence();
        // A replaced value is unknown, even if its record is invalid.
        if client.value(owner_word.cell()) == Some(cell) { value } else { ValueAt::Unknown }
    }
}

impl Client {
    fn value_in(&self, cell: Cell, records: &mut usize) -> ValueAt {
        let Some((_, segment)) = self.segment_of(cell.slot()) else { return ValueAt::Nowhere };
        if segment.device.is_some() {
            return ValueAt::OnDevice;
        }
        if !segment.slots.acked {
            return ValueAt::Unknown;
        }
        let segment_bytes = segment.bytes;
        let Some((_, record)) = self.slot(cell.slot()) else { return ValueAt::Nowhere };
        ValueAt::Slot { cell: cell.0, record, segment_bytes, in_file: self.is_any_in_file(cell.slot(), records) }
    }

    /// Returns true if some bytes of a slot, or of a later slot of its chain, are not only in
    /// memory. Such bytes are in a file, are lost, or are on the way to or from a file.
    pub(super) fn is_any_in_file(&self, first: SlotNo, records: &mut usize) -> bool {
        let mut slot = first;
        for _ in 0..CHAIN_MAX {
            let Some((_, segment)) = self.segment_of(slot) else { return false };
            // The daemon never spills device memory.
            if segment.device.is_none() && !matches!(segment.residence, Residence::Memory) {
                return true;
            }
            let Some((_, record)) = self.slot(slot) else { return false };
            *records += 1;
            slot = SlotNo::low(record[2]);
            if slot == SLOT_NONE {
                return false;
            }
        }
        false
    }
}
