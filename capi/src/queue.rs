//! Queues: each item goes to one of several consumers.

use super::arguments::{Out, OutVar, c_text, free, given, handle, take_over, tell, timeout};
use super::client::tensorlend_client;
use super::draft::{take, tensorlend_draft};
use super::lease::tensorlend_lease;
use super::names::both;
use super::status::{guard, look, tensorlend_status};
use std::ffi::{CString, c_char};
use std::sync::Arc;
use tensorlend::{Claim, Queue, QueueItem};

/// A queue: many producers, many consumers, and each item goes to one consumer. Any thread may use it. `tensorlend_queue_free`
/// frees the handle; the queue and its items remain. Its items are those of the list with its name, so `tensorlend_list_clear`
/// deletes it.
pub struct tensorlend_queue {
    queue: Queue,
    name: CString,
}

/// An item that this consumer has claimed: a lease on its value, and the right to confirm it. No other consumer gets the item
/// until it is given back. If the consumer's process ends before it confirms the item, another consumer gets it. One thread
/// at a time uses the handle.
///
/// `tensorlend_queue_item_done` and `tensorlend_queue_item_give_back` take it over, and set the caller's variable to NULL.
/// `tensorlend_queue_item_free` gives an item back that was not taken over.
pub struct tensorlend_queue_item {
    lease: Arc<tensorlend_lease>,
    claim: Claim,
    number: u64,
}

impl tensorlend_queue_item {
    fn of(item: QueueItem) -> Self {
        let number = item.number();
        let (value, claim) = item.split();
        Self { lease: tensorlend_lease::of(value), claim, number }
    }
}

/// Takes an item over and sets the caller's variable to NULL. On error the variable is unchanged.
///
/// # Safety
/// The rules on handles and variables.
unsafe fn take_item(item: *mut *mut tensorlend_queue_item) -> tensorlend::Result<Claim> {
    // SAFETY: the rules on handles and variables.
    unsafe { given(item, "item") }?;
    // SAFETY: the rules on handles and variables; `given` has accepted it.
    Ok(unsafe { take_over(item) }.claim)
}

/// Opens a queue, which exists once it has an item. `max_waiting` is the number of waiting items at which
/// `tensorlend_queue_put` of this handle waits; 0: no maximum.
///
/// `TENSORLEND_ARGUMENT` for an invalid name, or one of another machine: a queue serves the processes of one machine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_open(
    client: *const tensorlend_client,
    name: *const c_char,
    max_waiting: u64,
    queue: *mut *mut tensorlend_queue,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles, variables and strings.
        let (out, (client, name)) = unsafe { (Out::new(queue, "queue")?, both(client, name)?) };
        let queue = client.queue(name)?.max_waiting(max_waiting);
        out.fill(tensorlend_queue { queue, name: c_text(name) });
        Ok(())
    })
}

/// Appends an item, a tensor or a dataset. Waits while the queue is full: `timeout_ns` nanoseconds at most, without limit if
/// that is below 0, not at all if it is 0. Takes `*item` over, and drops it if the call fails. Writes the item's number,
/// counted from 0, to `*number`, unless that is NULL.
///
/// `TENSORLEND_TIMEOUT` if the queue was full the whole time. Otherwise errors are those of `tensorlend_list_append`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_put(
    queue: *const tensorlend_queue,
    item: *mut *mut tensorlend_draft,
    timeout_ns: i64,
    number: *mut u64,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and variables.
        let (queue, item) = unsafe { (&handle(queue, "queue")?.queue, take(item)?) };
        let at = queue.put(item, timeout(timeout_ns))?;
        // SAFETY: the rule on variables.
        unsafe { tell(number, at) };
        Ok(())
    })
}

/// Claims the first item that waits. Waits while the queue is empty: `timeout_ns` nanoseconds at most, without limit if that is
/// below 0, not at all if it is 0.
///
/// `TENSORLEND_TIMEOUT` if the queue was empty the whole time; `TENSORLEND_REFUSED` without the right to write, or with 4096
/// claimed items; `TENSORLEND_LIMIT` with 4096 leases held already: the item waits again; `TENSORLEND_DAMAGED` if a faulty
/// producer put the item, which is then removed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_get(
    queue: *const tensorlend_queue,
    timeout_ns: i64,
    item: *mut *mut tensorlend_queue_item,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and variables.
        let (out, queue) = unsafe { (Out::new(item, "item")?, &handle(queue, "queue")?.queue) };
        out.fill(tensorlend_queue_item::of(queue.get(timeout(timeout_ns))?));
        Ok(())
    })
}

/// Writes the number of items that wait for a consumer to `*items`. Asks the daemon.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_waiting(
    queue: *const tensorlend_queue,
    items: *mut u64,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and variables.
        let (items, queue) = unsafe { (OutVar::new(items, "items")?, &handle(queue, "queue")?.queue) };
        items.fill(queue.waiting()?);
        Ok(())
    })
}

/// Writes the number of items that consumers have claimed and not confirmed to `*items`. Asks the daemon.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_claimed(
    queue: *const tensorlend_queue,
    items: *mut u64,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and variables.
        let (items, queue) = unsafe { (OutVar::new(items, "items")?, &handle(queue, "queue")?.queue) };
        items.fill(queue.claimed()?);
        Ok(())
    })
}

/// The queue's name, borrowed from the handle; NULL for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_name(queue: *const tensorlend_queue) -> *const c_char {
    // SAFETY: the rule on handles.
    look(std::ptr::null(), || unsafe { queue.as_ref() }.map(|queue| queue.name.as_ptr()))
}

/// Frees the handle; NULL does nothing. The queue, its items and claimed items remain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_free(queue: *mut tensorlend_queue) {
    // SAFETY: the rule on handles.
    unsafe { free(queue) }
}

/// A lease on the item's value, borrowed from the item; NULL for NULL. `tensorlend_lease_clone` makes a lease that outlives
/// the item.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_item_value(item: *const tensorlend_queue_item) -> *const tensorlend_lease {
    // SAFETY: the rule on handles.
    look(std::ptr::null(), || unsafe { item.as_ref() }.map(|item| Arc::as_ptr(&item.lease)))
}

/// The item's number, counted from 0; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_item_number(item: *const tensorlend_queue_item) -> u64 {
    // SAFETY: the rule on handles.
    look(0, || unsafe { item.as_ref() }.map(|item| item.number))
}

/// Confirms an item, which the daemon deletes. Takes `*item` over. Writes to `*existed`, unless that is NULL, whether the claim
/// still existed: false if the queue was cleared, or if the daemon was replaced and gave the item to another consumer.
///
/// `TENSORLEND_DISCONNECTED` if no daemon answers: the client confirms the item with its next request. The item is delivered
/// again if the session ends before that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_item_done(
    item: *mut *mut tensorlend_queue_item,
    existed: *mut bool,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and variables.
        let confirmed = unsafe { take_item(item) }?.done()?;
        // SAFETY: the rule on variables.
        unsafe { tell(existed, confirmed) };
        Ok(())
    })
}

/// Gives an item back: it is the next one that a consumer gets. Takes `*item` over. Errors are those of
/// `tensorlend_queue_item_done`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_item_give_back(item: *mut *mut tensorlend_queue_item) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and variables.
        unsafe { take_item(item) }?.give_back()?;
        Ok(())
    })
}

/// Gives an item back that was neither confirmed nor given back, and frees the handle; NULL does nothing. The borrowed lease
/// is invalid then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_queue_item_free(item: *mut tensorlend_queue_item) {
    // SAFETY: the rule on handles.
    unsafe { free(item) }
}
