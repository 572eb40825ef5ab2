//! The class `DeviceDraft`: a tensor that is being written on a device.

use super::view::{DeviceView, Drafted};
use super::{array, export};
use crate::array::Array;
use crate::cuda_stream::CudaStream;
use crate::errors::{ResultExt, argument};
use crate::getters::{draft_methods, tensor_getters};
use crate::lasting::Lasting;
use crate::lease::Lease;
use crate::target::Target;
use crate::version::Version;
use crate::view::gone;
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::CString;
use std::sync::{Arc, Mutex};
use tensorlend::{Error, On, TensorSpec, ValueDraft};
use tensorlend_os::mutex::lock;

/// A tensor that is being written on a device, in the memory where its readers will see it.
///
/// The tensor is invisible until it is published. `torch.from_dlpack(draft)`,
/// `cupy.from_dlpack(draft)` and `numba.cuda.as_cuda_array(draft)` give access to the memory in
/// place. As a context manager, a draft with a name is published at the end of the block. An
/// exception in the block drops the draft. A block must publish, send or drop a draft without a
/// name.
///
/// Notes
/// -----
/// Publishing waits for the work on the draft in the streams that `record_stream` and `stream=`
/// name. Without such streams, publishing waits for the streams passed to `__dlpack__`. If a
/// consumer named no stream, publishing waits for all work in the device's primary context. Only
/// the process that created the draft may use it.
#[pyclass(frozen, weakref, module = "tensorlend._native")]
pub struct DeviceDraft {
    state: Mutex<Option<State>>,
    name: Option<String>,
    lasting: Lasting,
}

struct State {
    view: Arc<DeviceView>,
    drafted: Arc<Drafted>,
}

impl DeviceDraft {
    /// Creates the client library's draft on a device.
    pub fn create(
        py: Python<'_>,
        client: &tensorlend::Client,
        spec: TensorSpec,
        on: On,
        stream: Option<&CudaStream>,
    ) -> PyResult<tensorlend::DeviceDraft> {
        let stream = stream.map(|given| given.recorded.clone());
        let made = py.detach(|| match stream {
            // Pass the stream to the allocator, which may have separate memory for each stream.
            Some(stream) if spec.strides.is_none() => client.create_on_stream(on, &stream, spec.dtype, &spec.shape),
            Some(stream) => {
                let mut draft = client.create_spec_on(on, spec)?;
                draft.record_stream(&stream)?;
                Ok(draft)
            }
            None => client.create_spec_on(on, spec),
        });
        made.or_raise()
    }

    /// Creates the object for a draft. `stream` is the stream that the caller named for it.
    pub fn of(
        draft: tensorlend::DeviceDraft,
        stream: Option<CudaStream>,
        name: Option<String>,
        lasting: Lasting,
    ) -> Self {
        let (view, drafted) = DeviceView::drafted(draft, stream);
        let state = State { view: Arc::new(view), drafted };
        Self { state: Mutex::new(Some(state)), name, lasting }
    }

    /// Checks that the draft is open, belongs to this client, and is on the requested device.
    pub fn check(&self, client: &tensorlend::Client, target: Target) -> PyResult<()> {
        let view = self.view()?;
        let wanted = match target {
            Target::Anywhere => view.uuid,
            Target::Device(on) => on.find().or_raise()?,
            Target::Host => return Err(argument("the draft is on a device: create one without device=")),
        };
        if wanted != view.uuid {
            return Err(argument(format!("the draft is on device {}: create another one on {wanted}", view.uuid)));
        }
        self.check_client(client)
    }

    /// Takes the client library's draft for publication, and closes this object. If `finish` is
    /// true, first waits for pending work on the draft. The memory stays in place as long as an
    /// array may view it.
    fn take_draft(&self, py: Python<'_>, finish: bool) -> PyResult<tensorlend::DeviceDraft> {
        self.view()?;
        let State { view, drafted } = lock(&self.state).take().ok_or_else(gone).or_raise()?;
        let alone = Arc::strong_count(&view) == 1;
        drafted.take(|draft| {
            let pin = (!alone).then(|| draft.pin()).transpose()?;
            if finish {
                py.detach(|| drafted.finish(draft))?;
            }
            Ok(pin)
        })
    }

