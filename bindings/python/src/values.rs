//! Conversion of values that a caller passes to drafts: arrays, drafts, and mappings of them.

use crate::arguments;
use crate::array::{Array, bytes_of, detach_if_large, is_ndarray};
use crate::cuda_stream::CudaStream;
use crate::device::DeviceDraft;
use crate::device::array::{DeviceArray, from_host};
use crate::display::type_name;
use crate::draft::Draft;
use crate::errors::{self, ResultExt, argument};
use crate::lasting::Lasting;
use crate::metadata;
use crate::target::Target;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};
use std::borrow::Cow;
use tensorlend::{Client, DatasetDraft, Error, MemberDraft, TensorSpec, ValueDraft};

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
fn copied(client: &Client, value: &Bound<'_, PyAny>, to: &To<'_, '_>) -> PyResult<Option<ValueDraft>> {
    let py = value.py();
    if let Ok(draft) = value.cast::<Draft>() {
        if to.target.device().is_some() {
            return Err(argument("the draft is in host memory: create one with device=, or put its array"));
        }
        no_stream(to.stream)?;
        return draft.get().check_client(client).map(|()| None);
    }
    if let Ok(draft) = value.cast::<DeviceDraft>() {
        return draft.get().check(client, to.target).map(|()| None);
    }
    if value.is_instance_of::<PyDict>() {
        return Err(errors::dtype(
            "a dict holds several tensors: publish it with put_dataset, where each has a name and is an array",
        ));
    }
    check_plain(value)?;
    if Array::may_be_on_device(value)?
        && let Some(array) = DeviceArray::of(value, to.stream).map_err(|error| without_elements(value, error))?
    {
        if matches!(to.target, Target::Host) {
            return Err(argument("the array is on a device: copy it to the host first (to_host, .cpu(), .get())"));
        }
        return array.draft(py, client, to.target).map(|draft| Some(draft.into()));
    }
    no_stream(to.stream)?;
    let array = Array::of(value).map_err(|error| without_elements(value, error))?;
    match to.target.device() {
        Some(on) => from_host(py, client, &array, on).map(|draft| Some(draft.into())),
        None => array.draft(py, client).map(|draft| Some(draft.into())),
    }
}

/// Refuses a value with more than elements: labels or a mask, which a conversion to an array would drop. Looks at the
/// attributes of the value's class, so it imports no library.
fn check_plain(value: &Bound<'_, PyAny>) -> PyResult<()> {
    let (py, kind) = (value.py(), value.get_type());
    if is_ndarray(&kind)? || kind.module().is_ok_and(|module| module == "builtins" || module == "torch") {
        return Ok(());
    }
    let labels = [intern!(py, "columns"), intern!(py, "iloc"), intern!(py, "sizes")];
    for label in labels {
        if kind.hasattr(label)? {
            return Err(errors::dtype(format!(
                "a {} has labels, which are no part of a tensor: publish it with put_object, or pass its values alone (.to_numpy())",
                type_name(value)
            )));
        }
    }
    if kind.hasattr(intern!(py, "filled"))?
        && let Some(mask) = value.getattr_opt(intern!(py, "mask"))?
        && mask.call_method0(intern!(py, "any"))?.is_truthy()?
    {
        return Err(errors::dtype(
            "elements of the array are masked, and a tensor has no mask: pass array.filled(value), publish data and mask as a \
             dataset, or use put_object",
        ));
    }
    Ok(())
}

/// Returns the error for a value whose conversion has failed. Tensors that store no elements, or not all of them, have a
/// text of their own.
#[cold]
fn without_elements(value: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = value.py();
    let is_meta = value.getattr(intern!(py, "is_meta")).and_then(|is_meta| is_meta.is_truthy());
    if is_meta.unwrap_or(false) {
        return errors::dtype("a tensor on the device \"meta\" has no elements: create it on another device");
    }
    let layout = value.getattr(intern!(py, "layout")).and_then(|layout| layout.str().map(|text| text.to_string()));
    let layout = layout.unwrap_or_default();
    if (layout.starts_with("torch.") && layout != "torch.strided") || value.hasattr("tocoo").unwrap_or(false) {
        return errors::dtype(
            "a sparse tensor does not store all of its elements: pass a dense one (.to_dense(), .toarray()), or publish its \
             indices and values as a dataset",
        );
    }
    error
}

/// Refuses a CUDA stream for host memory, because no call orders host memory with the work of a stream.
fn no_stream(stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    match stream {
        Some(_) => Err(argument(
            "stream= is for a tensor on a device: pass device=. For host memory: leave stream out, and if the stream writes this \
             memory, synchronize it first",
        )),
        None => Ok(()),
    }
}

/// Returns the lifetime with which a draft was created.
pub fn lifetime_of(value: &Bound<'_, PyAny>) -> Lasting {
    if let Ok(draft) = value.cast::<Draft>() {
        return draft.get().lasting();
    }
    value.cast::<DeviceDraft>().map(|draft| draft.get().lasting()).unwrap_or_default()
}

