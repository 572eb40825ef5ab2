//! Subscriptions to streams.

use super::arguments::{c_text, call, choice, free, long, look, timeout};
use super::client::tensorlend_client;
use super::lease::tensorlend_lease;
use super::status::tensorlend_status;
use std::ffi::{CString, c_char};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null;
use tensorlend::{Error, Result, Start, Subscription};

/// The first message of a subscription.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum tensorlend_start {
    /// The newest message of the stream.
    TENSORLEND_START_NEWEST = 0,
    /// The oldest message that the stream still has.
    TENSORLEND_START_OLDEST = 1,
    /// The next message that the producer sends.
    TENSORLEND_START_NEXT = 2,
}

/// Flag of `tensorlend_subscribe`: the subscription has a descriptor for poll and epoll.
pub const TENSORLEND_POLLABLE: u32 = 1;

/// A subscription to a stream. Only one thread at a time may use a subscription.
/// `tensorlend_subscription_close` ends it.
pub struct tensorlend_subscription {
    subscription: Subscription,
    pollable: bool,
    name: CString,
}

/// Subscribes to a stream. `start` is a `tensorlend_start`, `flags` 0 or `TENSORLEND_POLLABLE`. If
/// the stream is not open yet, the call waits at most `wait_ns` nanoseconds, or without limit if
/// `wait_ns` is below 0.
///
/// Errors:
/// - `TENSORLEND_NOT_FOUND` if there is no such stream.
/// - `TENSORLEND_TIMEOUT` if the stream was not opened in time.
/// - `TENSORLEND_LIMIT` if 256 subscriptions are already open, or if the stream has its maximum
///   number of subscribers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_subscribe(
    client: *const tensorlend_client,
    name: *const c_char,
    start: i32,
    flags: u32,
    wait_ns: i64,
    subscription: *mut *mut tensorlend_subscription,
) -> tensorlend_status {
    call!(|subscription: out, client: handle, name: text| {
        if flags & !TENSORLEND_POLLABLE != 0 {
            return Err(Error::Argument(format!("flags {flags:#x}: there is only TENSORLEND_POLLABLE")).into());
        }
        let pollable = flags & TENSORLEND_POLLABLE != 0;
        let builder = client.client.subscription(name).start_at(start_of(start)?);
        let builder = if pollable { builder.pollable() } else { builder };
        let builder = if wait_ns == 0 { builder } else { builder.wait(long(wait_ns)) };
        subscription.fill(tensorlend_subscription { subscription: builder.open()?, pollable, name: c_text(name) });
    })
}

fn start_of(number: i32) -> Result<Start> {
    use tensorlend_start::{TENSORLEND_START_NEWEST, TENSORLEND_START_NEXT, TENSORLEND_START_OLDEST};
    let all = [
        (TENSORLEND_START_NEWEST as i32, Start::Newest),
        (TENSORLEND_START_OLDEST as i32, Start::Oldest),
        (TENSORLEND_START_NEXT as i32, Start::Next),
    ];
    choice("start", number, &all)
}

/// Takes the next message. Waits for a message at most `timeout_ns` nanoseconds, or without limit
/// if `timeout_ns` is below 0. Writes a lease on the message to `*message`, and the message's
/// number to `*number`, unless `number` is NULL.
///
/// Errors:
/// - `TENSORLEND_TIMEOUT`.
/// - `TENSORLEND_STREAM_ENDED` once the producer has closed the stream or disconnected, and no
///   message is left. The subscription continues when a producer opens the stream again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_subscription_recv(
    subscription: *mut tensorlend_subscription,
    timeout_ns: i64,
    message: *mut *mut tensorlend_lease,
    number: *mut u64,
) -> tensorlend_status {
    call!(|message: out, subscription: handle_mut, number: optional_variable| {
        let received = match timeout(timeout_ns) {
            None => subscription.subscription.recv(),
            Some(timeout) => subscription.subscription.recv_timeout(timeout),
        }?;
        number.fill(received.sequence());
        message.lend(received.into_value(), subscription.subscription.name());
    })
}

/// Takes the next message if there is one. If there is none, sets `*message` to NULL, and returns
/// `TENSORLEND_OK`. Writes the message's number to `*number`, unless `number` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_subscription_try_recv(
    subscription: *mut tensorlend_subscription,
    message: *mut *mut tensorlend_lease,
    number: *mut u64,
) -> tensorlend_status {
    call!(|message: out, subscription: handle_mut, number: optional_variable| {
        if let Some(received) = subscription.subscription.try_recv()? {
            number.fill(received.sequence());
            message.lend(received.into_value(), subscription.subscription.name());
        }
    })
}

/// Returns a descriptor for poll and epoll, borrowed from the subscription. Returns -1 without
/// `TENSORLEND_POLLABLE`, and for NULL.
///
/// Before the first wait and after each wait, call `tensorlend_subscription_try_recv` until it
/// returns no message. That last call asks the producer to make the descriptor readable. A producer
/// that was killed does not do this, nor does a producer whose stream was deleted or opened again.
/// So call `tensorlend_subscription_try_recv` also about every 100 ms. The descriptor changes when
/// the stream is opened again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_subscription_fd(subscription: *const tensorlend_subscription) -> i32 {
    look!(-1, |subscription: handle| subscription.pollable.then(|| subscription.subscription.as_fd().as_raw_fd()))
}

/// Returns the number of messages that this subscription missed: they were replaced before it took
/// them, or the stream was opened again. Returns 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_subscription_lost(subscription: *const tensorlend_subscription) -> u64 {
    look!(0, |subscription: handle| Some(subscription.subscription.lost()))
}

/// Returns the number of the next message; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_subscription_position(subscription: *const tensorlend_subscription) -> u64 {
    look!(0, |subscription: handle| Some(subscription.subscription.position()))
}

/// The stream's name, borrowed from the subscription; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_subscription_name(subscription: *const tensorlend_subscription) -> *const c_char {
    look!(null(), |subscription: handle| Some(subscription.name.as_ptr()))
}

/// Ends a subscription, and frees the handle. NULL does nothing. Leases on its messages remain
/// valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_subscription_close(subscription: *mut tensorlend_subscription) {
    free!(subscription);
}
