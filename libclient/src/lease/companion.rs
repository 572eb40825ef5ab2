//! Further slots that a lease covers.

use crate::error::{Error, Result};
use crate::lease::lease::Held;
use crate::lease::take::fetch_segment_of_value;
use crate::peers::PeerSegment;
use crate::segment::bytes::Bytes;
use crate::session::Session;
use std::sync::Arc;
use tensorlend_layout::Device;
use tensorlend_layout::number::SlotNo;
use tensorlend_layout::tensor::{BadTensor, SlotInfo, SlotKind};

/// A further slot that a lease covers: its record, its bytes, and its segment, which must stay mapped.
pub struct Companion {
    pub info: SlotInfo,
    pub bytes: Bytes,
    pub segment: Arc<PeerSegment>,
}

/// A further slot that a lease covers: its number, its checked record, and its segment.
pub struct Chained {
    #[cfg(feature = "cuda")]
    pub slot: SlotNo,
    pub info: SlotInfo,
    pub segment: Arc<PeerSegment>,
}

impl Chained {
    /// Returns whether the slot's bytes are on a device.
    pub fn is_on_device(&self) -> bool {
        self.segment.elsewhere.is_some()
    }
}

impl Companion {
    /// Returns the bytes of a chained slot, which must be in host memory.
    pub fn of(chained: Chained, name: &str) -> Result<Self> {
        let damaged = |cause| Error::Damaged { name: name.to_owned(), cause };
        if chained.is_on_device() {
            return Err(damaged(BadTensor::Record));
        }
        let Chained { info, segment, .. } = chained;
        let bytes = Bytes::new(&segment.map, info.data_offset, info.data_bytes);
        let bytes = bytes.ok_or_else(|| damaged(BadTensor::Segment))?;
        Ok(Self { info, bytes, segment })
    }
}

impl Held {
    /// Returns a slot chained to the leased one. Only the owner's records state that the slots are chained, so this
    /// function checks them.
    pub fn chained(&self, session: &Session, slot: SlotNo, generation: Option<u64>, name: &str) -> Result<Chained> {
        let damaged = |cause| Error::Damaged { name: name.to_owned(), cause };
        // The geometry may change while a segment is being mapped. Then request the segment again.
        loop {
            {
                let guard = session.shards.epoch_guard();
                let geometry = session.directory.members[self.owner.index()].geometry.read();
                let peer = session.peers().get(&guard, self.owner);
                if let Some(segment) = peer.and_then(|p| p.segment(slot, geometry, &session.directory)) {
                    let words = segment.records[(slot - segment.base) as usize].copy();
                    let info = SlotInfo::unpack(&words).map_err(damaged)?;
                    info.check(generation.unwrap_or(info.generation), segment.bytes()).map_err(damaged)?;
                    // The daemon decides where bytes are. A record that names another location is invalid.
                    let says_device = info.device.kind() == Device::cuda(0).kind();
                    if says_device != segment.elsewhere.is_some() {
                        return Err(damaged(BadTensor::Record));
                    }
                    return Ok(Chained {
                        #[cfg(feature = "cuda")]
                        slot,
                        info,
                        segment: segment.clone(),
                    });
                }
            }
            if !fetch_segment_of_value(session, self.owner, slot)? {
                break;
            }
        }
        Err(damaged(BadTensor::Segment))
    }

    /// Returns a chained slot's bytes, which must be in host memory.
    pub fn companion(&self, session: &Session, slot: SlotNo, generation: Option<u64>, name: &str) -> Result<Companion> {
        Companion::of(self.chained(session, slot, generation, name)?, name)
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
