//! Conversion of the client library's errors to Python exceptions, which are defined in Python: each also derives from
//! a built-in one.

use pyo3::call::PyCallArgs;
use pyo3::prelude::*;
use tensorlend::{Error, LimitKind, Refusal};

/// Returns the exception for an error.
#[cold]
pub fn raise(error: Error) -> PyErr {
    let class = match &error {
        e if e.is_not_found() => "NotFoundError",
        e if e.is_timeout() => "TimeoutError",
        e if e.is_disconnected() => "DisconnectedError",
        e if e.is_remote() => "RemoteError",
        e if e.limit_kind().is_some() => return limit(e),
        Error::Refused { refusal: Refusal::Namespace(_) | Refusal::ReadOnly(_), .. } => "PermissionError",
        Error::StreamFull(_) => "StreamFullError",
        Error::StreamEnded(_) => "StreamEndedError",
        Error::DType { .. } => "DTypeError",
        Error::Name { .. }
        | Error::Tensor { .. }
        | Error::Length { .. }
        | Error::Metadata(_)
        | Error::Strided
        | Error::Argument(_)
        | Error::Kind { .. }
        | Error::Refused { refusal: Refusal::Bad(_), .. } => "ArgumentError",
        e if e.is_device() => "DeviceError",
        _ => "Error",
    };
    named(class, error.to_string())
}

/// Returns the exception for a limit, with its kind.
#[cold]
fn limit(error: &Error) -> PyErr {
    made("LimitError", (error.to_string(), error.limit_kind().map(LimitKind::name)))
}

/// Returns the exception with this name.
#[cold]
pub fn named(class: &str, message: String) -> PyErr {
    made(class, (message,))
}

fn made(class: &str, arguments: impl for<'py> PyCallArgs<'py>) -> PyErr {
    Python::attach(|py| {
        let made = py.import("tensorlend._errors").and_then(|module| module.getattr(class)?.call1(arguments));
        made.map_or_else(|failed| failed, PyErr::from_value)
    })
}

/// Returns the error for an invalid argument.
#[cold]
pub fn argument(message: impl Into<String>) -> PyErr {
    named("ArgumentError", message.into())
}

/// Returns the error for an invalid dtype.
#[cold]
pub fn dtype(message: impl Into<String>) -> PyErr {
    named("DTypeError", message.into())
}

/// Applies [`raise`] to the result of a call.
pub trait OrRaise<T> {
    /// Returns the value, or the exception.
    fn or_raise(self) -> PyResult<T>;
}

impl<T> OrRaise<T> for Result<T, Error> {
    #[inline]
    fn or_raise(self) -> PyResult<T> {
        self.map_err(raise)
    }
}
