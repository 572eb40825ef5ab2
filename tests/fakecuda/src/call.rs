//! The wrapper of every driver function: the log, injected errors, forks, and the check that `cuInit` was called first.

use crate::code::{Code, Done, NOT_INITIALIZED};
use crate::settings::{self, Failure};
use crate::{control, stream, symbols};
use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once};

static READY: AtomicBool = AtomicBool::new(false);
static FORKED: AtomicBool = AtomicBool::new(false);

/// Driver functions with the ABI of C. The body is a `Result<(), Code>`.
macro_rules! driver {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => { $(
        $(#[$meta])*
        // SAFETY: no other code in a process that loads this library defines the name, except the driver that this
        // library replaces.
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $type),*) -> u32 {
            crate::call::enter(stringify!($name), || $body)
        }
    )* };
}

/// Functions that work before `cuInit`.
const BEFORE_INIT: [&str; 7] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuGetExportTable",
];

/// Functions that report the fault of a kernel, as every later call of a context does on hardware.
const AFTER_FAULT: [&str; 6] = ["cuMem", "cuStream", "cuEvent", "cuLaunch", "cuCtxSynchronize", "cuModuleLoad"];

pub fn enter(name: &'static str, body: impl FnOnce() -> Done) -> u32 {
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        if FORKED.load(Ordering::Relaxed) {
            return Err(NOT_INITIALIZED);
        }
        log(name);
        if let Some(code) = injected(name) {
            return Err(code);
        }
        if !READY.load(Ordering::Acquire) && !BEFORE_INIT.contains(&name) {
            return Err(NOT_INITIALIZED);
        }
        match stream::fault() {
            Some(code) if AFTER_FAULT.iter().any(|start| name.starts_with(start)) => Err(code),
            _ => body(),
        }
    }));
    match done {
        Ok(Ok(())) => 0,
        Ok(Err(Code(code))) => code,
        // A panic must not cross into C. The code 999 distinguishes it from an ordinary error in a test.
        Err(_) => 999,
    }
}

/// The behaviour of `cuInit`.
pub fn initialise() -> Done {
    extern "C" fn in_child() {
        FORKED.store(true, Ordering::Relaxed);
    }
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        symbols::library();
        // SAFETY: pthread_atfork needs a function that remains loaded and is async-signal-safe. The function stores one
        // static atomic. The previous line keeps the library from being unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    control::open()?;
    READY.store(true, Ordering::Release);
    Ok(())
}

/// Appends a line about a call to the log.
pub fn note(text: &str) {
    log(text);
}

fn log(name: &str) {
    let Some(path) = &settings::get().log else { return };
    if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(path) {
        // One write of less than a page in append mode, so lines of several processes do not mix.
        let _ = file.write_all(format!("{} {name}\n", std::process::id()).as_bytes());
    }
}

/// Number of calls of each function since its failure was configured.
static CALLS: Mutex<Option<HashMap<Failure, u64>>> = Mutex::new(None);

fn injected(name: &str) -> Option<Code> {
    let failures = settings::failures();
    if failures.is_empty() {
        return None;
    }
    let plain = name.split("_v").next().unwrap_or(name);
    let mut calls = CALLS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let calls = calls.get_or_insert_default();
    let mut answer = None;
    for failure in failures {
        if failure.function == name || failure.function == plain {
            let count = calls.entry(failure.clone()).or_insert(0);
            *count += 1;
            if failure.hits(*count) {
                answer = answer.or(Some(Code(failure.code)));
            }
        }
    }
    answer
}

/// How many breaches of a rule of sharing were seen in the folder's processes: memory of a pool or of an IPC handle freed
/// by its owner while another process still had it.
// SAFETY: a name of this library's own.
#[unsafe(no_mangle)]
extern "C" fn fakecuda_violations() -> u64 {
    control::open().map_or(0, |()| control::violations())
}