    /// Takes the client library's draft for publication, after waiting for pending work on it, and
    /// closes this object.
    pub fn take(&self, py: Python<'_>) -> PyResult<ValueDraft> {
        self.take_draft(py, true).map(Into::into)
    }

    fn with<R>(&self, change: impl FnOnce(&mut tensorlend::DeviceDraft) -> Result<R, Error>) -> PyResult<R> {
        self.view()?.with_draft(change)
    }
}

impl Drop for DeviceDraft {
    fn drop(&mut self) {
        if lock(&self.state).is_some() {
            Python::attach(|py| self.end(py));
        }
    }
}

tensor_getters!(DeviceDraft, export);

draft_methods!(DeviceDraft, DeviceView);

#[pymethods]
impl DeviceDraft {
    /// The device, by its number in this process: "cuda:0", for example.
    #[getter]
    fn device(&self) -> PyResult<String> {
        Ok(self.view()?.device.to_string())
    }

    /// The device, by its UUID, which is the same in every process: "GPU-...".
    #[getter]
    fn device_uuid(&self) -> PyResult<String> {
        Ok(self.view()?.uuid.to_string())
    }

    /// The address of the tensor's first element on the device.
    ///
    /// After reading it, publishing waits for all work in the device's primary context, unless `record_stream` or
    /// `stream=` names the writing streams.
    #[getter]
    fn ptr(&self) -> PyResult<u64> {
        let view = self.view()?;
        view.show_unnamed()?;
        view.start()
    }

    /// Records a stream whose work writes the tensor. Publishing waits for the recorded streams only.
    ///
    /// Parameters
    /// ----------
    /// stream : int or stream
    ///     A handle, or a stream of torch, cupy, numba or cuda.core. The draft keeps such a stream
    ///     alive.
    ///
    /// Raises
    /// ------
    /// ClosedError
    ///     The draft was published or dropped.
    pub fn record_stream(&self, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        self.view()?.record(CudaStream::parse(Some(stream))?)
    }

    /// Copies a host array into the tensor. The copy is complete when this returns.
    ///
    /// Parameters
    /// ----------
    /// array : array_like
    ///     An array of the same shape and dtype.
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     The array has another shape, dtype or order of axes.
    fn copy_from(&self, py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<()> {
        array::fill(py, &*self.view()?, &Array::of(array)?)
    }

    /// Returns a writable torch tensor that views the draft. Records torch's current stream, on
    /// which the tensor may be used.
    ///
    /// Returns
    /// -------
    /// torch.Tensor
    ///     The tensor, on the device. torch must be installed.
    ///
    /// Raises
    /// ------
    /// ClosedError
    ///     The draft was published or dropped.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("torch")?.call_method1("from_dlpack", (slf,))
    }

    /// Waits for pending work on the tensor, and publishes the tensor. Then every client of the
    /// namespace can read it.
    ///
    /// Parameters
    /// ----------
    /// name : str or None, default None
    ///     The name. None is the name with which the draft was created.
    /// stream : int or stream or None, default None
    ///     A stream to record first, as by `record_stream`.
    ///
    /// Returns
    /// -------
    /// Version
    ///     The version of the published value.
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     There is no name, or the name is invalid.
    /// ClosedError
    ///     The draft was published or dropped.
    /// DeviceError
    ///     The work on the device failed.
    #[pyo3(signature = (name=None, *, stream=None))]
    fn publish(&self, py: Python<'_>, name: Option<&str>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<Version> {
        let name = self.name_for(name)?;
        if let Some(stream) = stream {
            self.record_stream(stream)?;
        }
        self.lasting.publish(py, self.take(py)?, name)
    }

