//! CUDA streams of several libraries, as callers pass them.
#![allow(unsafe_code)]

use crate::errors::argument;
use pyo3::intern;
use pyo3::prelude::*;
use tensorlend::OnStream;

/// A CUDA stream that a caller passed.
pub struct CudaStream {
    pub stream: OnStream,
    /// The stream to record in place of `stream`, as [`recorded`] selects it.
    pub recorded: OnStream,
    /// The Python object that keeps the stream alive, if the caller passed one.
    pub owner: Option<Py<PyAny>>,
}

/// Returns the stream with this handle.
pub fn by_handle(handle: usize) -> OnStream {
    // SAFETY: `from_raw` requires a handle of a valid stream that stays valid while it is used. The
    // manual makes the Python caller responsible for this, as all Python libraries with stream
    // handles do. If the caller passed an object, this package keeps the object alive as long as
    // the stream is recorded.
    unsafe { OnStream::from_raw(handle) }
}

/// Returns the stream to record for a handle. Handle 2 means the calling thread's default stream,
/// but another thread may wait later. That thread would resolve the handle to its own stream. So
/// this function returns the legacy default stream instead, which is ordered after all per-thread
/// default streams.
pub fn recorded(handle: usize) -> OnStream {
    if handle == 2 { OnStream::LEGACY } else { by_handle(handle) }
}

/// Returns a handle that is given as a Python or ctypes number.
fn number(handle: &Bound<'_, PyAny>) -> Option<usize> {
    let value = || handle.getattr("value").ok()?.extract().ok();
    handle.extract().ok().or_else(value)
}

impl CudaStream {
    /// Creates a stream from a handle.
    pub fn new(handle: usize) -> Self {
        let handle = handle.max(1);
        Self { stream: by_handle(handle), recorded: recorded(handle), owner: None }
    }

    /// Parses a number, an object with `__cuda_stream__`, or a stream of torch, cupy or numba; None is the legacy
    /// default stream.
    pub fn parse(given: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let Some(given) = given else { return Ok(Self::new(1)) };
        let py = given.py();
        if let Ok(number) = given.extract::<i128>() {
            let handle = usize::try_from(number);
            return handle
                .map(Self::new)
                .map_err(|_| argument(format!("{number} is no stream: give a stream's handle, which is 0 or more")));
        }
        let handle = if let Some(protocol) = given.getattr_opt(intern!(py, "__cuda_stream__"))? {
            let said = if protocol.is_callable() { protocol.call0()? } else { protocol };
            said.extract::<(u32, usize)>().map(|(_, handle)| handle).or_else(|_| said.extract())?
        } else {
            let known = [intern!(py, "cuda_stream"), intern!(py, "ptr"), intern!(py, "handle")];
            let found = known.into_iter().find_map(|name| number(&given.getattr(name).ok()?));
            found.ok_or_else(|| {
                pyo3::exceptions::PyTypeError::new_err(
                    "a stream is a number, or an object with __cuda_stream__, or of torch, cupy, numba or cuda.core",
                )
            })?
        };
        Ok(Self { owner: Some(given.clone().unbind()), ..Self::new(handle) })
    }
}

/// The stream that a consumer passes to `__dlpack__`.
pub enum Consumer {
    /// The consumer names no stream, and requests no ordering.
    Unsaid,
    /// The consumer uses the tensor on this stream.
    Stream(CudaStream),
}

impl Consumer {
    /// Parses the argument as the array API standard defines it. None and 1 are the legacy default
    /// stream, and 2 is the calling thread's default stream. -1 requests no ordering, and 0 is
    /// invalid.
    pub fn parse(given: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        match given.map(PyAnyMethods::extract::<i128>) {
            Some(Ok(-1)) => Ok(Self::Unsaid),
            Some(Ok(0)) => Err(pyo3::exceptions::PyValueError::new_err(
                "stream 0 may be either default stream: pass 1 for the legacy stream, 2 for the calling thread's",
            )),
            _ => CudaStream::parse(given).map(Self::Stream),
        }
    }
}
