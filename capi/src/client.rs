//! A session with the daemon.

use super::arguments::{Out, OutVar, c_text, free, handle, tell};
use super::options::tensorlend_options;
use super::process::Process;
use super::status::{guard, look, tensorlend_status};
use std::ffi::{CString, c_char};
use tensorlend::{Client, Result};

/// A session with the daemon, in one namespace. Several threads may use a client at once. Published
/// tensors outlive the session.
pub struct tensorlend_client {
    pub(super) client: Client,
    process: Process,
    namespace: CString,
    daemon: CString,
}

impl tensorlend_client {
    /// Checks the process. Used by calls whose client library function has no such check.
    pub(super) fn check(&self) -> Result<()> {
        self.process.check()
    }
}

/// Connects to the daemon. `options` may be NULL. The caller still owns the options after the call.
/// `tensorlend_client_free` ends the session. Leases, drafts, streams and subscriptions may outlive
/// the handle.
///
/// Errors:
/// - `TENSORLEND_DISCONNECTED` if no daemon responds.
/// - `TENSORLEND_INCOMPATIBLE` if the daemon or the kernel is too old or too new.
/// - `TENSORLEND_REFUSED` for a namespace that this user may not join.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_connect(
    options: *const tensorlend_options,
    client: *mut *mut tensorlend_client,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, and variables are NULL or
        // writable.
        let (out, options) = unsafe { (Out::new(client, "client")?, options.as_ref()) };
        let client = options.map_or_else(Client::builder, |options| options.builder.clone()).connect()?;
        let (namespace, daemon) = (c_text(client.namespace()), c_text(client.daemon_version()));
        out.fill(tensorlend_client { client, process: Process::current(), namespace, daemon });
        Ok(())
    })
}

/// Frees the client. The session ends once every other handle that came from this client is freed,
/// too. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_client_free(client: *mut tensorlend_client) {
    // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive, and used by this thread
    // alone.
    unsafe { free(client) };
}

/// The namespace's name, borrowed from the client; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_client_namespace(client: *const tensorlend_client) -> *const c_char {
    // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
    look(std::ptr::null(), || unsafe { client.as_ref() }.map(|client| client.namespace.as_ptr()))
}

/// The daemon's version, borrowed from the client; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_client_daemon_version(client: *const tensorlend_client) -> *const c_char {
    // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
    look(std::ptr::null(), || unsafe { client.as_ref() }.map(|client| client.daemon.as_ptr()))
}

/// Sends the daemon a request without effect. Writes the duration of the round trip to
/// `*nanoseconds`, unless `nanoseconds` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_ping(client: *const tensorlend_client, nanoseconds: *mut u64) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
        let took = unsafe { handle(client, "client") }?.client.ping()?;
        // SAFETY: by the contract in `lib.rs`, the variable is NULL or writable.
        unsafe { tell(nanoseconds, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)) };
        Ok(())
    })
}

/// Writes the bytes of this client's tensors to `*slot_bytes`: drafts, published tensors, and
/// replaced tensors that are not reclaimed yet. Writes the bytes of the segments that the daemon
/// lends to this client to `*segment_bytes`. Either pointer may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_memory(
    client: *const tensorlend_client,
    slot_bytes: *mut u64,
    segment_bytes: *mut u64,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
        let client = unsafe { handle(client, "client") }?;
        client.check()?;
        let memory = client.client.memory();
        // SAFETY: by the contract in `lib.rs`, the variable is NULL or writable.
        unsafe { tell(slot_bytes, memory.slot_bytes) };
        // SAFETY: by the contract in `lib.rs`, the variable is NULL or writable.
        unsafe { tell(segment_bytes, memory.segment_bytes) };
        Ok(())
    })
}

/// Writes to `*bytes` the bytes of the namespace's tensors on which clients hold leases now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_leased_bytes(
    client: *const tensorlend_client,
    bytes: *mut u64,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, and variables are NULL or
        // writable.
        let (bytes, client) = unsafe { (OutVar::new(bytes, "bytes")?, handle(client, "client")?) };
        bytes.fill(client.client.leased()?);
        Ok(())
    })
}
