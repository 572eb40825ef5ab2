//! Listings of names, streams and lists.

use super::arguments::{Out, c_text, call, free, look};
use super::client::tensorlend_client;
use super::dlpack::sizes_of;
use super::lease::{tensorlend_kind, tensorlend_tensor};
use super::status::tensorlend_status;
use super::version::tensorlend_version;
use std::ffi::{CString, c_char};
use std::iter::once;
use std::ptr::{from_ref, null};
use tensorlend::remote::{NodeDocument, Placement, RemoteInfo, RemoteNames};
use tensorlend::{Collection, Info, InfoKind, Listing, TensorInfo};
use tensorlend_kind::{
    TENSORLEND_KIND_DATASET, TENSORLEND_KIND_LIST, TENSORLEND_KIND_MODEL, TENSORLEND_KIND_NODE, TENSORLEND_KIND_STREAM,
    TENSORLEND_KIND_TENSOR, TENSORLEND_KIND_UNKNOWN,
};
use tensorlend_layout::tensor::Strides;
use tensorlend_model::{ModelInfo, Models};
use tensorlend_os::clock::duration_ns;

/// An entry of a listing, borrowed from the listing. An entry is a name with its value, a stream, a
/// list, a model or a machine. A stream or a list has only `name`, `kind` and `count`. A model has
/// also `nbytes` and `version`, and a machine `alive` and `here`. Only the library creates these
/// structures. Later versions may add fields at the end.
#[repr(C)]
pub struct tensorlend_entry {
    /// The entry's name.
    pub name: *const c_char,
    /// The label of the name's owner. In results of `tensorlend_placement`, the machine of the
    /// name. Empty if there is none.
    pub label: *const c_char,
    /// Descriptions of `count` tensors: of the one tensor, or of all tensors of a dataset. NULL for
    /// streams and lists.
    pub tensors: *const *const tensorlend_tensor,
    /// Number of tensors of a name, of subscribers of a stream, or of items of a list.
    pub count: u64,
    /// Bytes of the elements of all tensors together.
    pub nbytes: u64,
    /// Length of the metadata, in bytes.
    pub metadata_bytes: u64,
    /// Timestamp that the value's producer set, in nanoseconds; 0 if none.
    pub timestamp_ns: u64,
    /// Remaining time to live, in nanoseconds; 0 if the name has no time limit.
    pub ttl_ns: u64,
    /// Version of the name's value.
    pub version: tensorlend_version,
    /// The entry's kind.
    pub kind: tensorlend_kind,
    /// Process id of the name's owner.
    pub pid: u32,
    /// User id of the name's owner.
    pub uid: u32,
    /// Whether the name's owner is connected, or the machine can be reached.
    pub alive: bool,
    /// Whether the name ends with its owner's session.
    pub ephemeral: bool,
    /// Whether this machine has a copy of another machine's name.
    pub cached: bool,
    /// Whether the copy or the entry may be old, because the other machine cannot be reached.
    pub stale: bool,
    /// Whether the entry is the machine on which the program runs.
    pub here: bool,
}

/// Entries, sorted by name. `tensorlend_listing_free` frees them.
pub struct tensorlend_listing {
    rows: Vec<Row>,
    is_cut: bool,
}

/// An entry and the memory to which the entry points. [`Row::point`] sets the pointers once the row
/// is in its final place, because a later move would invalidate them.
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
            name: null(),
            label: null(),
            tensors: null(),
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
            cached: false,
            stale: false,
            here: false,
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
        let ttl = info.lifetime.ttl.map_or(0, duration_ns);
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

    fn of_model(info: ModelInfo) -> Self {
        let row = Self::new(&info.name, TENSORLEND_KIND_MODEL, 1);
        let entry = tensorlend_entry { nbytes: info.nbytes, version: info.version.into(), ..row.entry };
        Self { entry, ..row }
    }

    fn of_node(node: &str, alive: bool, here: bool) -> Self {
        let row = Self::new(node, TENSORLEND_KIND_NODE, 0);
        Self { entry: tensorlend_entry { alive, here, ..row.entry }, ..row }
    }

    fn of_remote(info: &RemoteInfo) -> Self {
        let kind = match info.kind.as_str() {
            "tensor" => TENSORLEND_KIND_TENSOR,
            "dataset" => TENSORLEND_KIND_DATASET,
            "stream" => TENSORLEND_KIND_STREAM,
            _ => TENSORLEND_KIND_LIST,
        };
        let has_bytes = matches!(kind, TENSORLEND_KIND_TENSOR | TENSORLEND_KIND_DATASET);
        // Another machine wrote the description, and may run a newer version. So leave unknown
        // parts out.
        let strides = Strides::row_major(&sizes_of(&info.shape)).filter(|_| kind == TENSORLEND_KIND_TENSOR);
        let tensor = info.dtype.parse().ok().zip(strides).map(|(dtype, strides)| {
            (None, TensorInfo { dtype, shape: info.shape.clone(), strides: strides.to_vec(), device: None })
        });
        let members: Vec<_> = tensor.into_iter().collect();
        let count = if has_bytes { members.len() as u64 } else { info.size };
        let row = Self::new(&info.name, kind, count);
        let entry = tensorlend_entry {
            nbytes: if has_bytes { info.size } else { 0 },
            alive: !info.stale,
            cached: info.cached,
            stale: info.stale,
            ..row.entry
        };
        Self { entry, members, ..row }
    }

    fn of_placement(name: &str, placement: &Placement) -> Self {
        let row = Self::new(name, TENSORLEND_KIND_TENSOR, 0);
        let Placement { alive, cached, stale, .. } = *placement;
        let entry = tensorlend_entry { alive, cached, stale, ..row.entry };
        Self { entry, label: c_text(&placement.node), ..row }
    }

    fn point(&mut self) {
        self.entry.name = self.name.as_ptr();
        self.entry.label = self.label.as_ptr();
        let described = |(name, tensor): &(Option<CString>, TensorInfo)| {
            described(name.as_ref().map_or(null(), |name| name.as_ptr()), tensor)
        };
        self.tensors = self.members.iter().map(described).collect();
        self.pointers = self.tensors.iter().map(from_ref).collect();
        if !self.pointers.is_empty() {
            self.entry.tensors = self.pointers.as_ptr();
        }
    }
}

