//! Tensors in the memory of CUDA devices.

use super::arguments::{c_text, call, convert, free, look};
use super::client::tensorlend_client;
use super::draft::tensorlend_draft;
use super::dtype::tensorlend_dtype;
use super::lease::tensorlend_lease;
use super::status::tensorlend_status;
use super::version::tensorlend_version;
use std::ffi::{CString, c_char, c_void};
use std::ptr::{from_ref, null};
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
    call!(|devices: out, client: handle| {
        let (rows, texts) = client.opened()?.devices().iter().map(described).unzip();
        devices.fill(tensorlend_devices { rows, _texts: texts });
    })
}

/// Number of devices; 0 for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_devices_count(devices: *const tensorlend_devices) -> u64 {
    look!(0, |devices: handle| Some(devices.rows.len() as u64))
}

/// Returns a device by its index in the list, borrowed from the list; NULL beyond the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_devices_at(
    devices: *const tensorlend_devices,
    number: u64,
) -> *const tensorlend_device {
    look!(null(), |devices: handle| devices.rows.get(usize::try_from(number).ok()?).map(from_ref))
}

/// Frees a list of devices. NULL does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_devices_free(devices: *mut tensorlend_devices) {
    free!(devices);
}

/// Returns the device with this name or UUID.
fn parse_device(name: &str) -> Result<On> {
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

impl tensorlend_draft {
    /// Changes a draft on a device.
    fn on_device<T>(&self, how: impl FnOnce(&mut DeviceDraft) -> Result<T>) -> Result<T> {
        self.change(|payload| match payload {
            ValueDraft::Device(draft) => how(draft),
            _ => Err(Error::Argument("the draft is in host memory: create one with tensorlend_create_on".into())),
        })
    }
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
    call!(|draft: out, client: handle, device: text| {
        let on = parse_device(device)?;
        let spec = convert!(shape: shape(dtype, ndim))?;
        draft.fill(tensorlend_draft::of(ValueDraft::Device(client.client.create_spec_on(on, spec)?)));
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
    call!(|draft: out, client: handle, device: text| {
        let on = parse_device(device)?;
        let spec = convert!(shape: shape(dtype, ndim))?;
        let stream = convert!(stream: stream)?;
        let made = client.client.create_on_stream(on, &stream, spec.dtype, &spec.shape)?;
        draft.fill(tensorlend_draft::of(ValueDraft::Device(made)));
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
    call!(|client: handle, name: text, device: text, version: optional_variable| {
        let on = parse_device(device)?;
        check_name(name)?;
        let (spec, data) = convert!(data: elements(dtype, ndim, shape))?;
        let mut draft = client.client.create_spec_on(on, spec)?;
        draft.copy_from_bytes(data)?;
        version.fill(draft.publish(name)?);
    })
}

/// Returns the address of the draft's first byte on its device, a multiple of 512. The address is
/// valid until the draft is taken over or freed. Returns 0 for a draft in host memory, for NULL,
/// and in the child of a fork.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_draft_device_data(draft: *mut tensorlend_draft) -> u64 {
    look!(0, |draft: handle| draft.on_device(|draft| Ok(draft.ptr())).ok())
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
    call!(|draft: handle, stream: stream| draft.on_device(|draft| draft.record_stream(stream).map(drop))?)
}

/// Orders a stream after the work on the draft in all other recorded streams, and records the
/// stream. The call does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_draft_order_stream(
    draft: *mut tensorlend_draft,
    stream: *mut c_void,
) -> tensorlend_status {
    call!(|draft: handle, stream: stream| draft.on_device(|draft| draft.wait(stream).map(drop))?)
}

/// Copies `bytes` bytes from host memory into the draft. `bytes` must be exactly
/// `tensorlend_draft_bytes`. The call returns when the copy is done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_draft_copy_from_host(
    draft: *mut tensorlend_draft,
    data: *const c_void,
    bytes: u64,
) -> tensorlend_status {
    call!(|data: bytes(bytes), draft: handle| draft.on_device(|draft| draft.copy_from_bytes(data))?)
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
    call!(|draft: handle, stream: stream| {
        // SAFETY: the header demands of `from` what `copy_from_ptr` requires.
        draft.on_device(|draft| unsafe { draft.copy_from_ptr(from, stream) })?;
    })
}

/// Waits until the work on the draft is done, as publishing does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_draft_finish(draft: *mut tensorlend_draft) -> tensorlend_status {
    call!(|draft: handle| draft.on_device(|draft| draft.finish().map(drop))?)
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
    call!(|name: text, draft: consumed, stream: stream, version: optional_variable| {
        check_name(name)?;
        draft.check()?.on_device(|_| Ok(()))?;
        let ValueDraft::Device(taken) = draft.draft()? else { return Ok(()) };
        version.fill(taken.publish_early(name, &stream)?);
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
    call!(|lease: out, client: handle, name: text| lease.lend(Value::Device(client.client.get_device(name)?), name))
}

/// Works like `tensorlend_get_device`, but does not wait for the producer's work. Call
/// `tensorlend_lease_order_stream` for each stream that reads the tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_get_device_early(
    client: *const tensorlend_client,
    name: *const c_char,
    lease: *mut *mut tensorlend_lease,
) -> tensorlend_status {
    call!(
        |lease: out, client: handle, name: text| lease.lend(Value::Device(client.client.get_device_early(name)?), name)
    )
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
    call!(|lease: handle, stream: stream| {
        with_stream(&lease.devices()?, &stream, |tensor| tensor.record_stream(&stream))?;
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
    call!(|lease: handle, stream: stream| with_stream(&lease.devices()?, &stream, |tensor| tensor.wait(&stream))?)
}

/// Waits until the producer's work on a tensor that was published early is done. Fails with
/// `TENSORLEND_DEVICE` if the producer has ended before its work was done.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_finish(lease: *const tensorlend_lease) -> tensorlend_status {
    call!(|lease: handle| lease.devices()?.iter().try_for_each(|tensor| tensor.finish())?)
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
    call!(|finished: variable, lease: handle| {
        let mut all = true;
        for tensor in lease.devices()? {
            all &= tensor.is_finished()?;
        }
        finished.fill(all);
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
    call!(|client: handle, device: text, slot_bytes: optional_variable, segment_bytes: optional_variable| {
        let memory = client.client.device_memory(parse_device(device)?)?;
        slot_bytes.fill(memory.slot_bytes);
        segment_bytes.fill(memory.segment_bytes);
    })
}
