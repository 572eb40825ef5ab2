//! Tensors in the memory of CUDA devices.

use super::arguments::{Out, OutVar, c_text, free, handle, tell, text, values};
use super::client::tensorlend_client;
use super::draft::{check_taking, spec, take, tensorlend_draft};
use super::dtype::tensorlend_dtype;
use super::lease::tensorlend_lease;
use super::names::both;
use super::status::{guard, look, tensorlend_status};
use super::version::tensorlend_version;
use std::ffi::{CString, c_char, c_void};
use tensorlend::{
    Device, DeviceDraft, DeviceOffer, DeviceTensor, Error, On, OnStream, Result, Uuid, Value, ValueDraft, check_name,
};

/// A device whose memory the daemon lends, borrowed from its list. Only the library creates these
/// structures. Later versions may add fields at the end.
#[repr(C)]
pub struct tensorlend_device {
    /// UUID, "GPU-...", which is the same in every process.
    pub uuid: *const c_char,
    /// The driver's name of the device.
    pub name: *const c_char,
    /// "pool", "arena" or "async".
    pub allocator: *const c_char,
    /// Length of an ordinary segment, in bytes. With the allocator "async", the unit of slots.
    pub segment_bytes: u64,
    /// Length of the longest segment, in bytes.
    pub segment_bytes_max: u64,
    /// The device's number in this process, as N in "cuda:N"; -1 if this process does not see the
    /// device.
    pub number: i32,
}

/// Devices whose memory the daemon lends. `tensorlend_devices_free` frees them.
pub struct tensorlend_devices {
    rows: Vec<tensorlend_device>,
    /// The texts to which the pointers in `rows` point.
    _texts: Vec<[CString; 3]>,
}

fn number_of(uuid: Uuid) -> i32 {
    let mut uuids = (0..=u8::MAX).map_while(|number| On::from(Device::cuda(number)).find().ok());
    uuids.position(|found| found == uuid).map_or(-1, |number| number as i32)
}

fn described(offer: &DeviceOffer) -> (tensorlend_device, [CString; 3]) {
    // Moving the strings does not move their bytes, to which the structure points.
    let texts = [c_text(&offer.uuid.to_string()), c_text(&offer.name), c_text(offer.allocator.name())];
    let device = tensorlend_device {
        uuid: texts[0].as_ptr(),
        name: texts[1].as_ptr(),
        allocator: texts[2].as_ptr(),
        segment_bytes: offer.segment_bytes,
        segment_bytes_max: offer.segment_bytes_max,
        number: number_of(offer.uuid),
    };
    (device, texts)
}

/// Lists the devices whose memory the daemon lends, whether or not this process sees them. The list
/// is empty if the daemon lends host memory only. Loads the driver if the list is not empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_list_devices(
    client: *const tensorlend_client,
    devices: *mut *mut tensorlend_devices,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, and variables are NULL or
        // writable.
        let (out, client) = unsafe { (Out::new(devices, "devices")?, handle(client, "client")?) };
        client.check()?;
        let (rows, texts) = client.client.devices().iter().map(described).unzip();
        out.fill(tensorlend_devices { rows, _texts: texts });
        Ok(())
    })
}

/// Number of devices; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_devices_count(devices: *const tensorlend_devices) -> u64 {
    // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
    look(0, || unsafe { devices.as_ref() }.map(|devices| devices.rows.len() as u64))
}

/// Returns a device by its index in the list, borrowed from the list; NULL beyond the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_devices_at(
    devices: *const tensorlend_devices,
    number: u64,
) -> *const tensorlend_device {
    look(std::ptr::null(), || {
        // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
        let devices = unsafe { devices.as_ref() }?;
        devices.rows.get(usize::try_from(number).ok()?).map(std::ptr::from_ref)
    })
}

/// Frees a list of devices. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_devices_free(devices: *mut tensorlend_devices) {
    // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive, and used by this thread
    // alone.
    unsafe { free(devices) }
}

