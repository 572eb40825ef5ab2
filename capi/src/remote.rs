//! Names of other machines, by this machine's gateway.

use super::arguments::{Out, OutVar, handle, values};
use super::client::tensorlend_client;
use super::draft::{filled, spec, take, tensorlend_draft};
use super::dtype::tensorlend_dtype;
use super::listing::tensorlend_listing;
use super::names::both;
use super::status::{guard, tensorlend_status};
use std::ffi::{c_char, c_void};
use tensorlend::check_name;

/// Copies `shape`'s elements, row-major, and publishes them under a name of another machine, "NODE/NAME". Returns when
/// the value is published there; that machine's configuration must allow it.
///
/// `TENSORLEND_REMOTE` for an unknown or unreachable machine, and for a machine that refuses; `TENSORLEND_TIMEOUT` without a
/// response in time (`tensorlend_options_remote_timeout`): the value may have been published; otherwise as `tensorlend_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_put_remote(
    client: *const tensorlend_client,
    name: *const c_char,
    dtype: tensorlend_dtype,
    ndim: u32,
    shape: *const u64,
    data: *const c_void,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and strings.
        let (client, name) = unsafe { both(client, name) }?;
        check_name(name)?;
        // SAFETY: the rule on lengths.
        let spec = unsafe { spec(dtype, ndim, shape, std::ptr::null(), 0) }?;
        // SAFETY: the rule on lengths: the elements' bytes, whose number follows from the shape.
        let data = unsafe { values(data.cast(), spec.bytes()?, "data") }?;
        client.put_remote_draft(name, filled(client, spec, data)?)?;
        Ok(())
    })
}

/// As `tensorlend_put_remote`, for a draft of a tensor or a dataset in host memory. Takes `*draft` over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_publish_remote(
    client: *const tensorlend_client,
    draft: *mut *mut tensorlend_draft,
    name: *const c_char,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and strings.
        let (client, name) = unsafe { both(client, name) }?;
        check_name(name)?;
        // SAFETY: the rules on handles and variables.
        client.put_remote_draft(name, unsafe { take(draft) }?)?;
        Ok(())
    })
}

/// Fetches the items of a list of another machine, "NODE/LIST", that are not on this machine yet, and waits until they are.
/// Afterwards `tensorlend_list_get_range` finds them under that name. Writes the number of items to `*length`.
///
/// `TENSORLEND_REMOTE`; `TENSORLEND_TIMEOUT`, after which you can call this again: fetched items stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_fetch_list(
    client: *const tensorlend_client,
    list: *const c_char,
    length: *mut u64,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles, variables and strings.
        let (length, (client, list)) = unsafe { (OutVar::new(length, "length")?, both(client, list)?) };
        length.fill(client.fetch_list(list)?);
        Ok(())
    })
}

/// Lists the machines that this machine's gateway has seen, and this machine: entries of `TENSORLEND_KIND_NODE`. No entries
/// without a gateway. Reads shared memory, and does not ask the gateway.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_nodes(
    client: *const tensorlend_client,
    listing: *mut *mut tensorlend_listing,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and variables.
        let (out, client) = unsafe { (Out::new(listing, "listing")?, &handle(client, "client")?.client) };
        out.list_nodes(client.nodes()?);
        Ok(())
    })
}

/// Lists the names, streams and lists of other machines that match the pattern `glob` ("NODE/a*", for example), followed
/// by an entry of `TENSORLEND_KIND_NODE` for each machine that did not respond. `cached` and `stale` of an entry describe
/// the copy on this machine.
///
/// `TENSORLEND_REMOTE` if the gateway does not respond; `TENSORLEND_TIMEOUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_remote_names(
    client: *const tensorlend_client,
    glob: *const c_char,
    listing: *mut *mut tensorlend_listing,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles, variables and strings.
        let (out, (client, glob)) = unsafe { (Out::new(listing, "listing")?, both(client, glob)?) };
        out.list_remote(client.remote_names(glob)?);
        Ok(())
    })
}

/// Another name of `tensorlend_list_remote_names`, for programs that were compiled with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_remote(
    client: *const tensorlend_client,
    glob: *const c_char,
    listing: *mut *mut tensorlend_listing,
) -> tensorlend_status {
    // SAFETY: the same rules.
    unsafe { tensorlend_list_remote_names(client, glob, listing) }
}

/// Asks the gateway where a name of another machine is, as a listing of one entry: its `label` is the machine, `alive`
/// is whether the machine can be reached, and `cached` and `stale` describe the copy on this machine. No entry for a
/// name of this machine, or of an unknown one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_placement(
    client: *const tensorlend_client,
    name: *const c_char,
    listing: *mut *mut tensorlend_listing,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles, variables and strings.
        let (out, (client, name)) = unsafe { (Out::new(listing, "listing")?, both(client, name)?) };
        out.list_placement(name, client.placement(name)?);
        Ok(())
    })
}
