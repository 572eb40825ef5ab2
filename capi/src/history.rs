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

/// The producer's handle of a name that keeps its last values. Any thread may use it. `tensorlend_history_close` frees
/// it.
pub struct tensorlend_history {
    history: History,
}

/// Keeps the last `versions` values of a name (rounded up to a power of two) from now on, with this client as their
/// producer. Errors are those of `tensorlend_stream_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_keep(
    client: *const tensorlend_client,
    name: *const c_char,
    versions: u32,
    history: *mut *mut tensorlend_history,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles, variables and strings.
        let (out, (client, name)) = unsafe { (Out::new(history, "history")?, both(client, name)?) };
        out.fill(tensorlend_history { history: client.keep(name, versions)? });
        Ok(())
    })
}

/// Publishes the next value; the oldest value is removed when the name has more values than it keeps. Takes `*draft` over.
/// `version` may be NULL. Errors are those of `tensorlend_publish`, and `TENSORLEND_STREAM_ENDED` if another client keeps the
/// name now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_history_publish(
    history: *const tensorlend_history,
    draft: *mut *mut tensorlend_draft,
    version: *mut tensorlend_version,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and variables.
        let (history, draft) = unsafe { (&handle(history, "history")?.history, take(draft)?) };
        let published = history.publish(draft)?;
        // SAFETY: the rule on variables.
        unsafe { tell(version, published.into()) };
        Ok(())
    })
}

/// Stops keeping values; the name and its last value stay. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_history_close(history: *mut tensorlend_history) {
    // SAFETY: the rule on handles.
    unsafe { free(history) }
}

/// Leases the values that a name has kept, oldest first. `TENSORLEND_NOT_FOUND` if it keeps none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_versions(
    client: *const tensorlend_client,
    name: *const c_char,
    leases: *mut *mut tensorlend_leases,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles, variables and strings.
        let (out, (client, name)) = unsafe { (Out::new(leases, "leases")?, both(client, name)?) };
        out.lend_all(client.versions(name)?);
        Ok(())
    })
}
