//! Tensors on CUDA devices.
//!
//! Slots, cells, leases and rings treat a segment of device memory like any other. This directory and `tensor/device`
//! contain the differences. A producer writes a `DeviceDraft`, and a reader holds a `DeviceLease`. Both hold a `DeviceMap`
//! (`segment/map.rs`): one lent segment, which the session maps once, at its first use. When the last draft or lease of the
//! segment is dropped, the session unmaps the segment, and the janitor (`segment/janitor.rs`) reports this to the daemon.
//! Until then the daemon counts this process as a holder. The janitor also ends leases with recorded streams, when these
//! streams have finished their work.
//!
//! Device addresses are numbers here. No code turns one into a reference.
//!
//! Without the feature `cuda`, only this file and `member.rs` are compiled. They describe such tensors, and name the
//! reason why this process cannot read them.

#[cfg(feature = "cuda")]
pub mod lease;
pub mod member;
#[cfg(feature = "cuda")]
pub mod pin;
#[cfg(feature = "cuda")]
pub mod tensor;

use crate::error::{Error, Result};
use crate::lease::raw::Held;
use crate::peers::sheets::PeerSegment;
use crate::session::Session;
use crate::tensor::layout_of::{self, Layout};
use tensorlend_layout::tensor::{BadTensor, SlotInfo};
use tensorlend_layout::{DType, Uuid};

/// The description of a tensor on a device, from its record and its extension.
pub struct Described {
    pub dtype: DType,
    pub uuid: Uuid,
    pub layout: Layout,
    #[cfg(feature = "cuda")]
    pub byte_offset: u64,
    pub timestamp_ns: u64,
    /// Whether the producer published the tensor before the work on it was finished.
    #[cfg(feature = "cuda")]
    pub early: bool,
}

/// Parses a record that the caller has checked against its segment. Makes no call to the driver.
pub fn describe(
    session: &Session,
    held: &Held,
    segment: &PeerSegment,
    info: &SlotInfo,
    name: &str,
) -> Result<Described> {
    let damaged = |cause| Error::Damaged { name: name.to_owned(), cause };
    let elsewhere = segment.elsewhere.as_ref().ok_or_else(|| damaged(BadTensor::Record))?;
    let extension = held.extension(session, info, name)?;
    let extension = extension.as_ref().map(|companion| &companion.bytes);
    let layout = layout_of::read(info, info.data_bytes, extension).map_err(damaged)?;
    Ok(Described {
        dtype: info.dtype,
        uuid: elsewhere.uuid,
        layout,
        #[cfg(feature = "cuda")]
        byte_offset: info.byte_offset,
        timestamp_ns: info.timestamp_ns,
        #[cfg(feature = "cuda")]
        early: info.early,
    })
}
