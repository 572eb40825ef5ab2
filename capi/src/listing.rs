//! Listings of names, streams and lists.

use super::arguments::{Out, c_text, free};
use super::client::tensorlend_client;
use super::lease::{tensorlend_kind, tensorlend_tensor};
use super::names::both;
use super::status::{guard, look, tensorlend_status};
use super::version::tensorlend_version;
use std::ffi::{CString, c_char};
use tensorlend::{Collection, Info, InfoKind, TensorInfo};
use tensorlend_kind::{TENSORLEND_KIND_DATASET, TENSORLEND_KIND_LIST, TENSORLEND_KIND_STREAM, TENSORLEND_KIND_TENSOR};

/// A name with its value, or a stream or a list, for which all fields except `name`, `kind` and `count` are 0. Borrowed
/// from the listing. The library makes these; later versions may have further fields at the end.
#[repr(C)]
pub struct tensorlend_entry {
    /// Its name.
    pub name: *const c_char,
    /// Its owner's label; empty for streams and lists.
    pub label: *const c_char,
    /// `count` descriptions of tensors: one of a tensor, all of a dataset; NULL for streams and lists.
    pub tensors: *const *const tensorlend_tensor,
    /// Tensors of a name, subscribers of a stream, items of a list.
    pub count: u64,
    /// Bytes of the elements, of all tensors together.
    pub nbytes: u64,
    /// Length of the metadata, in bytes.
    pub metadata_bytes: u64,
    /// Timestamp that its producer set, in nanoseconds; 0 if none.
    pub timestamp_ns: u64,
    /// Remaining time to live, in nanoseconds; 0 if it has none.
    pub ttl_ns: u64,
    /// Version of its value.
    pub version: tensorlend_version,
    /// Its kind.
    pub kind: tensorlend_kind,
    /// Process id of its owner.
    pub pid: u32,
    /// User id of its owner.
    pub uid: u32,
    /// Whether its owner is connected.
    pub alive: bool,
    /// Whether it ends with its owner's session.
    pub ephemeral: bool,
}

/// Entries, sorted by name. `tensorlend_listing_free` frees them.
pub struct tensorlend_listing {
    rows: Vec<Row>,
}

/// An entry and the memory to which it points. [`Row::point`] takes the pointers once the row is in its final place,
/// since a move would invalidate them.
struct Row {
    entry: tensorlend_entry,
    name: CString,
    label: CString,
    members: Vec<(Option<CString>, TensorInfo)>,
    tensors: Vec<tensorlend_tensor>,
    pointers: Vec<*const tensorlend_tensor>,
}

impl Row {
    fn new(name: &str, kind: tensorlend_kind, count: u64) -> Self {
        let entry = tensorlend_entry {
            name: std::ptr::null(),
            label: std::ptr::null(),
            tensors: std::ptr::null(),
            count,
            nbytes: 0,
            metadata_bytes: 0,
            timestamp_ns: 0,
            ttl_ns: 0,
            version: tensorlend_version::NONE,
            kind,
            pid: 0,
            uid: 0,
            alive: false,
            ephemeral: false,
        };
        let (name, label) = (c_text(name), CString::default());
        Self { entry, name, label, members: Vec::new(), tensors: Vec::new(), pointers: Vec::new() }
    }

    fn of_name(info: Info) -> Self {
        let (kind, members) = match info.kind {
            InfoKind::Tensor(tensor) => (TENSORLEND_KIND_TENSOR, vec![(None, tensor)]),
            InfoKind::Dataset(members) => {
                let named = members.into_iter().map(|(name, tensor)| (Some(c_text(&name)), tensor));
                (TENSORLEND_KIND_DATASET, named.collect())
            }
        };
        let row = Self::new(&info.name, kind, members.len() as u64);
        let ttl = info.lifetime.ttl.map_or(0, |ttl| u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX));
        let entry = tensorlend_entry {
            nbytes: info.nbytes,
            metadata_bytes: info.metadata_bytes,
            timestamp_ns: info.timestamp_ns,
            ttl_ns: ttl,
            version: info.version.into(),
            pid: info.pid,
            uid: info.uid,
            alive: info.alive,
            ephemeral: info.lifetime.ephemeral,
            ..row.entry
        };
        Self { entry, label: c_text(&info.label), members, ..row }
    }

    fn point(&mut self) {
        self.entry.name = self.name.as_ptr();
        self.entry.label = self.label.as_ptr();
        let described = |(name, tensor): &(Option<CString>, TensorInfo)| {
            described(name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr()), tensor)
        };
        self.tensors = self.members.iter().map(described).collect();
        self.pointers = self.tensors.iter().map(std::ptr::from_ref).collect();
        if !self.pointers.is_empty() {
            self.entry.tensors = self.pointers.as_ptr();
        }
    }
}

