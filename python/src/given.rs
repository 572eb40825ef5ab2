//! Conversion of values that a caller passes to drafts: arrays, drafts, and mappings of them.

use crate::array::Array;
use crate::device::array::{DeviceArray, from_host};
use crate::device::{DeviceDraft, Target};
use crate::draft::Draft;
use crate::errors::{self, OrRaise, argument};
use crate::{metadata, shown};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};
use tensorlend::{DType, DatasetDraft, Error, MemberDraft, ValueDraft};

/// The arguments `device=` and `stream=` of a call: the target memory, and the CUDA stream with pending work on the
/// value.
#[derive(Default)]
pub struct To<'a, 'py> {
    target: Target,
    stream: Option<&'a Bound<'py, PyAny>>,
}

impl<'a, 'py> To<'a, 'py> {
    /// Parses the arguments `device=` and `stream=`.
    pub fn parse(device: Option<&Bound<'py, PyAny>>, stream: Option<&'a Bound<'py, PyAny>>) -> PyResult<Self> {
        Ok(Self { target: Target::parse(device)?, stream })
    }
}

/// Returns a draft with a copy of the caller's array. Returns `None` if the value is a draft
/// already. A draft must stay open until all other arguments are validated.
fn copied(client: &tensorlend::Client, value: &Bound<'_, PyAny>, to: &To<'_, '_>) -> PyResult<Option<ValueDraft>> {
    let py = value.py();
    if let Ok(draft) = value.cast::<Draft>() {
        if to.target.device().is_some() {
            return Err(argument("the draft is in host memory: create one with device=, or put its array"));
        }
        return draft.get().check(client).map(|()| None);
    }
    if let Ok(draft) = value.cast::<DeviceDraft>() {
        return draft.get().check(client, to.target).map(|()| None);
    }
    if value.is_instance_of::<PyDict>() {
        return Err(errors::dtype(
            "a dict holds several tensors: publish it with put_dataset, where each has a name and is an array",
        ));
    }
    if Array::may_be_on_device(value)?
        && let Some(array) = DeviceArray::of(value, to.stream)?
    {
        if matches!(to.target, Target::Host) {
            return Err(argument("the array is on a device: copy it to the host first (to_host, .cpu(), .get())"));
        }
        return array.draft(py, client, to.target).map(|draft| Some(draft.into()));
    }
    let array = Array::of(value)?;
    match to.target.device() {
        Some(on) => from_host(py, client, &array, on).map(|draft| Some(draft.into())),
        None => array.draft(py, client).map(|draft| Some(draft.into())),
    }
}

/// Takes the caller's draft, after waiting for all work on the draft.
fn taken(value: &Bound<'_, PyAny>, to: &To<'_, '_>) -> PyResult<ValueDraft> {
    if let Ok(draft) = value.cast::<DeviceDraft>() {
        let draft = draft.get();
        if let Some(stream) = to.stream {
            draft.record_stream(stream)?;
        }
        return draft.take(value.py(), true).map(Into::into);
    }
    value.cast::<Draft>()?.get().take(value.py()).map(Into::into)
}

/// Returns the draft of a dataset's tensor.
fn member(draft: ValueDraft) -> MemberDraft {
    match draft {
        ValueDraft::Tensor(draft) => draft.into(),
        ValueDraft::Device(draft) => draft.into(),
        _ => unreachable!("it is one tensor"),
    }
}

/// Adds the name of a dataset's tensor to an error.
#[cold]
fn of_member(py: Python<'_>, name: &str, error: PyErr) -> PyErr {
    let own = py.import("tensorlend._errors").and_then(|module| module.getattr("Error"));
    if own.is_ok_and(|own| error.is_instance(py, &own)) {
        let value = error.value(py);
        let words = format!("tensor {name:?} of the dataset: {value}");
        if let Ok(made) = value.get_type().call1((words,)) {
            return PyErr::from_value(made);
        }
    }
    // The exception comes from numpy or from the array's library. Add a note that names the tensor.
    let _ = error.value(py).call_method1("add_note", (format!("while the dataset's tensor {name:?} was copied"),));
    error
}

