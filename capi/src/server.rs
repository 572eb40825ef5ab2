//! Servers of a service, and the requests that they receive.

use super::arguments::{Out, c_text, free, given, handle, handle_mut, take_over, text, timeout};
use super::client::tensorlend_client;
use super::draft::{check_taking, take, tensorlend_draft};
use super::lease::tensorlend_lease;
use super::process::Process;
use super::status::{guard, look, tensorlend_status};
use std::ffi::{CString, c_char};
use std::sync::Arc;
use tensorlend::{Call, Reply, Result, Server};

/// A server of a service: receives requests from all callers in turn. One thread at a time uses it; several servers
/// share the callers of a service. `tensorlend_server_close` ends it.
pub struct tensorlend_server {
    server: Server,
    process: Process,
    service: CString,
}

/// A request that a server received: a lease on its value, and the right to respond once. Any thread may respond, but only one
/// thread at a time uses the handle. A program may respond to its requests in any order. A request may outlive the server's
/// handle.
///
/// `tensorlend_request_respond` and `tensorlend_request_fail` take it over, and set the caller's variable to NULL.
/// `tensorlend_request_free` drops a request that was not taken over; the request's caller then gets
/// `TENSORLEND_REQUEST_FAILED`.
pub struct tensorlend_request {
    lease: Arc<tensorlend_lease>,
    reply: Reply,
    process: Process,
}

impl tensorlend_request {
    fn of(call: Call) -> Self {
        let (value, reply) = call.split();
        Self { lease: tensorlend_lease::of(value), reply, process: Process::current() }
    }
}

/// Returns the server, or `Error::Forked` in a process other than the one that opened it.
///
/// # Safety
/// The rule on handles.
unsafe fn opened<'a>(server: *mut tensorlend_server) -> Result<&'a mut Server> {
    // SAFETY: the rule on handles.
    let server = unsafe { handle_mut(server, "server") }?;
    server.process.check()?;
    Ok(&mut server.server)
}

/// Serves a service from now on, in addition to other servers of the same name. Takes some round trips to the daemon.
///
/// `TENSORLEND_ARGUMENT` for an invalid name, or one of more than 207 bytes; `TENSORLEND_REFUSED` without the right to
/// write; `TENSORLEND_LIMIT` at a limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_serve(
    client: *const tensorlend_client,
    service: *const c_char,
    server: *mut *mut tensorlend_server,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles, variables and strings.
        let (out, client, service) =
            unsafe { (Out::new(server, "server")?, handle(client, "client")?, text(service, "service")?) };
        client.check()?;
        let server = client.client.serve(service).open()?;
        out.fill(tensorlend_server { server, process: Process::current(), service: c_text(service) });
        Ok(())
    })
}

/// Receives the next request; waits for it `timeout_ns` nanoseconds at most, without limit if that is below 0.
///
/// `TENSORLEND_TIMEOUT`; `TENSORLEND_LIMIT` with 4096 leases held already: the request is still there after some were
/// freed; `TENSORLEND_DISCONNECTED` if the session has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_server_recv(
    server: *mut tensorlend_server,
    timeout_ns: i64,
    request: *mut *mut tensorlend_request,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and variables.
        let (out, server) = unsafe { (Out::new(request, "request")?, opened(server)?) };
        let call = match timeout(timeout_ns) {
            None => server.recv(),
            Some(timeout) => server.recv_timeout(timeout),
        }?;
        out.fill(tensorlend_request::of(call));
        Ok(())
    })
}

/// Receives the next request if there is one, for servers that gather several: if there is none now, `*request` is NULL, and
/// the status is `TENSORLEND_OK`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_server_try_recv(
    server: *mut tensorlend_server,
    request: *mut *mut tensorlend_request,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and variables.
        let (out, server) = unsafe { (Out::new(request, "request")?, opened(server)?) };
        if let Some(call) = server.try_recv()? {
            out.fill(tensorlend_request::of(call));
        }
        Ok(())
    })
}

