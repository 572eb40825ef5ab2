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
use crate::lease::lease::Held;
use crate::peers::PeerSegment;
use crate::session::Session;
use crate::tensor::Tensor;
use tensorlend_layout::Uuid;
use tensorlend_layout::tensor::{BadTensor, SlotInfo};

/// Describes a tensor on a device by its record, which the caller has checked against its segment, and its extension. Makes no
/// call to the driver.
pub fn describe(
    session: &Session,
    held: &Held,
    segment: &PeerSegment,
    info: &SlotInfo,
    name: &str,
) -> Result<Tensor<Uuid>> {
    let damaged = |cause| Error::Damaged { name: name.to_owned(), cause };
    let elsewhere = segment.elsewhere.as_ref().ok_or_else(|| damaged(BadTensor::Record))?;
    let extension = held.extension(session, info, name)?;
    let extension = extension.as_ref().map(|companion| &companion.bytes);
    Tensor::of(info, info.data_bytes, extension, elsewhere.uuid).map_err(damaged)
}
