//! Conversion of the client library's errors to Python exceptions. The Python package defines their
//! classes. Each class also derives from a built-in exception.

use pyo3::call::PyCallArgs;
use pyo3::prelude::*;
use tensorlend::{Client, Error, LimitKind, Refusal};

/// Prefix of the text of an error that [`closed`] made. The client library has no variant for such
/// an error.
const CLOSED: &str = "\0closed\0";

/// Returns the error for the use of a closed object. [`raise`] converts this error to a ClosedError.
#[cold]
pub fn closed(text: &str) -> Error {
    Error::Argument(format!("{CLOSED}{text}"))
}

/// Returns the exception for an error of the client library.
#[cold]
pub fn raise(error: Error) -> PyErr {
    if let Error::Argument(text) = &error
        && let Some(text) = text.strip_prefix(CLOSED)
    {
        return named("ClosedError", text.to_owned());
    }
    let text = error.to_string();
    let raised = match &error {
        Error::Descriptors { .. } => named("OpenFilesError", text),
        Error::System { cause, .. } => made("SystemCallError", (text, cause.raw_os_error())),
        // A missing name of another machine must raise NotFoundError, even if the error also
        // reports a limit.
        e if e.limit_kind().is_some() && !e.is_not_found() => {
            made("LimitError", (text, e.limit_kind().map(LimitKind::name)))
        }
        e => named(class(e), text),
    };
    Python::attach(|py| match raised.value(py).setattr("code", error.code()) {
        Ok(()) => raised,
        Err(failed) => failed,
    })
}

/// Returns the exception for a name that could not be leased. For the name of a list or a stream, it names their call.
#[cold]
pub fn not_leased(client: &Client, name: &str, error: Error) -> PyErr {
    let kind = if error.is_not_found() { client.collection(name) } else { None };
    let Some(kind) = kind else { return raise(error) };
    let call = if kind == "list" { "get_all" } else { "subscribe" };
    let text = format!("there is no tensor named {name:?}, but a {kind} has this name: read it with {call}");
    named("NotFoundError", text)
}

fn class(error: &Error) -> &'static str {
    match error {
        e if e.is_not_found() => "NotFoundError",
        e if e.is_timeout() => "TimeoutError",
        e if e.is_disconnected() => "DisconnectedError",
        e if e.is_remote() => "RemoteError",
        e if e.is_device() => "DeviceError",
        Error::Refused { refusal: Refusal::Namespace(_) | Refusal::ReadOnly(_) | Refusal::NotObserver, .. } => {
            "PermissionError"
        }
        Error::Refused { refusal: Refusal::StreamTaken(_) | Refusal::NotQuiet(_), .. } => "ConflictError",
        Error::Refused { refusal: Refusal::Protocol { .. } | Refusal::Layout { .. }, .. }
        | Error::Kernel(_)
        | Error::Protocol { .. }
        | Error::Sheet(_) => "IncompatibleError",
        Error::Forked => "ForkedError",
        Error::Damaged { .. } => "DamagedError",
        Error::Answer { .. } | Error::ServerGone(_) => "ServiceError",
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
        _ => "Error",
    }
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

/// Converts the error of a result to an exception, as [`raise`] does.
pub trait ResultExt<T> {
    /// Returns the value, or the exception.
    fn or_raise(self) -> PyResult<T>;
}

impl<T> ResultExt<T> for Result<T, Error> {
    #[inline]
    fn or_raise(self) -> PyResult<T> {
        self.map_err(raise)
    }
}
