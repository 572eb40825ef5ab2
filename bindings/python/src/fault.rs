//! The line that explains a fault in lent memory, in the words of Python, by the handler of [`tensorlend_os::fault`].
//! Python's faulthandler, which this module enables, prints the Python stack.
//!
//! torch does not support read-only memory, so it writes to a lease, which faults.

use pyo3::prelude::*;
use std::sync::Once;
use tensorlend_os::fault::{self, Fault};
pub use tensorlend_os::fault::{Kind, Noted};

/// The environment variable that disables the handler if its value is 0.
const SWITCH: &str = "TENSORLEND_FAULT_MESSAGES";
/// Prefix of the names of a loader's streams.
const LOADERS: &str = "loader/";

/// Describes a fault.
fn describe(fault: &Fault<'_>, line: &mut dyn std::fmt::Write) -> std::fmt::Result {
    let is_batch = fault.name.starts_with(LOADERS);
    match (fault.is_inherited, fault.kind) {
        (true, Kind::Leased | Kind::Private) if is_batch => line.write_str(
            "used a batch of its parent's SharedLoader, which is not mapped after a fork: iterate over the loader in the \
             child, or pass a copy (.clone(), .copy())",
        ),
        (false, Kind::Leased) if is_batch => line.write_str(
            "wrote to a batch of a SharedLoader, which is read-only: give the loader mode=\"cow\", or write to a copy \
             (.clone())",
        ),
        _ => fault.describe(line, "get it with mode=\"cow\", or write to a copy (.clone(), .copy())"),
    }
}

/// Adds a view to the table of [`tensorlend_os::fault`], and turns the handler on at the first call.
pub fn note(kind: Kind, start: *const u8, bytes: usize, name: &str, member: Option<&str>) -> Noted {
    if bytes == 0 || !is_on() {
        return Noted::default();
    }
    fault::note(kind, start, bytes, name, member)
}

/// Installs the handler again, after another handler has replaced it.
#[pyfunction]
pub fn _watch_faults() {
    if fault::is_on() {
        // Ignore an error: the process continues without the line.
        let _ = fault::explain(describe);
    }
}

/// Installs the handler at the first call. Returns true if the handler is installed.
fn is_on() -> bool {
    static INSTALLED: Once = Once::new();
    let mut installed_now = false;
    INSTALLED.call_once(|| {
        if std::env::var_os(SWITCH).is_none_or(|word| word != "0") {
            installed_now = fault::explain(describe).is_ok();
        }
    });
    // Run Python code outside of `call_once`. Python may switch to a thread that waits in
    // `call_once`, which would be a deadlock.
    //
    // Another handler may be set, such as a JVM's. Then faulthandler must not be enabled, because it
    // reports the signal as fatal. It also loses the fault's address, which the other handler needs to
    // continue the program.
    if installed_now && fault::is_only_handler() {
        // Ignore an error: even without faulthandler, the handler prints its line.
        let _ = Python::try_attach(enable_faulthandler);
    }
    fault::is_on()
}

/// Enables Python's faulthandler. The kernel then calls faulthandler's handler first, which passes
/// the signal on to the handler of [`tensorlend_os::fault`].
fn enable_faulthandler(py: Python<'_>) -> PyResult<()> {
    let faulthandler = py.import("faulthandler")?;
    if !faulthandler.call_method0("is_enabled")?.is_truthy()? {
        faulthandler.call_method1("enable", (libc::STDERR_FILENO,))?;
    }
    Ok(())
}
