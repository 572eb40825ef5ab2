//! Models, which tensorlend-runner runs.

use super::arguments::{Out, OutVar, c_text, free, given, handle, handle_mut, take_over, tell, text, timeout, values};
use super::client::tensorlend_client;
use super::draft::{check_taking, take, tensorlend_draft};
use super::lease::{optional, tensorlend_lease};
use super::process::Process;
use super::status::{guard, look, tensorlend_status};
use super::version::tensorlend_version;
use ::tensorlend_model::{Model, ModelAnswer, ModelOptions, ModelRequest, Models, Step};
use std::ffi::{CString, c_char, c_void};
use tensorlend::{Error, Result, Value, ValueDraft, Version};

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

/// Returns the models of a client's namespace, and a model's name.
///
/// # Safety
/// Handles are NULL or alive, and strings are NULL or zero-terminated, by the contract in `lib.rs`.
unsafe fn models<'a>(client: *const tensorlend_client, model: *const c_char) -> Result<(Models, &'a str)> {
    // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, and strings are NULL or
    // zero-terminated.
    let (client, model) = unsafe { (handle(client, "client")?, text(model, "model")?) };
    client.check()?;
    Ok((Models::new(&client.client), model))
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
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, strings are NULL or
        // zero-terminated, and pointers with a length are NULL or point to memory of that length.
        let ((models, model), onnx, options) = unsafe {
            (models(client, model)?, values::<u8>(onnx.cast(), bytes, "onnx")?, optional(options, "options")?)
        };
        let options = ModelOptions::parse(options.unwrap_or_default().as_bytes())
            .map_err(|why| Error::Argument(format!("the options of model {model:?}: {why}")))?;
        let added = models.put(model, onnx, &options)?;
        // SAFETY: by the contract in `lib.rs`, the variable is NULL or writable.
        unsafe { tell(version, added.into()) };
        Ok(())
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
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, variables are NULL or
        // writable, and strings are NULL or zero-terminated.
        let (out, (models, model)) = unsafe { (Out::new(onnx, "onnx")?, models(client, model)?) };
        out.lend(Value::Tensor(models.get(model)?.0));
        Ok(())
    })
}

/// Deletes a model. Its runners end. Writes whether the model existed to `*existed`, unless
/// `existed` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_model_delete(
    client: *const tensorlend_client,
    model: *const c_char,
    existed: *mut bool,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, and strings are NULL or
        // zero-terminated.
        let (models, model) = unsafe { models(client, model) }?;
        let deleted = models.delete(model)?;
        // SAFETY: by the contract in `lib.rs`, the variable is NULL or writable.
        unsafe { tell(existed, deleted) };
        Ok(())
    })
}

/// Opens a model for one or many runs over one connection to a runner. Sends the daemon no request.
/// The first run connects to a runner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_model_open(
    client: *const tensorlend_client,
    name: *const c_char,
    model: *mut *mut tensorlend_model,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, variables are NULL or
        // writable, and strings are NULL or zero-terminated.
        let (out, (models, name)) = unsafe { (Out::new(model, "model")?, models(client, name)?) };
        let model = models.open(name)?;
        out.fill(tensorlend_model { model, process: Process::current(), name: c_text(name) });
        Ok(())
    })
}

/// The model's name, borrowed from the handle; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_model_name(model: *const tensorlend_model) -> *const c_char {
    // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
    look(std::ptr::null(), || unsafe { model.as_ref() }.map(|model| model.name.as_ptr()))
}

/// Closes a model's connection, and frees the handle. NULL does nothing. Leases on outputs of the
/// model remain valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_model_close(model: *mut tensorlend_model) {
    // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive, and used by this thread
    // alone.
    unsafe { free(model) }
}

/// Creates a request without inputs, for all outputs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_model_request_new(
    request: *mut *mut tensorlend_model_request,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, the variable is NULL or writable.
        unsafe { Out::new(request, "request") }?.fill(tensorlend_model_request { request: ModelRequest::new() });
        Ok(())
    })
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
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive and used by this thread
        // alone, and strings are NULL or zero-terminated.
        let (request, input) = unsafe { (handle_mut(request, "request")?, text(input, "input")?) };
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, and variables are NULL or
        // writable.
        unsafe { check_taking(tensor, "tensor") }?;
        // SAFETY: by the contract in `lib.rs`, the variable holds NULL or a live handle.
        // `check_taking` has accepted the variable.
        unsafe { handle(tensor.read(), "tensor") }?.change(|draft| match draft {
            ValueDraft::Tensor(_) => Ok(()),
            _ => Err(Error::Argument(format!("input {input:?}: give a tensor in host memory"))),
        })?;
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive and used by this thread
        // alone, and variables are NULL or writable.
        if let ValueDraft::Tensor(draft) = unsafe { take(tensor, "tensor") }? {
            request.change(|request| request.input(input, draft));
        }
        Ok(())
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
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive and used by this thread
        // alone, and strings are NULL or zero-terminated.
        let (request, input, name) =
            unsafe { (handle_mut(request, "request")?, text(input, "input")?, text(name, "name")?) };
        request.change(|request| request.input_from(input, name));
        Ok(())
    })
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
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive and used by this thread
        // alone, and strings are NULL or zero-terminated.
        let (request, input, steps) =
            unsafe { (handle_mut(request, "request")?, text(input, "input")?, text(steps, "steps")?) };
        let steps = Step::parse_list(steps).map_err(Error::Argument)?;
        request.change(|request| request.prepare(input, &steps));
        Ok(())
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
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive and used by this thread
        // alone, and strings are NULL or zero-terminated.
        let (request, output, name) =
            unsafe { (handle_mut(request, "request")?, text(output, "output")?, optional(name, "name")?) };
        request.change(|request| match name {
            None => request.output(output),
            Some(name) => request.output_to(output, name),
        });
        Ok(())
    })
}

/// Frees a request that was not taken over. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_model_request_free(request: *mut tensorlend_model_request) {
    // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive, and used by this thread
    // alone.
    unsafe { free(request) }
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
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive and used by this thread
        // alone, and variables are NULL or writable.
        let (out, model) = unsafe { (Out::new(response, "response")?, handle_mut(model, "model")?) };
        model.process.check()?;
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive and used by this thread
        // alone, and variables are NULL or writable.
        unsafe { given(request, "request") }?;
        // SAFETY: by the contract in `lib.rs`, the variable is writable and holds a live handle.
        // `given` has accepted the variable.
        let taken = unsafe { take_over(request) };
        out.lend(Value::Dataset(model.model.run(taken.request, timeout(timeout_ns))?));
        Ok(())
    })
}

/// Reads the metadata of a response.
///
/// # Safety
/// The handle is NULL or alive, by the contract in `lib.rs`.
unsafe fn answer(response: *const tensorlend_lease) -> Result<ModelAnswer> {
    // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
    let lease = unsafe { handle(response, "response") }?;
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
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
        let answer = unsafe { answer(response) }?;
        let nanoseconds = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: by the contract in `lib.rs`, the variable is NULL or writable.
        unsafe { tell(queue_ns, nanoseconds(answer.queue)) };
        // SAFETY: by the contract in `lib.rs`, the variable is NULL or writable.
        unsafe { tell(run_ns, nanoseconds(answer.run)) };
        Ok(())
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
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, variables are NULL or
        // writable, and strings are NULL or zero-terminated.
        let (version, answer, output) =
            unsafe { (OutVar::new(version, "version")?, answer(response)?, text(output, "output")?) };
        version.fill(answer.versions.get(output).copied().unwrap_or(Version::NONE).into());
        Ok(())
    })
}
