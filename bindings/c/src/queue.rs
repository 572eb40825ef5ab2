//! Queues, in which each item goes to one of several consumers.

use super::arguments::{Consumed, c_text, call, convert, free, look, timeout};
use super::client::tensorlend_client;
use super::draft::tensorlend_draft;
use super::lease::tensorlend_lease;
use super::status::tensorlend_status;
use std::collections::BTreeSet;
use std::ffi::{CString, c_char};
use std::ptr::{from_ref, null};
use std::sync::Arc;
use tensorlend::{Claim, Deadline, Error, Queue, QueueItem, Result};

/// A queue with many producers and consumers, in which each item goes to one consumer. Any thread
/// may use it. `tensorlend_queue_free` frees the handle, but the queue and its items remain. The
/// items are those of the list with the queue's name, so `tensorlend_list_clear` deletes the queue.
pub struct tensorlend_queue {
    queue: Queue,
    name: CString,
}

/// An item that this consumer has claimed: a lease on its value, and the right to confirm it. No
/// other consumer gets the item unless this consumer gives it back. If the consumer's process ends
/// before it confirms the item, another consumer gets the item. Only one thread at a time may use
/// the handle.
///
/// `tensorlend_queue_item_done` and `tensorlend_queue_item_give_back` take the item over, and set
/// the caller's variable to NULL. `tensorlend_queue_item_free` gives an item back that was not
/// taken over.
pub struct tensorlend_queue_item {
    lease: Arc<tensorlend_lease>,
    claim: Claim,
    number: u64,
}

impl tensorlend_queue_item {
    fn of(item: QueueItem, queue: &Queue) -> Self {
        let number = item.number();
        let (value, claim) = item.split();
        Self { lease: tensorlend_lease::of(value, queue.name()), claim, number }
    }
}

/// Opens a queue, which exists once it has an item. `max_waiting` is the maximum number of waiting
/// items: `tensorlend_queue_put` and `tensorlend_queue_put_many` wait for room. All producers share
/// one maximum: while the queue has items, the daemon refuses a put with a different one. 0 is the
/// maximum that another producer gave; without one, there is none.
///
/// Errors: `TENSORLEND_ARGUMENT` for an invalid name, or a name of another machine, because a queue
/// serves the processes of one machine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_open(
    client: *const tensorlend_client,
    name: *const c_char,
    max_waiting: u64,
    queue: *mut *mut tensorlend_queue,
) -> tensorlend_status {
    call!(|queue: out, client: handle, name: text| {
        let opened = client.client.queue(name)?.max_waiting(max_waiting);
        queue.fill(tensorlend_queue { queue: opened, name: c_text(name) });
    })
}

/// Appends an item, which is a tensor or a dataset. While the queue is full, waits at most
/// `timeout_ns` nanoseconds, or without limit if `timeout_ns` is below 0. Takes `*item` over, and
/// drops the item if the call fails. Writes the item's number, counted from 0, to `*number`, unless
/// `number` is NULL.
///
/// Errors:
/// - `TENSORLEND_TIMEOUT` if the queue was full during the whole timeout.
/// - Otherwise those of `tensorlend_list_append`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_put(
    queue: *const tensorlend_queue,
    item: *mut *mut tensorlend_draft,
    timeout_ns: i64,
    number: *mut u64,
) -> tensorlend_status {
    call!(|queue: handle, item: consumed, number: optional_variable| {
        number.fill(queue.queue.put(item.draft()?, timeout(timeout_ns))?);
    })
}

/// Appends `count` different items in one request, as adjacent items: all of them or none. While the queue has no room for all of
/// them, waits at most `timeout_ns` nanoseconds, or without limit if `timeout_ns` is below 0. Takes all items over, sets the
/// elements of `items` to NULL, and drops the items if the call fails. Writes the number of the first item to `*number`, unless
/// `number` is NULL. Without items, does nothing and writes 0.
///
/// Errors:
/// - `TENSORLEND_ARGUMENT` for more than 1,024 items, or more than the queue's `max_waiting`. Also if an item is NULL or occurs
///   twice, or if a `DLPack` tensor of an item is in use; then the elements of `items` are unchanged.
/// - `TENSORLEND_TIMEOUT` if the queue had no room for all items during the whole timeout.
/// - Otherwise those of `tensorlend_list_append`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_put_many(
    queue: *const tensorlend_queue,
    items: *mut *mut tensorlend_draft,
    count: u64,
    timeout_ns: i64,
    number: *mut u64,
) -> tensorlend_status {
    call!(|queue: handle, items: all_consumed(count), number: optional_variable| {
        let drafts: BTreeSet<_> = items.iter().map(|item| item.check().map(from_ref)).collect::<Result<_>>()?;
        if drafts.len() < items.len() {
            return Err(Error::Argument("two of the items are the same draft: give each draft once".into()).into());
        }
        let drafts = items.into_iter().map(Consumed::draft).collect::<Result<Vec<_>>>()?;
        number.fill(queue.queue.put_many(drafts, timeout(timeout_ns))?.start);
    })
}

