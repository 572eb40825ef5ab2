//! Streams, as Python's libraries have them.
#![allow(unsafe_code)]

use crate::errors::argument;
use pyo3::intern;
use pyo3::prelude::*;
use tensorlend::OnStream;

/// A stream of the caller's.
pub struct Given {
    /// The stream.
    pub stream: OnStream,
    /// What is recorded for it: see [`recorded`].
    pub recorded: OnStream,
    /// What keeps it, where an object was given.
    pub keeper: Option<Py<PyAny>>,
}

/// A stream by its handle.
pub fn by_handle(handle: usize) -> OnStream {
    // SAFETY: 1 and 2 are the caller's to see to, as the manual says, and as wherever Python's libraries take streams by their
    // numbers; an object that has one is kept as long as the stream is recorded.
    unsafe { OnStream::from_raw(handle) }
}

/// What is recorded in place of a stream: a thread's own default stream is another one for the thread that will look, but the
/// legacy one comes after all of those.
pub fn recorded(handle: usize) -> OnStream {
    if handle == 2 { OnStream::LEGACY } else { by_handle(handle) }
}

/// A handle: a number, or one of ctypes.
fn number(handle: &Bound<'_, PyAny>) -> Option<usize> {
    let value = || handle.getattr("value").ok()?.extract().ok();
    handle.extract().ok().or_else(value)
}

impl Given {
    /// By its handle.
    pub fn new(handle: usize) -> Self {
        let handle = handle.max(1);
        Self { stream: by_handle(handle), recorded: recorded(handle), keeper: None }
    }

    /// A number, or an object with `__cuda_stream__`, or a stream of torch, cupy or numba; None is the legacy default stream.
    pub fn parse(given: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let Some(given) = given else { return Ok(Self::new(1)) };
        let py = given.py();
        if let Ok(number) = given.extract::<i128>() {
            let handle = usize::try_from(number);
            return handle.map(Self::new).map_err(|_| argument(format!("{number} is no stream")));
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
        Ok(Self { keeper: Some(given.clone().unbind()), ..Self::new(handle) })
    }
}

/// The stream that a consumer names to `__dlpack__`.
pub enum Consumer {
    /// It wants no order.
    Unsaid,
    /// Work of it is in this one.
    Stream(Given),
}

impl Consumer {
    /// By the array API's standard: None and 1 are the legacy default stream, 2 the calling thread's, -1 asks for no order, and 0
    /// is refused.
    pub fn parse(given: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        match given.map(PyAnyMethods::extract::<i128>) {
            Some(Ok(-1)) => Ok(Self::Unsaid),
            Some(Ok(0)) => Err(pyo3::exceptions::PyValueError::new_err(
                "stream 0 may be either default stream: say 1 for the legacy one, 2 for the calling thread's",
            )),
            _ => Given::parse(given).map(Self::Stream),
        }
    }
}