/// Returns the device with this name or UUID.
///
/// # Safety
/// The string is NULL or zero-terminated, by the contract in `lib.rs`.
unsafe fn place(device: *const c_char) -> Result<On> {
    // SAFETY: by the contract in `lib.rs`, the string is NULL or zero-terminated.
    let name = unsafe { text(device, "device") }?;
    let found = match name.strip_prefix("cuda:") {
        Some(number) => number.parse().ok().map(|number| On::from(Device::cuda(number))),
        None => name.parse::<Uuid>().ok().map(On::from),
    };
    found.ok_or_else(|| {
        Error::Argument(format!(
            "device {name:?}: give \"cuda:0\" for this process's first one, or a UUID as tensorlend_list_devices has it"
        ))
    })
}

/// Returns a CUDA stream of the program.
///
/// # Safety
/// The stream is NULL or valid, by the contract in `lib.rs`.
pub(super) unsafe fn on_stream(stream: *mut c_void) -> OnStream {
    // SAFETY: by the contract in `lib.rs`, the stream is NULL or valid.
    unsafe { OnStream::from_raw(stream.expose_provenance()) }
}

/// Calls `how` with a draft on a device.
///
/// # Safety
/// The handle is NULL or alive, by the contract in `lib.rs`.
unsafe fn change<T>(draft: *mut tensorlend_draft, how: impl FnOnce(&mut DeviceDraft) -> Result<T>) -> Result<T> {
    // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
    unsafe { handle(draft, "draft") }?.change(|payload| match payload {
        ValueDraft::Device(draft) => how(draft),
        _ => Err(Error::Argument("the draft is in host memory: create one with tensorlend_create_on".into())),
    })
}

/// Returns the leased tensors on devices: the tensor, or all such members of a dataset.
///
/// # Safety
/// The handle is NULL or alive, by the contract in `lib.rs`.
unsafe fn leased<'a>(lease: *const tensorlend_lease) -> Result<Vec<&'a DeviceTensor>> {
    // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
    unsafe { handle(lease, "lease") }?.devices()
}

/// Calls `how` with each of these tensors that is on the stream's device. The members of a dataset
/// may be on several devices.
fn with_stream(tensors: &[&DeviceTensor], stream: &OnStream, how: impl Fn(&DeviceTensor) -> Result<()>) -> Result<()> {
    let mut refused = Ok(());
    let mut any = false;
    for tensor in tensors {
        match tensor.check_stream(stream) {
            Ok(()) => {
                how(tensor)?;
                any = true;
            }
            error => refused = error,
        }
    }
    if any { Ok(()) } else { refused }
}

/// Creates a row-major tensor in a device's memory, where the program's kernels write the elements.
/// `shape` contains `ndim` sizes in elements. `ndim` is 0 to 16, and `shape` may be NULL for 0.
/// `device` is "cuda:0" for this process's first device, or a UUID. The tensor's bytes keep their
/// previous contents until the program writes them.
///
/// The draft is used like a draft in host memory. `tensorlend_publish` and `tensorlend_stream_send`
/// wait for the work on the draft in the streams that were recorded with
/// `tensorlend_draft_record_stream`. If no stream is recorded, and the program has called
/// `tensorlend_draft_device_data`, they wait for all work in the device's primary context.
/// `tensorlend_draft_free` waits in this second case only.
///
/// Errors:
/// - `TENSORLEND_DEVICE` if there is no such device, or the daemon lends none of its memory.
/// - Otherwise those of `tensorlend_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_create_on(
    client: *const tensorlend_client,
    device: *const c_char,
    dtype: tensorlend_dtype,
    ndim: u32,
    shape: *const u64,
    draft: *mut *mut tensorlend_draft,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, variables are NULL or
        // writable, and strings are NULL or zero-terminated.
        let (out, client, device) =
            unsafe { (Out::new(draft, "draft")?, &handle(client, "client")?.client, place(device)?) };
        // SAFETY: by the contract in `lib.rs`, the pointer is NULL or points to memory of this
        // length.
        let spec = unsafe { spec(dtype, ndim, shape, std::ptr::null(), 0) }?;
        out.fill(tensorlend_draft::of(ValueDraft::Device(client.create_spec_on(device, spec)?)));
        Ok(())
    })
}

