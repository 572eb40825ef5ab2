//! The class `Dataset`: several tensors that were published together.

use crate::context::context_manager;
use crate::device::DeviceLease;
use crate::device::view::DeviceView;
use crate::errors::{closed, named, raise};
use crate::lease::{Lease, Mode, Origin};
use crate::version::Version;
use crate::view::{View, is_in_host_memory};
use crate::{display, metadata, torch};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator, PyList, PyTuple};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tensorlend::{Client, Member, Value};
use tensorlend_os::fork;
use tensorlend_os::mutex::lock;

/// Several tensors that were published together, as a mapping of names to leases. One lease holds
/// all of them.
///
/// The order is that of publication. A tensor on a device has a DeviceLease, every other tensor a Lease.
///
/// Notes
/// -----
/// Thread-safe: any thread may read the dataset, and so may children that the process forks. Its
/// lease ends with the last reference to the dataset, to its leases or to arrays of its tensors.
/// `release` and `with` end the lease earlier. Pickling sends the dataset's name and version.
#[pyclass(frozen, weakref, mapping, module = "tensorlend._native")]
pub struct Dataset {
    held: Mutex<Option<Held>>,
    origin: Origin,
    mode: Mode,
    /// The fork generation of the process in which the dataset is mapped.
    forks: u64,
}

#[derive(Clone)]
enum Held {
    Shared(Arc<Value>),
    /// The dataset's tensors in private, writable mappings. A dataset without tensors is always
    /// `Shared`.
    Private(Arc<[Arc<View>]>),
}

impl Held {
    fn whole(&self) -> &tensorlend::Dataset {
        let value = match self {
            Self::Shared(value) => value,
            Self::Private(views) => views[0].value().expect("its views are of a lease"),
        };
        value.as_dataset().expect("it was made of a dataset")
    }

    fn view(&self, at: usize, name: &str) -> Arc<View> {
        match self {
            Self::Shared(value) => Arc::new(View::leased(value.clone(), at, name)),
            Self::Private(views) => views[at].clone(),
        }
    }
}

impl Dataset {
    /// Creates the object for a leased dataset.
    pub fn of(
        py: Python<'_>,
        dataset: tensorlend::Dataset,
        mode: Mode,
        client: &Client,
        origin: Origin,
    ) -> PyResult<Self> {
        if let Some((member, _)) = dataset.members().find(|(_, member)| member.uuid().is_some()) {
            mode.check_device(&format!("{}/{member}", origin.name))?;
        }
        let held = if mode == Mode::CopyOnWrite && !dataset.is_empty() {
            Held::Private(
                View::private(py, Value::Dataset(dataset), client, &origin.name)?.into_iter().map(Arc::new).collect(),
            )
        } else {
            Held::Shared(Arc::new(Value::Dataset(dataset)))
        };
        Ok(Self { held: Mutex::new(Some(held)), origin, mode, forks: fork::generation() })
    }

    fn held(&self) -> PyResult<Held> {
        let held = lock(&self.held).clone().ok_or_else(|| raise(closed("the dataset was released: get it again")))?;
        if !fork::is_readable(self.forks) {
            return Err(named(
                "ForkedError",
                "this dataset was leased by the parent process: get it in the child".into(),
            ));
        }
        Ok(held)
    }

    fn whole<R>(&self, look: impl FnOnce(&tensorlend::Dataset) -> R) -> PyResult<R> {
        Ok(look(self.held()?.whole()))
    }

    /// Returns the version of the leased value.
    pub fn seen(&self) -> PyResult<tensorlend::Version> {
        self.whole(tensorlend::Dataset::version)
    }

    fn lease(&self, py: Python<'_>, held: &Held, at: usize, name: &str) -> PyResult<AnyLease> {
        let origin = Origin { member: Some(name.into()), ..self.origin.clone() };
        match held {
            Held::Shared(value) if matches!(held.whole().member_at(at), Some(Member::Device(_))) => {
                Ok(AnyLease::Device(DeviceLease::of(DeviceView::member(py, value, at)?, origin)))
            }
            _ => Ok(AnyLease::Host(Lease::new(held.view(at, &self.origin.name), origin))),
        }
    }

