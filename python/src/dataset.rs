//! Several tensors that were published together.

use crate::draft::lock;
use crate::errors::{argument, named};
use crate::lease::{Lease, Mode, Origin};
use crate::metadata;
use crate::version::Version;
use crate::view::View;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator, PyList, PyTuple};
use std::sync::{Arc, Mutex};
use tensorlend::{Client, Value};

/// Several tensors, published together and leased as one: a mapping of names to leases, in the order of publication.
#[pyclass(frozen, weakref, mapping, module = "tensorlend._native")]
pub struct Dataset {
    held: Mutex<Option<Held>>,
    origin: Origin,
}

#[derive(Clone)]
struct Held {
    names: Arc<[Arc<str>]>,
    views: Arc<[Arc<View>]>,
    value: Source,
}

/// What knows metadata and version.
#[derive(Clone)]
enum Source {
    Shared(Arc<Value>),
    /// By the first view; a dataset without tensors is never made private.
    Private,
}

impl Dataset {
    /// Of the dataset that was leased.
    pub fn of(
        py: Python<'_>,
        dataset: tensorlend::Dataset,
        mode: Mode,
        client: &Client,
        origin: Origin,
    ) -> PyResult<Self> {
        let names: Arc<[Arc<str>]> = dataset.iter().map(|(name, _)| name.into()).collect();
        let value = Value::Dataset(dataset);
        let held = if mode == Mode::CopyOnWrite && !names.is_empty() {
            let views = View::private(py, value, client)?.into_iter().map(Arc::new).collect();
            Held { names, views, value: Source::Private }
        } else {
            let value = Arc::new(value);
            let views = (0..names.len()).map(|at| Arc::new(View::leased(value.clone(), at))).collect();
            Held { names, views, value: Source::Shared(value) }
        };
        Ok(Self { held: Mutex::new(Some(held)), origin })
    }

    fn held(&self) -> PyResult<Held> {
        let held = lock(&self.held).clone().ok_or_else(|| argument("the dataset was released: get it again"))?;
        held.views.first().map_or(Ok(()), |view| view.check())?;
        Ok(held)
    }

    fn whole<R>(&self, look: impl FnOnce(&tensorlend::Dataset) -> R) -> PyResult<R> {
        let held = self.held()?;
        let value = match &held.value {
            Source::Shared(value) => value,
            Source::Private => held.views[0].value().expect("its views are of a lease"),
        };
        Ok(look(value.as_dataset().expect("it was made of a dataset")))
    }

    /// The version that was leased.
    pub fn seen(&self) -> PyResult<tensorlend::Version> {
        self.whole(tensorlend::Dataset::version)
    }

    fn lease(&self, held: &Held, at: usize) -> Lease {
        let origin = Origin { member: Some(held.names[at].clone()), ..self.origin.clone() };
        Lease::new(held.views[at].clone(), origin)
    }
}

#[pymethods]
impl Dataset {
    fn __len__(&self) -> PyResult<usize> {
        Ok(self.held()?.names.len())
    }

    fn __contains__(&self, name: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Ok(name) = name.extract::<String>() else { return Ok(false) };
        Ok(self.held()?.names.iter().any(|n| **n == *name))
    }

    fn __getitem__(&self, name: &str) -> PyResult<Lease> {
        self.find(name)?
            .ok_or_else(|| named("NotFoundError", format!("the dataset {:?} has no tensor {name:?}", self.origin.name)))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.keys(py)?.try_iter()
    }

    /// One of its tensors; `default` if there is none of that name.
    #[pyo3(signature = (name, default=None))]
    fn get(&self, py: Python<'_>, name: &str, default: Option<Py<PyAny>>) -> PyResult<Option<Py<PyAny>>> {
        match self.find(name)? {
            Some(lease) => Ok(Some(Py::new(py, lease)?.into_any())),
            None => Ok(default),
        }
    }

    /// Names of its tensors, in the order of publication.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.held()?.names.iter().map(|name| &**name))
    }

    /// Its tensors.
    fn values(&self) -> PyResult<Vec<Lease>> {
        let held = self.held()?;
        Ok((0..held.names.len()).map(|at| self.lease(&held, at)).collect())
    }

    /// Names and tensors.
    fn items(&self) -> PyResult<Vec<(String, Lease)>> {
        let held = self.held()?;
        Ok(held.names.iter().enumerate().map(|(at, name)| ((**name).to_owned(), self.lease(&held, at))).collect())
    }

    /// Metadata of the whole as a dict; empty if it has none.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.whole(|dataset| metadata::to_dict(py, dataset.metadata()))?
    }

    /// Metadata of the whole as bytes.
    #[getter]
    fn metadata_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.whole(|dataset| PyBytes::new(py, dataset.metadata()))
    }

    /// Timestamp of the whole, in nanoseconds; 0 if none was set.
    #[getter]
    fn timestamp(&self) -> PyResult<u64> {
        self.whole(tensorlend::Dataset::timestamp)
    }

    /// Which value of its name it is.
    #[getter]
    fn version(&self) -> PyResult<Version> {
        self.seen().map(Version)
    }

    /// The name by which it was found: its own, or that of its stream or list.
    #[getter]
    fn name(&self) -> &str {
        &self.origin.name
    }

    /// Whether the session that took it still stands; False once it was released.
    #[getter]
    fn valid(&self) -> bool {
        self.whole(tensorlend::Dataset::validate).unwrap_or(false)
    }

    /// Ends the lease now, or when the last array that looks at one of its tensors is gone.
    fn release(&self) {
        lock(&self.held).take();
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) -> bool {
        self.release();
        false
    }

    fn __repr__(&self) -> String {
        match self.held() {
            Ok(held) => format!("<Dataset {:?} {:?}>", self.origin.name, held.names),
            Err(_) => format!("<Dataset {:?}, released>", self.origin.name),
        }
    }
}

impl Dataset {
    fn find(&self, name: &str) -> PyResult<Option<Lease>> {
        let held = self.held()?;
        let at = held.names.iter().position(|n| **n == *name);
        Ok(at.map(|at| self.lease(&held, at)))
    }
}
