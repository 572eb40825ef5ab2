//! Builds the value that a lease covers: one tensor, or a dataset of several.

#[cfg(not(feature = "cuda"))]
use crate::error::DeviceTrouble;
use crate::error::{Error, Result, ValueKind};
use crate::lease::companion::Companion;
use crate::lease::dataset::Dataset;
#[cfg(feature = "cuda")]
use crate::lease::device::lease::DeviceLease;
use crate::lease::device::member::DeviceMember;
use crate::lease::group::{Group, More, NotPlain, copy_group, index_in};
use crate::lease::lease::{Held, Lease};
use crate::lease::take::{Leased, Parts, fetch_segment_of_value};
use crate::lease::value::Value;
#[cfg(feature = "cuda")]
use crate::lease::value::is_on_device;
use crate::segment::bytes::Bytes;
use crate::session::Session;
use crate::tensor::Tensor;
use std::sync::Arc;
use tensorlend_layout::dataset::Index;
use tensorlend_layout::tensor::{BadTensor, SlotInfo, SlotKind};

/// Returns the leased value.
#[inline]
pub fn value(session: &Session, leased: Leased, name: &str) -> Result<Value> {
    match leased {
        Leased::Tensor(lease) => Ok(Value::Tensor(lease)),
        Leased::Other(parts) => of_parts(session, *parts, name),
    }
}

/// Returns the lease of a value that must be a tensor in host memory. `remedy` names the method for other values.
#[inline]
pub fn tensor_of(value: Value, name: &str, remedy: &'static str) -> Result<Lease> {
    match value {
        Value::Tensor(lease) => Ok(lease),
        Value::Dataset(_) => {
            Err(Error::Kind { name: name.to_owned(), found: ValueKind::Dataset, wanted: ValueKind::Tensor, remedy })
        }
        #[cfg(feature = "cuda")]
        Value::Device(_) => Err(is_on_device(name, ValueKind::Tensor)),
    }
}

/// Returns the leased dataset.
pub fn dataset(session: &Session, leased: Leased, name: &str) -> Result<Dataset> {
    match value(session, leased, name)? {
        Value::Dataset(dataset) => Ok(dataset),
        Value::Tensor(_) => Err(Error::Kind {
            name: name.to_owned(),
            found: ValueKind::Tensor,
            wanted: ValueKind::Dataset,
            remedy: "get",
        }),
        #[cfg(feature = "cuda")]
        Value::Device(_) => Err(is_on_device(name, ValueKind::Dataset)),
    }
}

/// Builds a value of more than one slot.
#[cold]
pub fn of_parts(session: &Session, parts: Parts, name: &str) -> Result<Value> {
    let Parts { held, info, bytes } = parts;
    let Some(bytes) = bytes else { return on_device(session, held, &info, name) };
    match info.kind {
        SlotKind::Tensor => Ok(Value::Tensor(Lease::of(tensor(session, &held, &info, bytes, name)?, held))),
        SlotKind::Dataset => Ok(Value::Dataset(Dataset::of(group(session, &held, &info, bytes, name)?, held))),
        SlotKind::Extension => Err(Error::Damaged { name: name.to_owned(), cause: BadTensor::Record }),
    }
}

/// Returns a lease on a tensor on a device, as a value.
#[cfg(feature = "cuda")]
fn on_device(session: &Session, held: Held, info: &SlotInfo, name: &str) -> Result<Value> {
    let lease = DeviceLease::new(session, held, info, name)?;
    lease.finish()?;
    Ok(Value::Device(lease))
}

/// Returns the error of a library without the feature `cuda`.
#[cfg(not(feature = "cuda"))]
fn on_device(_: &Session, held: Held, _: &SlotInfo, name: &str) -> Result<Value> {
    drop(held);
    Err(Error::Device { doing: format!("get {name:?}, a tensor on a device"), cause: DeviceTrouble::NoFeature })
}

fn tensor(session: &Session, held: &Held, info: &SlotInfo, bytes: Bytes, name: &str) -> Result<Tensor> {
    let extension = held.extension(session, info, name)?;
    let tensor = Tensor::read(info, bytes, extension.as_ref().map(|e| &e.bytes));
    tensor.map_err(|cause| Error::Damaged { name: name.to_owned(), cause })
}

fn group(session: &Session, held: &Held, info: &SlotInfo, bytes: Bytes, name: &str) -> Result<Group> {
    let damaged = |cause| Error::Damaged { name: name.to_owned(), cause };
    let mut words = Vec::new();
    copy_group(&info.pack(), &bytes, &mut words);
    let words: Arc<[u64]> = words.into();
    if info.extended {
        return group_of_records(session, held, info, bytes, words, name);
    }
    // The geometry may change while a segment is being mapped. Then request the segment again.
    loop {
        let plain = {
            let guard = session.shards.epoch_guard();
            let geometry = session.directory.members[held.owner.index()].geometry.read();
            let peer = session.peers().get(&guard, held.owner);
            let segment_of = |slot| peer.and_then(|p| p.segment(slot, geometry, &session.directory));
            Group::plain(&words, 0..words.len(), held.segment(), segment_of)
        };
        match plain {
            Ok(group) => return Ok(group),
            Err(NotPlain::Records) => return group_of_records(session, held, info, bytes, words, name),
            Err(NotPlain::Damaged(cause)) => return Err(damaged(cause)),
            Err(NotPlain::Segment(slot)) if fetch_segment_of_value(session, held.owner, slot)? => {}
            Err(NotPlain::Segment(_)) => return Err(damaged(BadTensor::Segment)),
        }
    }
}

/// Returns a dataset whose index does not describe all members completely. So this function reads every member's
/// record.
fn group_of_records(
    session: &Session,
    held: &Held,
    info: &SlotInfo,
    bytes: Bytes,
    words: Arc<[u64]>,
    name: &str,
) -> Result<Group> {
    let damaged = |cause| Error::Damaged { name: name.to_owned(), cause };
    let index = index_in(&words).filter(Index::check).ok_or_else(|| damaged(BadTensor::Record))?;
    let (mut metadata, mut segments, mut devices) = (Vec::new(), Vec::new(), Vec::new());
    if info.extended {
        metadata = tensor(session, held, info, bytes, name)?.metadata().to_vec();
    }
    let mut tensors = Vec::with_capacity(index.len());
    for at in 0..index.len() {
        let (slot, generation, _) = index.place(at);
        let found = held.chained(session, slot, Some(generation), name)?;
        if found.info.kind != SlotKind::Tensor {
            return Err(damaged(BadTensor::Record));
        }
        if found.is_on_device() {
            devices.push((at, DeviceMember::new(session, held, &found, name)?));
            continue;
        }
        let found = Companion::of(found, name)?;
        tensors.push(tensor(session, held, &found.info, found.bytes, name)?);
        if !segments.iter().any(|s| Arc::ptr_eq(s, &found.segment)) {
            segments.push(found.segment);
        }
    }
    Ok(Group::of_records(words, tensors, More { metadata, segments, devices }))
}

#[cfg(test)]
mod tests;
