//! Models, which tensorlend-runner runs.

use super::arguments::{c_text, call, convert, free, look, timeout};
use super::client::tensorlend_client;
use super::draft::tensorlend_draft;
use super::lease::tensorlend_lease;
use super::process::Process;
use super::status::tensorlend_status;
use super::version::tensorlend_version;
use ::tensorlend_model::{Model, ModelAnswer, ModelOptions, ModelRequest, Models, Step};
use std::ffi::{CString, c_char, c_void};
use std::ptr::null;
use tensorlend::{Error, Result, Value, ValueDraft, Version};
use tensorlend_os::clock::duration_ns;

/// A connection to the runners of one model. Only one thread at a time may use a connection, so
/// open one for each thread. `tensorlend_model_close` ends it.
pub struct tensorlend_model {
    model: Model,
    process: Process,
    name: CString,
}

/// A request to a model: its inputs, and the destinations of its outputs. Only one thread at a time
/// may use a request. `tensorlend_model_run` takes the request over.
/// `tensorlend_model_request_free` frees a request that was not taken over.
pub struct tensorlend_model_request {
    request: ModelRequest,
}

impl tensorlend_model_request {
    fn change(&mut self, how: impl FnOnce(ModelRequest) -> ModelRequest) {
        self.request = how(std::mem::take(&mut self.request));
    }
}

impl tensorlend_client {
    /// Returns the models of the client's namespace.
    fn models(&self) -> Result<Models> {
        Ok(Models::new(self.opened()?))
    }
}

/// Adds or replaces a model. Runners load the model by themselves. `onnx` points to the bytes of an
/// ONNX file, which the call copies. `options` is JSON, such as `{"batch_max": 8}`, as the manual's
/// page on models describes it. NULL selects the defaults. `version` may be NULL.
///
/// Errors:
/// - `TENSORLEND_ARGUMENT` for invalid options, and for no bytes.
/// - Otherwise those of `tensorlend_put`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_model_put(
    client: *const tensorlend_client,
    model: *const c_char,
    onnx: *const c_void,
    bytes: u64,
    options: *const c_char,
    version: *mut tensorlend_version,
) -> tensorlend_status {
    call!(|client: handle, model: text, version: optional_variable| {
        let models = client.models()?;
        let (onnx, options) = (convert!(onnx: bytes(bytes))?, convert!(options: optional_text)?);
        let options = ModelOptions::parse(options.unwrap_or_default().as_bytes())
            .map_err(|why| Error::Argument(format!("the options of model {model:?}: {why}")))?;
        version.fill(models.put(model, onnx, &options)?);
    })
}

/// Leases a model's bytes. The lease's metadata are the model's options, as JSON. Fails with
/// `TENSORLEND_NOT_FOUND` if there is no such model.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_model_get(
    client: *const tensorlend_client,
    model: *const c_char,
    onnx: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    call!(|onnx: out, client: handle, model: text| onnx.lend(Value::Tensor(client.models()?.get(model)?.0), model))
}

/// Deletes a model. Its runners end. Writes whether the model existed to `*existed`, unless
/// `existed` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_model_delete(
    client: *const tensorlend_client,
    model: *const c_char,
    existed: *mut bool,
) -> tensorlend_status {
    call!(|client: handle, model: text, existed: optional_variable| existed.fill(client.models()?.delete(model)?))
}

/// Opens a model for one or many runs over one connection to a runner. Sends the daemon no request.
/// The first run connects to a runner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_model_open(
    client: *const tensorlend_client,
    name: *const c_char,
    model: *mut *mut tensorlend_model,
) -> tensorlend_status {
    call!(|model: out, client: handle, name: text| {
        let opened = client.models()?.open(name)?;
        model.fill(tensorlend_model { model: opened, process: Process::current(), name: c_text(name) });
    })
}

/// The model's name, borrowed from the handle; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_model_name(model: *const tensorlend_model) -> *const c_char {
    look!(null(), |model: handle| Some(model.name.as_ptr()))
}

/// Closes a model's connection, and frees the handle. NULL does nothing. Leases on outputs of the
/// model remain valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_model_close(model: *mut tensorlend_model) {
    free!(model);
}

/// Creates a request without inputs, for all outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_model_request_new(
    request: *mut *mut tensorlend_model_request,
) -> tensorlend_status {
    call!(|request: out| request.fill(tensorlend_model_request { request: ModelRequest::new() }))
}

