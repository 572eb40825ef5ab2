//! Names and their latest values.

use super::arguments::{Out, OutVar, buffer, handle, tell, text, timeout};
use super::client::tensorlend_client;
use super::lease::tensorlend_lease;
use super::status::{guard, tensorlend_status};
use super::version::tensorlend_version;
use std::ffi::{c_char, c_void};
use tensorlend::{Client, Result, Value, Version};

/// Converts a client and a name.
///
/// # Safety
/// The rules on handles and strings.
pub(super) unsafe fn both<'a>(client: *const tensorlend_client, name: *const c_char) -> Result<(&'a Client, &'a str)> {
    // SAFETY: the rules on handles and strings.
    Ok(unsafe { (&handle(client, "client")?.client, text(name, "name")?) })
}

/// Leases the name's current tensor, without a copy. Later values of the name do not change it.
///
/// `TENSORLEND_NOT_FOUND`; `TENSORLEND_KIND` for a dataset; `TENSORLEND_LIMIT` with 4096 leases held already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_get(
    client: *const tensorlend_client,
    name: *const c_char,
    lease: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles, variables and strings.
        let (out, (client, name)) = unsafe { (Out::new(lease, "lease")?, both(client, name)?) };
        out.lend(Value::Tensor(client.get(name)?));
        Ok(())
    })
}

/// Leases the name's current dataset: all of its tensors, with one lease. Errors are those of `tensorlend_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_get_dataset(
    client: *const tensorlend_client,
    name: *const c_char,
    lease: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles, variables and strings.
        let (out, (client, name)) = unsafe { (Out::new(lease, "lease")?, both(client, name)?) };
        out.lend(Value::Dataset(client.get_dataset(name)?));
        Ok(())
    })
}

/// Leases the name's current value, a tensor or a dataset.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_get_value(
    client: *const tensorlend_client,
    name: *const c_char,
    lease: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles, variables and strings.
        let (out, (client, name)) = unsafe { (Out::new(lease, "lease")?, both(client, name)?) };
        out.lend(client.get_value(name)?);
        Ok(())
    })
}

/// Copies the name's current tensor, in C order, into `to`, which has exactly the tensor's size in bytes. `version` may be
/// NULL.
///
/// `TENSORLEND_ARGUMENT` for another length; otherwise as `tensorlend_get`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_get_into(
    client: *const tensorlend_client,
    name: *const c_char,
    to: *mut c_void,
    bytes: u64,
    version: *mut tensorlend_version,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles, strings and lengths.
        let ((client, name), to) = unsafe { (both(client, name)?, buffer(to, bytes, "to")?) };
        let read = client.get_into(name, to)?;
        // SAFETY: the rule on variables.
        unsafe { tell(version, read.into()) };
        Ok(())
    })
}

/// As `tensorlend_get`, and waits for a name that does not exist yet: at most `timeout_ns` nanoseconds, without limit
/// if that is below 0. `TENSORLEND_TIMEOUT` after that time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_wait_for(
    client: *const tensorlend_client,
    name: *const c_char,
    timeout_ns: i64,
    lease: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles, variables and strings.
        let (out, (client, name)) = unsafe { (Out::new(lease, "lease")?, both(client, name)?) };
        out.lend(Value::Tensor(client.wait_for(name, timeout(timeout_ns))?));
        Ok(())
    })
}

/// As `tensorlend_wait_for`, for a tensor or dataset with another version than `seen`: the `tensorlend_lease_version`
/// of the last value, or a `tensorlend_version` of zeros for any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_wait_newer(
    client: *const tensorlend_client,
    name: *const c_char,
    seen: tensorlend_version,
    timeout_ns: i64,
    lease: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles, variables and strings.
        let (out, (client, name)) = unsafe { (Out::new(lease, "lease")?, both(client, name)?) };
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
        // SAFETY: the rules on handles, variables and strings.
        let (exists, (client, name)) = unsafe { (OutVar::new(exists, "exists")?, both(client, name)?) };
        exists.fill(client.exists(name)?);
        Ok(())
    })
}

/// Writes the version of the name's value to `*version`: zeros if the name does not exist. Takes no lease.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_current_version(
    client: *const tensorlend_client,
    name: *const c_char,
    version: *mut tensorlend_version,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles, variables and strings.
        let (version, (client, name)) = unsafe { (OutVar::new(version, "version")?, both(client, name)?) };
        version.fill(client.version(name)?.unwrap_or(Version::NONE).into());
        Ok(())
    })
}

/// Deletes a name. Writes whether it existed to `*existed`, unless that is NULL. Leases on its value remain valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_delete(
    client: *const tensorlend_client,
    name: *const c_char,
    existed: *mut bool,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and strings.
        let (client, name) = unsafe { both(client, name) }?;
        let deleted = client.delete(name)?;
        // SAFETY: the rule on variables.
        unsafe { tell(existed, deleted) };
        Ok(())
    })
}

/// Renames a value. A former value of the new name is replaced. `TENSORLEND_NOT_FOUND` if `from` does not exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_rename(
    client: *const tensorlend_client,
    from: *const c_char,
    to: *const c_char,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and strings.
        let ((client, from), to) = unsafe { (both(client, from)?, text(to, "to")?) };
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
        // SAFETY: the rules on handles and strings.
        let ((client, from), to) = unsafe { (both(client, from)?, text(to, "to")?) };
        let copied = client.copy(from, to)?;
        // SAFETY: the rule on variables.
        unsafe { tell(version, copied.into()) };
        Ok(())
    })
}
