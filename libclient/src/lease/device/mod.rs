//! Tensors on CUDA devices.
//!
//! A segment of device memory is a segment: slots, cells, leases and rings do not know the difference. What is different is
//! here and in `tensor/device`. From the outside in: a `DeviceDraft` is written, a `DeviceLease` read; both hold a `DeviceMap`
//! (`segment/map.rs`), one lending of one segment, mapped when first used and once for each session. When the last of them lets
//! go of it, it is unmapped, and the janitor (`segment/janitor.rs`) tells the daemon, for whom this process was a holder until
//! then. Leases on which streams were recorded end when those have come past; the janitor sees to that, too.
//!
//! Addresses on a device are numbers here: no reference is ever made of one.
//!
//! Without the feature `cuda` there is this file: enough to name such tensors, and to say why they cannot be read.

#[cfg(feature = "cuda")]
pub mod lease;
#[cfg(feature = "cuda")]
pub mod pin;

#[cfg(not(feature = "cuda"))]
use crate::error::DeviceTrouble;
use crate::error::{Error, Result};
use crate::lease::raw::Held;
use crate::lease::value::Value;
use crate::session::Session;
use crate::tensor::layout_of::{self, Layout};
#[cfg(feature = "cuda")]
use lease::DeviceLease;
#[cfg(feature = "cuda")]
use tensorlend_layout::tensor::EARLY_BYTES;
use tensorlend_layout::tensor::{BadTensor, SlotInfo};
use tensorlend_layout::{DType, Uuid};

/// A tensor on a device, as its record and its extension tell it.
pub struct Described {
    pub dtype: DType,
    pub uuid: Uuid,
    pub layout: Layout,
    #[cfg(feature = "cuda")]
    pub byte_offset: u64,
    pub timestamp_ns: u64,
    /// What it has besides if it was published before the work on it was done.
    #[cfg(feature = "cuda")]
    pub early: Option<[u8; EARLY_BYTES]>,
}

/// Takes a record apart that was checked against its segment. Asks no driver.
pub fn describe(session: &Session, held: &Held, info: &SlotInfo, name: &str) -> Result<Described> {
    let damaged = |cause| Error::Damaged { name: name.to_owned(), cause };
    let elsewhere = held.segment().elsewhere.as_ref().ok_or_else(|| damaged(BadTensor::Record))?;
    let extension = held.extension(session, info, name)?;
    let extension = extension.as_ref().map(|companion| &companion.bytes);
    let layout = layout_of::read(info, info.data_bytes, extension).map_err(damaged)?;
    #[cfg(feature = "cuda")]
    let early = match extension.filter(|_| info.early) {
        Some(extension) => Some(layout_of::early_mark(info, extension).ok_or_else(|| damaged(BadTensor::Metadata))?),
        None => None,
    };
    Ok(Described {
        dtype: info.dtype,
        uuid: elsewhere.uuid,
        layout,
        #[cfg(feature = "cuda")]
        byte_offset: info.byte_offset,
        timestamp_ns: info.timestamp_ns,
        #[cfg(feature = "cuda")]
        early,
    })
}

/// What a reader gets of a tensor on a device.
#[cfg(feature = "cuda")]
pub fn value(session: &Session, held: Held, info: &SlotInfo, name: &str) -> Result<Value> {
    let lease = DeviceLease::new(session, held, info, name)?;
    lease.finish()?;
    Ok(Value::Device(lease))
}

/// Why a reader gets nothing of it.
#[cfg(not(feature = "cuda"))]
pub fn value(_: &Session, held: Held, _: &SlotInfo, name: &str) -> Result<Value> {
    drop(held);
    Err(Error::Device { doing: format!("get {name:?}, a tensor on a device"), cause: DeviceTrouble::NoFeature })
}
