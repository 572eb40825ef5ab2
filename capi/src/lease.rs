//! Leases: tensors and datasets that a program reads.

use super::arguments::{Out, buffer, bytes_or_null, c_text, handle, text};
use super::dtype::tensorlend_dtype;
use super::process::Process;
use super::status::{guard, look, tensorlend_status};
use super::version::tensorlend_version;
use std::ffi::{CString, c_char, c_void};
use std::sync::Arc;
use tensorlend::{Error, Result, Tensor, Value};

/// A tensor that the program reads in place, as long as the lease lives from which it is borrowed. The library makes
/// these; later versions may have further fields at the end. The description is a checked copy. The elements are the
/// producer's, and a broken or hostile producer may change them at any time: copy elements before you check them.
#[repr(C)]
pub struct tensorlend_tensor {
    /// Its name in its dataset; NULL for a tensor that is in none.
    pub name: *const c_char,
    /// The element with index 0, read-only; NULL where only the description is known (`tensorlend_info`).
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
}

impl tensorlend_tensor {
    fn of(name: *const c_char, tensor: &Tensor) -> Self {
        Self {
            name,
            data: tensor.bytes().as_ptr().wrapping_add(tensor.byte_offset() as usize).cast(),
            shape: tensor.shape().as_ptr(),
            strides: tensor.strides().as_ptr(),
            metadata: bytes_or_null(tensor.metadata()),
            metadata_bytes: tensor.metadata().len() as u64,
            elements: tensor.elements(),
            nbytes: tensor.nbytes(),
            timestamp_ns: tensor.timestamp(),
            dtype: tensor.dtype().pack(),
            ndim: tensor.shape().len() as u32,
            row_major: tensor.is_row_major(),
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
}

/// The right to read a tensor or a dataset in place. While the lease lives, its memory is not reused, even if the name,
/// the producer or the daemon ends. Any thread may use it, several at a time. `tensorlend_lease_free` ends it.
pub struct tensorlend_lease {
    pub(super) value: Value,
    process: Process,
    /// The description of a tensor. It is not in `members`, since a vector would cost each `get` an allocation.
    tensor: Option<tensorlend_tensor>,
    /// Those of a dataset's members, and their names.
    members: Vec<tensorlend_tensor>,
    names: Vec<CString>,
}

// SAFETY: the pointers in the descriptions lead to what `value` and `names` own, which may be read from any thread.
unsafe impl Send for tensorlend_lease {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for tensorlend_lease {}

/// Checked by the compiler: `Send` and `Sync` above rest on it.
const _: fn() = || {
    fn may_travel<T: Send + Sync>() {}
    may_travel::<Value>();
};

impl tensorlend_lease {
    pub(super) fn of(value: Value) -> Arc<Self> {
        let mut lease =
            Arc::new(Self { value, process: Process::current(), tensor: None, members: Vec::new(), names: Vec::new() });
        // Described in its final place, since the descriptions point into it.
        let inner = Arc::get_mut(&mut lease).expect("nobody else has it yet");
        match &inner.value {
            Value::Tensor(tensor) => inner.tensor = Some(tensorlend_tensor::of(std::ptr::null(), tensor)),
            Value::Dataset(dataset) => {
                inner.names = dataset.iter().map(|(name, _)| c_text(name)).collect();
                let named = inner.names.iter().zip(dataset.iter());
                inner.members = named.map(|(name, (_, tensor))| tensorlend_tensor::of(name.as_ptr(), tensor)).collect();
            }
            // The C interface has no description of tensors on devices.
            _ => {}
        }
        lease
    }

    fn is_dataset(&self) -> bool {
        self.value.as_dataset().is_some()
    }

    /// Returns a dataset's member by its name, and the tensor itself without a name.
    pub(super) fn find(&self, name: Option<&str>) -> Result<&Tensor> {
        self.process.check()?;
        match (&self.value, name) {
            (Value::Tensor(tensor), None) => Ok(tensor),
            (Value::Dataset(dataset), Some(name)) => dataset.get(name).ok_or_else(|| Error::NotFound(name.to_owned())),
            (Value::Tensor(_), Some(name)) => {
                Err(Error::Argument(format!("the lease is on a tensor, which has no member {name:?}: give NULL")))
            }
            (Value::Dataset(_), None) => {
                Err(Error::Argument("the lease is on a dataset: name one of its members".into()))
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
/// 1.
pub(super) unsafe fn shared(lease: *const tensorlend_lease) -> Result<Arc<tensorlend_lease>> {
    // SAFETY: 1.
    unsafe { handle(lease, "lease") }?;
    // SAFETY: 1: a lease's pointer is one of `Arc::into_raw`, and its count is not 0 before it is freed.
    unsafe { Arc::increment_strong_count(lease) };
    // SAFETY: as above; this count is ours.
    Ok(unsafe { Arc::from_raw(lease) })
}

/// Creates another handle of the same lease: the memory is kept until both are freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_clone(
    lease: *const tensorlend_lease,
    another: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: 2, 1.
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
            // SAFETY: 1: a pointer of `Arc::into_raw` that nobody has freed.
            drop(unsafe { Arc::from_raw(lease) });
        }
        None
    });
}

/// Returns whether the lease is on a tensor or a dataset; `TENSORLEND_KIND_TENSOR` for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_kind(lease: *const tensorlend_lease) -> tensorlend_kind {
    look(tensorlend_kind::TENSORLEND_KIND_TENSOR, || {
        // SAFETY: 1.
        let is_dataset = unsafe { lease.as_ref() }?.is_dataset();
        is_dataset.then_some(tensorlend_kind::TENSORLEND_KIND_DATASET)
    })
}

/// The tensor, borrowed from the lease; NULL for a dataset, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_tensor(lease: *const tensorlend_lease) -> *const tensorlend_tensor {
    // SAFETY: 1.
    look(std::ptr::null(), || unsafe { lease.as_ref() }?.tensor.as_ref().map(std::ptr::from_ref))
}

/// Number of tensors of a dataset; 0 for a tensor, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_members(lease: *const tensorlend_lease) -> u64 {
    // SAFETY: 1.
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
        // SAFETY: 1.
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
        // SAFETY: 1, 3.
        let (lease, name) = unsafe { (lease.as_ref()?, text(name, "name").ok()?) };
        let at = lease.names.iter().position(|of| of.to_bytes() == name.as_bytes())?;
        lease.members.get(at).map(std::ptr::from_ref)
    })
}

