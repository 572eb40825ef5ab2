//! Leases: tensors and datasets that a program reads.

use super::arguments::{Out, buffer, bytes_or_null, c_text, handle, text};
use super::dtype::tensorlend_dtype;
use super::process::Process;
use super::status::{guard, look, tensorlend_status};
use super::version::tensorlend_version;
use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;
use tensorlend::{DeviceLease, Error, Result, Tensor, Value};

/// A tensor that the program reads in place. It is borrowed from a lease, and valid as long as that lease lives. The library
/// makes these structures; later versions may have further fields at the end. The description is a checked copy. The elements
/// are the producer's, and a broken or hostile producer may change them at any time: copy elements before you check them.
#[repr(C)]
pub struct tensorlend_tensor {
    /// The tensor's name in its dataset; NULL for a tensor that is in none.
    pub name: *const c_char,
    /// The element with index 0, read-only; NULL where only the description is known (`tensorlend_info`), and for a
    /// tensor on a device.
    pub data: *const c_void,
    /// `ndim` sizes, in elements.
    pub shape: *const u64,
    /// `ndim` strides, in elements: never NULL unless `ndim` is 0.
    pub strides: *const i64,
    /// `metadata_bytes` bytes of metadata; NULL if that is 0.
    pub metadata: *const c_void,
    /// Length of the metadata, in bytes.
    pub metadata_bytes: u64,
    /// Number of elements; 1 for a tensor without dimensions.
    pub elements: u64,
    /// Bytes of the elements: their number times the element's bytes.
    pub nbytes: u64,
    /// Timestamp that its producer set, in nanoseconds; 0 if none.
    pub timestamp_ns: u64,
    /// Element type.
    pub dtype: tensorlend_dtype,
    /// Number of dimensions, 0 to 16.
    pub ndim: u32,
    /// Whether the elements are contiguous, in C order: then `nbytes` bytes can be read from `data` on.
    pub row_major: bool,
    /// UUID of the device in whose memory the elements are, "GPU-..."; NULL for host memory.
    pub device: *const c_char,
    /// Address of the element with index 0 on that device, read-only; 0 for host memory.
    pub device_data: u64,
    /// Number of that device in this process, N of "cuda:N"; 0 for host memory.
    pub device_number: u32,
}

impl tensorlend_tensor {
    fn of(name: *const c_char, tensor: &Tensor) -> Self {
        Self {
            name,
            data: tensor.bytes().as_ptr().wrapping_add(tensor.byte_offset()).cast(),
            shape: tensor.shape().as_ptr().cast(),
            strides: tensor.strides().as_ptr(),
            metadata: bytes_or_null(tensor.metadata()),
            metadata_bytes: tensor.metadata().len() as u64,
            elements: tensor.elements() as u64,
            nbytes: tensor.nbytes() as u64,
            timestamp_ns: tensor.timestamp(),
            dtype: tensor.dtype().pack(),
            ndim: tensor.shape().len() as u32,
            row_major: tensor.is_row_major(),
            device: std::ptr::null(),
            device_data: 0,
            device_number: 0,
        }
    }