/// Works like `tensorlend_create_on`, and records `stream`, whose work writes the draft. `stream`
/// is a `CUstream` or `cudaStream_t` of the device's primary context; NULL is the legacy default
/// stream. The stream must exist until every draft and lease on which it was recorded has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_create_on_stream(
    client: *const tensorlend_client,
    device: *const c_char,
    stream: *mut c_void,
    dtype: tensorlend_dtype,
    ndim: u32,
    shape: *const u64,
    draft: *mut *mut tensorlend_draft,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, variables are NULL or
        // writable, and strings are NULL or zero-terminated.
        let (out, client, device) =
            unsafe { (Out::new(draft, "draft")?, &handle(client, "client")?.client, place(device)?) };
        // SAFETY: by the contract in `lib.rs`, the pointer is NULL or points to memory of this
        // length.
        let spec = unsafe { spec(dtype, ndim, shape, std::ptr::null(), 0) }?;
        // SAFETY: by the contract in `lib.rs`, the stream is NULL or valid.
        let stream = unsafe { on_stream(stream) };
        let made = client.create_on_stream(device, &stream, spec.dtype, &spec.shape)?;
        out.fill(tensorlend_draft::of(ValueDraft::Device(made)));
        Ok(())
    })
}

/// Copies `shape`'s elements, row-major, from host memory to a device and publishes the copy. The
/// call returns when the copy is done. `version` may be NULL. Errors are those of
/// `tensorlend_create_on` and `tensorlend_publish`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_put_on(
    client: *const tensorlend_client,
    device: *const c_char,
    name: *const c_char,
    dtype: tensorlend_dtype,
    ndim: u32,
    shape: *const u64,
    data: *const c_void,
    version: *mut tensorlend_version,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, and strings are NULL or
        // zero-terminated.
        let ((client, name), device) = unsafe { (both(client, name, "name")?, place(device)?) };
        check_name(name)?;
        // SAFETY: by the contract in `lib.rs`, the pointer is NULL or points to memory of this
        // length.
        let spec = unsafe { spec(dtype, ndim, shape, std::ptr::null(), 0) }?;
        // SAFETY: by the rule on lengths, `data` points to the bytes of all elements, whose number
        // follows from the shape.
        let data = unsafe { values(data.cast(), spec.bytes()?, "data") }?;
        let mut draft = client.create_spec_on(device, spec)?;
        draft.copy_from_bytes(data)?;
        let published = draft.publish(name)?;
        // SAFETY: by the contract in `lib.rs`, the variable is NULL or writable.
        unsafe { tell(version, published.into()) };
        Ok(())
    })
}

/// Returns the address of the draft's first byte on its device, a multiple of 512. The address is
/// valid until the draft is taken over or freed. Returns 0 for a draft in host memory, for NULL,
/// and in the child of a fork.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_draft_device_data(draft: *mut tensorlend_draft) -> u64 {
    // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
    look(0, || unsafe { change(draft, |draft| Ok(draft.ptr())) }.ok())
}

/// Records a stream whose work writes the draft. Publishing waits for that work. Once a stream is
/// recorded, publishing waits for recorded streams only.
///
/// Errors: `TENSORLEND_DEVICE` for a stream of a context other than the device's primary context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_draft_record_stream(
    draft: *mut tensorlend_draft,
    stream: *mut c_void,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, and streams are NULL or
        // valid.
        unsafe { change(draft, |draft| draft.record_stream(on_stream(stream)).map(drop)) }?;
        Ok(())
    })
}

/// Orders a stream after the work on the draft in all other recorded streams, and records the
/// stream. The call does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_draft_order_stream(
    draft: *mut tensorlend_draft,
    stream: *mut c_void,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, and streams are NULL or
        // valid.
        unsafe { change(draft, |draft| draft.wait(on_stream(stream)).map(drop)) }?;
        Ok(())
    })
}

