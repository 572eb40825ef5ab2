//! Leases: tensors and datasets that a program reads.

use super::arguments::{Out, bytes_or_null, c_text, call, convert, handle, look};
use super::dtype::tensorlend_dtype;
use super::fault::note_leased;
use super::process::Process;
use super::status::{look, tensorlend_status};
use super::version::tensorlend_version;
use std::ffi::{CString, c_char, c_void};
use std::ptr::{from_ref, null};
use std::sync::Arc;
use tensorlend::{DeviceMember, DeviceTensor, Error, Member, Result, Tensor, Value};
use tensorlend_os::fault::Noted;

/// A tensor that the program reads in place. The structure is borrowed from a lease, and valid as
/// long as that lease lives. Only the library creates these structures. Later versions may add
/// fields at the end. The description is a checked copy. The elements are the producer's own
/// memory. A broken or hostile producer may change them at any time, so copy elements before you
/// check them.
#[repr(C)]
pub struct tensorlend_tensor {
    /// The tensor's name in its dataset; NULL for a tensor outside of datasets.
    pub name: *const c_char,
    /// The address of the element with index 0, read-only. NULL for a tensor on a device, and in
    /// results of `tensorlend_info`, which only describe tensors.
    pub data: *const c_void,
    /// Sizes in elements, `ndim` of them.
    pub shape: *const u64,
    /// Strides in elements, `ndim` of them. NULL only if `ndim` is 0.
    pub strides: *const i64,
    /// Metadata of `metadata_bytes` bytes; NULL if that length is 0.
    pub metadata: *const c_void,
    /// Length of the metadata, in bytes.
    pub metadata_bytes: u64,
    /// Number of elements; 1 for a tensor without dimensions.
    pub elements: u64,
    /// Bytes of all elements: `elements` times the bytes of one element.
    pub nbytes: u64,
    /// Timestamp that the tensor's producer set, in nanoseconds; 0 if none.
    pub timestamp_ns: u64,
    /// Element type.
    pub dtype: tensorlend_dtype,
    /// Number of dimensions, 0 to 16.
    pub ndim: u32,
    /// Whether the elements are contiguous, in C order. Then `nbytes` bytes can be read at `data`.
    pub row_major: bool,
    /// UUID of the device in whose memory the elements are, "GPU-..."; NULL for host memory.
    pub device: *const c_char,
    /// Address of the element with index 0 on the device, read-only. 0 for host memory, and for a
    /// dataset's tensor on a device that this process cannot use.
    pub device_data: u64,
    /// The device's number in this process, as N in "cuda:N"; 0 if `device_data` is 0.
    pub device_number: u32,
}

/// Describes a tensor in host memory, on a device, or of a dataset. The three types have the same getters.
macro_rules! described {
    ($tensor:expr, $($rest:ident: $value:expr),+) => {
        tensorlend_tensor {
            shape: $tensor.shape().as_ptr().cast(),
            strides: $tensor.strides().as_ptr(),
            metadata: bytes_or_null($tensor.metadata()),
            metadata_bytes: $tensor.metadata().len() as u64,
            elements: $tensor.elements() as u64,
            nbytes: $tensor.nbytes() as u64,
            timestamp_ns: $tensor.timestamp(),
            dtype: $tensor.dtype().pack(),
            ndim: $tensor.shape().len() as u32,
            row_major: $tensor.is_row_major(),
            $($rest: $value),+
        }
    };
}

impl tensorlend_tensor {
    fn of(name: *const c_char, tensor: &Tensor) -> Self {
        let data = tensor.bytes().as_ptr().wrapping_add(tensor.byte_offset()).cast();
        described!(tensor, name: name, data: data, device: null(), device_data: 0, device_number: 0)
    }

    fn on_device(tensor: &DeviceTensor, uuid: *const c_char) -> Self {
        let (at, number) = (tensor.ptr() + tensor.byte_offset() as u64, tensor.device().id().into());
        described!(tensor, name: null(), data: null(), device: uuid, device_data: at, device_number: number)
    }

    /// Describes a dataset's tensor on a device that this process cannot use.
    fn unmapped(member: &DeviceMember, uuid: *const c_char) -> Self {
        described!(member, name: null(), data: null(), device: uuid, device_data: 0, device_number: 0)
    }

