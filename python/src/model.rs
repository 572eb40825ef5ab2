//! Models that runners serve.

use crate::client::{To, drafted};
use crate::dataset::Dataset;
use crate::draft::lock;
use crate::errors::{OrRaise, argument};
use crate::lease::{Mode, Origin};
use crate::metadata;
use crate::wait::{Awaited, Interrupt, timeout};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Mutex;
use tensorlend::ValueDraft;
use tensorlend_model::{ModelRequest, Models, Step};

/// A model to run: its connection to a runner is opened once. Created by Client.model.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Model {
    name: String,
    client: tensorlend::Client,
    way: Mutex<tensorlend_model::Model>,
    /// Ends waits in other threads.
    interrupt: Interrupt,
    awaited: Awaited,
    origin: Origin,
}

impl Model {
    /// Opens the model with this name.
    pub fn of(client: tensorlend::Client, awaited: Awaited, name: &str, origin: Origin) -> PyResult<Self> {
        let way = Mutex::new(Models::new(&client).open(name).or_raise()?);
        Ok(Self { name: name.to_owned(), client, way, interrupt: Interrupt::default(), awaited, origin })
    }
}

#[pymethods]
impl Model {
    /// The model's name.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Runs the model and waits for the response: a dataset of outputs by name. Its metadata contains queue_us, the
    /// time from sending to the run, and run_us, the time of the model alone.
    ///
    /// inputs: for each of the model's inputs the name of a tensor, or an array. outputs: None for all of them; a list
    /// of those to return; or a dict of names under which they are published (None: returned). prepare: steps before an
    /// input, such as {"x": [{"scale": 1 / 255}, "chw", "batch"]}.
    #[pyo3(signature = (inputs, outputs=None, *, prepare=None, timeout=Some(60.0), mode="read"))]
    pub fn run(
        &self,
        py: Python<'_>,
        inputs: &Bound<'_, PyDict>,
        outputs: Option<&Bound<'_, PyAny>>,
        prepare: Option<&Bound<'_, PyDict>>,
        timeout: Option<f64>,
        mode: &str,
    ) -> PyResult<Dataset> {
        let (mode, patience) = (Mode::parse(mode)?, self::timeout(timeout)?);
        let mut request = ModelRequest::new();
        for (input, value) in inputs {
            let input: String = input.extract()?;
            request = match value.extract::<String>() {
                Ok(tensor) => request.input_from(&input, &tensor),
                Err(_) => request.input(&input, brought(&self.client, &input, &value)?),
            };
        }
        request = wanted(request, outputs)?;
        for (input, steps) in prepare.into_iter().flatten() {
            request = request.prepare(&input.extract::<String>()?, &self::steps(&steps)?);
        }
        let watch = self.interrupt.watch(&self.awaited);
        let answer = py.detach(|| lock(&self.way).run_while(request, patience, || watch.goes_on())).or_raise();
        let answer = watch.unless_interrupted(answer, &self.name)?;
        Dataset::of(py, answer, mode, &self.client, self.origin.clone())
    }

    /// As run, awaitable: it waits in a separate thread. Cancelling it gives the runner up.
    #[pyo3(signature = (inputs, outputs=None, **options))]
    fn run_async<'py>(
        slf: &Bound<'py, Self>,
        inputs: &Bound<'py, PyDict>,
        outputs: Option<&Bound<'py, PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let arguments = (slf.getattr("run")?, (inputs, outputs), options, slf.getattr("_interrupt")?);
        slf.py().import("tensorlend._aio")?.call_method1("in_thread", arguments)
    }

    /// Ends waits in other threads: they give the runner up.
    fn _interrupt(&self) {
        self.interrupt.all();
    }

    fn __repr__(&self) -> String {
        format!("<Model {:?}>", self.name)
    }
}

/// Returns an input that the request contains itself.
fn brought(client: &tensorlend::Client, input: &str, value: &Bound<'_, PyAny>) -> PyResult<tensorlend::Draft> {
    match drafted(client, value, &To::default(), None, 0)? {
        ValueDraft::Tensor(draft) => Ok(draft),
        _ => Err(argument(format!("input {input:?}: give an array in host memory, or a tensor's name"))),
    }
}

fn wanted(mut request: ModelRequest, outputs: Option<&Bound<'_, PyAny>>) -> PyResult<ModelRequest> {
    let Some(outputs) = outputs else { return Ok(request) };
    if let Ok(named) = outputs.cast::<PyDict>() {
        for (output, tensor) in named {
            let output: String = output.extract()?;
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
