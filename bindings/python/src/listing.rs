//! Descriptions of names, and the daemon's metrics.

use crate::display;
use crate::dtype;
use crate::errors::ResultExt;
use crate::version::Version;
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyTuple};
use std::ffi::CString;
use tensorlend::{Client, InfoKind, Stat, TensorInfo};

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
        let (name, bytes) = (display::quoted(&self.0.name), display::count(self.0.nbytes, "byte"));
        match &self.0.kind {
            InfoKind::Tensor(tensor) => {
                format!("<Info {name}: {} {}, {bytes}>", tensor.dtype.numpy_name(), display::tuple(&tensor.shape))
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

/// Sets the items of a dict to the fields of these names.
macro_rules! set_fields {
    ($dict:ident, $from:expr, $($name:ident),+ $(,)?) => {
        $($dict.set_item(stringify!($name), &$from.$name)?;)+
    };
}
pub(crate) use set_fields;

/// Returns a list with a dict for each item, which `fill` fills.
fn dicts<'py, T>(
    py: Python<'py>,
    items: &[T],
    fill: impl Fn(&Bound<'py, PyDict>, &T) -> PyResult<()>,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let dict = |item| {
        let dict = PyDict::new(py);
        fill(&dict, item).map(|()| dict)
    };
    items.iter().map(dict).collect()
}

/// Returns the daemon's metrics as a dict.
pub fn stat<'py>(py: Python<'py>, stat: &Stat) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    set_fields!(dict, stat, version, pid, uptime_ns, mode, pool_bytes_max, pool_bytes, bytes_in_use, bytes_spare);
    set_fields!(dict, stat, bytes_sheets, segments, clients, frozen, names, requests, wakeups, device, names_expired);
    set_fields!(dict, stat, names_ephemeral_gone, sessions_revoked, bytes_spilled, spill_failures);
    dict.set_item("refusals", stat.refusals.total())?;
    dict.set_item("refusals_by_reason", stat.refusals.by_reason().into_py_dict(py)?)?;
    let uids = dicts(py, &stat.uids, |uid, one| {
        set_fields!(uid, one, uid, bytes);
        Ok(())
    });
    dict.set_item("uids", uids?)?;
    let devices = dicts(py, &stat.devices, |device, one| {
        device.set_item("uuid", one.offer.uuid.to_string())?;
        device.set_item("name", &one.offer.name)?;
        device.set_item("allocator", one.offer.allocator.name())?;
        set_fields!(device, one, bytes_max, bytes, bytes_in_use, segments);
        Ok(())
    });
    dict.set_item("devices", devices?)?;
    let holders = dicts(py, &stat.holders, |holder, one| {
        holder.set_item("client", one.client.get())?;
        set_fields!(holder, one, uid, pid, connected, pieces, bytes);
        Ok(())
    });
    dict.set_item("holders", holders?)?;
    let namespaces = dicts(py, &stat.namespaces, |namespace, one| {
        set_fields!(namespace, one, name, bytes);
        Ok(())
    });
    dict.set_item("namespaces", namespaces?)?;
    Ok(dict)
}