/// Adds an input that the request contains: a tensor in host memory. Takes `*tensor` over, unless
/// the call fails.
///
/// Errors: `TENSORLEND_ARGUMENT` for a dataset.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_model_request_input(
    request: *mut tensorlend_model_request,
    input: *const c_char,
    tensor: *mut *mut tensorlend_draft,
) -> tensorlend_status {
    call!(|request: handle_mut, input: text, tensor: consumed| {
        tensor.check()?.change(|draft| match draft {
            ValueDraft::Tensor(_) => Ok(()),
            _ => Err(Error::Argument(format!("input {input:?}: give a tensor in host memory"))),
        })?;
        if let ValueDraft::Tensor(draft) = tensor.draft()? {
            request.change(|request| request.input(input, draft));
        }
    })
}

/// Adds an input that is a tensor of the namespace, by its name. The runner reads the tensor's
/// value when it takes the request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_model_request_input_from(
    request: *mut tensorlend_model_request,
    input: *const c_char,
    name: *const c_char,
) -> tensorlend_status {
    call!(|request: handle_mut, input: text, name: text| request.change(|request| request.input_from(input, name)))
}

/// Sets the steps that prepare an image as this input. `steps` is a JSON list, such as `[{"scale":
/// 0.00392157}, "chw", "batch"]`, as the manual's page on models describes it. Fails with
/// `TENSORLEND_ARGUMENT` for an unknown step.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_model_request_prepare(
    request: *mut tensorlend_model_request,
    input: *const c_char,
    steps: *const c_char,
) -> tensorlend_status {
    call!(|request: handle_mut, input: text, steps: text| {
        let steps = Step::parse_list(steps).map_err(Error::Argument)?;
        request.change(|request| request.prepare(input, &steps));
    })
}

/// Requests an output. The response contains the output if `name` is NULL. Otherwise the runner
/// publishes the output under that name. A request that names no outputs gets all of them in the
/// response.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_model_request_output(
    request: *mut tensorlend_model_request,
    output: *const c_char,
    name: *const c_char,
) -> tensorlend_status {
    call!(|request: handle_mut, output: text, name: optional_text| {
        request.change(|request| match name {
            None => request.output(output),
            Some(name) => request.output_to(output, name),
        });
    })
}

/// Frees a request that was not taken over. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_model_request_free(request: *mut tensorlend_model_request) {
    free!(request);
}

/// Runs a model. Sends the request to a runner, and waits for the response at most `timeout_ns`
/// nanoseconds, or without limit if `timeout_ns` is below 0. Takes `*request` over. The response is
/// a dataset of outputs by name.
///
/// If a runner ends without a fault of the model, the call sends a request whose inputs are all
/// names again. So the model may run twice.
///
/// Errors:
/// - `TENSORLEND_NOT_FOUND` if there is no such model.
/// - `TENSORLEND_REQUEST_FAILED` with the reason if the runner refused the request or the model
///   failed.
/// - `TENSORLEND_SERVER_GONE`.
/// - `TENSORLEND_TIMEOUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_model_run(
    model: *mut tensorlend_model,
    request: *mut *mut tensorlend_model_request,
    timeout_ns: i64,
    response: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    call!(|response: out, model: handle_mut, request: consumed| {
        model.process.check()?;
        response.lend(Value::Dataset(model.model.run(request.take()?.request, timeout(timeout_ns))?), "");
    })
}

/// Reads the metadata of a response.
fn answer(lease: &tensorlend_lease) -> Result<ModelAnswer> {
    lease.check()?;
    let dataset = lease.value.as_dataset();
    ModelAnswer::of(dataset.ok_or_else(|| Error::Argument("the lease is on a tensor: a response is a dataset".into()))?)
}

/// Writes the times of a response in nanoseconds. Writes the time from sending the request to its
/// run to `*queue_ns`. Writes the time of the model alone to `*run_ns`. Either pointer may be NULL.
/// Fails with `TENSORLEND_ARGUMENT` for a dataset that no runner made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_model_times(
    response: *const tensorlend_lease,
    queue_ns: *mut u64,
    run_ns: *mut u64,
) -> tensorlend_status {
    call!(|response: handle, queue_ns: optional_variable, run_ns: optional_variable| {
        let answer = answer(response)?;
        queue_ns.fill(duration_ns(answer.queue));
        run_ns.fill(duration_ns(answer.run));
    })
}

/// Writes to `*version` the version under which the runner published an output. The version is all
/// zeros if the runner did not publish the output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_model_published(
    response: *const tensorlend_lease,
    output: *const c_char,
    version: *mut tensorlend_version,
) -> tensorlend_status {
    call!(|version: variable, response: handle| {
        let answer = answer(response)?;
        let output = convert!(output: text)?;
        version.fill(answer.versions.get(output).copied().unwrap_or(Version::NONE));
    })
}