/// Refuses a draft that was created with a lifetime, for a call whose values have none.
fn check_lifetime(value: &Bound<'_, PyAny>) -> PyResult<()> {
    if lifetime_of(value).is_limited() {
        return Err(argument(
            "the draft was created with ttl or ephemeral, which only a name has: create it without them for a message, an item \
             or a dataset",
        ));
    }
    Ok(())
}

/// Takes the caller's draft, after waiting for all work on the draft.
fn taken(value: &Bound<'_, PyAny>, to: &To<'_, '_>) -> PyResult<ValueDraft> {
    if let Ok(draft) = value.cast::<DeviceDraft>() {
        let draft = draft.get();
        if let Some(stream) = to.stream {
            draft.record_stream(stream)?;
        }
        return draft.take(value.py());
    }
    value.cast::<Draft>()?.get().take(value.py())
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

/// Refuses a value that is no tensor of a dataset.
fn check_member(value: &Bound<'_, PyAny>) -> PyResult<()> {
    if value.is_instance_of::<PyDict>() {
        return Err(errors::dtype(
            "a dataset has one level: give each tensor of the inner dict a name such as \"a/b\", or publish the whole dict with \
             put_object",
        ));
    }
    check_lifetime(value)
}

/// Returns a draft of a dataset. The arguments `device=` and `stream=` apply to each tensor.
pub fn dataset_of(
    client: &Client,
    tensors: &Bound<'_, PyMapping>,
    to: &To<'_, '_>,
    metadata: Option<&Bound<'_, PyAny>>,
    timestamp: u64,
) -> PyResult<DatasetDraft> {
    let metadata = metadata::checked(metadata)?;
    let mut members = Vec::new();
    for pair in tensors.items()? {
        let (name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
        let name = arguments::name(&name)?.to_owned();
        let copy = check_member(&value).and_then(|()| copied(client, &value, to));
        let copy = copy.map_err(|error| of_member(value.py(), &name, error))?;
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
    client: &Client,
    value: &Bound<'_, PyAny>,
    to: &To<'_, '_>,
    metadata: Option<&Bound<'_, PyAny>>,
    timestamp: u64,
) -> PyResult<ValueDraft> {
    match value.cast::<PyMapping>() {
        Ok(tensors) => dataset_of(client, tensors, to, metadata, timestamp).map(Into::into),
        Err(_) => check_lifetime(value).and_then(|()| tensor_of(client, value, to, metadata, timestamp)),
    }
}

/// Returns a draft of one tensor.
pub fn tensor_of(
    client: &Client,
    value: &Bound<'_, PyAny>,
    to: &To<'_, '_>,
    metadata: Option<&Bound<'_, PyAny>>,
    timestamp: u64,
) -> PyResult<ValueDraft> {
    let metadata = metadata::checked(metadata)?;
    let mut draft = copied(client, value, to)?.map_or_else(|| taken(value, to), Ok)?;
    match &mut draft {
        ValueDraft::Tensor(draft) => describe(draft, metadata.as_deref(), timestamp),
        ValueDraft::Device(draft) => describe_on(draft, metadata.as_deref(), timestamp),
        _ => unreachable!("it is one tensor"),
    }
    .or_raise()?;
    Ok(draft)
}

/// Sets metadata and timestamp of a draft on a device, as [`describe`] does for other drafts.
fn describe_on(draft: &mut tensorlend::DeviceDraft, metadata: Option<&[u8]>, timestamp: u64) -> Result<(), Error> {
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
fn describe(draft: &mut tensorlend::Draft, metadata: Option<&[u8]>, timestamp: u64) -> Result<(), Error> {
    if let Some(bytes) = metadata {
        draft.set_metadata(bytes)?;
    }
    if timestamp != 0 {
        draft.set_timestamp(timestamp);
    }
    Ok(())
}

/// Parameters of a new draft.
pub struct DraftParameters<'a> {
    pub spec: TensorSpec,
    pub name: Option<String>,
    pub lasting: Lasting,
    pub metadata: Option<Cow<'a, [u8]>>,
    pub timestamp: u64,
}

/// Creates a draft in host memory, or on the device that `device=` names.
pub fn create(
    py: Python<'_>,
    client: &Client,
    parameters: DraftParameters<'_>,
    to: &To<'_, '_>,
) -> PyResult<Py<PyAny>> {
    let DraftParameters { spec, name, lasting, metadata, timestamp } = parameters;
    let bytes = bytes_of(&spec)?;
    if let Some(on) = to.target.device() {
        let stream = to.stream.map(|stream| CudaStream::parse(Some(stream))).transpose()?;
        let mut draft = DeviceDraft::create(py, client, spec, on, stream.as_ref())?;
        describe_on(&mut draft, metadata.as_deref(), timestamp).or_raise()?;
        return Ok(Py::new(py, DeviceDraft::of(draft, stream, name, lasting))?.into_any());
    }
    no_stream(to.stream)?;
    let mut draft = detach_if_large(py, bytes, || client.create_spec(spec)).or_raise()?;
    describe(&mut draft, metadata.as_deref(), timestamp).or_raise()?;
    Ok(Py::new(py, Draft::new(draft, name, lasting))?.into_any())
}
