//! The errors of the driver's functions.
#![allow(unsafe_code)]

use crate::api::Text;
use crate::driver::{Driver, Unavailable};
use cudarc::driver::sys::CUresult as Number;
use std::ffi::CStr;
use std::fmt;

/// The result of every function in this crate that calls the driver.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of a failed operation: the operation, the driver's function, and the driver's result.
pub struct Error(Box<Kind>);

enum Kind {
    Driver { doing: String, call: &'static str, answer: Answer },
    Unavailable(&'static Unavailable),
    Unsupported(Unsupported),
    Kernel { doing: String, error: rustix::io::Errno },
    Refused { doing: String, why: &'static str },
}

/// An unsuccessful result of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The `CUresult`. Source: CUDA Driver API 13.0, section "Data types used by CUDA driver".
    pub number: u32,
    /// The result's name, such as `CUDA_ERROR_OUT_OF_MEMORY`; empty if the driver has none.
    pub name: String,
    /// The driver's description; empty if the driver has none.
    pub text: String,
}

/// A feature that a device, or its driver, lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{device} does not support {what}")]
pub struct Unsupported {
    /// The device: its name and UUID.
    pub device: String,
    /// The missing feature.
    pub what: &'static str,
}

/// The driver's numbers on which this crate depends.
pub(crate) mod number {
    use super::Number;

    pub const SUCCESS: u32 = Number::CUDA_SUCCESS as u32;
    pub const STUB_LIBRARY: u32 = Number::CUDA_ERROR_STUB_LIBRARY as u32;
    pub const NO_DEVICE: u32 = Number::CUDA_ERROR_NO_DEVICE as u32;
    pub const NOT_READY: u32 = Number::CUDA_ERROR_NOT_READY as u32;
}

/// The results after which no call on the context can succeed, so the process's work on the device
/// is lost. Source: CUDA Driver API 13.0, section "Data types used by CUDA driver". The list
/// contains the results for which the manual says that the process "must be terminated and
/// relaunched". It also contains those that mean an end of the driver, the context or the device.
const LOST: &[Number] = &[
    Number::CUDA_ERROR_DEINITIALIZED,
    Number::CUDA_ERROR_ECC_UNCORRECTABLE,
    Number::CUDA_ERROR_NVLINK_UNCORRECTABLE,
    Number::CUDA_ERROR_CONTAINED,
    Number::CUDA_ERROR_ILLEGAL_ADDRESS,
    Number::CUDA_ERROR_LAUNCH_TIMEOUT,
    Number::CUDA_ERROR_CONTEXT_IS_DESTROYED,
    Number::CUDA_ERROR_ASSERT,
    Number::CUDA_ERROR_HARDWARE_STACK_ERROR,
    Number::CUDA_ERROR_ILLEGAL_INSTRUCTION,
    Number::CUDA_ERROR_MISALIGNED_ADDRESS,
    Number::CUDA_ERROR_INVALID_ADDRESS_SPACE,
    Number::CUDA_ERROR_INVALID_PC,
    Number::CUDA_ERROR_LAUNCH_FAILED,
    Number::CUDA_ERROR_TENSOR_MEMORY_LEAK,
    Number::CUDA_ERROR_MPS_CLIENT_TERMINATED,
    Number::CUDA_ERROR_EXTERNAL_DEVICE,
];

/// The results that report a feature that the device, the driver or the system lacks.
const UNSUPPORTED: &[Number] = &[Number::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, Number::CUDA_ERROR_NOT_SUPPORTED];

impl Answer {
    /// Looks up the texts for one of the driver's numbers.
    pub(crate) fn of(number: u32) -> Self {
        let texts = Driver::texts();
        let told =
            |text: fn(&crate::api::Texts) -> Text| texts.map_or_else(String::new, |texts| told(text(texts), number));
        Self { number, name: told(|texts| texts.name), text: told(|texts| texts.sentence) }
    }
}

fn told(text: Text, number: u32) -> String {
    let mut told = std::ptr::null();
    // SAFETY: the call takes any number, and writes one pointer to the given address.
    let answer = unsafe { text(number, &raw mut told) };
    if answer != number::SUCCESS || told.is_null() {
        return String::new();
    }
    // SAFETY: `told` is a null-terminated text inside the library, which is never unloaded.
    unsafe { CStr::from_ptr(told) }.to_string_lossy().into_owned()
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, name, text } = self;
        match (name.is_empty(), text.is_empty()) {
            (true, _) => write!(f, "CUresult {number}"),
            (false, true) => write!(f, "{name} ({number})"),
            (false, false) => write!(f, "{name} ({number}): {text}"),
        }
    }
}

/// Converts the driver's result of `call`. Evaluates `doing` only on failure.
#[inline]
pub(crate) fn check(number: u32, call: &'static str, doing: impl FnOnce() -> String) -> Result<()> {
    if number == number::SUCCESS { Ok(()) } else { Err(failed(number, call, doing())) }
}

/// Converts a result like [`check`], for calls that can also return "not ready". Returns true if
/// the operation is done.
#[inline]
pub(crate) fn is_done(number: u32, call: &'static str, doing: impl FnOnce() -> String) -> Result<bool> {
    match number {
        number::NOT_READY => Ok(false),
        _ => check(number, call, doing).map(|()| true),
    }
}

#[cold]
fn failed(number: u32, call: &'static str, doing: String) -> Error {
    Error(Box::new(Kind::Driver { doing, call, answer: Answer::of(number) }))
}

impl Error {
    pub(crate) fn lacking(device: &impl fmt::Display, what: &'static str) -> Self {
        Self(Box::new(Kind::Unsupported(Unsupported { device: device.to_string(), what })))
    }

    pub(crate) fn kernel(error: rustix::io::Errno, doing: String) -> Self {
        Self(Box::new(Kind::Kernel { doing, error }))
    }

