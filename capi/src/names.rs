//! Names and their latest values.

use super::arguments::{Out, OutVar, buffer, handle, tell, text, timeout, values};
use super::client::tensorlend_client;
use super::lease::tensorlend_lease;
use super::leases::tensorlend_leases;
use super::status::{guard, tensorlend_status};
use super::version::tensorlend_version;
use std::ffi::{c_char, c_void};
use tensorlend::{Client, Result, Value, Version};

/// Converts a client and a name, which is the argument `what`.
///
/// # Safety
/// Handles are NULL or alive, and strings are NULL or zero-terminated, by the contract in `lib.rs`.
pub(super) unsafe fn both<'a>(
    client: *const tensorlend_client,
    name: *const c_char,
    what: &str,
) -> Result<(&'a Client, &'a str)> {
    // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, and strings are NULL or
    // zero-terminated.
    Ok(unsafe { (&handle(client, "client")?.client, text(name, what)?) })
}

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
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, variables are NULL or
        // writable, and strings are NULL or zero-terminated.
        let (out, (client, name)) = unsafe { (Out::new(lease, "lease")?, both(client, name, "name")?) };
        out.lend(Value::Tensor(client.get(name)?));
        Ok(())
    })
}

/// Leases the name's current dataset. One lease holds all of its tensors. Errors are those of
/// `tensorlend_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_get_dataset(
    client: *const tensorlend_client,
    name: *const c_char,
    lease: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, variables are NULL or
        // writable, and strings are NULL or zero-terminated.
        let (out, (client, name)) = unsafe { (Out::new(lease, "lease")?, both(client, name, "name")?) };
        out.lend(Value::Dataset(client.get_dataset(name)?));
        Ok(())
    })
}

/// Leases the name's current value, which is a tensor or a dataset.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_get_value(
    client: *const tensorlend_client,
    name: *const c_char,
    lease: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, variables are NULL or
        // writable, and strings are NULL or zero-terminated.
        let (out, (client, name)) = unsafe { (Out::new(lease, "lease")?, both(client, name, "name")?) };
        out.lend(client.get_value(name)?);
        Ok(())
    })
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
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, variables are NULL or
        // writable, and pointers with a length are NULL or point to memory of that length.
        let (out, client) = unsafe { (Out::new(leases, "leases")?, &handle(client, "client")?.client) };
        // SAFETY: by the contract in `lib.rs`, strings are NULL or zero-terminated, and pointers with a
        // length are NULL or point to memory of that length.
        let names = unsafe { texts(names, count) }?;
        let values: Result<Vec<Value>> = client.get_many(&names).into_iter().collect();
        out.lend_all(values?);
        Ok(())
    })
}

/// Converts an array of names.
///
/// # Safety
/// Strings are NULL or zero-terminated, and pointers with a length are NULL or point to memory of that
/// length, by the contract in `lib.rs`.
pub(super) unsafe fn texts<'a>(names: *const *const c_char, count: u64) -> Result<Vec<&'a str>> {
    // SAFETY: by the contract in `lib.rs`, the pointer is NULL or points to `count` pointers.
    let names = unsafe { values(names, count, "names") }?;
    // SAFETY: by the contract in `lib.rs`, each string is NULL or zero-terminated.
    names.iter().map(|&name| unsafe { text(name, "a name") }).collect()
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
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, strings are NULL or
        // zero-terminated, and pointers with a length are NULL or point to memory of that length.
        let ((client, name), to) = unsafe { (both(client, name, "name")?, buffer(to, bytes, "to")?) };
        let read = client.get_into(name, to)?;
        // SAFETY: by the contract in `lib.rs`, the variable is NULL or writable.
        unsafe { tell(version, read.into()) };
        Ok(())
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
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, variables are NULL or
        // writable, and strings are NULL or zero-terminated.
        let (out, (client, name)) = unsafe { (Out::new(lease, "lease")?, both(client, name, "name")?) };
        out.lend(Value::Tensor(client.wait_for(name, timeout(timeout_ns))?));
        Ok(())
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
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, variables are NULL or
        // writable, and strings are NULL or zero-terminated.
        let (out, (client, name)) = unsafe { (Out::new(lease, "lease")?, both(client, name, "name")?) };
        out.lend(client.wait_value(name, seen.into(), timeout(timeout_ns))?);
        Ok(())
    })
}

/// Writes to `*exists` whether the name exists. Takes no lease.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_exists(
    client: *const tensorlend_client,
    name: *const c_char,
    exists: *mut bool,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, variables are NULL or
        // writable, and strings are NULL or zero-terminated.
        let (exists, (client, name)) = unsafe { (OutVar::new(exists, "exists")?, both(client, name, "name")?) };
        exists.fill(client.exists(name)?);
        Ok(())
    })
}

/// Writes the version of the name's value to `*version`, or zeros if the name does not exist. Takes
/// no lease.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_current_version(
    client: *const tensorlend_client,
    name: *const c_char,
    version: *mut tensorlend_version,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, variables are NULL or
        // writable, and strings are NULL or zero-terminated.
        let (version, (client, name)) = unsafe { (OutVar::new(version, "version")?, both(client, name, "name")?) };
        version.fill(client.version(name)?.unwrap_or(Version::NONE).into());
        Ok(())
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
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, and strings are NULL or
        // zero-terminated.
        let (client, name) = unsafe { both(client, name, "name") }?;
        let deleted = client.delete(name)?;
        // SAFETY: by the contract in `lib.rs`, the variable is NULL or writable.
        unsafe { tell(existed, deleted) };
        Ok(())
    })
}

/// Renames a value. A former value of the new name is replaced. Fails with `TENSORLEND_NOT_FOUND`
/// if `from` does not exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_rename(
    client: *const tensorlend_client,
    from: *const c_char,
    to: *const c_char,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, and strings are NULL or
        // zero-terminated.
        let ((client, from), to) = unsafe { (both(client, from, "from")?, text(to, "to")?) };
        client.rename(from, to)?;
        Ok(())
    })
}

/// Publishes a copy of a value under another name. This client owns the copy. `version` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_copy(
    client: *const tensorlend_client,
    from: *const c_char,
    to: *const c_char,
    version: *mut tensorlend_version,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, and strings are NULL or
        // zero-terminated.
        let ((client, from), to) = unsafe { (both(client, from, "from")?, text(to, "to")?) };
        let copied = client.copy(from, to)?;
        // SAFETY: by the contract in `lib.rs`, the variable is NULL or writable.
        unsafe { tell(version, copied.into()) };
        Ok(())
    })
}