    fn on_device(lease: &DeviceLease, uuid: *const c_char) -> Self {
        Self {
            name: std::ptr::null(),
            data: std::ptr::null(),
            shape: lease.shape().as_ptr().cast(),
            strides: lease.strides().as_ptr(),
            metadata: bytes_or_null(lease.metadata()),
            metadata_bytes: lease.metadata().len() as u64,
            elements: lease.elements() as u64,
            nbytes: lease.nbytes() as u64,
            timestamp_ns: lease.timestamp(),
            dtype: lease.dtype().pack(),
            ndim: lease.shape().len() as u32,
            row_major: lease.is_row_major(),
            device: uuid,
            device_data: lease.ptr() + lease.byte_offset() as u64,
            device_number: lease.device().id().into(),
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

/// The right to read a tensor or a dataset in place. While the lease lives, its memory is not reused, even if the name,
/// the producer or the daemon ends. Any thread may use it, several at a time. `tensorlend_lease_free` ends it.
pub struct tensorlend_lease {
    pub(super) value: Value,
    process: Process,
    /// The description of a tensor. It is not in `members`, since a vector would cost each `get` an allocation.
    tensor: Option<tensorlend_tensor>,
    /// The descriptions and names of a dataset's members. For a tensor on a device, `names` has the device's UUID only.
    members: Vec<tensorlend_tensor>,
    names: Vec<CString>,
}

// SAFETY: the pointers in the descriptions point into memory that `value` and `names` own, which any thread may read.
unsafe impl Send for tensorlend_lease {}
// SAFETY: as above; the lease is immutable.
unsafe impl Sync for tensorlend_lease {}

/// Compile-time check: `Send` and `Sync` above depend on it.
const _: fn() = || {
    fn may_travel<T: Send + Sync>() {}
    may_travel::<Value>();
};

impl tensorlend_lease {
    pub(super) fn of(value: Value) -> Arc<Self> {
        let mut lease =
            Arc::new(Self { value, process: Process::current(), tensor: None, members: Vec::new(), names: Vec::new() });
        // Described after the allocation, since the descriptions point into the lease.
        let inner = Arc::get_mut(&mut lease).expect("nobody else has it yet");
        match &inner.value {
            Value::Tensor(tensor) => inner.tensor = Some(tensorlend_tensor::of(std::ptr::null(), tensor)),
            Value::Dataset(dataset) => {
                inner.names = dataset.iter().map(|(name, _)| c_text(name)).collect();
                let named = inner.names.iter().zip(dataset.iter());
                inner.members = named.map(|(name, (_, tensor))| tensorlend_tensor::of(name.as_ptr(), tensor)).collect();
            }
            Value::Device(lease) => {
                inner.names = vec![c_text(&lease.uuid().to_string())];
                inner.tensor = Some(tensorlend_tensor::on_device(lease, inner.names[0].as_ptr()));
            }
            // The compiler requires this arm.
            _ => {}
        }
        lease
    }

    /// Checks the process, for calls that do not check it themselves.
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

    /// Returns a dataset's member with this name; without a name, the tensor itself.
    pub(super) fn find(&self, name: Option<&str>) -> Result<&Tensor> {
        self.process.check_readable()?;
        match (&self.value, name) {
            (Value::Tensor(tensor), None) => Ok(tensor),
            (Value::Dataset(dataset), Some(name)) => dataset.get(name).ok_or_else(|| Error::NotFound(name.to_owned())),
            (Value::Tensor(_), Some(name)) => {
                Err(Error::Argument(format!("the lease is on a tensor, which has no member {name:?}: give NULL")))
            }
            (Value::Dataset(_), None) => {
                Err(Error::Argument("the lease is on a dataset: name one of its members".into()))
            }
            (_, Some(name)) => {
                Err(Error::Argument(format!("the lease is on a tensor on a device, which has no member {name:?}")))
            }
            _ => Err(Error::Argument("the leased tensor is on a device".into())),
        }
    }
}

impl Out<tensorlend_lease> {
    /// Fills the variable with a lease.
    pub(super) fn lend(self, value: Value) {
        self.fill_raw(Arc::into_raw(tensorlend_lease::of(value)).cast_mut());
    }
}

/// Returns another reference to the lease.
///
/// # Safety
/// The rule on handles.
pub(super) unsafe fn shared(lease: *const tensorlend_lease) -> Result<Arc<tensorlend_lease>> {
    // SAFETY: the rule on handles.
    unsafe { handle(lease, "lease") }?;
    // SAFETY: the rule on handles: a lease's pointer is one of `Arc::into_raw`, and its count is not 0 before it is
    // freed.
    unsafe { Arc::increment_strong_count(lease) };
    // SAFETY: as above; the new `Arc` takes over the count that this call has added.
    Ok(unsafe { Arc::from_raw(lease) })
}

/// Creates another handle of the same lease: the memory is kept until both are freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_clone(
    lease: *const tensorlend_lease,
    another: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and variables.
        let (out, lease) = unsafe { (Out::new(another, "another")?, shared(lease)?) };
        out.fill_raw(Arc::into_raw(lease).cast_mut());
        Ok(())
    })
}

/// Ends a lease; NULL does nothing. Pointers that were borrowed from it are invalid then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_free(lease: *mut tensorlend_lease) {
    look((), || {
        if !lease.is_null() {
            // SAFETY: the rule on handles: a pointer of `Arc::into_raw` that the caller has not freed.
            drop(unsafe { Arc::from_raw(lease) });
        }
        None
    });
}

/// Returns whether the lease is on a tensor, a dataset or a tensor on a device; `TENSORLEND_KIND_TENSOR` for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_kind(lease: *const tensorlend_lease) -> tensorlend_kind {
    look(tensorlend_kind::TENSORLEND_KIND_TENSOR, || {
        // SAFETY: the rule on handles.
        unsafe { lease.as_ref() }.map(tensorlend_lease::kind)
    })
}