/// Metadata of the whole, borrowed from the lease; its length goes to `*bytes`, unless that is NULL. NULL if there is
/// none, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_metadata(lease: *const tensorlend_lease, bytes: *mut u64) -> *const c_void {
    look(std::ptr::null(), || {
        // SAFETY: 1.
        let metadata = match unsafe { lease.as_ref() }.map(|lease| &lease.value) {
            Some(Value::Tensor(tensor)) => tensor.metadata(),
            Some(Value::Dataset(dataset)) => dataset.metadata(),
            _ => &[],
        };
        // SAFETY: 2.
        unsafe { super::arguments::tell(bytes, metadata.len() as u64) };
        Some(bytes_or_null(metadata))
    })
}

/// Timestamp of the whole, in nanoseconds; 0 if none was set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_timestamp(lease: *const tensorlend_lease) -> u64 {
    look(0, || {
        // SAFETY: 1.
        Some(match &unsafe { lease.as_ref() }?.value {
            Value::Tensor(tensor) => tensor.timestamp(),
            Value::Dataset(dataset) => dataset.timestamp(),
            _ => 0,
        })
    })
}

/// Version of the leased value; zeros for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_version(lease: *const tensorlend_lease) -> tensorlend_version {
    // SAFETY: 1.
    look(tensorlend_version::NONE, || unsafe { lease.as_ref() }.map(|lease| lease.value.version().into()))
}

/// Returns true while the session that took the lease lives, so that the lease protects its memory: check after
/// reading, where that matters. False only after the daemon has ended the session of a running process, in the child of
/// a fork, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_validate(lease: *const tensorlend_lease) -> bool {
    // SAFETY: 1.
    look(false, || unsafe { lease.as_ref() }.map(|lease| lease.value.validate()))
}

/// Copies the elements of a tensor, in C order, into `to`, which has exactly the tensor's `nbytes` bytes. `member` is
/// NULL for a tensor, and the name of the tensor for a dataset.
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
        // SAFETY: 1, 3.
        let (lease, member) = unsafe { (handle(lease, "lease")?, optional(member, "member")?) };
        // SAFETY: 4.
        lease.find(member)?.copy_to(unsafe { buffer(to, bytes, "to") }?)?;
        Ok(())
    })
}

/// A string that may be NULL.
///
/// # Safety
/// 3.
pub(super) unsafe fn optional<'a>(string: *const c_char, what: &str) -> Result<Option<&'a str>> {
    // SAFETY: 3.
    if string.is_null() { Ok(None) } else { unsafe { text(string, what) }.map(Some) }
}
