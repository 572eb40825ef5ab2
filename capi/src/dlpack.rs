//! Exchange of tensors with other libraries, through `DLPack`.

use super::arguments::{Out, handle, tell, values};
use super::client::tensorlend_client;
use super::device::on_stream;
use super::draft::{Shared, tensorlend_draft};
use super::dtype::dtype;
use super::lease::{optional, shared, tensorlend_lease};
use super::names::both;
use super::status::{Fault, guard, look, tensorlend_status};
use super::version::tensorlend_version;
use dlpark::DlpackFlags;
use dlpark::ffi::{
    DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensorVersioned, DLPACK_MAJOR_VERSION,
    DLPACK_MINOR_VERSION, DLPackVersion, DLTensor,
};
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use tensorlend::{Client, DType, Device, Draft, Error, Result, TensorSpec, Value, ValueDraft, check_name};
use tensorlend_layout::tensor::{NDIM_MAX, Strides, check_extent};

/// The memory that an exported tensor keeps alive.
enum Owner {
    Lease(#[expect(dead_code, reason = "dropped with the tensor")] Arc<tensorlend_lease>),
    Draft(#[expect(dead_code, reason = "dropped with the tensor")] Arc<Shared>),
}

/// An exported tensor. Its deleter drops it, on any thread.
struct Handed {
    managed: DLManagedTensorVersioned,
    shape: Vec<i64>,
    strides: Vec<i64>,
    _owner: Owner,
}

/// The description of an exported tensor.
struct Looks<'a> {
    dtype: DType,
    shape: &'a [usize],
    strides: Vec<i64>,
    /// The element with index 0.
    data: *mut u8,
    /// The device of the tensor's memory.
    device: Device,
    flags: DlpackFlags,
}

fn hand_out(out: Out<DLManagedTensorVersioned>, looks: Looks<'_>, owner: Owner) {
    // Sizes were checked to be below 2^63 when the tensor was made.
    let shape: Vec<i64> = looks.shape.iter().map(|&size| size as i64).collect();
    let empty = shape.contains(&0);
    let dl_tensor = DLTensor {
        data: if empty { std::ptr::null_mut() } else { looks.data.cast::<c_void>() },
        device: DLDevice { device_type: DLDeviceType(looks.device.kind().into()), device_id: looks.device.id().into() },
        ndim: shape.len() as i32,
        dtype: DLDataType {
            code: DLDataTypeCode(looks.dtype.code()),
            bits: looks.dtype.bits(),
            lanes: looks.dtype.lanes(),
        },
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = DLManagedTensorVersioned {
        version: DLPackVersion { major: DLPACK_MAJOR_VERSION, minor: DLPACK_MINOR_VERSION },
        manager_ctx: std::ptr::null_mut(),
        deleter: Some(delete),
        flags: looks.flags,
        dl_tensor,
    };
    let handed = Box::into_raw(Box::new(Handed { managed, shape, strides: looks.strides, _owner: owner }));
    // SAFETY: boxed above; no other pointer to it exists yet.
    let it = unsafe { &mut *handed };
    it.managed.manager_ctx = handed.cast();
    it.managed.dl_tensor.shape = it.shape.as_mut_ptr();
    it.managed.dl_tensor.strides = it.strides.as_mut_ptr();
    // SAFETY: a field of the structure to which `handed` points.
    out.fill_raw(unsafe { &raw mut (*handed).managed });
}

/// The deleter of an exported tensor.
unsafe extern "C" fn delete(tensor: *mut DLManagedTensorVersioned) {
    look((), || {
        // SAFETY: the rule on DLPack: NULL, or a tensor that this library has exported and no code has freed.
        let handed = unsafe { tensor.as_ref() }?.manager_ctx.cast::<Handed>();
        // SAFETY: the rule on DLPack: `hand_out` stored the box there, and the consumer calls the deleter once.
        drop(unsafe { Box::from_raw(handed) });
        None
    });
}

/// Frees a tensor of this or another library by its deleter; NULL does nothing. A tensor of
/// `tensorlend_lease_to_dlpack` or `tensorlend_draft_to_dlpack` is freed once, on any thread: by this call, or by the
/// library that took it over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_dlpack_free(tensor: *mut DLManagedTensorVersioned) {
    look((), || {
        if tensor.is_null() {
            return None;
        }
        // SAFETY: the rule on DLPack: the deleter is at the same place in every version; NULL if there is nothing to
        // do.
        let deleter = unsafe { (&raw const (*tensor).deleter).read() }?;
        // SAFETY: the rule on DLPack: the deleter was not called before.
        unsafe { deleter(tensor) };
        None
    });
}

/// An address on a device, which is only a number here.
fn on_a_device(address: u64) -> *mut u8 {
    std::ptr::without_provenance_mut(address as usize)
}

/// Converts the sizes to the integer type of shared memory.
pub(super) fn sizes_of(shape: &[usize]) -> Vec<u64> {
    shape.iter().map(|&size| size as u64).collect()
}

/// Returns the row-major strides of a shape with at most 16 dimensions.
fn row_major_strides(shape: &[usize]) -> Vec<i64> {
    Strides::row_major(&sizes_of(shape)).map_or_else(Vec::new, |strides| strides.to_vec())
}

/// Exports a leased tensor in place to another library, read-only (`DLPACK_FLAG_BITMASK_READ_ONLY`). For a dataset, `member` is
/// the name of one of its tensors; for a tensor, it is NULL. The lease's memory is kept until the tensor's deleter was called
/// and the handle is freed, in any order. Free the tensor with `tensorlend_dlpack_free`, unless another library took it over. A
/// tensor on a device is exported there (`kDLCUDA`), without a stream: before you pass it on, order the stream that will read
/// it, by `tensorlend_lease_order_stream`.
///
/// `TENSORLEND_NOT_FOUND` if there is no such member.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_to_dlpack(
    lease: *const tensorlend_lease,
    member: *const c_char,
    tensor: *mut *mut DLManagedTensorVersioned,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles, variables and strings.
        let (out, lease, member) =
            unsafe { (Out::new(tensor, "tensor")?, shared(lease)?, optional(member, "member")?) };
        if let (Value::Device(on_device), None) = (&lease.value, member) {
            lease.check()?;
            let looks = Looks {
                dtype: on_device.dtype(),
                shape: on_device.shape(),
                strides: on_device.strides().to_vec(),
                data: on_a_device(on_device.ptr() + on_device.byte_offset() as u64),
                device: on_device.device(),
                flags: DlpackFlags::READ_ONLY,
            };
            hand_out(out, looks, Owner::Lease(lease.clone()));
            return Ok(());
        }
        let found = lease.find(member)?;
        let looks = Looks {
            dtype: found.dtype(),
            shape: found.shape(),
            strides: found.strides().to_vec(),
            data: found.bytes().as_ptr().wrapping_add(found.byte_offset()).cast_mut(),
            device: Device::CPU,
            flags: DlpackFlags::READ_ONLY,
        };
        hand_out(out, looks, Owner::Lease(lease.clone()));
        Ok(())
    })
}