/// The tensor, borrowed from the lease; NULL for a dataset, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_tensor(lease: *const tensorlend_lease) -> *const tensorlend_tensor {
    // SAFETY: the rule on handles.
    look(std::ptr::null(), || unsafe { lease.as_ref() }?.tensor.as_ref().map(std::ptr::from_ref))
}

/// Number of tensors of a dataset; 0 for a tensor, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_members(lease: *const tensorlend_lease) -> u64 {
    // SAFETY: the rule on handles.
    look(0, || unsafe { lease.as_ref() }.map(|lease| lease.members.len() as u64))
}

/// A dataset's tensor by its number, in the order in which they were added; borrowed from the lease, NULL if there is
/// none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_member(
    lease: *const tensorlend_lease,
    number: u64,
) -> *const tensorlend_tensor {
    look(std::ptr::null(), || {
        // SAFETY: the rule on handles.
        let lease = unsafe { lease.as_ref() }?;
        lease.members.get(usize::try_from(number).ok()?).map(std::ptr::from_ref)
    })
}

/// A dataset's tensor by its name, borrowed from the lease; NULL if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_find(
    lease: *const tensorlend_lease,
    name: *const c_char,
) -> *const tensorlend_tensor {
    look(std::ptr::null(), || {
        // SAFETY: the rules on handles and strings.
        let (lease, name) = unsafe { (lease.as_ref()?, text(name, "name").ok()?) };
        let at = lease.names.iter().position(|of| of.to_bytes() == name.as_bytes())?;
        lease.members.get(at).map(std::ptr::from_ref)
    })
}

/// Metadata of the tensor or dataset, borrowed from the lease; NULL if there is none, and for NULL. Writes the length of the
/// metadata to `*bytes`, unless that is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_metadata(lease: *const tensorlend_lease, bytes: *mut u64) -> *const c_void {
    look(std::ptr::null(), || {
        // SAFETY: the rule on handles.
        let metadata = match unsafe { lease.as_ref() }.map(|lease| &lease.value) {
            Some(Value::Tensor(tensor)) => tensor.metadata(),
            Some(Value::Dataset(dataset)) => dataset.metadata(),
            Some(Value::Device(lease)) => lease.metadata(),
            _ => &[],
        };
        // SAFETY: the rule on variables.
        unsafe { super::arguments::tell(bytes, metadata.len() as u64) };
        Some(bytes_or_null(metadata))
    })
}

/// Timestamp of the tensor or dataset, in nanoseconds; 0 if none was set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_timestamp(lease: *const tensorlend_lease) -> u64 {
    look(0, || {
        // SAFETY: the rule on handles.
        Some(match &unsafe { lease.as_ref() }?.value {
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
    // SAFETY: the rule on handles.
    look(tensorlend_version::NONE, || unsafe { lease.as_ref() }.map(|lease| lease.value.version().into()))
}

/// Returns true while the session that took the lease lives, so that the lease protects its memory. A reader that must be sure
/// calls this after it has read the elements. It is false only after the daemon has ended the session of a running process, in
/// the child of a fork, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_validate(lease: *const tensorlend_lease) -> bool {
    // SAFETY: the rule on handles.
    look(false, || unsafe { lease.as_ref() }.map(|lease| lease.value.validate()))
}

/// Copies the elements of a tensor, in C order, into `to`, which has exactly the tensor's `nbytes` bytes. For a dataset,
/// `member` is the name of one of its tensors; for a tensor, it is NULL. From a device, the call waits for the producer's work
/// and for the copy.
///
/// `TENSORLEND_ARGUMENT` for another length; `TENSORLEND_NOT_FOUND` if there is no such member.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_copy(
    lease: *const tensorlend_lease,
    member: *const c_char,
    to: *mut c_void,
    bytes: u64,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and strings.
        let (lease, member) = unsafe { (handle(lease, "lease")?, optional(member, "member")?) };
        if let (Value::Device(on_device), None) = (&lease.value, member) {
            lease.check()?;
            on_device.finish()?;
            // SAFETY: the rule on lengths.
            on_device.copy_to_bytes(unsafe { buffer(to, bytes, "to") }?)?;
            return Ok(());
        }
        // SAFETY: the rule on lengths.
        lease.find(member)?.copy_to(unsafe { buffer(to, bytes, "to") }?)?;
        Ok(())
    })
}

/// Converts a string that may be NULL.
///
/// # Safety
/// The rule on strings.
pub(super) unsafe fn optional<'a>(string: *const c_char, what: &str) -> Result<Option<&'a str>> {
    // SAFETY: the rule on strings.
    if string.is_null() { Ok(None) } else { unsafe { text(string, what) }.map(Some) }
}