    pub(crate) fn refused(why: &'static str, doing: String) -> Self {
        Self(Box::new(Kind::Refused { doing, why }))
    }

    /// Returns the driver's function that failed, if this crate called a function.
    pub fn call(&self) -> Option<&'static str> {
        match &*self.0 {
            Kind::Driver { call, .. } => Some(call),
            _ => None,
        }
    }

    /// Returns the driver's result, if this crate called the driver.
    pub fn answer(&self) -> Option<&Answer> {
        match &*self.0 {
            Kind::Driver { answer, .. } | Kind::Unavailable(Unavailable::Init(answer)) => Some(answer),
            _ => None,
        }
    }

    /// Returns the reason why the driver is unavailable, if that is the cause.
    pub fn unavailable(&self) -> Option<&'static Unavailable> {
        match &*self.0 {
            Kind::Unavailable(unavailable) => Some(unavailable),
            _ => None,
        }
    }

    /// Returns the missing feature, if this crate detected it before the call.
    pub fn unsupported(&self) -> Option<&Unsupported> {
        match &*self.0 {
            Kind::Unsupported(unsupported) => Some(unsupported),
            _ => None,
        }
    }

    /// Returns true if the device has too little memory left, or the process too few addresses.
    pub fn is_out_of_memory(&self) -> bool {
        self.is_one_of(&[Number::CUDA_ERROR_OUT_OF_MEMORY])
    }

    /// Returns true if the device, its driver or the system lacks the feature. A retry is useless,
    /// but another method may work.
    pub fn is_unsupported(&self) -> bool {
        matches!(&*self.0, Kind::Unsupported(_)) || self.is_one_of(UNSUPPORTED)
    }

    /// Returns true if the context is lost for good, and with it all of this process's state on the
    /// device. Possible causes are an access to a wrong address, a memory error, and a device that
    /// fell off the bus. Memory that other processes allocated may still be valid.
    pub fn is_lost(&self) -> bool {
        self.is_one_of(LOST)
    }

    /// Returns true if this process was forked from a process that had used the driver. CUDA does
    /// not survive a fork.
    pub fn is_forked(&self) -> bool {
        matches!(self.unavailable(), Some(Unavailable::Forked))
    }

    fn is_one_of(&self, numbers: &[Number]) -> bool {
        self.answer().is_some_and(|answer| numbers.iter().any(|number| *number as u32 == answer.number))
    }
}

impl From<&'static Unavailable> for Error {
    fn from(unavailable: &'static Unavailable) -> Self {
        Self(Box::new(Kind::Unavailable(unavailable)))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Driver { doing, call, answer } => write!(f, "{doing}: {call} returned {answer}"),
            Kind::Unavailable(unavailable) => unavailable.fmt(f),
            Kind::Unsupported(unsupported) => unsupported.fmt(f),
            Kind::Kernel { doing, error } => write!(f, "{doing}: {error}"),
            Kind::Refused { doing, why } => write!(f, "{doing}: {why}"),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(number: u32, name: &str, text: &str) -> Error {
        let answer = Answer { number, name: name.into(), text: text.into() };
        Error(Box::new(Kind::Driver { doing: "allocating 2 MiB".into(), call: "cuMemCreate", answer }))
    }

    #[test]
    fn an_error_says_what_was_done_and_what_came_back() {
        let error = of(2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory");
        let text = "allocating 2 MiB: cuMemCreate returned CUDA_ERROR_OUT_OF_MEMORY (2): out of memory";
        assert_eq!((error.to_string(), format!("{error:?}")), (text.to_owned(), format!("Error({text})")));
        assert_eq!((error.call(), error.answer().unwrap().number), (Some("cuMemCreate"), 2));
        let unknown = of(4711, "", "");
        assert_eq!(unknown.to_string(), "allocating 2 MiB: cuMemCreate returned CUresult 4711");
        assert!(of(801, "CUDA_ERROR_NOT_SUPPORTED", "").to_string().ends_with("CUDA_ERROR_NOT_SUPPORTED (801)"));
    }

    #[test]
    fn kinds_are_told_apart() {
        let kinds =
            |error: &Error| (error.is_out_of_memory(), error.is_unsupported(), error.is_lost(), error.is_forked());
        assert_eq!(kinds(&of(2, "", "")), (true, false, false, false));
        assert_eq!(kinds(&of(801, "", "")), (false, true, false, false));
        for number in LOST {
            assert_eq!(kinds(&of(*number as u32, "", "")), (false, false, true, false), "{number:?}");
        }
        assert_eq!(kinds(&of(1, "", "")), (false, false, false, false));
        let unsupported = Error::lacking(&"Tegra", "memory that can be exported as a file descriptor");
        assert_eq!(kinds(&unsupported), (false, true, false, false));
        assert_eq!(unsupported.to_string(), "Tegra does not support memory that can be exported as a file descriptor");
        assert_eq!(kinds(&Error::from(&Unavailable::Forked)), (false, false, false, true));
        let kernel = Error::kernel(rustix::io::Errno::MFILE, "exporting".into());
        assert!(kernel.to_string().starts_with("exporting: ") && kernel.call().is_none() && kernel.answer().is_none());
        assert_eq!(size_of::<Result<()>>(), size_of::<usize>(), "a result is one word");
    }

    #[test]
    fn checking_is_lazy() {
        check(0, "cuInit", || unreachable!()).unwrap();
        assert!(is_done(0, "cuEventQuery", || unreachable!()).unwrap());
        assert!(!is_done(600, "cuEventQuery", || unreachable!()).unwrap());
        assert_eq!(is_done(700, "cuEventQuery", || "asking".into()).unwrap_err().answer().unwrap().number, 700);
    }
}