    fn of_member(name: *const c_char, member: Member<'_>, uuid: *const c_char) -> Self {
        match member {
            Member::Host(tensor) => Self::of(name, tensor),
            Member::Device(member) => {
                let tensor = member.tensor().map(|tensor| Self::on_device(tensor, uuid));
                Self { name, ..tensor.unwrap_or_else(|_| Self::unmapped(member, uuid)) }
            }
        }
    }
}

/// The kind of a value.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum tensorlend_kind {
    /// One tensor.
    TENSORLEND_KIND_TENSOR = 0,
    /// Several tensors, published together.
    TENSORLEND_KIND_DATASET = 1,
    /// A stream.
    TENSORLEND_KIND_STREAM = 2,
    /// A list.
    TENSORLEND_KIND_LIST = 3,
    /// One tensor in a device's memory.
    TENSORLEND_KIND_DEVICE_TENSOR = 4,
    /// A model.
    TENSORLEND_KIND_MODEL = 5,
    /// A machine.
    TENSORLEND_KIND_NODE = 6,
    /// A value that cannot be described.
    TENSORLEND_KIND_UNKNOWN = 7,
}

/// The right to read a tensor or a dataset in place. While the lease lives, its memory is not
/// reused, even if the name, the producer or the daemon ends. Several threads may use a lease at
/// once. `tensorlend_lease_free` ends it.
pub struct tensorlend_lease {
    pub(super) value: Value,
    process: Process,
    /// The description of a tensor. It is not in `members`, because a vector would need an
    /// allocation in each `get`.
    tensor: Option<tensorlend_tensor>,
    /// The descriptions and names of a dataset's members.
    members: Vec<tensorlend_tensor>,
    names: Vec<CString>,
    /// The UUIDs of the devices of the tensor or of the members; empty texts for host memory.
    uuids: Vec<CString>,
    /// The entries of the tensors in the table of faults. Empty while the handler is off.
    _noted: Vec<Noted>,
}

// SAFETY: the pointers in the descriptions point into memory that `value` and `names` own. Any
// thread may read this memory.
unsafe impl Send for tensorlend_lease {}
// SAFETY: the lease is immutable, and any thread may read the memory to which its pointers point.
unsafe impl Sync for tensorlend_lease {}

/// Compile-time check that the fields are `Send` and `Sync`, on which the implementations above
/// depend.
const _: fn() = || {
    fn may_travel<T: Send + Sync>() {}
    may_travel::<Value>();
};

impl tensorlend_lease {
    /// Returns a lease on a value. `name` is the name by which the value was found; empty if it has none.
    pub(super) fn of(value: Value, name: &str) -> Arc<Self> {
        let (process, tensor) = (Process::current(), None);
        let (members, names, uuids) = (Vec::new(), Vec::new(), Vec::new());
        let noted = note_leased(&value, name);
        let mut lease = Arc::new(Self { value, process, tensor, members, names, uuids, _noted: noted });
        // Write the descriptions after the allocation, because they contain pointers into the
        // lease.
        let inner = Arc::get_mut(&mut lease).expect("nobody else has it yet");
        match &inner.value {
            Value::Tensor(tensor) => inner.tensor = Some(tensorlend_tensor::of(null(), tensor)),
            Value::Dataset(dataset) => {
                inner.names = dataset.members().map(|(name, _)| c_text(name)).collect();
                let uuid = |member: Member<'_>| member.uuid().map(|uuid| c_text(&uuid.to_string())).unwrap_or_default();
                inner.uuids = dataset.members().map(|(_, member)| uuid(member)).collect();
                let texts = inner.names.iter().zip(&inner.uuids);
                let member = |((name, uuid), (_, member)): ((&CString, &CString), (&str, Member<'_>))| {
                    tensorlend_tensor::of_member(name.as_ptr(), member, uuid.as_ptr())
                };
                inner.members = texts.zip(dataset.members()).map(member).collect();
            }
            Value::Device(lease) => {
                inner.uuids = vec![c_text(&lease.uuid().to_string())];
                inner.tensor = Some(tensorlend_tensor::on_device(lease, inner.uuids[0].as_ptr()));
            }
            // The compiler requires this arm.
            _ => {}
        }
        lease
    }

    /// Checks the process. Used by calls whose client library function has no such check.
    pub(super) fn check(&self) -> Result<()> {
        self.process.check()
    }

    fn kind(&self) -> tensorlend_kind {
        match self.value {
            Value::Dataset(_) => tensorlend_kind::TENSORLEND_KIND_DATASET,
            Value::Device(_) => tensorlend_kind::TENSORLEND_KIND_DEVICE_TENSOR,
            _ => tensorlend_kind::TENSORLEND_KIND_TENSOR,
        }
    }

    /// Returns the dataset's member with this name. Without a name, returns the tensor itself.
    pub(super) fn find(&self, name: Option<&str>) -> Result<Found<'_>> {
        self.process.check_readable()?;
        match (&self.value, name) {
            (Value::Tensor(tensor), None) => Ok(Found::Host(tensor)),
            (Value::Device(tensor), None) => self.on_device(Ok(tensor)),
            (Value::Dataset(dataset), Some(name)) => {
                match dataset.member(name).ok_or_else(|| Error::NotFound(name.to_owned()))? {
                    Member::Host(tensor) => Ok(Found::Host(tensor)),
                    Member::Device(member) => self.on_device(member.tensor()),
                }
            }
            (Value::Tensor(_), Some(name)) => {
                Err(Error::Argument(format!("the lease is on a tensor, which has no member {name:?}: give NULL")))
            }
            (Value::Dataset(_), None) => {
                Err(Error::Argument("the lease is on a dataset: name one of its members".into()))
            }
            (_, Some(name)) => {
                Err(Error::Argument(format!("the lease is on a tensor on a device, which has no member {name:?}")))
            }
            _ => Err(Error::Argument("the lease is on a kind of value that this library does not know".into())),
        }
    }

