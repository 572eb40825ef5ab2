//! Drafts: tensors and datasets that a program writes.

use super::arguments::{Consumed, call, convert, free, look};
use super::client::tensorlend_client;
use super::dtype::tensorlend_dtype;
use super::fault::note_draft;
use super::process::Process;
use super::status::tensorlend_status;
use super::version::tensorlend_version;
use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tensorlend::{Client, Draft, Error, Lifetime, Result, TensorSpec, ValueDraft, check_name};
use tensorlend_os::fault::Noted;

/// A tensor or a dataset that the program writes in the memory where its readers will see it. Other
/// clients see the draft once it is published, sent or appended. Only one thread at a time may use
/// a draft.
///
/// Calls that publish, send or append a draft take the draft over. Such a call gets the address of
/// the variable that holds the draft. The call sets the variable to NULL as soon as it has taken
/// the draft over, even if it fails later. `tensorlend_draft_free` frees a draft that was not taken
/// over.
pub struct tensorlend_draft {
    /// The draft's memory, which is shared with the `DLPack` tensors that were exported from the
    /// draft.
    pub(super) shared: Arc<Shared>,
    process: Process,
    data: *mut u8,
    bytes: u64,
    dtype: tensorlend_dtype,
    /// The entry in the table of faults. Without an entry while the handler is off.
    _noted: Noted,
}

/// The memory that a draft and its `DLPack` tensors keep alive together.
pub(super) type Shared = Mutex<ValueDraft>;

impl tensorlend_draft {
    pub(super) fn of(mut payload: ValueDraft) -> Self {
        let mut noted = Noted::default();
        let (data, bytes, dtype) = match &mut payload {
            ValueDraft::Tensor(draft) => {
                let dtype = draft.dtype().pack();
                let bytes = draft.bytes_mut();
                noted = note_draft(bytes);
                (bytes.as_mut_ptr(), bytes.len() as u64, dtype)
            }
            // Do not request the address here. After such a request, publishing waits for all work
            // on the device.
            ValueDraft::Device(draft) => (null_mut(), draft.nbytes() as u64, draft.dtype().pack()),
            // A dataset has no address, no length and no element type.
            _ => (null_mut(), 0, 0),
        };
        Self { shared: Arc::new(Mutex::new(payload)), process: Process::current(), data, bytes, dtype, _noted: noted }
    }

    /// Returns the address of the first byte; NULL for a dataset and on a device.
    pub(super) fn data(&self) -> *mut u8 {
        self.data
    }