/// Returns a draft of a dataset. The arguments `device=` and `stream=` apply to each tensor.
pub fn dataset_of(
    client: &tensorlend::Client,
    tensors: &Bound<'_, PyMapping>,
    to: &To<'_, '_>,
    metadata: Option<&Bound<'_, PyAny>>,
    timestamp: u64,
) -> PyResult<DatasetDraft> {
    let metadata = metadata::checked(metadata)?;
    let mut members = Vec::new();
    for pair in tensors.items()? {
        let (name, value): (String, Bound<'_, PyAny>) = pair.extract()?;
        let copy = copied(client, &value, to).map_err(|error| of_member(value.py(), &name, error))?;
        members.push((name, value, copy));
    }
    let mut dataset = client.dataset().timestamp(timestamp);
    if let Some(bytes) = metadata {
        dataset = dataset.metadata(&bytes).or_raise()?;
    }
    for (name, value, copy) in members {
        let draft = match copy {
            Some(draft) => draft,
            None => taken(&value, to)?,
        };
        dataset = dataset.add(&name, member(draft)).or_raise()?;
    }
    Ok(dataset)
}

/// Returns a draft of an array, of a draft, or of a mapping of several arrays or drafts.
pub fn drafted(
    client: &tensorlend::Client,
    value: &Bound<'_, PyAny>,
    to: &To<'_, '_>,
    metadata: Option<&Bound<'_, PyAny>>,
    timestamp: u64,
) -> PyResult<ValueDraft> {
    match value.cast::<PyMapping>() {
        Ok(tensors) => dataset_of(client, tensors, to, metadata, timestamp).map(Into::into),
        Err(_) => tensor_of(client, value, to, metadata, timestamp),
    }
}

/// Returns a draft of one tensor.
pub fn tensor_of(
    client: &tensorlend::Client,
    value: &Bound<'_, PyAny>,
    to: &To<'_, '_>,
    metadata: Option<&Bound<'_, PyAny>>,
    timestamp: u64,
) -> PyResult<ValueDraft> {
    let metadata = metadata::checked(metadata)?;
    let mut draft = copied(client, value, to)?.map_or_else(|| taken(value, to), Ok)?;
    match &mut draft {
        ValueDraft::Tensor(draft) => describe(draft, metadata.as_deref(), timestamp)?,
        ValueDraft::Device(draft) => describe_on(draft, metadata.as_deref(), timestamp).or_raise()?,
        _ => unreachable!("it is one tensor"),
    }
    Ok(draft)
}

/// Sets metadata and timestamp of a draft on a device, as [`describe`] does for other drafts.
pub fn describe_on(draft: &mut tensorlend::DeviceDraft, metadata: Option<&[u8]>, timestamp: u64) -> Result<(), Error> {
    if let Some(bytes) = metadata {
        draft.set_metadata(bytes)?;
    }
    if timestamp != 0 {
        draft.set_timestamp(timestamp);
    }
    Ok(())
}

/// Sets metadata and timestamp of a draft. Without these arguments, the draft keeps its own
/// metadata and timestamp.
pub fn describe(draft: &mut tensorlend::Draft, metadata: Option<&[u8]>, timestamp: u64) -> PyResult<()> {
    if let Some(bytes) = metadata {
        draft.set_metadata(bytes).or_raise()?;
    }
    if timestamp != 0 {
        draft.set_timestamp(timestamp);
    }
    Ok(())
}

/// Converts strides from bytes to elements.
pub fn elements(bytes: &[i64], dtype: DType) -> PyResult<Vec<i64>> {
    let item = dtype.item_bytes() as i64;
    if bytes.iter().any(|stride| stride % item != 0) {
        let (bytes, name) = (shown::tuple(bytes), dtype.numpy_name());
        return Err(argument(format!(
            "strides of {bytes} bytes: each must be a multiple of the {item} bytes of an element of {name}, as numpy's strides are"
        )));
    }
    Ok(bytes.iter().map(|stride| stride / item).collect())
}

/// Parses a shape: one size, or a sequence of sizes.
pub fn sizes(shape: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let sizes = shape.extract::<i64>().map(|one| vec![one]).or_else(|_| shape.extract::<Vec<i64>>())?;
    sizes
        .into_iter()
        .map(|size| {
            u64::try_from(size).map_err(|_| argument(format!("a size of {size} elements: sizes are 0 or more")))
        })
        .collect()
}
