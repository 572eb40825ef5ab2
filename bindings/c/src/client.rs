//! A session with the daemon.

use super::arguments::{c_text, call, free, look};
use super::options::tensorlend_options;
use super::process::Process;
use super::status::tensorlend_status;
use std::ffi::{CString, c_char};
use std::ptr::null;
use tensorlend::{Client, Result};
use tensorlend_os::clock::duration_ns;

/// A session with the daemon, in one namespace. Several threads may use a client at once. Published
/// tensors outlive the session.
pub struct tensorlend_client {
    pub(super) client: Client,
    process: Process,
    namespace: CString,
    daemon: CString,
}

impl tensorlend_client {
    /// Returns the client, or `Error::Forked` in any process except the one that opened the client. Used by calls whose client
    /// library function has no such check.
    pub(super) fn opened(&self) -> Result<&Client> {
        self.process.check()?;
        Ok(&self.client)
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
    call!(|client: out, options: optional_handle| {
        let opened = options.map_or_else(Client::builder, |options| options.builder.clone()).connect()?;
        let (namespace, daemon) = (c_text(opened.namespace()), c_text(opened.daemon_version()));
        client.fill(tensorlend_client { client: opened, process: Process::current(), namespace, daemon });
    })
}

/// Frees the client. The session ends once every other handle that came from this client is freed,
/// too. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_client_free(client: *mut tensorlend_client) {
    free!(client);
}

/// The namespace's name, borrowed from the client; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_client_namespace(client: *const tensorlend_client) -> *const c_char {
    look!(null(), |client: handle| Some(client.namespace.as_ptr()))
}

/// The daemon's version, borrowed from the client; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_client_daemon_version(client: *const tensorlend_client) -> *const c_char {
    look!(null(), |client: handle| Some(client.daemon.as_ptr()))
}

/// Sends the daemon a request without effect. Writes the duration of the round trip to
/// `*nanoseconds`, unless `nanoseconds` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_ping(client: *const tensorlend_client, nanoseconds: *mut u64) -> tensorlend_status {
    call!(|client: handle, nanoseconds: optional_variable| {
        nanoseconds.fill(duration_ns(client.client.ping()?));
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
    call!(|client: handle, slot_bytes: optional_variable, segment_bytes: optional_variable| {
        let memory = client.opened()?.memory();
        slot_bytes.fill(memory.slot_bytes);
        segment_bytes.fill(memory.segment_bytes);
    })
}

/// Writes to `*bytes` the bytes of the namespace's values on which clients hold leases now. Counts
/// all tensors of a dataset, and each tensor once, also on devices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_leased_bytes(
    client: *const tensorlend_client,
    bytes: *mut u64,
) -> tensorlend_status {
    call!(|bytes: variable, client: handle| bytes.fill(client.client.instruments().leased()?))
}