/// Exports a draft to another library, which writes it in place. Until the tensor is freed (`tensorlend_dlpack_free`,
/// or by the library that took it over), the draft cannot be published, sent or appended (`TENSORLEND_ARGUMENT`). Record
/// the stream in which another library writes a draft on a device, by `tensorlend_draft_record_stream`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_draft_to_dlpack(
    draft: *mut tensorlend_draft,
    tensor: *mut *mut DLManagedTensorVersioned,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and variables.
        let (out, draft) = unsafe { (Out::new(tensor, "tensor")?, handle(draft, "draft")?) };
        let (spec, data, device) = draft.change(|payload| match payload {
            ValueDraft::Tensor(tensor) => Ok((tensor.spec(), draft.data(), Device::CPU)),
            ValueDraft::Device(tensor) => Ok((tensor.spec(), on_a_device(tensor.ptr()), tensor.device())),
            _ => Err(Error::Argument("the draft is a dataset: hand out its members".into())),
        })?;
        let looks = Looks {
            dtype: spec.dtype,
            shape: &spec.shape,
            strides: spec.strides.unwrap_or_else(|| row_major_strides(&spec.shape)),
            data: data.wrapping_add(spec.byte_offset),
            device,
            flags: DlpackFlags::empty(),
        };
        hand_out(out, looks, Owner::Draft(draft.shared.clone()));
        Ok(())
    })
}

/// Creates a row-major draft from a copy of another library's tensor, strided or not. The caller keeps the tensor.
///
/// `TENSORLEND_ARGUMENT` for a `DLPack` version other than 1 or memory of a device (`tensorlend_create_from_dlpack_on`);
/// `TENSORLEND_DTYPE` for an element type that tensorlend does not know; otherwise as `tensorlend_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_create_from_dlpack(
    client: *const tensorlend_client,
    tensor: *const DLManagedTensorVersioned,
    draft: *mut *mut tensorlend_draft,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and variables.
        let (out, client) = unsafe { (Out::new(draft, "draft")?, &handle(client, "client")?.client) };
        // SAFETY: the rule on DLPack.
        let copy = unsafe { copied(client, tensor) }?;
        out.fill(tensorlend_draft::of(ValueDraft::Tensor(copy)));
        Ok(())
    })
}