impl Out<tensorlend_listing> {
    fn list(self, rows: impl Iterator<Item = Row>) {
        let mut listing = Box::new(tensorlend_listing { rows: rows.collect() });
        listing.rows.iter_mut().for_each(Row::point);
        self.fill_boxed(listing);
    }
}

fn described(name: *const c_char, tensor: &TensorInfo) -> tensorlend_tensor {
    // A size of 0 makes the tensor empty, even where the product of the others overflows.
    let elements = if tensor.shape.contains(&0) { 0 } else { tensor.shape.iter().product() };
    tensorlend_tensor {
        name,
        data: std::ptr::null(),
        shape: tensor.shape.as_ptr(),
        strides: tensor.strides.as_ptr(),
        metadata: std::ptr::null(),
        metadata_bytes: 0,
        elements,
        nbytes: elements * tensor.dtype.item_bytes() as u64,
        timestamp_ns: 0,
        dtype: tensor.dtype.pack(),
        ndim: tensor.shape.len() as u32,
        row_major: tensor.is_row_major(),
    }
}

/// Lists the names that match the pattern `glob` ("*": all), and describes their values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_names(
    client: *const tensorlend_client,
    glob: *const c_char,
    listing: *mut *mut tensorlend_listing,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: 2, 1, 3.
        let (out, (client, glob)) = unsafe { (Out::new(listing, "listing")?, both(client, glob)?) };
        out.list(client.list(glob)?.into_iter().map(Row::of_name));
        Ok(())
    })
}

/// Describes the value of one name, as a listing of one entry. `TENSORLEND_NOT_FOUND` if the name does not exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_info(
    client: *const tensorlend_client,
    name: *const c_char,
    listing: *mut *mut tensorlend_listing,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: 2, 1, 3.
        let (out, (client, name)) = unsafe { (Out::new(listing, "listing")?, both(client, name)?) };
        out.list(std::iter::once(Row::of_name(client.info(name)?)));
        Ok(())
    })
}

/// Lists the streams that match the pattern `glob`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_streams(
    client: *const tensorlend_client,
    glob: *const c_char,
    listing: *mut *mut tensorlend_listing,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: 2, 1, 3.
        let (out, (client, glob)) = unsafe { (Out::new(listing, "listing")?, both(client, glob)?) };
        out.list(collected(&client.streams(glob)?, TENSORLEND_KIND_STREAM));
        Ok(())
    })
}

/// Lists the lists that match the pattern `glob`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_lists(
    client: *const tensorlend_client,
    glob: *const c_char,
    listing: *mut *mut tensorlend_listing,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: 2, 1, 3.
        let (out, (client, glob)) = unsafe { (Out::new(listing, "listing")?, both(client, glob)?) };
        out.list(collected(&client.lists(glob)?, TENSORLEND_KIND_LIST));
        Ok(())
    })
}

fn collected(all: &[Collection], kind: tensorlend_kind) -> impl Iterator<Item = Row> {
    all.iter().map(move |one| Row::new(&one.name, kind, one.count))
}

/// Number of entries; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_listing_count(listing: *const tensorlend_listing) -> u64 {
    // SAFETY: 1.
    look(0, || unsafe { listing.as_ref() }.map(|listing| listing.rows.len() as u64))
}

/// An entry by its number, borrowed from the listing; NULL beyond the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_listing_at(
    listing: *const tensorlend_listing,
    number: u64,
) -> *const tensorlend_entry {
    look(std::ptr::null(), || {
        // SAFETY: 1.
        let listing = unsafe { listing.as_ref() }?;
        listing.rows.get(usize::try_from(number).ok()?).map(|row| std::ptr::from_ref(&row.entry))
    })
}

/// Frees a listing; NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_listing_free(listing: *mut tensorlend_listing) {
    // SAFETY: 1.
    unsafe { free(listing) }
}