/// Copies `bytes` bytes from host memory into the draft. `bytes` must be exactly
/// `tensorlend_draft_bytes`. The call returns when the copy is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_draft_copy_from_host(
    draft: *mut tensorlend_draft,
    data: *const c_void,
    bytes: u64,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, the pointer is NULL or points to memory of this
        // length.
        let data = unsafe { values(data.cast(), bytes, "data") }?;
        // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
        unsafe { change(draft, |draft| draft.copy_from_bytes(data)) }?;
        Ok(())
    })
}

/// Copies `tensorlend_draft_bytes` bytes at `from`, elsewhere on the device, into the draft. The
/// copy is work of `stream`, which the call records. The call does not wait. The bytes at `from`
/// must stay until the stream has done the copy, at the latest until the draft is published or
/// `tensorlend_draft_finish` returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_draft_copy_from_device(
    draft: *mut tensorlend_draft,
    from: u64,
    stream: *mut c_void,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive, and the stream is
        // valid. The header requires of `from` what `copy_from_ptr` requires.
        unsafe { change(draft, |draft| draft.copy_from_ptr(from, on_stream(stream))) }?;
        Ok(())
    })
}

/// Waits until the work on the draft is done, as publishing does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_draft_finish(draft: *mut tensorlend_draft) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
        unsafe { change(draft, |draft| draft.finish().map(drop)) }?;
        Ok(())
    })
}

/// Publishes a draft on a device while work on the draft is still pending in `stream`. The stream
/// first waits for the work in all other recorded streams. The call itself does not wait. Takes
/// `*draft` over. `version` may be NULL.
///
/// Readers wait for a CUDA event of this process: `tensorlend_get_device` waits on the host, and
/// `tensorlend_lease_order_stream` in a stream. If this process is killed before the work is done,
/// the readers get `TENSORLEND_DEVICE`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_publish_early(
    draft: *mut *mut tensorlend_draft,
    name: *const c_char,
    stream: *mut c_void,
    version: *mut tensorlend_version,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, the string is NULL or zero-terminated.
        let name = unsafe { text(name, "name") }?;
        check_name(name)?;
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, and variables are NULL or
        // writable.
        unsafe { check_taking(draft, "draft") }?;
        // SAFETY: by the contract in `lib.rs`, the variable holds NULL or a live handle.
        // `check_taking` has accepted the variable.
        unsafe { change(draft.read(), |_| Ok(())) }?;
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive and used by this thread
        // alone, and variables are NULL or writable.
        let ValueDraft::Device(taken) = unsafe { take(draft, "draft") }? else { return Ok(()) };
        // SAFETY: by the contract in `lib.rs`, the stream is NULL or valid.
        let published = taken.publish_early(name, &unsafe { on_stream(stream) })?;
        // SAFETY: by the contract in `lib.rs`, the variable is NULL or writable.
        unsafe { tell(version, published.into()) };
        Ok(())
    })
}

/// Leases the name's current tensor on a device, without a copy. If the tensor was published early,
/// waits for the producer's work on the tensor. `tensorlend_lease_tensor` describes the tensor,
/// with its address on the device.
///
/// Errors:
/// - `TENSORLEND_NOT_FOUND`.
/// - `TENSORLEND_KIND` for a tensor in host memory and for a dataset.
/// - `TENSORLEND_DEVICE` if this process cannot use the device.
///
/// `tensorlend_get_value`, `tensorlend_wait_newer` and subscriptions lease tensors on devices, too.
/// These calls do not wait for the producer's work. Call `tensorlend_lease_finish` or
/// `tensorlend_lease_order_stream` after them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_get_device(
    client: *const tensorlend_client,
    name: *const c_char,
    lease: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, variables are NULL or
        // writable, and strings are NULL or zero-terminated.
        let (out, (client, name)) = unsafe { (Out::new(lease, "lease")?, both(client, name, "name")?) };
        out.lend(Value::Device(client.get_device(name)?));
        Ok(())
    })
}

