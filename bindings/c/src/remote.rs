//! Names of other machines. This machine's gateway serves these calls.

use super::arguments::{call, convert};
use super::client::tensorlend_client;
use super::draft::{filled, tensorlend_draft};
use super::dtype::tensorlend_dtype;
use super::listing::tensorlend_listing;
use super::status::tensorlend_status;
use std::ffi::{c_char, c_void};
use tensorlend::check_name;

/// Copies `shape`'s elements, row-major, and publishes them under a name of another machine,
/// "NODE/NAME". The call returns when that machine has published the value. The configuration of
/// that machine must allow this.
///
/// Errors:
/// - `TENSORLEND_REMOTE` for an unknown or unreachable machine, and for a machine that refuses.
/// - `TENSORLEND_TIMEOUT` if no response arrived within `tensorlend_options_remote_timeout`, where
///   the value may have been published.
/// - Otherwise those of `tensorlend_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_put_remote(
    client: *const tensorlend_client,
    name: *const c_char,
    dtype: tensorlend_dtype,
    ndim: u32,
    shape: *const u64,
    data: *const c_void,
) -> tensorlend_status {
    call!(|client: handle, name: text| {
        check_name(name)?;
        let (spec, data) = convert!(data: elements(dtype, ndim, shape))?;
        client.client.remote().put_draft(name, filled(&client.client, spec, data)?)?;
    })
}

/// Works like `tensorlend_put_remote`, for a draft of a tensor or a dataset in host memory. Takes
/// `*draft` over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_publish_remote(
    client: *const tensorlend_client,
    draft: *mut *mut tensorlend_draft,
    name: *const c_char,
) -> tensorlend_status {
    call!(|client: handle, name: text, draft: consumed| {
        check_name(name)?;
        client.client.remote().put_draft(name, draft.draft()?)?;
    })
}

/// Fetches the items of another machine's list, "NODE/LIST", that are not on this machine yet.
/// Waits until all of them are on this machine. Then `tensorlend_list_get_range` finds them under
/// that name. Writes the number of items to `*length`.
///
/// Errors:
/// - `TENSORLEND_REMOTE`.
/// - `TENSORLEND_TIMEOUT`. After a timeout the fetched items stay, so you can repeat the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_fetch_list(
    client: *const tensorlend_client,
    list: *const c_char,
    length: *mut u64,
) -> tensorlend_status {
    call!(|length: variable, client: handle, list: text| length.fill(client.client.remote().fetch_list(list)?))
}

/// Lists the machines that this machine's gateway has seen, and this machine, as entries of
/// `TENSORLEND_KIND_NODE`. The listing is empty if there is no gateway. The call reads shared
/// memory, and sends the gateway no request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_nodes(
    client: *const tensorlend_client,
    listing: *mut *mut tensorlend_listing,
) -> tensorlend_status {
    call!(|listing: out, client: handle| listing.list_nodes(client.client.remote().nodes()?))
}

/// Lists the names, streams and lists of other machines that match the pattern `glob`, such as
/// "NODE/a*". After them, each machine that did not respond has an entry of `TENSORLEND_KIND_NODE`.
/// `cached` and `stale` of an entry describe the copy on this machine.
///
/// Errors:
/// - `TENSORLEND_REMOTE` if the gateway does not respond.
/// - `TENSORLEND_TIMEOUT`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_remote_names(
    client: *const tensorlend_client,
    glob: *const c_char,
    listing: *mut *mut tensorlend_listing,
) -> tensorlend_status {
    call!(|listing: out, client: handle, glob: text| listing.list_remote(client.client.remote().names(glob)?))
}

/// Another name of `tensorlend_list_remote_names`, for programs that were compiled with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_remote(
    client: *const tensorlend_client,
    glob: *const c_char,
    listing: *mut *mut tensorlend_listing,
) -> tensorlend_status {
    // SAFETY: the other function has the same contract, which the caller of this function keeps.
    unsafe { tensorlend_list_remote_names(client, glob, listing) }
}

/// Asks the gateway for the place of a name of another machine. The result is a listing of one
/// entry. Its `label` is the machine, `alive` is whether the machine can be reached, and `cached`
/// and `stale` describe the copy on this machine. The listing is empty for a name of this machine
/// or of an unknown machine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_placement(
    client: *const tensorlend_client,
    name: *const c_char,
    listing: *mut *mut tensorlend_listing,
) -> tensorlend_status {
    call!(|listing: out, client: handle, name: text| listing
        .list_placement(name, client.client.remote().placement(name)?))
}