    fn on_device<'l>(&self, tensor: Result<&'l DeviceTensor>) -> Result<Found<'l>> {
        self.check()?;
        tensor.map(Found::Device)
    }

    /// Returns all tensors on devices. There must be at least one.
    pub(super) fn devices(&self) -> Result<Vec<&DeviceTensor>> {
        self.check()?;
        let found = match &self.value {
            Value::Device(tensor) => vec![&**tensor],
            Value::Dataset(dataset) => {
                let device =
                    |(_, member)| if let Member::Device(member) = member { Some(member.tensor()) } else { None };
                dataset.members().filter_map(device).collect::<Result<_>>()?
            }
            _ => Vec::new(),
        };
        if found.is_empty() {
            return Err(Error::Argument(
                "the lease is on tensors in host memory, which need no such call: omit it".into(),
            ));
        }
        Ok(found)
    }
}

/// A tensor of a leased value.
pub(super) enum Found<'l> {
    Host(&'l Tensor),
    Device(&'l DeviceTensor),
}

impl Out<tensorlend_lease> {
    /// Fills the variable with a lease. `name` is the name by which the value was found; empty if it has none.
    pub(super) fn lend(self, value: Value, name: &str) {
        self.fill_raw(Arc::into_raw(tensorlend_lease::of(value, name)).cast_mut());
    }
}

/// Returns another reference to the lease.
///
/// # Safety
/// The handle is NULL or alive, by the contract in `lib.rs`.
pub(super) unsafe fn shared(lease: *const tensorlend_lease) -> Result<Arc<tensorlend_lease>> {
    // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
    unsafe { handle(lease, "lease") }?;
    // SAFETY: by the rule on handles, the pointer comes from `Arc::into_raw`, and its reference
    // count is above 0 until the caller frees the handle.
    unsafe { Arc::increment_strong_count(lease) };
    // SAFETY: the pointer comes from `Arc::into_raw`. The new `Arc` takes over the reference that
    // this function has added.
    Ok(unsafe { Arc::from_raw(lease) })
}

/// Creates another handle of the same lease. The memory stays in place until both handles are
/// freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_clone(
    lease: *const tensorlend_lease,
    another: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    call!(|another: out| {
        // SAFETY: the rule on handles.
        another.fill_raw(Arc::into_raw(unsafe { shared(lease) }?).cast_mut());
    })
}

/// Ends a lease. NULL does nothing. Pointers that were borrowed from the lease are invalid after
/// the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_free(lease: *mut tensorlend_lease) {
    look((), || {
        if !lease.is_null() {
            // SAFETY: by the rule on handles, the pointer comes from `Arc::into_raw`, and the
            // caller has not freed it.
            drop(unsafe { Arc::from_raw(lease) });
        }
        None
    });
}