/// Works like `tensorlend_get_device`, but does not wait for the producer's work. Call
/// `tensorlend_lease_order_stream` for each stream that reads the tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_get_device_early(
    client: *const tensorlend_client,
    name: *const c_char,
    lease: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, variables are NULL or
        // writable, and strings are NULL or zero-terminated.
        let (out, (client, name)) = unsafe { (Out::new(lease, "lease")?, both(client, name, "name")?) };
        out.lend(Value::Device(client.get_device_early(name)?));
        Ok(())
    })
}

/// Records a stream whose work reads the leased tensor, or the tensors of a dataset on the stream's
/// device. After `tensorlend_lease_free` the memory
/// stays in place until the stream has done the work queued by then. If the program records no
/// stream, it must wait for its own work before it frees the lease.
///
/// Errors:
/// - `TENSORLEND_DEVICE` for a stream of a context other than the device's primary context.
/// - `TENSORLEND_ARGUMENT` for a lease in host memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_record_stream(
    lease: *const tensorlend_lease,
    stream: *mut c_void,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, and streams are NULL or
        // valid.
        let (tensors, stream) = unsafe { (leased(lease)?, on_stream(stream)) };
        with_stream(&tensors, &stream, |tensor| tensor.record_stream(&stream))?;
        Ok(())
    })
}

/// Orders a stream after the producer's work on a tensor that was published early, and records the
/// stream. The call does not wait. Fails with `TENSORLEND_DEVICE` if the producer has ended before
/// its work was done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_order_stream(
    lease: *const tensorlend_lease,
    stream: *mut c_void,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, and streams are NULL or
        // valid.
        let (tensors, stream) = unsafe { (leased(lease)?, on_stream(stream)) };
        with_stream(&tensors, &stream, |tensor| tensor.wait(&stream))?;
        Ok(())
    })
}

/// Waits until the producer's work on a tensor that was published early is done. Fails with
/// `TENSORLEND_DEVICE` if the producer has ended before its work was done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_finish(lease: *const tensorlend_lease) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, the handle is NULL or alive.
        unsafe { leased(lease) }?.iter().try_for_each(|tensor| tensor.finish())?;
        Ok(())
    })
}

/// Writes to `*finished` whether the producer's work on the tensor is known to be done. This is
/// always true unless the tensor was published early. A reader that made a stream wait calls this
/// function after its own work. True then means that its work read the finished tensor. Fails with
/// `TENSORLEND_DEVICE` if the producer has ended before its work was done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_is_finished(
    lease: *const tensorlend_lease,
    finished: *mut bool,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, and variables are NULL or
        // writable.
        let (finished, lease) = unsafe { (OutVar::new(finished, "finished")?, leased(lease)?) };
        let mut all = true;
        for tensor in lease {
            all &= tensor.is_finished()?;
        }
        finished.fill(all);
        Ok(())
    })
}

/// Writes this client's memory on one device in bytes. Writes the bytes of this client's tensors to
/// `*slot_bytes`. Writes the bytes of the segments that the daemon lends to this client to
/// `*segment_bytes`. Either pointer may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_device_memory(
    client: *const tensorlend_client,
    device: *const c_char,
    slot_bytes: *mut u64,
    segment_bytes: *mut u64,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: by the contract in `lib.rs`, handles are NULL or alive, and strings are NULL or
        // zero-terminated.
        let (client, device) = unsafe { (&handle(client, "client")?.client, place(device)?) };
        let memory = client.device_memory(device)?;
        // SAFETY: by the contract in `lib.rs`, the variable is NULL or writable.
        unsafe { tell(slot_bytes, memory.slot_bytes) };
        // SAFETY: by the contract in `lib.rs`, the variable is NULL or writable.
        unsafe { tell(segment_bytes, memory.segment_bytes) };
        Ok(())
    })
}
