//! Further slots that a lease covers.

use crate::error::{Error, Result};
use crate::lease::fetch::fetch_segment_of_value;
use crate::lease::raw::Held;
use crate::peers::sheets::PeerSegment;
use crate::segment::bytes::Bytes;
use crate::session::Session;
use std::sync::Arc;
use tensorlend_layout::Device;
use tensorlend_layout::tensor::{BadTensor, SlotInfo, SlotKind};

/// A further slot that a lease covers: its record, its bytes, and its segment, which must stay mapped.
pub struct Companion {
    pub info: SlotInfo,
    pub bytes: Bytes,
    pub segment: Arc<PeerSegment>,
}

impl Held {
    /// Returns a slot chained to the leased one. Only the owner's records state that the slots are chained, so this
    /// function checks them.
    pub fn companion(&self, session: &Session, slot: u32, generation: Option<u64>, name: &str) -> Result<Companion> {
        let damaged = |cause| Error::Damaged { name: name.to_owned(), cause };
        // The geometry may change while a segment is being mapped. Then request the segment again.
        loop {
            {
                let guard = session.shards.epoch_guard();
                let geometry = session.directory.members[usize::from(self.catalogue)].geometry.read();
                let peer = session.peers().get(&guard, self.catalogue);
                if let Some(segment) = peer.and_then(|p| p.segment(slot, geometry, &session.directory)) {
                    let words = segment.records[(slot - segment.base) as usize].copy();
                    let info = SlotInfo::unpack(&words).map_err(damaged)?;
                    info.check(generation.unwrap_or(info.generation), segment.map.bytes() as u64).map_err(damaged)?;
                    if info.device.kind() == Device::cuda(0).kind() {
                        return Err(damaged(BadTensor::Record));
                    }
                    let bytes = Bytes::new(&segment.map, info.data_offset, info.data_bytes);
                    let bytes = bytes.ok_or_else(|| damaged(BadTensor::Segment))?;
                    return Ok(Companion { info, bytes, segment: segment.clone() });
                }
            }
            if !fetch_segment_of_value(session, self.catalogue, slot)? {
                break;
            }
        }
        Err(damaged(BadTensor::Segment))
    }

    /// Returns the slot's extension, if this publication has one.
    pub fn extension(&self, session: &Session, info: &SlotInfo, name: &str) -> Result<Option<Companion>> {
        if !info.extended {
            return Ok(None);
        }
        let extension = self.companion(session, info.next, None, name)?;
        if extension.info.kind != SlotKind::Extension {
            return Err(Error::Damaged { name: name.to_owned(), cause: BadTensor::Record });
        }
        Ok(Some(extension))
    }
}
