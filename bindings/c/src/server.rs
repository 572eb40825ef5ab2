//! Servers of a service, and the requests that they receive.

use super::arguments::{c_text, call, free, look, timeout};
use super::client::tensorlend_client;
use super::draft::tensorlend_draft;
use super::lease::tensorlend_lease;
use super::process::Process;
use super::status::tensorlend_status;
use std::ffi::{CString, c_char};
use std::ptr::null;
use std::sync::Arc;
use tensorlend::{Call, Reply, Result, Server};

/// A server of a service, which receives requests from all callers in turn. Only one thread at a
/// time may use a server. Several servers share the callers of a service. `tensorlend_server_close`
/// ends a server.
pub struct tensorlend_server {
    server: Server,
    process: Process,
    service: CString,
}

/// A request that a server received: a lease on its value, and the right to respond once. Any thread may respond, but only one
/// thread at a time uses the handle. A program may respond to its requests in any order. A request may outlive the server's
/// handle.
///
/// `tensorlend_request_respond` and `tensorlend_request_fail` take the request over, and set the
/// caller's variable to NULL. `tensorlend_request_free` drops a request that was not taken over.
/// The request's caller then gets `TENSORLEND_REQUEST_FAILED`.
pub struct tensorlend_request {
    lease: Arc<tensorlend_lease>,
    reply: Reply,
    process: Process,
}

impl tensorlend_request {
    fn of(call: Call) -> Self {
        let (value, reply) = call.split();
        Self { lease: tensorlend_lease::of(value, ""), reply, process: Process::current() }
    }
}

impl tensorlend_server {
    /// Returns the server, or `Error::Forked` in any process except the one that opened the server.
    fn opened(&mut self) -> Result<&mut Server> {
        self.process.check()?;
        Ok(&mut self.server)
    }
}

/// Starts to serve a service, in addition to other servers of the same name. Needs some round trips
/// to the daemon.
///
/// Errors:
/// - `TENSORLEND_ARGUMENT` for a name that is invalid or longer than 207 bytes.
/// - `TENSORLEND_REFUSED` if this client has no right to write.
/// - `TENSORLEND_LIMIT` if a limit of the daemon, the namespace or the user is reached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_serve(
    client: *const tensorlend_client,
    service: *const c_char,
    server: *mut *mut tensorlend_server,
) -> tensorlend_status {
    call!(|server: out, client: handle, service: text| {
        let opened = client.opened()?.serve(service).open()?;
        server.fill(tensorlend_server { server: opened, process: Process::current(), service: c_text(service) });
    })
}

/// Receives the next request. Waits for a request at most `timeout_ns` nanoseconds, or without
/// limit if `timeout_ns` is below 0.
///
/// Errors:
/// - `TENSORLEND_TIMEOUT`.
/// - `TENSORLEND_LIMIT` if the client already holds 4096 leases, where the request stays until the
///   program has freed some.
/// - `TENSORLEND_DISCONNECTED` if the session has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_server_recv(
    server: *mut tensorlend_server,
    timeout_ns: i64,
    request: *mut *mut tensorlend_request,
) -> tensorlend_status {
    call!(|request: out, server: handle_mut| {
        let server = server.opened()?;
        let call = match timeout(timeout_ns) {
            None => server.recv(),
            Some(timeout) => server.recv_timeout(timeout),
        }?;
        request.fill(tensorlend_request::of(call));
    })
}

/// Receives the next request if there is one. If there is none, sets `*request` to NULL, and
/// returns `TENSORLEND_OK`. For servers that gather several requests.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_server_try_recv(
    server: *mut tensorlend_server,
    request: *mut *mut tensorlend_request,
) -> tensorlend_status {
    call!(|request: out, server: handle_mut| {
        if let Some(call) = server.opened()?.try_recv()? {
            request.fill(tensorlend_request::of(call));
        }
    })
}

/// Number of callers that are connected now, 120 at most; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_server_callers(server: *const tensorlend_server) -> u64 {
    look!(0, |server: handle| Some(server.server.callers() as u64))
}

/// The service's name, borrowed from the server; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_server_service(server: *const tensorlend_server) -> *const c_char {
    look!(null(), |server: handle| Some(server.service.as_ptr()))
}

/// Ends a server, and frees the handle. NULL does nothing. The server's callers get
/// `TENSORLEND_SERVER_GONE` for requests without a response, and move to another server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_server_close(server: *mut tensorlend_server) {
    free!(server);
}

/// Returns a lease on the request's value, borrowed from the request; NULL for NULL.
/// `tensorlend_lease_clone` creates a handle that outlives the request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_request_value(request: *const tensorlend_request) -> *const tensorlend_lease {
    look!(null(), |request: handle| Some(Arc::as_ptr(&request.lease)))
}

/// Announces that the response will arrive within about ten microseconds. A sleeping caller then
/// wakes up in the meantime. Useful after long work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_request_soon(request: *const tensorlend_request) -> tensorlend_status {
    call!(|request: handle| {
        request.process.check()?;
        request.reply.soon();
    })
}

/// Responds to a request with a tensor or a dataset. Takes `*request` and `*response` over, and
/// ends the request's lease. A caller receives its responses in the order of its requests. A
/// disconnected caller is no error.
///
/// Errors:
/// - `TENSORLEND_ARGUMENT` for a draft of another client, and for a dataset without tensors, where
///   the caller gets `TENSORLEND_REQUEST_FAILED`.
/// - `TENSORLEND_LIMIT` if there is no memory for the response's description.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_request_respond(
    request: *mut *mut tensorlend_request,
    response: *mut *mut tensorlend_draft,
) -> tensorlend_status {
    call!(|request: consumed, response: consumed| {
        request.get()?.process.check()?;
        response.check()?;
        let reply = request.take()?.reply;
        reply.respond(response.draft()?)?;
    })
}

/// Refuses a request. Its caller gets `TENSORLEND_REQUEST_FAILED` with the text `why`, truncated to
/// 64 KiB. Takes `*request` over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_request_fail(
    request: *mut *mut tensorlend_request,
    why: *const c_char,
) -> tensorlend_status {
    call!(|why: text, request: consumed| {
        request.get()?.process.check()?;
        request.take()?.reply.fail(why)?;
    })
}

/// Drops a request that has no response. Its caller gets `TENSORLEND_REQUEST_FAILED`. NULL does
/// nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_request_free(request: *mut tensorlend_request) {
    free!(request);
}

/// Compile-time check of `Send`, because another thread may respond.
const _: fn() = || {
    fn may_travel<T: Send>() {}
    may_travel::<Reply>();
};