    /// Changes the draft. Only one thread at a time uses the handle. The lock is needed because
    /// deleters may run on other threads.
    pub(super) fn change<T>(&self, how: impl FnOnce(&mut ValueDraft) -> Result<T>) -> Result<T> {
        self.process.check()?;
        how(&mut self.shared.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Returns the error for a kind of draft that this library does not know. The compiler requires
/// this case.
fn unknown() -> Error {
    Error::Argument("the draft is of a kind that this version does not know".into())
}

impl Consumed<tensorlend_draft> {
    /// Returns the draft, if the call can take it over. No `DLPack` tensor of the draft may be in use.
    pub(super) fn check(&self) -> Result<&tensorlend_draft> {
        let draft = self.get()?;
        if Arc::strong_count(&draft.shared) > 1 {
            let why = "a DLPack tensor made of the draft is still in use: end it with tensorlend_dlpack_free first";
            return Err(Error::Argument(why.into()));
        }
        Ok(draft)
    }

    /// Takes the draft over and sets the caller's variable to NULL. On error the variable is unchanged.
    pub(super) fn draft(self) -> Result<ValueDraft> {
        self.check()?;
        // Only the handle can create more DLPack tensors, and this call has taken the handle over. So
        // no other reference exists.
        let payload = Arc::into_inner(self.take()?.shared).expect("counted just now");
        Ok(payload.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Creates a row-major tensor that the program writes in place. `shape` contains `ndim` sizes in
/// elements. `ndim` is 0 to 16, and `shape` may be NULL for 0. The tensor's bytes keep their
/// previous contents until the program writes them.
///
/// Errors:
/// - `TENSORLEND_ARGUMENT` for an invalid shape.
/// - `TENSORLEND_LIMIT` when the memory limit is reached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_create(
    client: *const tensorlend_client,
    dtype: tensorlend_dtype,
    ndim: u32,
    shape: *const u64,
    draft: *mut *mut tensorlend_draft,
) -> tensorlend_status {
    // SAFETY: the other function has the same contract, which the caller of this function keeps.
    unsafe { tensorlend_create_strided(client, dtype, ndim, shape, std::ptr::null(), 0, draft) }
}

/// Works like `tensorlend_create`, with `ndim` strides in elements (NULL for row-major order). The
/// element with index 0 is `byte_offset` bytes after the start of the data. A stride may be
/// negative if `byte_offset` leaves room for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_create_strided(
    client: *const tensorlend_client,
    dtype: tensorlend_dtype,
    ndim: u32,
    shape: *const u64,
    strides: *const i64,
    byte_offset: u64,
    draft: *mut *mut tensorlend_draft,
) -> tensorlend_status {
    call!(|draft: out, client: handle, shape: strided(dtype, ndim, strides, byte_offset)| {
        draft.fill(tensorlend_draft::of(ValueDraft::Tensor(client.client.create_spec(shape)?)));
    })
}

/// Creates a dataset: several tensors that are published together. Readers see all of them or none.
/// Add the tensors with `tensorlend_dataset_add`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_create_dataset(
    client: *const tensorlend_client,
    dataset: *mut *mut tensorlend_draft,
) -> tensorlend_status {
    call!(|dataset: out, client: handle| {
        dataset.fill(tensorlend_draft::of(ValueDraft::Dataset(client.opened()?.dataset())));
    })
}

/// Adds a tensor to a dataset, under a name that no other tensor of the dataset has. The tensor may
/// be in host memory or on a device. Publishing waits for the work on all tensors on devices.
/// Readers see the tensors in the order in which the program adds them. Takes `*member` over, unless the call
/// fails.
///
/// Errors: `TENSORLEND_ARGUMENT` for a name that is already in the dataset, for the 4097th tensor,
/// and for a member that is a dataset or a draft of another client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_dataset_add(
    dataset: *mut tensorlend_draft,
    name: *const c_char,
    member: *mut *mut tensorlend_draft,
) -> tensorlend_status {
    call!(|dataset: handle, name: text, member: consumed| {
        if std::ptr::eq(member.get()?, dataset) {
            return Err(
                Error::Argument("a dataset cannot be a member of itself: add the draft of a tensor".into()).into()
            );
        }
        dataset.change(|whole| {
            let ValueDraft::Dataset(whole) = whole else {
                return Err(Error::Argument("this draft is a tensor: make one with tensorlend_create_dataset".into()));
            };
            member.get()?.change(|member| match member {
                ValueDraft::Dataset(_) => Err(Error::Argument(
                    "the member is a dataset, and a dataset has only tensors: add each tensor".into(),
                )),
                member => whole.check_member(name, member),
            })?;
            match member.draft()? {
                ValueDraft::Tensor(member) => whole.push(name, member),
                ValueDraft::Device(member) => whole.push(name, member),
                _ => Ok(()),
            }
        })?;
    })
}

/// Returns the memory in which the program writes a tensor, borrowed from the draft. Its length is
/// `tensorlend_draft_bytes`. It is aligned to 64 bytes, or to 4096 bytes if it has at least 4096
/// bytes. The child of a fork must not use the memory. Returns NULL for a dataset, for NULL, and
/// for a tensor on a device, which has `tensorlend_draft_device_data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_draft_data(draft: *mut tensorlend_draft) -> *mut c_void {
    look!(null_mut(), |draft: handle| Some(draft.data.cast()))
}

/// Type of a tensor's elements; 0 for a dataset, and for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_draft_dtype(draft: *const tensorlend_draft) -> tensorlend_dtype {
    look!(0, |draft: handle| Some(draft.dtype))
}

/// Returns the length of the memory at `tensorlend_draft_data`, including the gaps between strided
/// elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_draft_bytes(draft: *const tensorlend_draft) -> u64 {
    look!(0, |draft: handle| Some(draft.bytes))
}

/// Sets metadata by a copy of any bytes, 64 KiB at most. Up to 32 bytes usually need no extra
/// memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_draft_set_metadata(
    draft: *mut tensorlend_draft,
    metadata: *const c_void,
    bytes: u64,
) -> tensorlend_status {
    call!(|draft: handle, metadata: bytes(bytes)| {
        draft.change(|payload| match payload {
            ValueDraft::Tensor(tensor) => tensor.set_metadata(metadata).map(|_| ()),
            ValueDraft::Dataset(dataset) => dataset.set_metadata(metadata).map(|_| ()),
            ValueDraft::Device(tensor) => tensor.set_metadata(metadata).map(|_| ()),
            _ => Err(unknown()),
        })?;
    })
}

