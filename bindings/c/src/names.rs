//! Names and their latest values.

use super::arguments::{call, timeout};
use super::client::tensorlend_client;
use super::lease::tensorlend_lease;
use super::leases::tensorlend_leases;
use super::status::tensorlend_status;
use super::version::tensorlend_version;
use std::ffi::{c_char, c_void};
use tensorlend::{Result, Value, Version};

/// Leases the name's current tensor, without a copy. Later values of the name do not change this
/// tensor.
///
/// Errors:
/// - `TENSORLEND_NOT_FOUND`.
/// - `TENSORLEND_KIND` for a dataset.
/// - `TENSORLEND_LIMIT` if the client already holds 4096 leases.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_get(
    client: *const tensorlend_client,
    name: *const c_char,
    lease: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    call!(|lease: out, client: handle, name: text| lease.lend(Value::Tensor(client.client.get(name)?), name))
}

/// Leases the name's current dataset. One lease holds all of its tensors. Errors are those of
/// `tensorlend_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_get_dataset(
    client: *const tensorlend_client,
    name: *const c_char,
    lease: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    call!(|lease: out, client: handle, name: text| lease.lend(Value::Dataset(client.client.get_dataset(name)?), name))
}

/// Leases the name's current value, which is a tensor or a dataset.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_get_value(
    client: *const tensorlend_client,
    name: *const c_char,
    lease: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    call!(|lease: out, client: handle, name: text| lease.lend(client.client.get_value(name)?, name))
}

/// Leases the current values of `count` names, which are tensors or datasets, in the order of the
/// names. Equivalent to one `tensorlend_get_value` for each name, and faster, because the cache misses
/// of up to 64 names overlap. The values are no snapshot: each is its name's value at some moment
/// during the call. A name may occur several times. Without names, there are no leases.
///
/// Errors are those of `tensorlend_get_value` for the first name that fails. Then the call holds no
/// lease.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_get_many(
    client: *const tensorlend_client,
    names: *const *const c_char,
    count: u64,
    leases: *mut *mut tensorlend_leases,
) -> tensorlend_status {
    call!(|leases: out, client: handle, names: texts(count)| {
        let values: Result<Vec<Value>> = client.client.get_many(&names).into_iter().collect();
        leases.lend_all(values?.into_iter().zip(names.iter().copied()));
    })
}

/// Copies the name's current tensor, in C order, into `to`. `bytes` must be exactly the tensor's
/// size in bytes. `version` may be NULL.
///
/// Errors:
/// - `TENSORLEND_ARGUMENT` for another length.
/// - Otherwise those of `tensorlend_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_get_into(
    client: *const tensorlend_client,
    name: *const c_char,
    to: *mut c_void,
    bytes: u64,
    version: *mut tensorlend_version,
) -> tensorlend_status {
    call!(|client: handle, name: text, to: buffer(bytes), version: optional_variable| {
        version.fill(client.client.get_into(name, to)?);
    })
}

/// Works like `tensorlend_get`, but waits for a name that does not exist yet. Waits at most
/// `timeout_ns` nanoseconds, or without limit if `timeout_ns` is below 0. Fails with
/// `TENSORLEND_TIMEOUT` after that time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_wait_for(
    client: *const tensorlend_client,
    name: *const c_char,
    timeout_ns: i64,
    lease: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    call!(|lease: out, client: handle, name: text| {
        lease.lend(Value::Tensor(client.client.wait_for(name, timeout(timeout_ns))?), name);
    })
}

/// Waits like `tensorlend_wait_for`, but for a tensor or dataset with a version other than `seen`.
/// `seen` is the `tensorlend_lease_version` of the last value. A version of zeros accepts any
/// value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_wait_newer(
    client: *const tensorlend_client,
    name: *const c_char,
    seen: tensorlend_version,
    timeout_ns: i64,
    lease: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    call!(|lease: out, client: handle, name: text| {
        lease.lend(client.client.wait_value(name, seen.into(), timeout(timeout_ns))?, name);
    })
}

/// Writes to `*exists` whether the name exists. Takes no lease.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_exists(
    client: *const tensorlend_client,
    name: *const c_char,
    exists: *mut bool,
) -> tensorlend_status {
    call!(|exists: variable, client: handle, name: text| exists.fill(client.client.exists(name)?))
}

/// Writes the version of the name's value to `*version`, or zeros if the name does not exist. Takes
/// no lease.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_current_version(
    client: *const tensorlend_client,
    name: *const c_char,
    version: *mut tensorlend_version,
) -> tensorlend_status {
    call!(|version: variable, client: handle, name: text| {
        version.fill(client.client.version(name)?.unwrap_or(Version::NONE));
    })
}

/// Deletes a name. Writes whether the name existed to `*existed`, unless `existed` is NULL. Leases
/// on its value remain valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_delete(
    client: *const tensorlend_client,
    name: *const c_char,
    existed: *mut bool,
) -> tensorlend_status {
    call!(|client: handle, name: text, existed: optional_variable| existed.fill(client.client.delete(name)?))
}

/// Renames a value. A former value of the new name is replaced. Fails with `TENSORLEND_NOT_FOUND`
/// if `from` does not exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_rename(
    client: *const tensorlend_client,
    from: *const c_char,
    to: *const c_char,
) -> tensorlend_status {
    call!(|client: handle, from: text, to: text| client.client.rename(from, to)?)
}

/// Publishes a copy of a value under another name. This client owns the copy. `version` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_copy(
    client: *const tensorlend_client,
    from: *const c_char,
    to: *const c_char,
    version: *mut tensorlend_version,
) -> tensorlend_status {
    call!(|client: handle, from: text, to: text, version: optional_variable| {
        version.fill(client.client.copy(from, to)?);
    })
}
