//! Callers: requests to the servers of a service.

use super::arguments::{Out, c_text, free, handle, handle_mut, tell, text, timeout};
use super::client::tensorlend_client;
use super::draft::{take, tensorlend_draft};
use super::lease::tensorlend_lease;
use super::process::Process;
use super::status::{guard, look, tensorlend_status};
use std::ffi::{CString, c_char};
use tensorlend::{Caller, Result};

/// A caller of one service: sends requests to the service's servers and receives their responses. One thread at a time
/// uses it; open one for each thread. `tensorlend_caller_close` ends it.
pub struct tensorlend_caller {
    caller: Caller,
    process: Process,
    service: CString,
}

/// Returns the caller, or `Error::Forked` in a process other than the one that opened it.
///
/// # Safety
/// The rule on handles.
unsafe fn opened<'a>(caller: *mut tensorlend_caller) -> Result<&'a mut Caller> {
    // SAFETY: the rule on handles.
    let caller = unsafe { handle_mut(caller, "caller") }?;
    caller.process.check()?;
    Ok(&mut caller.caller)
}

/// Opens a caller of a service, for `capacity` requests that are outstanding at once (0 means 8; 1024 at most, rounded up to a
/// power of two). Asks the daemon nothing: the first request looks for a server.
///
/// `TENSORLEND_ARGUMENT` for an invalid name, or one of more than 207 bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_caller_open(
    client: *const tensorlend_client,
    service: *const c_char,
    capacity: u32,
    caller: *mut *mut tensorlend_caller,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles, variables and strings.
        let (out, client, service) =
            unsafe { (Out::new(caller, "caller")?, handle(client, "client")?, text(service, "service")?) };
        client.check()?;
        let builder = client.client.caller(service);
        let caller = if capacity == 0 { builder } else { builder.capacity(capacity) }.open()?;
        out.fill(tensorlend_caller { caller, process: Process::current(), service: c_text(service) });
        Ok(())
    })
}

/// Sends a request, and waits for its response: `timeout_ns` nanoseconds at most, without limit if that is below 0.
/// Also waits for a server if there is none. Takes `*request` over.
///
/// `TENSORLEND_REQUEST_FAILED` if the server refused the request or could not carry it out: the error message has the server's
/// reason. `TENSORLEND_SERVER_GONE` if the server ended before it responded: it may have carried the request out, so send
/// another one only if that does no harm. `TENSORLEND_TIMEOUT`: the caller gives the server up, and the next request goes to
/// another one. `TENSORLEND_ARGUMENT` for a draft of another client, and while requests are outstanding.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_caller_call(
    caller: *mut tensorlend_caller,
    request: *mut *mut tensorlend_draft,
    timeout_ns: i64,
    response: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and variables.
        let (out, caller) = unsafe { (Out::new(response, "response")?, opened(caller)?) };
        // SAFETY: the rules on handles and variables.
        let request = unsafe { take(request) }?;
        out.lend(caller.call(request, timeout(timeout_ns))?);
        Ok(())
    })
}

/// Sends a request without waiting for its response, which `tensorlend_caller_recv` takes. Waits for a server if there
/// is none: `timeout_ns` nanoseconds at most, without limit if that is below 0. Takes `*request` over. The request's
/// number, from 0 on, goes to `*number`, unless that is NULL.
///
/// `TENSORLEND_TIMEOUT`; `TENSORLEND_SERVER_GONE` if earlier requests were lost with their server, and this one was not
/// sent; `TENSORLEND_ARGUMENT` while as many requests are outstanding as the caller was opened for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_caller_send(
    caller: *mut tensorlend_caller,
    request: *mut *mut tensorlend_draft,
    timeout_ns: i64,
    number: *mut u64,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rule on handles.
        let caller = unsafe { opened(caller) }?;
        // SAFETY: the rules on handles and variables.
        let sent = caller.send(unsafe { take(request) }?, timeout(timeout_ns))?;
        // SAFETY: the rule on variables.
        unsafe { tell(number, sent) };
        Ok(())
    })
}

/// Takes the response to the oldest outstanding request; waits for it `timeout_ns` nanoseconds at most, without limit
/// if that is below 0. The request's number goes to `*number`, unless that is NULL, also if the request failed.
///
/// `TENSORLEND_REQUEST_FAILED` if the server could not carry out this request; `TENSORLEND_SERVER_GONE` if the server
/// ended, and with it all outstanding requests; `TENSORLEND_TIMEOUT`: the requests stay outstanding, so that a program
/// that has to stop can wait in short turns; `TENSORLEND_ARGUMENT` if no request is outstanding.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_caller_recv(
    caller: *mut tensorlend_caller,
    timeout_ns: i64,
    response: *mut *mut tensorlend_lease,
    number: *mut u64,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and variables.
        let (out, caller) = unsafe { (Out::new(response, "response")?, opened(caller)?) };
        let (of, response) = caller.recv(timeout(timeout_ns));
        // SAFETY: the rule on variables.
        unsafe { tell(number, of) };
        out.lend(response?);
        Ok(())
    })
}

/// Connects to a server without sending a request, so that the first request need not wait. Waits `timeout_ns` nanoseconds at
/// most, without limit if that is below 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_caller_wait_server(
    caller: *mut tensorlend_caller,
    timeout_ns: i64,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rule on handles.
        unsafe { opened(caller) }?.wait_server(timeout(timeout_ns))?;
        Ok(())
    })
}

/// Gives the server up, with all outstanding requests: the next request goes to another server, if there is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_caller_give_up(caller: *mut tensorlend_caller) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rule on handles.
        unsafe { opened(caller) }?.give_up();
        Ok(())
    })
}

/// Number of requests that were sent and have no response yet; 0 for NULL, and in the child of a fork.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_caller_outstanding(caller: *const tensorlend_caller) -> u64 {
    look(0, || {
        // SAFETY: the rule on handles.
        let caller = unsafe { caller.as_ref() }?;
        caller.process.check().ok()?;
        Some(caller.caller.outstanding())
    })
}

/// The service's name, borrowed from the caller; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_caller_service(caller: *const tensorlend_caller) -> *const c_char {
    // SAFETY: the rule on handles.
    look(std::ptr::null(), || unsafe { caller.as_ref() }.map(|caller| caller.service.as_ptr()))
}

/// Ends a caller, and frees the handle; NULL does nothing. Leases on its responses remain valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_caller_close(caller: *mut tensorlend_caller) {
    // SAFETY: the rule on handles.
    unsafe { free(caller) }
}