    fn leases(&self, py: Python<'_>) -> PyResult<Vec<(String, AnyLease)>> {
        let held = self.held()?;
        let lease = |(at, (name, _)): (usize, (&str, _))| Ok((name.to_owned(), self.lease(py, &held, at, name)?));
        held.whole().members().enumerate().map(lease).collect()
    }

    #[cold]
    fn has_no(&self, name: &str) -> PyResult<PyErr> {
        self.whole(|dataset| {
            let names: Vec<String> = dataset.members().take(16).map(|(name, _)| format!("{name:?}")).collect();
            let more = if names.len() < dataset.len() { " and more" } else { "" };
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let whole = &self.origin.name;
            named("NotFoundError", format!("the dataset {whole:?} has no tensor {name:?}: it has {names}{more}"))
        })
    }

    fn find(&self, py: Python<'_>, name: &str) -> PyResult<Option<AnyLease>> {
        let held = self.held()?;
        let at = held.whole().members().position(|(n, _)| n == name);
        at.map(|at| self.lease(py, &held, at, name)).transpose()
    }
}

/// A lease of a dataset's tensor.
#[derive(IntoPyObject)]
enum AnyLease {
    Host(Lease),
    Device(DeviceLease),
}

context_manager!(Dataset, |dataset, _py| dataset.release());

#[pymethods]
impl Dataset {
    fn __len__(&self) -> PyResult<usize> {
        self.whole(tensorlend::Dataset::len)
    }

    fn __contains__(&self, name: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Ok(name) = name.extract::<String>() else { return Ok(false) };
        self.whole(|dataset| dataset.member(&name).is_some())
    }

    fn __getitem__(&self, py: Python<'_>, name: &str) -> PyResult<AnyLease> {
        match self.find(py, name)? {
            Some(lease) => Ok(lease),
            None => Err(self.has_no(name)?),
        }
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.keys(py)?.try_iter()
    }

    /// Returns the dataset's tensor with this name.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The tensor's name in the dataset.
    /// default : object, default None
    ///     The result if no tensor has the name.
    ///
    /// Returns
    /// -------
    /// Lease, DeviceLease or object
    ///     The tensor, or `default`. A DeviceLease if the tensor is on a device.
    #[pyo3(signature = (name, default=None))]
    fn get(&self, py: Python<'_>, name: &str, default: Option<Py<PyAny>>) -> PyResult<Option<Py<PyAny>>> {
        match self.find(py, name)? {
            Some(lease) => Ok(Some(lease.into_pyobject(py)?.unbind())),
            None => Ok(default),
        }
    }

