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
    /// Sending waits until the subscriber has taken the message.
    TENSORLEND_POLICY_BLOCK = 0,
    /// A new message replaces the oldest one. The subscriber loses the oldest message, and can read
    /// the number of lost messages.
    TENSORLEND_POLICY_DROP_OLDEST = 1,
    /// Sending fails with `TENSORLEND_FULL`.
    TENSORLEND_POLICY_ERROR = 2,
}

/// The producer's handle of a stream. Any thread may use the handle. `tensorlend_stream_close`
/// closes the stream.
pub struct tensorlend_stream {
    stream: Stream,
    name: CString,
}

/// Opens a stream, whose messages are numbered from 0. The stream holds `capacity` messages for
/// subscribers that lag or subscribe late. 0 means 8 messages. The call rounds `capacity` up to a
/// power of two, at most 65,536. `policy` is a `tensorlend_policy`.
///
/// Errors:
/// - `TENSORLEND_REFUSED` if another client has the stream open, or if this client has no right to write.
/// - `TENSORLEND_LIMIT` if a limit of the daemon, the namespace or the user is reached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_open(
    client: *const tensorlend_client,
    name: *const c_char,
    capacity: u32,
    policy: i32,
    stream: *mut *mut tensorlend_stream,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, variables are NULL or
        // writable, and strings are NULL or zero-terminated.
        let (out, (client, name)) = unsafe { (Out::new(stream, "stream")?, both(client, name, "name")?) };
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

/// Sends a message. With `TENSORLEND_POLICY_BLOCK`, waits while the stream is full, at most
/// `timeout_ns` nanoseconds, or without limit if `timeout_ns` is below 0. Takes `*message` over,
/// and drops the message if the call fails. Writes the message's number to `*number`, unless
/// `number` is NULL.
///
/// Errors:
/// - `TENSORLEND_TIMEOUT` if the stream was full during the whole timeout.
/// - `TENSORLEND_FULL` if the stream is full and its policy is `TENSORLEND_POLICY_ERROR`.
/// - `TENSORLEND_STREAM_ENDED` if the stream was deleted or has another producer now.
/// - `TENSORLEND_ARGUMENT` for a draft of another client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_send(
    stream: *const tensorlend_stream,
    message: *mut *mut tensorlend_draft,
    timeout_ns: i64,
    number: *mut u64,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive and used by this thread
        // alone, and variables are NULL or writable.
        let (stream, message) = unsafe { (&handle(stream, "stream")?.stream, take(message, "message")?) };
        let sent = match timeout(timeout_ns) {
            None => stream.send(message),
            Some(timeout) => stream.send_timeout(message, timeout),
        }?;
        // SAFETY: by the contract in `lib.rs`, the variable is NULL or writable.
        unsafe { tell(number, sent) };
        Ok(())
    })
}

/// Works like `tensorlend_stream_send`, but never waits. If the call returns `TENSORLEND_FULL`,
/// `*message` still holds the draft, and you can send it later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_try_send(
    stream: *const tensorlend_stream,
    message: *mut *mut tensorlend_draft,
    number: *mut u64,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
        let stream = unsafe { &handle(stream, "stream")?.stream };
        let full = || Error::StreamFull(stream.name().to_owned());
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, and variables are NULL or
        // writable.
        unsafe { check_taking(message, "message") }?;
        // Check for room first, so that the draft is not taken over if the stream is full.
        stream.wait_room(Duration::ZERO).map_err(|error| if error.is_timeout() { full() } else { error })?;
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive and used by this thread
        // alone, and variables are NULL or writable.
        match stream.try_send(unsafe { take(message, "message") }?) {
            Ok(sent) => {
                // SAFETY: by the contract in `lib.rs`, the variable is NULL or writable.
                unsafe { tell(number, sent) };
                Ok(())
            }
            // Another thread took the room in the meantime.
            Err(TrySendError::Full(draft)) => {
                // SAFETY: by the rule on variables, the variable is writable. `take` has set it to
                // NULL.
                unsafe { message.write(Box::into_raw(Box::new(tensorlend_draft::of(draft)))) };
                Err(full().into())
            }
            Err(TrySendError::Failed(error)) => Err(error.into()),
        }
    })
}

/// Waits until the stream has at least `count` subscribers, which then receive the first message.
/// Waits at most `timeout_ns` nanoseconds, or without limit if `timeout_ns` is below 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_wait_subscribers(
    stream: *const tensorlend_stream,
    count: u64,
    timeout_ns: i64,
) -> tensorlend_status {
    guard(|| {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
        unsafe { handle(stream, "stream") }?.stream.wait_subscribers(count, long(timeout_ns))?;
        Ok(())
    })
}

/// The stream's name, borrowed from the handle; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_name(stream: *const tensorlend_stream) -> *const c_char {
    // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
    look(std::ptr::null(), || unsafe { stream.as_ref() }.map(|stream| stream.name.as_ptr()))
}

/// Maximum number of messages that the stream holds; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_capacity(stream: *const tensorlend_stream) -> u32 {
    // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
    look(0, || unsafe { stream.as_ref() }.map(|stream| stream.stream.capacity()))
}

/// Messages sent so far; 0 for NULL, and in the child of a fork.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_sent(stream: *const tensorlend_stream) -> u64 {
    // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
    look(0, || unsafe { stream.as_ref() }.map(|stream| stream.stream.sent()))
}

/// Returns the number of subscribers now. Returns 0 for NULL, and in the child of a fork.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_subscribers(stream: *const tensorlend_stream) -> u64 {
    // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
    look(0, || unsafe { stream.as_ref() }.map(|stream| stream.stream.subscribers() as u64))
}

/// Closes the stream, and frees the handle. NULL does nothing. Subscribers take the remaining
/// messages and then get `TENSORLEND_STREAM_ENDED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_close(stream: *mut tensorlend_stream) {
    // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive, and used by this thread
    // alone.
    unsafe { free(stream) }
}

/// Deletes a stream with its messages, even if a producer has it open. Writes whether the stream
/// existed to `*existed`, unless `existed` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_delete(
    client: *const tensorlend_client,
    name: *const c_char,
    existed: *mut bool,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, and strings are NULL or
        // zero-terminated.
        let (client, name) = unsafe { both(client, name, "name") }?;
        let deleted = client.delete_stream(name)?;
        // SAFETY: by the contract in `lib.rs`, the variable is NULL or writable.
        unsafe { tell(existed, deleted) };
        Ok(())
    })
}
