//! A session with the daemon.

use super::arguments::{Out, OutVar, c_text, free, handle, tell};
use super::options::tensorlend_options;
use super::process::Process;
use super::status::{guard, look, tensorlend_status};
use std::ffi::{CString, c_char};
use tensorlend::{Client, Result};

/// A session with the daemon, in one namespace. Any thread may use it, several at a time. Published tensors outlive the
/// session.
pub struct tensorlend_client {
    pub(super) client: Client,
    process: Process,
    namespace: CString,
    daemon: CString,
}

impl tensorlend_client {
    /// Checks the process, for calls that do not check it themselves.
    pub(super) fn check(&self) -> Result<()> {
        self.process.check()
    }
}

/// Connects to the daemon. `options` may be NULL; they still belong to the caller afterwards. `tensorlend_client_free` ends the
/// session. Leases, drafts, streams and subscriptions may outlive the handle.
///
/// `TENSORLEND_DISCONNECTED` if no daemon answers; `TENSORLEND_INCOMPATIBLE` if daemon or kernel are too old or too
/// new; `TENSORLEND_REFUSED` for a namespace that this user may not join.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_connect(
    options: *const tensorlend_options,
    client: *mut *mut tensorlend_client,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and variables.
        let (out, options) = unsafe { (Out::new(client, "client")?, options.as_ref()) };
        let client = options.map_or_else(Client::builder, |options| options.builder.clone()).connect()?;
        let (namespace, daemon) = (c_text(client.namespace()), c_text(client.daemon_version()));
        out.fill(tensorlend_client { client, process: Process::current(), namespace, daemon });
        Ok(())
    })
}

/// Frees the client. The session ends once every other handle that came from it is freed, too. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_client_free(client: *mut tensorlend_client) {
    // SAFETY: the rule on handles.
    unsafe { free(client) };
}

/// The namespace's name, borrowed from the client; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_client_namespace(client: *const tensorlend_client) -> *const c_char {
    // SAFETY: the rule on handles.
    look(std::ptr::null(), || unsafe { client.as_ref() }.map(|client| client.namespace.as_ptr()))
}

/// The daemon's version, borrowed from the client; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_client_daemon_version(client: *const tensorlend_client) -> *const c_char {
    // SAFETY: the rule on handles.
    look(std::ptr::null(), || unsafe { client.as_ref() }.map(|client| client.daemon.as_ptr()))
}

/// Sends the daemon a request without effect, and writes the duration of the round trip to `*nanoseconds`, unless that is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_ping(client: *const tensorlend_client, nanoseconds: *mut u64) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rule on handles.
        let took = unsafe { handle(client, "client") }?.client.ping()?;
        // SAFETY: the rule on variables.
        unsafe { tell(nanoseconds, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)) };
        Ok(())
    })
}

/// Writes this client's memory in bytes: to `*slot_bytes` that of its tensors (drafts, published tensors, and replaced ones
/// that are not reclaimed yet), to `*segment_bytes` that of the segments that the daemon lends to it. Either pointer may be
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_memory(
    client: *const tensorlend_client,
    slot_bytes: *mut u64,
    segment_bytes: *mut u64,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rule on handles.
        let client = unsafe { handle(client, "client") }?;
        client.check()?;
        let memory = client.client.memory();
        // SAFETY: the rule on variables.
        unsafe { tell(slot_bytes, memory.slot_bytes) };
        // SAFETY: the rule on variables.
        unsafe { tell(segment_bytes, memory.segment_bytes) };
        Ok(())
    })
}

/// Writes to `*bytes` the bytes of the namespace's tensors on which some client holds a lease now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_leased_bytes(
    client: *const tensorlend_client,
    bytes: *mut u64,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and variables.
        let (bytes, client) = unsafe { (OutVar::new(bytes, "bytes")?, handle(client, "client")?) };
        bytes.fill(client.client.leased()?);
        Ok(())
    })
}
