//! The producer's handle of a stream.

use super::arguments::{c_text, call, choice, convert, free, long, look, timeout};
use super::client::tensorlend_client;
use super::draft::tensorlend_draft;
use super::status::tensorlend_status;
use std::ffi::{CString, c_char};
use std::ptr::null;
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
    call!(|stream: out, client: handle, name: text| {
        let builder = client.client.stream(name).policy(policy_of(policy)?);
        let opened = if capacity == 0 { builder } else { builder.capacity(capacity) }.open()?;
        stream.fill(tensorlend_stream { stream: opened, name: c_text(name) });
    })
}

fn policy_of(number: i32) -> Result<Policy> {
    use tensorlend_policy::{TENSORLEND_POLICY_BLOCK, TENSORLEND_POLICY_DROP_OLDEST, TENSORLEND_POLICY_ERROR};
    let all = [
        (TENSORLEND_POLICY_BLOCK as i32, Policy::Block),
        (TENSORLEND_POLICY_DROP_OLDEST as i32, Policy::DropOldest),
        (TENSORLEND_POLICY_ERROR as i32, Policy::Error),
    ];
    choice("policy", number, &all)
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
    call!(|stream: handle, message: consumed, number: optional_variable| {
        let message = message.draft()?;
        number.fill(match timeout(timeout_ns) {
            None => stream.stream.send(message),
            Some(timeout) => stream.stream.send_timeout(message, timeout),
        }?);
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
    call!(|stream: handle, number: optional_variable| {
        let stream = &stream.stream;
        let full = || Error::StreamFull(stream.name().to_owned());
        let draft = convert!(message: consumed)?;
        draft.check()?;
        // Check for room first, so that the draft is not taken over if the stream is full.
        stream.wait_room(Duration::ZERO).map_err(|error| if error.is_timeout() { full() } else { error })?;
        match stream.try_send(draft.draft()?) {
            Ok(sent) => number.fill(sent),
            // Another thread took the room in the meantime.
            Err(TrySendError::Full(draft)) => {
                convert!(message: out)?.fill(tensorlend_draft::of(draft));
                return Err(full().into());
            }
            Err(TrySendError::Failed(error)) => return Err(error.into()),
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
    call!(|stream: handle| {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        stream.stream.wait_subscribers(count, long(timeout_ns))?;
    })
}

/// The stream's name, borrowed from the handle; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_name(stream: *const tensorlend_stream) -> *const c_char {
    look!(null(), |stream: handle| Some(stream.name.as_ptr()))
}

/// Maximum number of messages that the stream holds; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_capacity(stream: *const tensorlend_stream) -> u32 {
    look!(0, |stream: handle| Some(stream.stream.capacity()))
}

/// Messages sent so far; 0 for NULL, and in the child of a fork.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_sent(stream: *const tensorlend_stream) -> u64 {
    look!(0, |stream: handle| Some(stream.stream.sent()))
}

/// Returns the number of subscribers now. Returns 0 for NULL, and in the child of a fork.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_subscribers(stream: *const tensorlend_stream) -> u64 {
    look!(0, |stream: handle| Some(stream.stream.subscribers() as u64))
}

/// Closes the stream, and frees the handle. NULL does nothing. Subscribers take the remaining
/// messages and then get `TENSORLEND_STREAM_ENDED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_close(stream: *mut tensorlend_stream) {
    free!(stream);
}

/// Deletes a stream with its messages, even if a producer has it open. Writes whether the stream
/// existed to `*existed`, unless `existed` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_stream_delete(
    client: *const tensorlend_client,
    name: *const c_char,
    existed: *mut bool,
) -> tensorlend_status {
    call!(|client: handle, name: text, existed: optional_variable| existed.fill(client.client.delete_stream(name)?))
}