/// Creates a draft on a device from a copy of another library's tensor there, which is row-major. The copy is work of
/// `stream`, so that it comes after work of that stream on the tensor (NULL: the legacy default stream), and is done when
/// the call returns. The caller keeps the tensor.
///
/// `TENSORLEND_ARGUMENT` for memory that is not a CUDA device's, and for a tensor that is not row-major; otherwise as
/// `tensorlend_create_from_dlpack` and `tensorlend_create_on`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_create_from_dlpack_on(
    client: *const tensorlend_client,
    tensor: *const DLManagedTensorVersioned,
    stream: *mut c_void,
    draft: *mut *mut tensorlend_draft,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and variables.
        let (out, client) = unsafe { (Out::new(draft, "draft")?, &handle(client, "client")?.client) };
        // SAFETY: the rule on DLPack.
        let tensor = unsafe { known(tensor) }?;
        let device = tensor.device;
        let number = u8::try_from(device.device_id).ok().filter(|_| device.device_type == DLDeviceType::CUDA);
        let number = number.ok_or_else(|| {
            Error::Argument(format!("the tensor is in memory of device type {}: CUDA's is 2", device.device_type.0))
        })?;
        // SAFETY: the rule on DLPack.
        let (spec, strides) = unsafe { described(tensor) }?;
        if !is_row_major(&spec.shape, &strides) {
            return Err(
                Error::Argument("the tensor is not row-major: make a contiguous copy of it first".into()).into()
            );
        }
        if tensor.data.is_null() && spec.bytes()? > 0 {
            return Err(Error::Argument("the tensor's data is NULL, and it has elements".into()).into());
        }
        let mut copy = client.create_spec_on(Device::cuda(number), spec)?;
        let from = (tensor.data.addr() as u64).wrapping_add(tensor.byte_offset);
        // SAFETY: the rule on streams.
        let stream = unsafe { on_stream(stream) };
        // SAFETY: the rule on DLPack: the tensor's elements are at this address, and its owner leaves it alone until
        // the copy is done.
        unsafe { copy.copy_from_ptr(from, &stream) }?;
        copy.finish()?;
        out.fill(tensorlend_draft::of(ValueDraft::Device(copy)));
        Ok(())
    })
}

/// Copies another library's tensor, strided or not, and publishes it. The caller keeps the tensor. `version` may be
/// NULL. Errors are those of `tensorlend_create_from_dlpack` and `tensorlend_publish`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_put_dlpack(
    client: *const tensorlend_client,
    name: *const c_char,
    tensor: *const DLManagedTensorVersioned,
    version: *mut tensorlend_version,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: the rules on handles and strings.
        let (client, name) = unsafe { both(client, name) }?;
        check_name(name)?;
        // SAFETY: the rule on DLPack.
        let published = unsafe { copied(client, tensor) }?.publish(name)?;
        // SAFETY: the rule on variables.
        unsafe { tell(version, published.into()) };
        Ok(())
    })
}

/// Returns a foreign tensor, if this library knows its version of `DLPack`.
///
/// # Safety
/// The rule on DLPack.
unsafe fn known<'a>(tensor: *const DLManagedTensorVersioned) -> Result<&'a DLTensor> {
    if tensor.is_null() {
        return Err(Error::Argument("tensor is NULL".into()));
    }
    // SAFETY: the rule on DLPack: the version is the first field of every version of the structure. Only it may be read
    // before it is checked, so there is no reference to the whole yet.
    let major = unsafe { (&raw const (*tensor).version.major).read() };
    if major != DLPACK_MAJOR_VERSION {
        let why = format!("the tensor is of DLPack {major}: {DLPACK_MAJOR_VERSION} is understood");
        return Err(Error::Argument(why));
    }
    // SAFETY: the rule on DLPack: the tensor has the version that this library knows.
    Ok(unsafe { &(*tensor).dl_tensor })
}