    /// Returns the names of the dataset's tensors.
    ///
    /// Returns
    /// -------
    /// list of str
    ///     The names, in the order of publication.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.whole(|dataset| PyList::new(py, dataset.members().map(|(name, _)| name)))?
    }

    /// Returns leases of the dataset's tensors.
    ///
    /// Returns
    /// -------
    /// list of Lease or DeviceLease
    ///     The leases, in the order of publication.
    fn values(&self, py: Python<'_>) -> PyResult<Vec<AnyLease>> {
        Ok(self.leases(py)?.into_iter().map(|(_, lease)| lease).collect())
    }

    /// Returns names and leases of the dataset's tensors.
    ///
    /// Returns
    /// -------
    /// list of (str, Lease or DeviceLease)
    ///     The pairs, in the order of publication.
    fn items(&self, py: Python<'_>) -> PyResult<Vec<(String, AnyLease)>> {
        self.leases(py)
    }

    /// Returns numpy arrays that view all tensors of the dataset in place, and keep them alive.
    ///
    /// Returns
    /// -------
    /// tuple of numpy.ndarray
    ///     The arrays, in the order of publication.
    ///
    /// Raises
    /// ------
    /// ClosedError
    ///     The dataset was released.
    /// BufferError
    ///     A tensor is on a device: call `to_host` of its lease.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let array = |(_, lease): (String, AnyLease)| match lease {
            AnyLease::Host(lease) => Lease::numpy(&Bound::new(py, lease)?),
            AnyLease::Device(lease) => Err(lease.is_no_buffer()),
        };
        let arrays = self.leases(py)?.into_iter().map(array);
        PyTuple::new(py, arrays.collect::<PyResult<Vec<_>>>()?)
    }

    /// Returns torch tensors that view all tensors of the dataset in place, and keep them alive.
    ///
    /// torch does not check for read-only memory. With mode "read", a write to these tensors ends
    /// the process with SIGSEGV.
    ///
    /// Returns
    /// -------
    /// tuple of torch.Tensor
    ///     The tensors, in the order of publication. torch must be installed.
    ///
    /// Raises
    /// ------
    /// ClosedError
    ///     The dataset was released.
    fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if let Held::Shared(value) = self.held()?
            && is_in_host_memory(&value)
            && torch::is_direct(py)?
        {
            return torch::tensor_or_tuple(py, &value, &self.origin.name);
        }
        let tensor = |(_, lease): (String, AnyLease)| match lease {
            AnyLease::Host(lease) => Lease::torch(&Bound::new(py, lease)?),
            AnyLease::Device(lease) => DeviceLease::torch(&Bound::new(py, lease)?),
        };
        let tensors = self.leases(py)?.into_iter().map(tensor);
        Ok(PyTuple::new(py, tensors.collect::<PyResult<Vec<_>>>()?)?.into_any())
    }

    /// The dataset's metadata as a dict; empty if it has none.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.whole(|dataset| metadata::to_dict(py, dataset.metadata()))?
    }

    /// The dataset's metadata as bytes.
    #[getter]
    fn metadata_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.whole(|dataset| PyBytes::new(py, dataset.metadata()))
    }

    /// The dataset's timestamp in nanoseconds; 0 if none was set.
    #[getter]
    fn timestamp(&self) -> PyResult<u64> {
        self.whole(tensorlend::Dataset::timestamp)
    }

    /// The version of the name's value.
    #[getter]
    fn version(&self) -> PyResult<Version> {
        self.seen().map(Version)
    }

    /// The name by which the dataset was found: its own, or that of its stream or list.
    #[getter]
    fn name(&self) -> &str {
        &self.origin.name
    }

    /// Whether the session of the lease still exists; False after release.
    #[getter]
    fn valid(&self) -> bool {
        self.whole(tensorlend::Dataset::validate).unwrap_or(false)
    }

    /// Ends the lease now, or when the last array that views one of its tensors is gone.
    fn release(&self) {
        lock(&self.held).take();
    }

    /// The arguments with which another process finds the dataset again: sockets, namespace, name,
    /// version, mode, and whether the name refers to the dataset itself.
    #[getter]
    #[allow(clippy::type_complexity)]
    fn _origin(&self) -> PyResult<(Vec<PathBuf>, Option<String>, String, (u64, u64), &'static str, bool)> {
        let Origin { options, name, named, .. } = &self.origin;
        let [owner_word, cell] = self.seen()?.words();
        let mode = self.mode.word();
        Ok((options.sockets.clone(), options.namespace.clone(), (**name).into(), (owner_word, cell), mode, *named))
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("tensorlend._refs")?.call_method1("reduce_dataset", (slf,))
    }

    /// Returns an HTML table, which notebooks show.
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        display::html(slf.as_any(), "dataset")
    }

    fn __repr__(&self) -> String {
        let name = display::quoted(&self.origin.name);
        match self.held() {
            Ok(held) => {
                let one = |(name, tensor): (&str, Member<'_>)| {
                    let on = tensor.uuid().map(|uuid| format!(" on {uuid}")).unwrap_or_default();
                    let (dtype, shape) = (tensor.dtype().numpy_name(), display::tuple(tensor.shape()));
                    format!("{} {dtype} {shape}{on}", display::quoted(name))
                };
                let members: Vec<String> = held.whole().members().map(one).collect();
                let bytes = held.whole().members().map(|(_, tensor)| tensor.nbytes() as u64);
                format!("<Dataset {name}: {}; {}>", members.join(", "), display::count(bytes.sum::<u64>(), "byte"))
            }
            Err(_) => format!("<Dataset {name}, released>"),
        }
    }
}