impl Out<tensorlend_listing> {
    fn list(self, rows: impl Iterator<Item = Row>) {
        self.list_some(rows, false);
    }

    fn list_some(self, rows: impl Iterator<Item = Row>, is_cut: bool) {
        let mut listing = Box::new(tensorlend_listing { rows: rows.collect(), is_cut });
        listing.rows.iter_mut().for_each(Row::point);
        self.fill_boxed(listing);
    }

    pub(super) fn list_nodes(self, nodes: Vec<NodeDocument>) {
        self.list(nodes.into_iter().map(|node| Row::of_node(&node.node, node.alive, node.here)));
    }

    pub(super) fn list_remote(self, found: RemoteNames) {
        let silent = found.silent.iter().map(|node| Row::of_node(node, false, false));
        self.list_some(found.names.iter().map(Row::of_remote).chain(silent), found.more);
    }

    pub(super) fn list_placement(self, name: &str, placement: Option<Placement>) {
        self.list(placement.iter().map(|placement| Row::of_placement(name, placement)));
    }
}

fn described(name: *const c_char, tensor: &TensorInfo) -> tensorlend_tensor {
    // A size of 0 makes the tensor empty, even where the product of the other sizes overflows.
    let elements = if tensor.shape.contains(&0) { 0 } else { tensor.shape.iter().product::<usize>() as u64 };
    tensorlend_tensor {
        name,
        data: null(),
        shape: tensor.shape.as_ptr().cast(),
        strides: tensor.strides.as_ptr(),
        metadata: null(),
        metadata_bytes: 0,
        elements,
        nbytes: elements * tensor.dtype.item_bytes() as u64,
        timestamp_ns: 0,
        dtype: tensor.dtype.pack(),
        ndim: tensor.shape.len() as u32,
        row_major: tensor.is_row_major(),
        device: null(),
        device_data: 0,
        device_number: 0,
    }
}

/// Lists the names that match the pattern `glob` ("*": all), and describes their values. Names
/// whose values cannot be described come last, as entries of `TENSORLEND_KIND_UNKNOWN`. Examples
/// are a faulty client's values, spilled values without memory to read them back, and values that
/// need a lease while this client has none left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_names(
    client: *const tensorlend_client,
    glob: *const c_char,
    listing: *mut *mut tensorlend_listing,
) -> tensorlend_status {
    call!(|listing: out, client: handle, glob: text| {
        let Listing { infos, unreadable, .. } = client.client.listing(glob)?;
        let unknown = unreadable.into_iter().map(|(name, _)| Row::new(&name, TENSORLEND_KIND_UNKNOWN, 0));
        listing.list(infos.into_iter().map(Row::of_name).chain(unknown));
    })
}

/// Describes the value of one name, as a listing of one entry. Fails with `TENSORLEND_NOT_FOUND` if
/// the name does not exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_info(
    client: *const tensorlend_client,
    name: *const c_char,
    listing: *mut *mut tensorlend_listing,
) -> tensorlend_status {
    call!(|listing: out, client: handle, name: text| listing.list(once(Row::of_name(client.client.info(name)?))))
}

/// Lists the streams that match the pattern `glob`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_streams(
    client: *const tensorlend_client,
    glob: *const c_char,
    listing: *mut *mut tensorlend_listing,
) -> tensorlend_status {
    call!(|listing: out, client: handle, glob: text| {
        listing.list(collected(&client.client.streams(glob)?, TENSORLEND_KIND_STREAM));
    })
}

/// Lists the lists that match the pattern `glob`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_lists(
    client: *const tensorlend_client,
    glob: *const c_char,
    listing: *mut *mut tensorlend_listing,
) -> tensorlend_status {
    call!(|listing: out, client: handle, glob: text| {
        listing.list(collected(&client.client.lists(glob)?, TENSORLEND_KIND_LIST));
    })
}

fn collected(all: &[Collection], kind: tensorlend_kind) -> impl Iterator<Item = Row> {
    all.iter().map(move |one| Row::new(&one.name, kind, one.count))
}

/// Lists the models that match the pattern `glob`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_models(
    client: *const tensorlend_client,
    glob: *const c_char,
    listing: *mut *mut tensorlend_listing,
) -> tensorlend_status {
    call!(|listing: out, client: handle, glob: text| {
        listing.list(Models::new(&client.client).list(glob)?.into_iter().map(Row::of_model));
    })
}

/// Number of entries; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_listing_count(listing: *const tensorlend_listing) -> u64 {
    look!(0, |listing: handle| Some(listing.rows.len() as u64))
}

/// Returns an entry by its number, borrowed from the listing; NULL beyond the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_listing_at(
    listing: *const tensorlend_listing,
    number: u64,
) -> *const tensorlend_entry {
    look!(null(), |listing: handle| listing.rows.get(usize::try_from(number).ok()?).map(|row| from_ref(&row.entry)))
}

/// Returns true if there are more entries than the listing contains, which is possible for other
/// machines' names. Returns false for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_listing_is_cut(listing: *const tensorlend_listing) -> bool {
    look!(false, |listing: handle| Some(listing.is_cut))
}

/// Frees a listing. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_listing_free(listing: *mut tensorlend_listing) {
    free!(listing);
}