/// Sets a timestamp: nanoseconds since 1970, or nanoseconds of any clock that producer and readers
/// agree on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_draft_set_timestamp(
    draft: *mut tensorlend_draft,
    nanoseconds: u64,
) -> tensorlend_status {
    call!(|draft: handle| {
        draft.change(|payload| {
            match payload {
                ValueDraft::Tensor(tensor) => _ = tensor.set_timestamp(nanoseconds),
                ValueDraft::Dataset(dataset) => _ = dataset.set_timestamp(nanoseconds),
                ValueDraft::Device(tensor) => _ = tensor.set_timestamp(nanoseconds),
                _ => return Err(unknown()),
            }
            Ok(())
        })?;
    })
}

/// Frees a draft that was not taken over. NULL does nothing. The draft's memory is free once its
/// `DLPack` tensors are freed, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_draft_free(draft: *mut tensorlend_draft) {
    free!(draft);
}

/// Flag of `tensorlend_publish_for`: the name ends with this client's session.
pub const TENSORLEND_EPHEMERAL: u32 = 1;

/// Converts a lifetime.
pub(super) fn lifetime(ttl_ns: u64, flags: u32) -> Result<Lifetime> {
    if flags & !TENSORLEND_EPHEMERAL != 0 {
        return Err(Error::Argument(format!("flags {flags:#x}: there is only TENSORLEND_EPHEMERAL")));
    }
    let ttl = (ttl_ns > 0).then(|| Duration::from_nanos(ttl_ns));
    Ok(Lifetime { ttl, ephemeral: flags & TENSORLEND_EPHEMERAL != 0 })
}

/// Publishes a draft under a name. Then every client of the namespace can read it. Takes `*draft`
/// over. Writes the value's version to `*version`, unless `version` is NULL.
///
/// Errors:
/// - `TENSORLEND_LIMIT` if a limit of the daemon, the namespace or the user is reached.
/// - `TENSORLEND_REFUSED` if this client has no right to write.
/// - `TENSORLEND_DISCONNECTED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_publish(
    draft: *mut *mut tensorlend_draft,
    name: *const c_char,
    version: *mut tensorlend_version,
) -> tensorlend_status {
    // SAFETY: the other function has the same contract, which the caller of this function keeps.
    unsafe { tensorlend_publish_for(draft, name, 0, 0, version) }
}

/// Works like `tensorlend_publish`, for a name that ends by itself. The name ends after `ttl_ns`
/// nanoseconds (0: no time limit), or with this client's session (`TENSORLEND_EPHEMERAL` in
/// `flags`), whichever is first. Needs a round trip to the daemon, unless both arguments are 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_publish_for(
    draft: *mut *mut tensorlend_draft,
    name: *const c_char,
    ttl_ns: u64,
    flags: u32,
    version: *mut tensorlend_version,
) -> tensorlend_status {
    call!(|name: text, draft: consumed, version: optional_variable| {
        check_name(name)?;
        let lifetime = lifetime(ttl_ns, flags)?;
        let draft = draft.draft()?;
        let plain = lifetime == Lifetime::default();
        version.fill(if plain { draft.publish(name)? } else { draft.publish_for(name, lifetime)? });
    })
}

/// Copies `shape`'s elements, row-major, from `data` into shared memory, and publishes the copy.
/// The call makes one copy, and does not serialize. `version` may be NULL. Errors are those of
/// `tensorlend_create` and `tensorlend_publish`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_put(
    client: *const tensorlend_client,
    name: *const c_char,
    dtype: tensorlend_dtype,
    ndim: u32,
    shape: *const u64,
    data: *const c_void,
    version: *mut tensorlend_version,
) -> tensorlend_status {
    call!(|client: handle, name: text, version: optional_variable| {
        check_name(name)?;
        let (spec, data) = convert!(data: elements(dtype, ndim, shape))?;
        version.fill(filled(&client.client, spec, data)?.publish(name)?);
    })
}

/// Returns a draft whose elements are a copy of these bytes.
pub(super) fn filled(client: &Client, spec: TensorSpec, bytes: &[u8]) -> Result<Draft> {
    let mut draft = client.create_spec(spec)?;
    draft.copy_from(bytes)?;
    Ok(draft)
}

/// Compile-time check of `Send` and `Sync`, because a `DLPack` deleter may run on any thread.
const _: fn() = || {
    fn may_travel<T: Send + Sync>() {}
    may_travel::<Shared>();
};
