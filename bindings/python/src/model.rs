//! The class `Model`: a model that runners serve.

use crate::arguments;
use crate::context::context_manager;
use crate::dataset::Dataset;
use crate::display;
use crate::errors::{ResultExt, argument, closed};
use crate::lease::{Mode, Origin};
use crate::metadata;
use crate::values::{To, drafted};
use crate::wait::{Awaited, Interrupt, timeout};
use pyo3::prelude::*;
use pyo3::types::PyMapping;
use std::sync::Mutex;
use tensorlend::ValueDraft;
use tensorlend_model::{ModelRequest, Models, Step};
use tensorlend_os::mutex::lock;

/// A model to run, with one connection to a runner. `Client.model` opens it.
///
/// Notes
/// -----
/// Thread-safe. Runs of several threads follow one another. Close the model, or use it as a context
/// manager.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Model {
    name: String,
    client: tensorlend::Client,
    /// The connection to a runner; `None` after `close`.
    way: Mutex<Option<tensorlend_model::Model>>,
    /// Ends this object's waits in other threads.
    interrupt: Interrupt,
    awaited: Awaited,
    origin: Origin,
}

impl Model {
    /// Opens a connection to a runner of the model `name`.
    pub fn of(client: tensorlend::Client, awaited: Awaited, name: &str, origin: Origin) -> PyResult<Self> {
        let way = Mutex::new(Some(Models::new(&client).open(name).or_raise()?));
        Ok(Self { name: name.to_owned(), client, way, interrupt: Interrupt::default(), awaited, origin })
    }
}

context_manager!(Model, |model, py| model.close(py));

#[pymethods]
impl Model {
    /// The model's name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Runs the model and waits for the response.
    ///
    /// Parameters
    /// ----------
    /// inputs : mapping of str to str or array_like
    ///     For each of the model's inputs, an array in host memory or the name of a tensor.
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
    ///     The outputs by name. Its metadata has `queue_us`, the time from sending to the run, and `run_us`, the time
    ///     of the model alone, in microseconds.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     No runner responded within `timeout`.
    /// ServiceError
    ///     The runner reported an error, or ended before it responded.
    /// ClosedError
    ///     The model was closed.
    #[pyo3(
        signature = (inputs, outputs=None, *, prepare=None, timeout=Some(60.0), mode="read"),
        text_signature = "($self, inputs, outputs=None, *, prepare=None, timeout=60.0, mode='read')"
    )]
    pub fn run(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::mapping)] inputs: &Bound<'_, PyMapping>,
        outputs: Option<&Bound<'_, PyAny>>,
        prepare: Option<&Bound<'_, PyMapping>>,
        timeout: Option<f64>,
        mode: &str,
    ) -> PyResult<Dataset> {
        let (mode, patience) = (Mode::parse(mode)?, self::timeout(timeout)?);
        let mut request = ModelRequest::new();
        for pair in inputs.items()? {
            let (input, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
            let input = arguments::name(&input)?.to_owned();
            request = match value.extract::<String>() {
                Ok(tensor) => request.input_from(&input, &tensor),
                Err(_) => request.input(&input, brought(&self.client, &input, &value)?),
            };
        }
        request = wanted(request, outputs)?;
        for pair in prepare.map(PyMappingMethods::items).transpose()?.into_iter().flatten() {
            let (input, steps): (String, Bound<'_, PyAny>) = pair.extract()?;
            request = request.prepare(&input, &self::steps(&steps)?);
        }
        let watch = self.interrupt.watch(&self.awaited);
        let run = || match lock(&self.way).as_mut() {
            Some(model) => model.run_while(request, patience, || watch.continues()),
            None => Err(closed("the model was closed: open it again")),
        };
        let answer = py.detach(run).or_raise();
        let answer = watch.unless_interrupted(answer, &self.name)?;
        Dataset::of(py, answer, mode, &self.client, self.origin.clone())
    }

    /// Closes the connection to the runner. A run of this model in another thread raises
    /// ClosedError.
    fn close(&self, py: Python<'_>) {
        self.interrupt.all();
        py.detach(|| drop(lock(&self.way).take()));
    }

    fn __repr__(&self) -> String {
        let state = match self.way.try_lock() {
            Ok(way) if way.is_none() => "closed",
            Ok(_) => "open",
            Err(_) => "running",
        };
        format!("<Model {}, {state}>", display::quoted(&self.name))
    }
}

/// Returns the draft of an input that the request itself contains.
fn brought(client: &tensorlend::Client, input: &str, value: &Bound<'_, PyAny>) -> PyResult<tensorlend::Draft> {
    match drafted(client, value, &To::default(), None, 0)? {
        ValueDraft::Tensor(draft) => Ok(draft),
        _ => Err(argument(format!("input {input:?}: give an array in host memory, or a tensor's name"))),
    }
}

fn wanted(mut request: ModelRequest, outputs: Option<&Bound<'_, PyAny>>) -> PyResult<ModelRequest> {
    let Some(outputs) = outputs else { return Ok(request) };
    if let Ok(named) = outputs.cast::<PyMapping>() {
        for pair in named.items()? {
            let (output, tensor): (String, Bound<'_, PyAny>) = pair.extract()?;
            request = match tensor.extract::<Option<String>>()? {
                Some(tensor) => request.output_to(&output, &tensor),
                None => request.output(&output),
            };
        }
        return Ok(request);
    }
    for output in outputs.extract::<Vec<String>>()? {
        request = request.output(&output);
    }
    Ok(request)
}

/// Parses steps from their JSON form.
fn steps(given: &Bound<'_, PyAny>) -> PyResult<Vec<Step>> {
    Step::parse_list(&metadata::to_json(given)?).map_err(argument)
}
