//! Descriptions of names, and the daemon's metrics.

use crate::dtype;
use crate::errors::OrRaise;
use crate::shown;
use crate::version::Version;
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::ffi::CString;
use tensorlend::{Client, Holder, InfoKind, NamespaceUse, Stat, TensorInfo, UidUse};

/// Description of a name's value and its owner. `Client.info` and `Client.list` return such
/// descriptions. A description holds no lease.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Info(pub tensorlend::Info);

impl Info {
    fn tensor(&self) -> Option<&TensorInfo> {
        match &self.0.kind {
            InfoKind::Tensor(tensor) => Some(tensor),
            InfoKind::Dataset(_) => None,
        }
    }
}

#[pymethods]
impl Info {
    /// The name.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// The kind of value: "tensor" or "dataset".
    #[getter]
    fn kind(&self) -> &'static str {
        if self.tensor().is_some() { "tensor" } else { "dataset" }
    }

    /// Element type of a tensor; None for a dataset.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.tensor().map(|tensor| dtype::to_numpy(py, tensor.dtype)).transpose()
    }

    /// Sizes of a tensor, in elements; None for a dataset.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.tensor().map(|tensor| PyTuple::new(py, &tensor.shape)).transpose()
    }

    /// Strides of a tensor in bytes, as numpy has them; None for a dataset.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let bytes = |tensor: &TensorInfo| {
            let item = tensor.dtype.item_bytes() as i64;
            PyTuple::new(py, tensor.strides.iter().map(|stride| stride * item).collect::<Vec<_>>())
        };
        self.tensor().map(bytes).transpose()
    }

    /// Dtype and shape of a dataset's tensors, by name; empty for a tensor.
    #[getter]
    fn members<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let members = PyDict::new(py);
        if let InfoKind::Dataset(tensors) = &self.0.kind {
            for (name, tensor) in tensors {
                members.set_item(name, (dtype::to_numpy(py, tensor.dtype)?, PyTuple::new(py, &tensor.shape)?))?;
            }
        }
        Ok(members)
    }

    /// Bytes of the elements, of all members together.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.nbytes
    }

    /// Length of the metadata, in bytes.
    #[getter]
    fn metadata_bytes(&self) -> u64 {
        self.0.metadata_bytes
    }

    /// The value's timestamp in nanoseconds; 0 if none was set.
    #[getter]
    fn timestamp(&self) -> u64 {
        self.0.timestamp_ns
    }

    /// Pid of the value's owner.
    #[getter]
    fn pid(&self) -> u32 {
        self.0.pid
    }

    /// Uid of the value's owner.
    #[getter]
    fn uid(&self) -> u32 {
        self.0.uid
    }

    /// Label of the value's owner.
    #[getter]
    fn label(&self) -> &str {
        &self.0.label
    }

    /// Whether the value's owner is connected.
    #[getter]
    fn alive(&self) -> bool {
        self.0.alive
    }

    /// The version of the name's value.
    #[getter]
    fn version(&self) -> Version {
        Version(self.0.version)
    }

    /// Seconds until the name's time to live ends; None if the name has none.
    #[getter]
    fn ttl(&self) -> Option<f64> {
        self.0.lifetime.ttl.map(|ttl| ttl.as_secs_f64())
    }

    /// Whether the value ends with its owner's session.
    #[getter]
    fn ephemeral(&self) -> bool {
        self.0.lifetime.ephemeral
    }

    fn __repr__(&self) -> String {
        let (name, bytes) = (shown::quoted(&self.0.name), shown::count(self.0.nbytes, "byte"));
        match &self.0.kind {
            InfoKind::Tensor(tensor) => {
                format!("<Info {name}: {} {}, {bytes}>", tensor.dtype.numpy_name(), shown::tuple(&tensor.shape))
            }
            InfoKind::Dataset(members) => {
                format!("<Info {name}: dataset of {}, {bytes}>", members.len())
            }
        }
    }
}

/// Describes the names that match a glob, and warns about the names that cannot be described.
pub fn list(py: Python<'_>, client: &Client, glob: &str) -> PyResult<Vec<Info>> {
    let found = py.detach(|| client.listing(glob)).or_raise()?;
    if let Some((name, why)) = found.unreadable.first() {
        let count = found.unreadable.len();
        let words = format!("{count} of the names cannot be described and are left out: the first is {name:?}: {why}");
        let words = CString::new(words.replace('\0', "?")).unwrap_or_default();
        PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &words, 1)?;
    }
    Ok(found.infos.into_iter().map(Info).collect())
}

/// Returns the daemon's metrics as a dict.
pub fn stat<'py>(py: Python<'py>, stat: &Stat) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    macro_rules! set {
        ($($name:ident),*) => { $(dict.set_item(stringify!($name), &stat.$name)?;)* };
    }
    set!(version, pid, uptime_ns, mode, pool_bytes_max, pool_bytes, bytes_in_use, bytes_spare, bytes_sheets, segments);
    set!(
        clients,
        frozen,
        names,
        requests,
        wakeups,
        device,
        names_expired,
        names_ephemeral_gone,
        sessions_revoked,
        bytes_spilled,
        spill_failures
    );
    dict.set_item("refusals", stat.refusals.total())?;
    let reasons = PyDict::new(py);
    for (reason, number) in stat.refusals.by_reason() {
        reasons.set_item(reason, number)?;
    }
    dict.set_item("refusals_by_reason", reasons)?;
    let uids = stat.uids.iter().map(|one: &UidUse| {
        let uid = PyDict::new(py);
        uid.set_item("uid", one.uid)?;
        uid.set_item("bytes", one.bytes)?;
        Ok(uid)
    });
    dict.set_item("uids", uids.collect::<PyResult<Vec<_>>>()?)?;
    let devices = stat.devices.iter().map(|one| {
        let device = PyDict::new(py);
        device.set_item("uuid", one.offer.uuid.to_string())?;
        device.set_item("name", &one.offer.name)?;
        device.set_item("allocator", one.offer.allocator.name())?;
        device.set_item("bytes_max", one.bytes_max)?;
        device.set_item("bytes", one.bytes)?;
        device.set_item("bytes_in_use", one.bytes_in_use)?;
        device.set_item("segments", one.segments)?;
        Ok(device)
    });
    dict.set_item("devices", devices.collect::<PyResult<Vec<_>>>()?)?;
    let namespaces = stat.namespaces.iter().map(|one: &NamespaceUse| {
        let namespace = PyDict::new(py);
        namespace.set_item("name", &one.name)?;
        namespace.set_item("bytes", one.bytes)?;
        Ok(namespace)
    });
    let holders = stat.holders.iter().map(|one: &Holder| {
        let holder = PyDict::new(py);
        holder.set_item("uid", one.uid)?;
        holder.set_item("client", one.client)?;
        holder.set_item("pid", one.pid)?;
        holder.set_item("connected", one.connected)?;
        holder.set_item("pieces", one.pieces)?;
        holder.set_item("bytes", one.bytes)?;
        Ok(holder)
    });
    dict.set_item("holders", holders.collect::<PyResult<Vec<_>>>()?)?;
    dict.set_item("namespaces", namespaces.collect::<PyResult<Vec<_>>>()?)?;
    Ok(dict)
}
