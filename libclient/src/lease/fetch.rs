//! Mapping of other clients' segments for a lease, and the number of leased bytes.

use crate::alloc::heap::Wanted;
use crate::alloc::release;
use crate::error::{Error, Result};
use crate::session::Session;
use std::collections::HashSet;
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::tensor::SlotInfo;

/// Maps the segment that holds a slot. Returns false if the daemon lends no segment for this slot, or no longer lends
/// it.
pub fn fetch_segment(session: &Session, owner: ClientNo, slot: SlotNo) -> Result<bool> {
    match session.peers().fetch_segment(owner, slot) {
        Err(e) if e.is_limit() && make_room(session, &e) => session.peers().fetch_segment(owner, slot),
        fetched => fetched,
    }
}

/// Maps a segment like [`fetch_segment`], for the slot of a published value. The owner acknowledged the segment
/// before it published the value. But the daemon may read that acknowledgement, on another socket, after this
/// client's request. So this function retries.
pub fn fetch_segment_of_value(session: &Session, owner: ClientNo, slot: SlotNo) -> Result<bool> {
    for _ in 0..64 {
        if fetch_segment(session, owner, slot)? {
            return Ok(true);
        }
        std::thread::yield_now();
    }
    Ok(false)
}

/// Releases memory after the daemon refused a request, so that the daemon can spill. Returns whether it released any.
fn make_room(session: &Session, refused: &Error) -> bool {
    let unmapped = session.peers().unmap_unused();
    release::is_full(refused) && session.alloc().release_for_spill(Wanted::All) || unmapped
}

/// Returns the number of bytes of the slots in this namespace on which some live member holds a lease.
pub fn leased_bytes(session: &Session) -> Result<u64> {
    let mut slots = HashSet::new();
    for owner in session.directory.present().collect::<Vec<_>>() {
        session.peers().with_leases(owner, |table| {
            table.scan(|lease| {
                if !lease.is_of_segment() {
                    slots.insert((lease.owner(), lease.slot()));
                }
            });
        })?;
    }
    let mut bytes = 0;
    for (owner, slot) in slots {
        bytes += slot_bytes(session, owner, slot)?;
    }
    Ok(bytes)
}

/// Returns the length of a slot as its owner claims it. Returns 0 if the slot does not exist any more.
fn slot_bytes(session: &Session, owner: ClientNo, slot: SlotNo) -> Result<u64> {
    for _ in 0..2 {
        let Some(member) = session.directory.members.get(usize::from(owner)) else { return Ok(0) };
        {
            let guard = session.shards.epoch_guard();
            if let Some(segment) = session
                .peers()
                .get(&guard, owner)
                .filter(|p| p.is_of_epoch(member.member.read()))
                .and_then(|p| p.segment(slot, member.geometry.read(), &session.directory))
            {
                let words = segment.records[(slot - segment.base) as usize].copy();
                return Ok(SlotInfo::unpack(&words).map_or(0, |i| i.data_bytes.min(segment.bytes())));
            }
        }
        if !fetch_segment(session, owner, slot)? {
            return Ok(0);
        }
    }
    Ok(0)
}