/// Number of callers that are connected now, 120 at most; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_server_callers(server: *const tensorlend_server) -> u64 {
    // SAFETY: the rule on handles.
    look(0, || unsafe { server.as_ref() }.map(|server| server.server.callers() as u64))
}

/// The service's name, borrowed from the server; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_server_service(server: *const tensorlend_server) -> *const c_char {
    // SAFETY: the rule on handles.
    look(std::ptr::null(), || unsafe { server.as_ref() }.map(|server| server.service.as_ptr()))
}

/// Ends a server, and frees the handle; NULL does nothing. Its callers get `TENSORLEND_SERVER_GONE` for requests
/// without a response, and move to another server.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_server_close(server: *mut tensorlend_server) {
    // SAFETY: the rule on handles.
    unsafe { free(server) }
}

/// A lease on the request's value, borrowed from the request; NULL for NULL. `tensorlend_lease_clone` makes a handle
/// that outlives the request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_request_value(request: *const tensorlend_request) -> *const tensorlend_lease {
    // SAFETY: the rule on handles.
    look(std::ptr::null(), || unsafe { request.as_ref() }.map(|request| Arc::as_ptr(&request.lease)))
}

/// Announces that the response comes within about ten microseconds, so that a sleeping caller wakes up in the meantime.
/// Worthwhile after long work.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_request_soon(request: *const tensorlend_request) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rule on handles.
        let request = unsafe { handle(request, "request") }?;
        request.process.check()?;
        request.reply.soon();
        Ok(())
    })
}

/// Rejects a request that cannot be taken over.
///
/// # Safety
/// The rules on handles and variables.
unsafe fn check_request(request: *mut *mut tensorlend_request) -> Result<()> {
    // SAFETY: the rules on handles and variables.
    unsafe { given(request, "request") }?.process.check()
}

/// Takes a checked request over: ends its lease, sets the caller's variable to NULL and returns the right to respond.
///
/// # Safety
/// The rules on handles and variables, and `check_request` has accepted it.
unsafe fn take_request(request: *mut *mut tensorlend_request) -> Reply {
    // SAFETY: the rules on handles and variables; `check_request` has accepted it.
    let tensorlend_request { reply, .. } = unsafe { take_over(request) };
    reply
}

/// Responds to a request with a tensor or a dataset. Takes `*request` and `*response` over, and ends the request's
/// lease. A caller receives its responses in the order of its requests. A caller that is gone is no error.
///
/// `TENSORLEND_ARGUMENT` for a draft of another client, and for a dataset without tensors: the caller then gets
/// `TENSORLEND_REQUEST_FAILED`. `TENSORLEND_LIMIT` without memory for the response's description.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_request_respond(
    request: *mut *mut tensorlend_request,
    response: *mut *mut tensorlend_draft,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and variables.
        unsafe { check_request(request) }?;
        // SAFETY: the rules on handles and variables.
        unsafe { check_taking(response) }?;
        // SAFETY: the rules on handles and variables: both were checked.
        let (reply, response) = unsafe { (take_request(request), take(response)?) };
        reply.respond(response)?;
        Ok(())
    })
}

/// Refuses a request: its caller gets `TENSORLEND_REQUEST_FAILED` with this text, cut to 64 KiB. Takes `*request` over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_request_fail(
    request: *mut *mut tensorlend_request,
    why: *const c_char,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rule on strings.
        let why = unsafe { text(why, "why") }?;
        // SAFETY: the rules on handles and variables.
        unsafe { check_request(request) }?;
        // SAFETY: the rules on handles and variables: it was checked.
        unsafe { take_request(request) }.fail(why)?;
        Ok(())
    })
}

/// Drops a request that was not responded to: its caller gets `TENSORLEND_REQUEST_FAILED`. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_request_free(request: *mut tensorlend_request) {
    // SAFETY: the rule on handles.
    unsafe { free(request) }
}

/// Compile-time check: another thread may respond.
const _: fn() = || {
    fn may_travel<T: Send>() {}
    may_travel::<Reply>();
};
