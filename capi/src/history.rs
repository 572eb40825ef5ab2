//! A name that keeps its last values.

use super::arguments::{Out, free, handle, tell};
use super::client::tensorlend_client;
use super::draft::{take, tensorlend_draft};
use super::leases::tensorlend_leases;
use super::names::both;
use super::status::{guard, tensorlend_status};
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
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, variables are NULL or
        // writable, and strings are NULL or zero-terminated.
        let (out, (client, name)) = unsafe { (Out::new(history, "history")?, both(client, name, "name")?) };
        out.fill(tensorlend_history { history: client.keep(name, versions)? });
        Ok(())
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
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive and used by this thread
        // alone, and variables are NULL or writable.
        let (history, draft) = unsafe { (&handle(history, "history")?.history, take(draft, "draft")?) };
        let published = history.publish(draft)?;
        // SAFETY: by the contract in `lib.rs`, the variable is NULL or writable.
        unsafe { tell(version, published.into()) };
        Ok(())
    })
}

/// Stops keeping values. The name and its last value stay. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_history_close(history: *mut tensorlend_history) {
    // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive, and used by this thread
    // alone.
    unsafe { free(history) }
}

/// Leases the values that a name has kept, oldest first. Fails with `TENSORLEND_NOT_FOUND` if the
/// name keeps no values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_versions(
    client: *const tensorlend_client,
    name: *const c_char,
    leases: *mut *mut tensorlend_leases,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, variables are NULL or
        // writable, and strings are NULL or zero-terminated.
        let (out, (client, name)) = unsafe { (Out::new(leases, "leases")?, both(client, name, "name")?) };
        out.lend_all(client.versions(name)?);
        Ok(())
    })
}
