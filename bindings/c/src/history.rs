//! A name that keeps its last values.

use super::arguments::{call, free};
use super::client::tensorlend_client;
use super::draft::tensorlend_draft;
use super::leases::tensorlend_leases;
use super::status::tensorlend_status;
use super::version::tensorlend_version;
use std::ffi::c_char;
use tensorlend::History;

/// The producer's handle of a name that keeps its last values. Any thread may use the handle.
/// `tensorlend_history_close` frees it.
pub struct tensorlend_history {
    history: History,
}

/// Starts to keep the last `versions` values of a name, with this client as their producer. Rounds
/// `versions` up to a power of two. Errors are those of `tensorlend_stream_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_keep(
    client: *const tensorlend_client,
    name: *const c_char,
    versions: u32,
    history: *mut *mut tensorlend_history,
) -> tensorlend_status {
    call!(|history: out, client: handle, name: text| {
        history.fill(tensorlend_history { history: client.client.keep(name, versions)? });
    })
}

/// Publishes the next value. Removes the oldest value when the name has more values than it keeps.
/// Takes `*draft` over. `version` may be NULL. Errors are those of `tensorlend_publish`, and
/// `TENSORLEND_STREAM_ENDED` if another client keeps the name now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_history_publish(
    history: *const tensorlend_history,
    draft: *mut *mut tensorlend_draft,
    version: *mut tensorlend_version,
) -> tensorlend_status {
    call!(|history: handle, draft: consumed, version: optional_variable| {
        version.fill(history.history.publish(draft.draft()?)?);
    })
}

/// Stops keeping values. The name and its last value stay. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_history_close(history: *mut tensorlend_history) {
    free!(history);
}

/// Leases the values that a name has kept, oldest first. Fails with `TENSORLEND_NOT_FOUND` if the
/// name keeps no values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_versions(
    client: *const tensorlend_client,
    name: *const c_char,
    leases: *mut *mut tensorlend_leases,
) -> tensorlend_status {
    call!(|leases: out, client: handle, name: text| leases
        .lend_all(client.client.versions(name)?.into_iter().map(|value| (value, name))))
}