    /// Publishes the tensor while work on it is still pending. The call does not wait for this work.
    ///
    /// Readers wait for a CUDA event of this process. If the process is killed before the work is
    /// done, the readers get DeviceError.
    ///
    /// Parameters
    /// ----------
    /// name : str or None, default None
    ///     The name. None is the name with which the draft was created.
    /// stream : int or stream or None, default None
    ///     The stream with the pending work. None is the legacy default stream.
    ///
    /// Returns
    /// -------
    /// Version
    ///     The version of the published value.
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     There is no name, or the draft has a time to live or is ephemeral.
    /// ClosedError
    ///     The draft was published or dropped.
    #[pyo3(signature = (name=None, stream=None))]
    fn publish_early(
        &self,
        py: Python<'_>,
        name: Option<&str>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Version> {
        let name = self.name_for(name)?;
        if self.lasting.is_limited() {
            return Err(argument("publish_early takes no time to live and no ephemeral draft: use publish"));
        }
        let given = CudaStream::parse(stream)?;
        let draft = self.take_draft(py, false)?;
        py.detach(|| draft.publish_early(name, &given.stream)).or_raise().map(Version)
    }

    /// Drops the draft. Its memory is freed once no array views the memory and all work on it is
    /// done.
    #[pyo3(name = "drop")]
    fn end(&self, py: Python<'_>) {
        let state = lock(&self.state).take();
        // Release the interpreter's lock, because the drop may wait for work on unnamed streams.
        py.detach(|| drop(state));
    }

    /// CUDA's array interface, version 3, with a writable address. Users of the address must keep
    /// this object alive.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        export::array_interface(py, &*self.view()?)
    }

    fn __dlpack_device__(&self) -> PyResult<(u32, i32)> {
        let device = export::device(&*self.view()?);
        Ok((device.device_type.0, device.device_id))
    }
}

#[pymethods]
impl Lease {
    /// Copies the tensor to a device, as work of a stream, without waiting for the copy.
    ///
    /// The lease lasts until the stream has done the copy. If the pages are locked (`page_lock`, or
    /// the configuration's `pool.page_lock`), the call does not wait. Otherwise the driver copies
    /// the bytes before the call returns.
    ///
    /// Parameters
    /// ----------
    /// device : str, int or object
    ///     The device, as in `client.put`. The daemon must lend its memory.
    /// stream : int or stream or None, default None
    ///     The stream; None is the legacy default stream.
    ///
    /// Returns
    /// -------
    /// DeviceDraft
    ///     The copy, for use in place (`torch.from_dlpack`, `cupy.asarray`) or for `publish`.
    ///
    /// Raises
    /// ------
    /// DeviceError
    ///     There is no such device, or the daemon does not lend its memory.
    /// LimitError
    ///     The daemon has no memory left on the device.
    #[pyo3(signature = (device, *, stream=None))]
    fn to(
        &self,
        py: Python<'_>,
        device: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<DeviceDraft> {
        let (view, on, given) = (self.view()?, Target::parse_device(device)?, CudaStream::parse(stream)?);
        let (value, at) = view.leased_value()?;
        let draft = py.detach(|| value.to_device(at, on, &given.recorded)).or_raise()?;
        warn_of_refusal(py)?;
        Ok(DeviceDraft::of(draft, Some(given), None, Lasting::default()))
    }
}

/// Warns, once for each reason, that the driver has refused to lock pages.
fn warn_of_refusal(py: Python<'_>) -> PyResult<()> {
    static WARNED: Mutex<Option<String>> = Mutex::new(None);
    let Some(refusal) = tensorlend::page_locks().refusal else { return Ok(()) };
    if lock(&WARNED).replace(refusal.clone()) == Some(refusal.clone()) {
        return Ok(());
    }
    let text = CString::new(format!("pages are not locked: {refusal}")).unwrap_or_default();
    PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 2)
}