/// Claims the first waiting item. While the queue is empty, waits at most `timeout_ns` nanoseconds,
/// or without limit if `timeout_ns` is below 0.
///
/// Errors:
/// - `TENSORLEND_TIMEOUT` if the queue was empty during the whole timeout.
/// - `TENSORLEND_REFUSED` if this client has no right to write, or has already claimed 4096 items.
/// - `TENSORLEND_LIMIT` if the client already holds 4096 leases, where the item waits again.
/// - `TENSORLEND_DAMAGED` if a faulty producer appended the item, where the item is removed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_get(
    queue: *const tensorlend_queue,
    timeout_ns: i64,
    item: *mut *mut tensorlend_queue_item,
) -> tensorlend_status {
    call!(|item: out, queue: handle| item
        .fill(tensorlend_queue_item::of(queue.queue.get(timeout(timeout_ns))?, &queue.queue)))
}

/// Confirms `*item`, as `tensorlend_queue_item_done` does, and claims the next item into the same variable, as
/// `tensorlend_queue_get` does: in one request. Takes the old item over, also if the call fails; the variable is NULL then. If
/// `*item` is NULL, only claims. The confirmation counts before any wait for the next item.
///
/// Errors are those of `tensorlend_queue_get`: the old item is confirmed. `TENSORLEND_DISCONNECTED`: the client confirms it with
/// its next request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_next(
    queue: *const tensorlend_queue,
    timeout_ns: i64,
    item: *mut *mut tensorlend_queue_item,
) -> tensorlend_status {
    call!(|queue: handle| {
        let done = convert!(item: consumed)?.take_any()?.map(|item| item.claim);
        let out = convert!(item: out)?;
        let next = queue.queue.feed(1).next(done, Deadline::new(timeout(timeout_ns)))?;
        out.fill(tensorlend_queue_item::of(next, &queue.queue));
    })
}

/// Writes the number of items that wait for a consumer to `*items`. Asks the daemon.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_waiting(
    queue: *const tensorlend_queue,
    items: *mut u64,
) -> tensorlend_status {
    call!(|items: variable, queue: handle| items.fill(queue.queue.waiting()?))
}

/// Writes the number of items that consumers have claimed and not confirmed to `*items`. Sends the
/// daemon a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_claimed(
    queue: *const tensorlend_queue,
    items: *mut u64,
) -> tensorlend_status {
    call!(|items: variable, queue: handle| items.fill(queue.queue.claimed()?))
}

/// The queue's name, borrowed from the handle; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_name(queue: *const tensorlend_queue) -> *const c_char {
    look!(null(), |queue: handle| Some(queue.name.as_ptr()))
}

/// Frees the handle. NULL does nothing. The queue, its items and claimed items remain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_free(queue: *mut tensorlend_queue) {
    free!(queue);
}

/// Returns a lease on the item's value, borrowed from the item; NULL for NULL.
/// `tensorlend_lease_clone` creates a lease that outlives the item.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_item_value(item: *const tensorlend_queue_item) -> *const tensorlend_lease {
    look!(null(), |item: handle| Some(Arc::as_ptr(&item.lease)))
}

/// The item's number, counted from 0; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_item_number(item: *const tensorlend_queue_item) -> u64 {
    look!(0, |item: handle| Some(item.number))
}

/// Confirms an item. The daemon then deletes the item. Takes `*item` over. Writes whether the claim
/// still existed to `*existed`, unless `existed` is NULL. The claim no longer exists if the queue
/// was cleared, or if the daemon was replaced and gave the item to another consumer.
///
/// Errors: `TENSORLEND_DISCONNECTED` if no daemon responds. Then the client confirms the item with
/// its next request. The item is delivered again if the session ends before that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_item_done(
    item: *mut *mut tensorlend_queue_item,
    existed: *mut bool,
) -> tensorlend_status {
    call!(|item: consumed, existed: optional_variable| existed.fill(item.take()?.claim.done()?))
}

/// Gives an item back. The next consumer that asks for an item gets this one. Takes `*item` over.
/// Errors are those of `tensorlend_queue_item_done`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_item_give_back(item: *mut *mut tensorlend_queue_item) -> tensorlend_status {
    call!(|item: consumed| item.take()?.claim.give_back()?)
}

/// Gives an item back that was neither confirmed nor given back, and frees the handle. NULL does
/// nothing. The lease that was borrowed from the item is invalid after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_item_free(item: *mut tensorlend_queue_item) {
    free!(item);
}
