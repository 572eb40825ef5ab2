//! Lists, to which many producers append items in one order.

use super::arguments::{call, choice, timeout};
use super::client::tensorlend_client;
use super::draft::tensorlend_draft;
use super::leases::tensorlend_leases;
use super::status::tensorlend_status;
use std::ffi::c_char;
use tensorlend::{Error, Length, Result};

/// The comparison of a list's length with a number of items.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum tensorlend_length {
    /// Exactly this many items.
    TENSORLEND_LENGTH_EXACTLY = 0,
    /// This many items or more.
    TENSORLEND_LENGTH_AT_LEAST = 1,
    /// This many items or fewer.
    TENSORLEND_LENGTH_AT_MOST = 2,
}

/// Appends an item, which is a tensor or a dataset, to a list. The first item creates the list.
/// Takes `*item` over. Writes the item's number in the list to `*number`, unless `number` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_append(
    client: *const tensorlend_client,
    list: *const c_char,
    item: *mut *mut tensorlend_draft,
    number: *mut u64,
) -> tensorlend_status {
    call!(|client: handle, list: text, item: consumed, number: optional_variable| {
        number.fill(client.client.append(list, item.draft()?)?);
    })
}

/// Appends copies of the current values of `count` names, at most 1,024. Either all copies are
/// appended or none. The names keep their values. Writes the number of the first item to `*number`,
/// unless `number` is NULL. Fails with `TENSORLEND_NOT_FOUND` if a name is missing, and with
/// `TENSORLEND_ARGUMENT` for more than 1,024 names. Then nothing is appended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_append_names(
    client: *const tensorlend_client,
    list: *const c_char,
    names: *const *const c_char,
    count: u64,
    number: *mut u64,
) -> tensorlend_status {
    call!(|client: handle, list: text, names: texts(count), number: optional_variable| {
        number.fill(client.client.append_names(list, &names)?);
    })
}

/// Writes the number of a list's items to `*length`, or 0 if the list does not exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_length(
    client: *const tensorlend_client,
    list: *const c_char,
    length: *mut u64,
) -> tensorlend_status {
    call!(|length: variable, client: handle, list: text| length.fill(client.opened()?.length(list)))
}

/// Waits until the comparison of a list's length with `items` is true. `how` is a
/// `tensorlend_length`. Waits at most `timeout_ns` nanoseconds, or without limit if `timeout_ns` is
/// below 0. Writes the length to `*length`, unless `length` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_wait_length(
    client: *const tensorlend_client,
    list: *const c_char,
    how: i32,
    items: u64,
    timeout_ns: i64,
    length: *mut u64,
) -> tensorlend_status {
    call!(|client: handle, list: text, length: optional_variable| {
        length.fill(client.client.wait_length(list, wanted(how, items)?, timeout(timeout_ns))?);
    })
}

/// Another name of `tensorlend_list_wait_length`, for programs that were compiled with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_wait(
    client: *const tensorlend_client,
    list: *const c_char,
    how: i32,
    items: u64,
    timeout_ns: i64,
    length: *mut u64,
) -> tensorlend_status {
    // SAFETY: the other function has the same contract, which the caller of this function keeps.
    unsafe { tensorlend_list_wait_length(client, list, how, items, timeout_ns, length) }
}

fn wanted(how: i32, items: u64) -> Result<Length> {
    use tensorlend_length::{TENSORLEND_LENGTH_AT_LEAST, TENSORLEND_LENGTH_AT_MOST, TENSORLEND_LENGTH_EXACTLY};
    let (exactly, at_least, at_most) = (Length::Exactly(items), Length::AtLeast(items), Length::AtMost(items));
    let all = [
        (TENSORLEND_LENGTH_EXACTLY as i32, exactly),
        (TENSORLEND_LENGTH_AT_LEAST as i32, at_least),
        (TENSORLEND_LENGTH_AT_MOST as i32, at_most),
    ];
    choice("length", how, &all)
}

/// Leases the items `first` to `end - 1` of a list, in order. The call ignores numbers beyond the
/// list's end. So with `UINT64_MAX` as `end` it leases all items from `first` on.
///
/// Errors:
/// - `TENSORLEND_NOT_FOUND` if there is no such list.
/// - `TENSORLEND_LIMIT` for more items than a client can lease (4096).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_get_range(
    client: *const tensorlend_client,
    list: *const c_char,
    first: u64,
    end: u64,
    leases: *mut *mut tensorlend_leases,
) -> tensorlend_status {
    call!(|leases: out, client: handle, list: text| {
        if first > end {
            return Err(Error::Argument(format!("items {first} to {end}: the end is before the first")).into());
        }
        leases.lend_all(client.client.get_range(list, first..end)?.into_iter().map(|value| (value, list)));
    })
}

/// Another name of `tensorlend_list_get_range`, for programs that were compiled with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_get(
    client: *const tensorlend_client,
    list: *const c_char,
    first: u64,
    end: u64,
    leases: *mut *mut tensorlend_leases,
) -> tensorlend_status {
    // SAFETY: the other function has the same contract, which the caller of this function keeps.
    unsafe { tensorlend_list_get_range(client, list, first, end, leases) }
}

/// Removes a list and its items. Writes whether the list existed to `*existed`, unless `existed` is
/// NULL. Leases on its items remain valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_clear(
    client: *const tensorlend_client,
    list: *const c_char,
    existed: *mut bool,
) -> tensorlend_status {
    call!(|client: handle, list: text, existed: optional_variable| existed.fill(client.client.clear(list)?))
}

/// Renames a list, and removes a list with the new name. Fails with `TENSORLEND_NOT_FOUND` if the
/// list `from` does not exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_rename(
    client: *const tensorlend_client,
    from: *const c_char,
    to: *const c_char,
) -> tensorlend_status {
    call!(|client: handle, from: text, to: text| client.client.rename_list(from, to)?)
}
