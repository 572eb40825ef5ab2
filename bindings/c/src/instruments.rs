//! Instruments for a client's memory: statistics, an allocation log, and a list of outstanding
//! allocations.

use super::arguments::{c_bool, c_text, call, free, look};
use super::client::tensorlend_client;
use super::status::tensorlend_status;
use std::ffi::{CString, c_char};
use std::ptr::null;
use tensorlend::Error;

/// Allocations of a client since counting began. The caller owns the structure, so later versions
/// add no fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct tensorlend_statistics {
    /// Bytes allocated minus bytes freed. Negative if more bytes were freed than allocated since
    /// counting began.
    pub current_bytes: i64,
    /// Allocations minus frees.
    pub current_count: i64,
    /// The largest `current_bytes` so far, at least 0.
    pub peak_bytes: u64,
    /// The largest `current_count` so far.
    pub peak_count: u64,
    /// Bytes of all allocations, including freed ones.
    pub total_bytes: u64,
    /// Number of all allocations, including freed ones.
    pub total_count: u64,
}

/// Starts or stops counting allocations.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_statistics_enable(
    client: *const tensorlend_client,
    enable: c_bool,
) -> tensorlend_status {
    call!(|client: handle| {
        let client = client.opened()?;
        if enable != 0 { client.instruments().enable_statistics() } else { client.instruments().disable_statistics() }
    })
}

/// Writes the statistics to `*statistics`. All of them are 0 unless counting is on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_statistics_get(
    client: *const tensorlend_client,
    statistics: *mut tensorlend_statistics,
) -> tensorlend_status {
    call!(|statistics: variable, client: handle| {
        let counted = client.opened()?.instruments().statistics().unwrap_or_default();
        statistics.fill(tensorlend_statistics {
            current_bytes: counted.current_bytes,
            current_count: counted.current_count,
            peak_bytes: counted.peak_bytes,
            peak_count: counted.peak_count,
            total_bytes: counted.total_bytes,
            total_count: counted.total_count,
        });
    })
}

/// Starts to write every allocation and free of this client into a file, as CSV. `tensorlend
/// replay` repeats these allocations.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_log_start(
    client: *const tensorlend_client,
    file: *const c_char,
) -> tensorlend_status {
    call!(|client: handle, file: path| client.client.instruments().start_log(file)?)
}

/// Ends the log, and writes the events that are still buffered.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_log_stop(client: *const tensorlend_client) -> tensorlend_status {
    call!(|client: handle| client.client.instruments().stop_log()?)
}

/// The allocations of a client that are not freed at one moment. `tensorlend_outstanding_free`
/// frees this object.
pub struct tensorlend_outstanding {
    text: CString,
    count: u64,
    bytes: u64,
}

/// Returns this client's outstanding allocations: drafts, the values of names, streams and lists,
/// and replaced values that are not reclaimed yet. Fails with `TENSORLEND_ARGUMENT` unless the
/// client was opened with `tensorlend_options_tracking`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_outstanding_get(
    client: *const tensorlend_client,
    outstanding: *mut *mut tensorlend_outstanding,
) -> tensorlend_status {
    call!(|outstanding: out, client: handle| {
        let found = client.opened()?.instruments().outstanding().ok_or_else(|| {
            Error::Argument("allocations are not tracked: connect with tensorlend_options_tracking".into())
        })?;
        let (count, bytes) = (found.allocations().len() as u64, found.bytes());
        outstanding.fill(tensorlend_outstanding { text: c_text(&found.to_string()), count, bytes });
    })
}

/// Returns a report of each allocation with its bytes, its age and its holder. The text is
/// borrowed; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_outstanding_text(outstanding: *const tensorlend_outstanding) -> *const c_char {
    look!(null(), |outstanding: handle| Some(outstanding.text.as_ptr()))
}

/// Number of outstanding allocations; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_outstanding_count(outstanding: *const tensorlend_outstanding) -> u64 {
    look!(0, |outstanding: handle| Some(outstanding.count))
}

/// Bytes of all outstanding allocations; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_outstanding_bytes(outstanding: *const tensorlend_outstanding) -> u64 {
    look!(0, |outstanding: handle| Some(outstanding.bytes))
}

/// Frees the list of outstanding allocations. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_outstanding_free(outstanding: *mut tensorlend_outstanding) {
    free!(outstanding);
}