/// Returns whether the lease is on a tensor, a dataset or a tensor on a device; `TENSORLEND_KIND_TENSOR` for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_kind(lease: *const tensorlend_lease) -> tensorlend_kind {
    look!(tensorlend_kind::TENSORLEND_KIND_TENSOR, |lease: handle| Some(lease.kind()))
}

/// The tensor, borrowed from the lease; NULL for a dataset, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_tensor(lease: *const tensorlend_lease) -> *const tensorlend_tensor {
    look!(null(), |lease: handle| lease.tensor.as_ref().map(from_ref))
}

/// Number of tensors of a dataset; 0 for a tensor, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_members(lease: *const tensorlend_lease) -> u64 {
    look!(0, |lease: handle| Some(lease.members.len() as u64))
}

/// Returns a dataset's tensor by its number, in the order in which the producer added the tensors.
/// The structure is borrowed from the lease; NULL if there is no such tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_member(
    lease: *const tensorlend_lease,
    number: u64,
) -> *const tensorlend_tensor {
    look!(null(), |lease: handle| lease.members.get(usize::try_from(number).ok()?).map(from_ref))
}

/// Returns a dataset's tensor by its name, borrowed from the lease; NULL if there is no such
/// tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_find(
    lease: *const tensorlend_lease,
    name: *const c_char,
) -> *const tensorlend_tensor {
    look!(null(), |lease: handle, name: text| {
        let at = lease.names.iter().position(|of| of.to_bytes() == name.as_bytes())?;
        lease.members.get(at).map(from_ref)
    })
}

/// Returns the metadata of the tensor or dataset, borrowed from the lease. Returns NULL if there is
/// no metadata, and for NULL. Writes the length of the metadata to `*bytes`, unless `bytes` is
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_metadata(lease: *const tensorlend_lease, bytes: *mut u64) -> *const c_void {
    look!(null(), |lease: optional_handle, bytes: optional_variable| {
        let metadata = match lease.map(|lease| &lease.value) {
            Some(Value::Tensor(tensor)) => tensor.metadata(),
            Some(Value::Dataset(dataset)) => dataset.metadata(),
            Some(Value::Device(lease)) => lease.metadata(),
            _ => &[],
        };
        bytes.fill(metadata.len() as u64);
        Some(bytes_or_null(metadata))
    })
}

/// Timestamp of the tensor or dataset, in nanoseconds; 0 if none was set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_timestamp(lease: *const tensorlend_lease) -> u64 {
    look!(0, |lease: handle| {
        Some(match &lease.value {
            Value::Tensor(tensor) => tensor.timestamp(),
            Value::Dataset(dataset) => dataset.timestamp(),
            Value::Device(lease) => lease.timestamp(),
            _ => 0,
        })
    })
}

/// Version of the leased value; zeros for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_version(lease: *const tensorlend_lease) -> tensorlend_version {
    look!(tensorlend_version::NONE, |lease: handle| Some(lease.value.version().into()))
}

/// Returns true while the session that took the lease lives, so that the lease protects its memory.
/// A reader that must be sure calls this function after it has read the elements. The result is
/// false only after the daemon has ended the session of a running process, in the child of a fork,
/// and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_validate(lease: *const tensorlend_lease) -> bool {
    look!(false, |lease: handle| Some(lease.value.validate()))
}

/// Copies the elements of a tensor, in C order, into `to`. `bytes` must be exactly the tensor's
/// `nbytes`. For a dataset, `member` is the name of one of its tensors. For a tensor, `member` is
/// NULL. For a tensor on a device, the call waits for the producer's work and for the copy.
///
/// Errors:
/// - `TENSORLEND_ARGUMENT` for another length.
/// - `TENSORLEND_NOT_FOUND` if there is no such member.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_copy(
    lease: *const tensorlend_lease,
    member: *const c_char,
    to: *mut c_void,
    bytes: u64,
) -> tensorlend_status {
    call!(|lease: handle, member: optional_text| {
        let found = lease.find(member)?;
        if let Found::Device(tensor) = &found {
            tensor.finish()?;
        }
        let to = convert!(to: buffer(bytes))?;
        match found {
            Found::Host(tensor) => tensor.copy_to(to)?,
            Found::Device(tensor) => tensor.copy_to_bytes(to)?,
        }
    })
}
