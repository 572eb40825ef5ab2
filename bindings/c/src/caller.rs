//! Callers: requests to the servers of a service.

use super::arguments::{c_text, call, free, look, timeout};
use super::client::tensorlend_client;
use super::draft::tensorlend_draft;
use super::lease::tensorlend_lease;
use super::process::Process;
use super::status::tensorlend_status;
use std::ffi::{CString, c_char};
use std::ptr::null;
use tensorlend::{Caller, Result};

/// A caller of one service, which sends requests to the service's servers and receives their
/// responses. Only one thread at a time may use a caller, so open one for each thread.
/// `tensorlend_caller_close` ends a caller.
pub struct tensorlend_caller {
    caller: Caller,
    process: Process,
    service: CString,
}

impl tensorlend_caller {
    /// Returns the caller, or `Error::Forked` in any process except the one that opened the caller.
    fn opened(&mut self) -> Result<&mut Caller> {
        self.process.check()?;
        Ok(&mut self.caller)
    }
}

/// Opens a caller of a service, for `capacity` requests that are outstanding at once (0 means 8;
/// 1024 at most, rounded up to a power of two). Sends the daemon no request. The first request of
/// the caller finds a server.
///
/// Errors: `TENSORLEND_ARGUMENT` for a name that is invalid or longer than 207 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_caller_open(
    client: *const tensorlend_client,
    service: *const c_char,
    capacity: u32,
    caller: *mut *mut tensorlend_caller,
) -> tensorlend_status {
    call!(|caller: out, client: handle, service: text| {
        let builder = client.opened()?.caller(service);
        let opened = if capacity == 0 { builder } else { builder.capacity(capacity) }.open()?;
        caller.fill(tensorlend_caller { caller: opened, process: Process::current(), service: c_text(service) });
    })
}

/// Sends a request, and waits for its response, at most `timeout_ns` nanoseconds, or without limit
/// if `timeout_ns` is below 0. Also waits for a server if there is none. Takes `*request` over.
///
/// Errors:
/// - `TENSORLEND_REQUEST_FAILED` if the server refused the request or could not carry it out. The
///   error message contains the server's reason.
/// - `TENSORLEND_SERVER_GONE` if the server ended before it responded. The server may have carried
///   the request out, so send the request again only if a second run does no harm.
/// - `TENSORLEND_TIMEOUT` if no response arrived in time. The caller then abandons the server, and
///   the next request goes to another server.
/// - `TENSORLEND_ARGUMENT` for a draft of another client, and while requests are outstanding.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_caller_call(
    caller: *mut tensorlend_caller,
    request: *mut *mut tensorlend_draft,
    timeout_ns: i64,
    response: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    call!(|response: out, caller: handle_mut, request: consumed| {
        let caller = caller.opened()?;
        response.lend(caller.call(request.draft()?, timeout(timeout_ns))?, "");
    })
}

/// Sends a request without waiting for its response, which `tensorlend_caller_recv` takes. If there
/// is no server, waits for one at most `timeout_ns` nanoseconds, or without limit if `timeout_ns`
/// is below 0. Takes `*request` over. Writes the request's number, counted from 0, to `*number`,
/// unless `number` is NULL.
///
/// Errors:
/// - `TENSORLEND_TIMEOUT`.
/// - `TENSORLEND_SERVER_GONE` if earlier requests were lost with their server, and this request was
///   not sent.
/// - `TENSORLEND_ARGUMENT` if `capacity` requests are outstanding.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_caller_send(
    caller: *mut tensorlend_caller,
    request: *mut *mut tensorlend_draft,
    timeout_ns: i64,
    number: *mut u64,
) -> tensorlend_status {
    call!(|caller: handle_mut, request: consumed, number: optional_variable| {
        let caller = caller.opened()?;
        number.fill(caller.send(request.draft()?, timeout(timeout_ns))?);
    })
}

/// Takes the response to the oldest outstanding request. Waits for the response at most
/// `timeout_ns` nanoseconds, or without limit if `timeout_ns` is below 0. Writes the request's
/// number to `*number`, unless `number` is NULL, also if the request failed.
///
/// Errors:
/// - `TENSORLEND_REQUEST_FAILED` if the server could not carry out this request.
/// - `TENSORLEND_SERVER_GONE` if the server ended, which ends all outstanding requests.
/// - `TENSORLEND_ARGUMENT` if no request is outstanding.
/// - `TENSORLEND_TIMEOUT` if no response arrived in time. The requests stay outstanding, so a program
///   that must react to other events can wait repeatedly for short times.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_caller_recv(
    caller: *mut tensorlend_caller,
    timeout_ns: i64,
    response: *mut *mut tensorlend_lease,
    number: *mut u64,
) -> tensorlend_status {
    call!(|response: out, caller: handle_mut, number: optional_variable| {
        let (of, received) = caller.opened()?.recv(timeout(timeout_ns));
        number.fill(of);
        response.lend(received?, "");
    })
}

/// Connects to a server without sending a request, so that the first request need not wait. Waits
/// at most `timeout_ns` nanoseconds, or without limit if `timeout_ns` is below 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_caller_wait_server(
    caller: *mut tensorlend_caller,
    timeout_ns: i64,
) -> tensorlend_status {
    call!(|caller: handle_mut| caller.opened()?.wait_server(timeout(timeout_ns))?)
}

/// Abandons the server, with all outstanding requests. The next request goes to another server, if
/// there is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_caller_give_up(caller: *mut tensorlend_caller) -> tensorlend_status {
    call!(|caller: handle_mut| caller.opened()?.give_up())
}

/// Number of requests that were sent and have no response yet; 0 for NULL, and in the child of a fork.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_caller_outstanding(caller: *const tensorlend_caller) -> u64 {
    look!(0, |caller: handle| caller.process.check().ok().map(|()| caller.caller.outstanding()))
}

/// The service's name, borrowed from the caller; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_caller_service(caller: *const tensorlend_caller) -> *const c_char {
    look!(null(), |caller: handle| Some(caller.service.as_ptr()))
}

/// Ends a caller, and frees the handle. NULL does nothing. Leases on its responses remain valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_caller_close(caller: *mut tensorlend_caller) {
    free!(caller);
}
