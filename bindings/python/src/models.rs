//! The methods of `Client` for models.

use crate::arguments;
use crate::client::Client;
use crate::dataset::Dataset;
use crate::errors::ResultExt;
use crate::metadata;
use crate::model::Model;
use crate::version::Version;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyMapping;
use tensorlend_model::{ModelOptions, Models};

#[pymethods]
impl Client {
    /// Adds or replaces a model. Runners (tensorlend-runner) load the model by themselves.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The model's name.
    /// model : bytes or bytearray
    ///     The bytes of an ONNX file.
    /// batch_max : int, default 1
    ///     Maximum rows of a batch that a runner makes of several requests.
    /// batch_min : int or None, default None
    ///     Rows at which a batch starts without waiting for more; None is `batch_max`.
    /// batch_wait_ms : float, default 0.0
    ///     Maximum wait of the first request of a batch for others, in milliseconds.
    /// tag : str, default ""
    ///     A text for the user, such as the model's version.
    ///
    /// Returns
    /// -------
    /// Version
    ///     The version of the model.
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     The name or an option is invalid.
    #[pyo3(signature = (name, model, *, batch_max=1, batch_min=None, batch_wait_ms=0.0, tag=""))]
    fn put_model(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        model: PyBackedBytes,
        batch_max: u32,
        batch_min: Option<u32>,
        batch_wait_ms: f64,
        tag: &str,
    ) -> PyResult<Version> {
        let (models, tag) = (Models::new(&self.session(py)?), tag.to_owned());
        let options = ModelOptions { batch_max, batch_min, batch_wait_ms, tag, ..ModelOptions::default() };
        py.detach(|| models.put(name, &model, &options)).or_raise().map(Version)
    }

    /// Leases a model's bytes.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The model's name.
    ///
    /// Returns
    /// -------
    /// Lease
    ///     A tensor of uint8, in host memory.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     There is no such model.
    fn get_model(&self, py: Python<'_>, #[pyo3(from_py_with = arguments::name)] name: &str) -> PyResult<Py<PyAny>> {
        self.get(py, &tensorlend_model::model_bytes_name(name), "read", None, None, None)
    }

    /// Removes a model.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The model's name.
    ///
    /// Returns
    /// -------
    /// bool
    ///     False if the model did not exist.
    fn delete_model(&self, py: Python<'_>, #[pyo3(from_py_with = arguments::name)] name: &str) -> PyResult<bool> {
        let models = Models::new(&self.session(py)?);
        py.detach(|| models.delete(name)).or_raise()
    }

    /// Returns the names of the models that match a pattern.
    ///
    /// Parameters
    /// ----------
    /// glob : str, default "*"
    ///     A pattern, in which "*" stands for any text.
    ///
    /// Returns
    /// -------
    /// list of str
    ///     The names.
    #[pyo3(signature = (glob="*"))]
    fn models(&self, py: Python<'_>, #[pyo3(from_py_with = arguments::name)] glob: &str) -> PyResult<Vec<String>> {
        let models = Models::new(&self.session(py)?);
        let found = py.detach(|| models.list(glob)).or_raise()?;
        Ok(found.into_iter().map(|model| model.name).collect())
    }

    /// Returns metrics of a model's runners.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The model's name.
    ///
    /// Returns
    /// -------
    /// list of dict
    ///     The metrics of each runner.
    fn model_statistics<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let models = Models::new(&self.session(py)?);
        let all = py.detach(|| models.statistics(name)).or_raise()?;
        all.iter().map(|one| metadata::to_dict(py, &one.encode())).collect()
    }

    /// Opens a model that is run many times.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The model's name.
    ///
    /// Returns
    /// -------
    /// Model
    ///     The model. Close it, or use it as a context manager.
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     The name is invalid.
    fn model(&self, py: Python<'_>, #[pyo3(from_py_with = arguments::name)] name: &str) -> PyResult<Model> {
        let client = self.session(py)?;
        let awaited = self.awaited(&client);
        Model::of(client, awaited, name, self.origin(&tensorlend_model::model_service(name), false))
    }

    /// Runs a model once, as `model(name).run(inputs, outputs, ...)` does.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The model's name.
    /// inputs : mapping of str to str or array_like
    ///     For each of the model's inputs an array in host memory, or the name of a tensor.
    /// outputs : sequence of str, mapping of str to str or None, or None, default None
    ///     None returns all outputs, and a sequence selects some. A mapping gives each output the
    ///     name under which it is published. An output that the mapping gives None is returned
    ///     instead.
    /// prepare : mapping of str to steps or None, default None
    ///     Steps before an input, such as {"x": ["chw", {"scale": 1 / 255}, "batch"]}.
    /// timeout : float or None, default 60.0
    ///     Maximum wait in seconds; None waits without limit.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    ///
    /// Returns
    /// -------
    /// Dataset
    ///     The outputs by name.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     No runner responded within `timeout`.
    /// ServiceError
    ///     The runner reported an error, or ended before it responded.
    #[pyo3(
        signature = (name, inputs, outputs=None, *, prepare=None, timeout=Some(60.0), mode="read"),
        text_signature = "($self, name, inputs, outputs=None, *, prepare=None, timeout=60.0, mode='read')"
    )]
    fn run_model(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        #[pyo3(from_py_with = arguments::mapping)] inputs: &Bound<'_, PyMapping>,
        outputs: Option<&Bound<'_, PyAny>>,
        prepare: Option<&Bound<'_, PyMapping>>,
        timeout: Option<f64>,
        mode: &str,
    ) -> PyResult<Dataset> {
        self.model(py, name)?.run(py, inputs, outputs, prepare, timeout, mode)
    }
}