/// Returns the element type, the shape, and the strides in elements of a foreign tensor.
///
/// # Safety
/// The rule on DLPack.
unsafe fn described(tensor: &DLTensor) -> std::result::Result<(TensorSpec, Vec<i64>), Fault> {
    let ndim = u64::try_from(tensor.ndim).ok().filter(|&ndim| ndim <= NDIM_MAX as u64);
    let ndim = ndim.ok_or_else(|| Error::Argument(format!("{} dimensions: 0 to {NDIM_MAX}", tensor.ndim)))?;
    // SAFETY: the rule on DLPack: `ndim` sizes, and `ndim` strides unless NULL.
    let (sizes, strides) = unsafe {
        let strides = if tensor.strides.is_null() { 0 } else { ndim };
        (values(tensor.shape, ndim, "shape")?, values(tensor.strides, strides, "strides")?)
    };
    let shape: Option<Vec<usize>> = sizes.iter().map(|&size| usize::try_from(size).ok()).collect();
    let shape = shape.ok_or_else(|| Error::Argument(format!("sizes {sizes:?}: none may be below 0")))?;
    let kind = tensor.dtype;
    let dtype = dtype(u32::from(kind.code.0) | u32::from(kind.bits) << 8 | u32::from(kind.lanes) << 16)?;
    let strides = if tensor.strides.is_null() { row_major_strides(&shape) } else { strides.to_vec() };
    Ok((TensorSpec::new(dtype, &shape), strides))
}

fn is_row_major(shape: &[usize], strides: &[i64]) -> bool {
    let ours = row_major_strides(shape);
    // A stride has no meaning for a dimension of size 1, or in a tensor without elements.
    shape.contains(&0) || shape.iter().zip(strides.iter().zip(&ours)).all(|(&size, (a, b))| size == 1 || a == b)
}

/// Returns a copy of a foreign tensor in host memory.
///
/// # Safety
/// The rule on DLPack.
unsafe fn copied(client: &Client, tensor: *const DLManagedTensorVersioned) -> std::result::Result<Draft, Fault> {
    // SAFETY: the rule on DLPack.
    let tensor = unsafe { known(tensor) }?;
    let device = tensor.device.device_type;
    if ![DLDeviceType::CPU, DLDeviceType::CUDAHOST].contains(&device) {
        let why = format!("the tensor is in memory of device type {}: copy it to the host first", device.0);
        return Err(Error::Argument(why).into());
    }
    // SAFETY: the rule on DLPack.
    let (spec, strides) = unsafe { described(tensor) }?;
    // Checked here: after the offset is added, the pointer would not be NULL.
    if tensor.data.is_null() && spec.bytes()? > 0 {
        return Err(Error::Argument("the tensor's data is NULL, and it has elements".into()).into());
    }
    let first = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize);
    // SAFETY: the rule on DLPack.
    let (bytes, offset) = unsafe { reached(first, &spec, &strides) }?;
    let mut draft = client.create_spec(spec)?;
    draft.copy_from_strided(bytes, offset as usize, &strides)?;
    Ok(draft)
}

/// Returns the bytes from a tensor's lowest element to the end of its highest, and the offset of the element with index
/// 0 in them.
///
/// # Safety
/// Each element of a tensor of these sizes and strides, with its first at `first`, can be read.
unsafe fn reached<'a>(first: *const u8, spec: &TensorSpec, strides: &[i64]) -> Result<(&'a [u8], u64)> {
    if spec.bytes()? == 0 {
        return Ok((&[], 0));
    }
    let item = spec.dtype.item_bytes() as i128;
    let (mut low, mut high) = (0i128, 0i128);
    for (&dim, &stride) in spec.shape.iter().zip(strides) {
        let reach = (dim as i128 - 1) * i128::from(stride);
        if reach < 0 { low += reach } else { high += reach }
    }
    let (offset, end) = (-low * item, (high - low + 1) * item);
    let (Ok(offset), Ok(length)) = (u64::try_from(offset), i64::try_from(end)) else {
        return Err(Error::Argument(format!("strides {strides:?} lead out of memory")));
    };
    let spec = TensorSpec { strides: Some(strides.to_vec()), byte_offset: offset as usize, ..spec.clone() };
    // The same check as for tensors in shared memory. The copy stays inside these bytes.
    check_extent(spec.dtype, &sizes_of(&spec.shape), Some(strides), offset, length as u64)
        .map_err(|cause| Error::Tensor { what: "the DLPack tensor".into(), cause })?;
    // SAFETY: the lowest and the highest of these bytes belong to elements, which can be read. By the meaning of
    // DLPack's strides, the bytes between them belong to the same allocation. The length was checked to fit.
    Ok((unsafe { values(first.wrapping_sub(offset as usize), length as u64, "data") }?, offset))
}
