//! The producer's handle of a stream.

use super::arguments::{Out, c_text, free, handle, long, tell, timeout};
use super::client::tensorlend_client;
use super::draft::{check_taking, take, tensorlend_draft};
use super::names::both;
use super::status::{guard, look, tensorlend_status};
use std::ffi::{CString, c_char};
use std::time::Duration;
use tensorlend::{Error, Policy, Result, Stream, TrySendError};

/// The behaviour of a full stream whose oldest message a subscriber has not taken.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum tensorlend_policy {
    /// Sending waits.
    TENSORLEND_POLICY_BLOCK = 0,
    /// The oldest message is replaced: the subscriber loses it, and can read how many it lost.
    TENSORLEND_POLICY_DROP_OLDEST = 1,
    /// Sending fails with `TENSORLEND_FULL`.
    TENSORLEND_POLICY_ERROR = 2,
}

/// The producer's handle of a stream. Any thread may use it. `tensorlend_stream_close` ends it.
pub struct tensorlend_stream {
    stream: Stream,
    name: CString,
}

/// Opens a stream, whose messages are numbered from 0. It holds `capacity` messages for subscribers that lag or subscribe late:
/// 0 means 8; the number is rounded up to a power of two, and may be 65,536 at most. `policy` is a `tensorlend_policy`.
///
/// `TENSORLEND_REFUSED` if another client has it open, or without the right to write; `TENSORLEND_LIMIT` at a limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_open(
    client: *const tensorlend_client,
    name: *const c_char,
    capacity: u32,
    policy: i32,
    stream: *mut *mut tensorlend_stream,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles, variables and strings.
        let (out, (client, name)) = unsafe { (Out::new(stream, "stream")?, both(client, name)?) };
        let builder = client.stream(name).policy(policy_of(policy)?);
        let stream = if capacity == 0 { builder } else { builder.capacity(capacity) }.open()?;
        out.fill(tensorlend_stream { stream, name: c_text(name) });
        Ok(())
    })
}

fn policy_of(number: i32) -> Result<Policy> {
    use tensorlend_policy::{TENSORLEND_POLICY_BLOCK, TENSORLEND_POLICY_DROP_OLDEST, TENSORLEND_POLICY_ERROR};
    const BLOCK: i32 = TENSORLEND_POLICY_BLOCK as i32;
    const DROP_OLDEST: i32 = TENSORLEND_POLICY_DROP_OLDEST as i32;
    const ERROR: i32 = TENSORLEND_POLICY_ERROR as i32;
    match number {
        BLOCK => Ok(Policy::Block),
        DROP_OLDEST => Ok(Policy::DropOldest),
        ERROR => Ok(Policy::Error),
        other => Err(Error::Argument(format!("policy {other}: use one of tensorlend_policy"))),
    }
}

/// Sends a message. With `TENSORLEND_POLICY_BLOCK`, waits while the stream is full: `timeout_ns` nanoseconds at most, without
/// limit if that is below 0. Takes `*message` over, and drops it if the call fails. Writes the message's number to `*number`,
/// unless that is NULL.
///
/// `TENSORLEND_TIMEOUT`; `TENSORLEND_FULL` with `TENSORLEND_POLICY_ERROR`; `TENSORLEND_STREAM_ENDED` if the stream was
/// deleted or has another producer now; `TENSORLEND_ARGUMENT` for a draft of another client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_send(
    stream: *const tensorlend_stream,
    message: *mut *mut tensorlend_draft,
    timeout_ns: i64,
    number: *mut u64,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and variables.
        let (stream, message) = unsafe { (&handle(stream, "stream")?.stream, take(message)?) };
        let sent = match timeout(timeout_ns) {
            None => stream.send(message),
            Some(timeout) => stream.send_timeout(message, timeout),
        }?;
        // SAFETY: the rule on variables.
        unsafe { tell(number, sent) };
        Ok(())
    })
}

/// As `tensorlend_stream_send`, but never waits: if the call returns `TENSORLEND_FULL`, `*message` holds the draft again, and
/// you can send it later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_try_send(
    stream: *const tensorlend_stream,
    message: *mut *mut tensorlend_draft,
    number: *mut u64,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rule on handles.
        let stream = unsafe { &handle(stream, "stream")?.stream };
        let full = || Error::StreamFull(stream.name().to_owned());
        // SAFETY: the rules on handles and variables.
        unsafe { check_taking(message) }?;
        // Checks for room first, so that the draft is not taken over if there is none.
        stream.wait_room(Duration::ZERO).map_err(|error| if error.is_timeout() { full() } else { error })?;
        // SAFETY: the rules on handles and variables.
        match stream.try_send(unsafe { take(message) }?) {
            Ok(sent) => {
                // SAFETY: the rule on variables.
                unsafe { tell(number, sent) };
                Ok(())
            }
            // Another thread took the room in the meantime.
            Err(TrySendError::Full(draft)) => {
                // SAFETY: the rule on variables: `take` has set the caller's variable to NULL.
                unsafe { message.write(Box::into_raw(Box::new(tensorlend_draft::of(draft)))) };
                Err(full().into())
            }
            Err(TrySendError::Failed(error)) => Err(error.into()),
        }
    })
}

/// Waits until the stream has at least `count` subscribers, so that the first message finds them: `timeout_ns`
/// nanoseconds at most, without limit if that is below 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_wait_subscribers(
    stream: *const tensorlend_stream,
    count: u64,
    timeout_ns: i64,
) -> tensorlend_status {
    guard(|| {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        // SAFETY: the rule on handles.
        unsafe { handle(stream, "stream") }?.stream.wait_subscribers(count, long(timeout_ns))?;
        Ok(())
    })
}

/// The stream's name, borrowed from the handle; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_name(stream: *const tensorlend_stream) -> *const c_char {
    // SAFETY: the rule on handles.
    look(std::ptr::null(), || unsafe { stream.as_ref() }.map(|stream| stream.name.as_ptr()))
}

/// Maximum number of messages that the stream holds; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_capacity(stream: *const tensorlend_stream) -> u32 {
    // SAFETY: the rule on handles.
    look(0, || unsafe { stream.as_ref() }.map(|stream| stream.stream.capacity()))
}

/// Messages sent so far; 0 for NULL, and in the child of a fork.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_sent(stream: *const tensorlend_stream) -> u64 {
    // SAFETY: the rule on handles.
    look(0, || unsafe { stream.as_ref() }.map(|stream| stream.stream.sent()))
}

/// Subscribers at the moment; 0 for NULL, and in the child of a fork.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_subscribers(stream: *const tensorlend_stream) -> u64 {
    // SAFETY: the rule on handles.
    look(0, || unsafe { stream.as_ref() }.map(|stream| stream.stream.subscribers() as u64))
}

/// Closes the stream, and frees the handle; NULL does nothing. Subscribers take its remaining messages and then get
/// `TENSORLEND_STREAM_ENDED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_close(stream: *mut tensorlend_stream) {
    // SAFETY: the rule on handles.
    unsafe { free(stream) }
}

/// Deletes a stream with its messages, even if a producer has it open. Writes whether it existed to `*existed`, unless that is
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_delete(
    client: *const tensorlend_client,
    name: *const c_char,
    existed: *mut bool,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and strings.
        let (client, name) = unsafe { both(client, name) }?;
        let deleted = client.delete_stream(name)?;
        // SAFETY: the rule on variables.
        unsafe { tell(existed, deleted) };
        Ok(())
    })
}
