//! Exchange of tensors with other libraries, by `DLPack`.

use super::arguments::{ForeignTensor, Out, call, convert, values};
use super::client::tensorlend_client;
use super::draft::{Shared, tensorlend_draft};
use super::dtype::dtype;
use super::lease::{Found, shared, tensorlend_lease};
use super::status::{Fault, look, tensorlend_status};
use super::version::tensorlend_version;
use dlpark::DlpackFlags;
use dlpark::ffi::{
    DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensorVersioned, DLPACK_MAJOR_VERSION,
    DLPACK_MINOR_VERSION, DLPackVersion, DLTensor,
};
use std::ffi::{c_char, c_void};
use std::sync::Arc;
use tensorlend::{Client, DType, Device, Draft, Error, Result, TensorSpec, ValueDraft, check_name};
use tensorlend_layout::size::bytes_text;
use tensorlend_layout::tensor::{NDIM_MAX, Strides, check_extent};

/// The memory that an exported tensor keeps alive.
enum Owner {
    Lease(#[expect(dead_code, reason = "dropped with the tensor")] Arc<tensorlend_lease>),
    Draft(#[expect(dead_code, reason = "dropped with the tensor")] Arc<Shared>),
}

/// An exported tensor. Its deleter may run on any thread, and drops this structure.
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
    /// The address of the element with index 0.
    data: *mut u8,
    /// The device of the tensor's memory.
    device: Device,
    flags: DlpackFlags,
}

fn hand_out(out: Out<DLManagedTensorVersioned>, looks: Looks<'_>, owner: Owner) {
    // The creation of the tensor checked that all sizes are below 2^63.
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
    // SAFETY: `handed` comes from the box above, and no other pointer to this memory exists yet.
    let it = unsafe { &mut *handed };
    it.managed.manager_ctx = handed.cast();
    it.managed.dl_tensor.shape = it.shape.as_mut_ptr();
    it.managed.dl_tensor.strides = it.strides.as_mut_ptr();
    // SAFETY: `managed` is a field of the structure to which `handed` points.
    out.fill_raw(unsafe { &raw mut (*handed).managed });
}

/// The deleter of an exported tensor.
unsafe extern "C" fn delete(tensor: *mut DLManagedTensorVersioned) {
    look((), || {
        // SAFETY: by the rule on DLPack, the pointer is NULL or points to a tensor that this
        // library has exported and no code has freed.
        let handed = unsafe { tensor.as_ref() }?.manager_ctx.cast::<Handed>();
        // SAFETY: `hand_out` stored the box in this pointer. By the rule on DLPack, the consumer
        // calls the deleter once.
        drop(unsafe { Box::from_raw(handed) });
        None
    });
}

/// Frees a tensor of this or another library by its deleter. NULL does nothing. A tensor of
/// `tensorlend_lease_to_dlpack` or `tensorlend_draft_to_dlpack` must be freed once, on any thread.
/// Either this call or the library that took the tensor over frees it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_dlpack_free(tensor: *mut DLManagedTensorVersioned) {
    look((), || {
        if tensor.is_null() {
            return None;
        }
        // SAFETY: by the rule on DLPack, the field `deleter` is at the same offset in every
        // version. It is NULL if there is nothing to free.
        let deleter = unsafe { (&raw const (*tensor).deleter).read() }?;
        // SAFETY: by the rule on DLPack, no code has called the deleter before.
        unsafe { deleter(tensor) };
        None
    });
}

/// Converts an address on a device to a pointer. The host never dereferences this pointer.
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

/// Exports a leased tensor in place to another library, read-only
/// (`DLPACK_FLAG_BITMASK_READ_ONLY`). For a dataset, `member` is the name of one of its tensors;
/// for a tensor, it is NULL. The lease's memory stays in place until the tensor's deleter has run
/// and the handle is freed, in any order. Free the tensor with `tensorlend_dlpack_free`, unless
/// another library took it over. A tensor on a device is exported on that device (`kDLCUDA`),
/// without a stream. Before you pass such a tensor on, call `tensorlend_lease_order_stream` for the
/// stream that will read it.
///
/// Errors: `TENSORLEND_NOT_FOUND` if there is no such member.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_to_dlpack(
    lease: *const tensorlend_lease,
    member: *const c_char,
    tensor: *mut *mut DLManagedTensorVersioned,
) -> tensorlend_status {
    call!(|tensor: out| {
        // SAFETY: the rule on handles.
        let lease = unsafe { shared(lease) }?;
        let member = convert!(member: optional_text)?;
        let (dtype, shape, strides, data, device) = match lease.find(member)? {
            Found::Host(it) => {
                let data = it.bytes().as_ptr().wrapping_add(it.byte_offset()).cast_mut();
                (it.dtype(), it.shape(), it.strides(), data, Device::CPU)
            }
            Found::Device(it) => {
                let data = on_a_device(it.ptr() + it.byte_offset() as u64);
                (it.dtype(), it.shape(), it.strides(), data, it.device())
            }
        };
        let strides = strides.to_vec();
        let looks = Looks { dtype, shape, strides, data, device, flags: DlpackFlags::READ_ONLY };
        hand_out(tensor, looks, Owner::Lease(lease.clone()));
    })
}

/// Exports a draft to another library, which writes the draft in place. Free the tensor with
/// `tensorlend_dlpack_free`, unless another library took it over. Until the tensor is freed, calls
/// that publish, send or append the draft fail with `TENSORLEND_ARGUMENT`. Record the stream in
/// which another library writes a draft on a device, by `tensorlend_draft_record_stream`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_draft_to_dlpack(
    draft: *mut tensorlend_draft,
    tensor: *mut *mut DLManagedTensorVersioned,
) -> tensorlend_status {
    call!(|tensor: out, draft: handle| {
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
        hand_out(tensor, looks, Owner::Draft(draft.shared.clone()));
    })
}

/// Creates a row-major draft from a copy of another library's tensor, strided or not. The caller keeps the tensor.
///
/// Errors:
/// - `TENSORLEND_ARGUMENT` for a `DLPack` version other than 1, and for memory of a device, which
///   needs `tensorlend_create_from_dlpack_on`.
/// - `TENSORLEND_DTYPE` for an element type that tensorlend does not support.
/// - Otherwise those of `tensorlend_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_create_from_dlpack(
    client: *const tensorlend_client,
    tensor: *const DLManagedTensorVersioned,
    draft: *mut *mut tensorlend_draft,
) -> tensorlend_status {
    call!(|draft: out, client: handle, tensor: dlpack| {
        draft.fill(tensorlend_draft::of(ValueDraft::Tensor(tensor.copied(&client.client)?)));
    })
}

/// Creates a draft on a device from a copy of another library's row-major tensor on that device.
/// The copy is work of `stream`, so it follows earlier work of that stream on the tensor. NULL is
/// the legacy default stream. The copy is done when the call returns. The caller keeps the tensor.
///
/// Errors:
/// - `TENSORLEND_ARGUMENT` for memory that is not a CUDA device's, and for a tensor that is not
///   row-major.
/// - Otherwise those of `tensorlend_create_from_dlpack` and `tensorlend_create_on`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_create_from_dlpack_on(
    client: *const tensorlend_client,
    tensor: *const DLManagedTensorVersioned,
    stream: *mut c_void,
    draft: *mut *mut tensorlend_draft,
) -> tensorlend_status {
    call!(|draft: out, client: handle, stream: stream, tensor: dlpack| {
        let device = tensor.get().device;
        let number = u8::try_from(device.device_id).ok().filter(|_| device.device_type == DLDeviceType::CUDA);
        let number = number.ok_or_else(|| {
            Error::Argument(format!("the tensor is in memory of device type {}: CUDA's is 2", device.device_type.0))
        })?;
        let (spec, strides) = tensor.described()?;
        if !is_row_major(&spec.shape, &strides) {
            return Err(
                Error::Argument("the tensor is not row-major: make a contiguous copy of it first".into()).into()
            );
        }
        let tensor = tensor.checked(&spec)?;
        let mut copy = client.client.create_spec_on(Device::cuda(number), spec)?;
        let from = (tensor.data.addr() as u64).wrapping_add(tensor.byte_offset);
        // SAFETY: by the rule on DLPack, the tensor's elements are at this address, and its owner
        // does not change them until the copy is done.
        unsafe { copy.copy_from_ptr(from, &stream) }?;
        copy.finish()?;
        draft.fill(tensorlend_draft::of(ValueDraft::Device(copy)));
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
    call!(|client: handle, name: text, version: optional_variable| {
        check_name(name)?;
        version.fill(convert!(tensor: dlpack)?.copied(&client.client)?.publish(name)?);
    })
}

impl ForeignTensor<'_> {
    /// Returns the element type, the shape, and the strides in elements.
    fn described(&self) -> std::result::Result<(TensorSpec, Vec<i64>), Fault> {
        let tensor = self.get();
        let ndim = u64::try_from(tensor.ndim).ok().filter(|&ndim| ndim <= NDIM_MAX as u64);
        let ndim = ndim.ok_or_else(|| {
            Error::Argument(format!("the tensor has {} dimensions: give 0 to {NDIM_MAX}", tensor.ndim))
        })?;
        // SAFETY: by the rule on DLPack, the tensor has `ndim` sizes. It also has `ndim` strides unless
        // that pointer is NULL.
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

    /// Returns the tensor, or an error if it has elements, but no pointer to them.
    fn checked(&self, spec: &TensorSpec) -> Result<&DLTensor> {
        match spec.bytes()? {
            bytes if bytes > 0 && self.get().data.is_null() => Err(Error::Argument(format!(
                "the tensor's data is NULL, and its elements have {}: point data to them",
                bytes_text(bytes)
            ))),
            _ => Ok(self.get()),
        }
    }

    /// Returns a draft with a copy of the tensor, which must be in host memory.
    fn copied(&self, client: &Client) -> std::result::Result<Draft, Fault> {
        let device = self.get().device.device_type;
        if ![DLDeviceType::CPU, DLDeviceType::CUDAHOST].contains(&device) {
            let why = format!("the tensor is in memory of device type {}: copy it to the host first", device.0);
            return Err(Error::Argument(why).into());
        }
        let (spec, strides) = self.described()?;
        // Check the pointer here, because it would not be NULL after the addition of the offset.
        let tensor = self.checked(&spec)?;
        let first = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize);
        // SAFETY: by the rule on DLPack, all elements of the tensor are readable.
        let (bytes, offset) = unsafe { reached(first, &spec, &strides) }?;
        let mut draft = client.create_spec(spec)?;
        draft.copy_from_strided(bytes, offset as usize, &strides)?;
        Ok(draft)
    }
}

fn is_row_major(shape: &[usize], strides: &[i64]) -> bool {
    let ours = row_major_strides(shape);
    // A stride has no meaning for a dimension of size 1, or in a tensor without elements.
    shape.contains(&0) || shape.iter().zip(strides.iter().zip(&ours)).all(|(&size, (a, b))| size == 1 || a == b)
}

/// Returns the bytes from a tensor's lowest element to the end of its highest element. Also returns
/// the offset of the element with index 0 in these bytes.
///
/// # Safety
/// A tensor has these sizes and strides, and its element with index 0 is at `first`. All of its
/// elements are readable.
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
        let why = format!("strides {strides:?} lead out of memory: give the strides of the memory that data points to");
        return Err(Error::Argument(why));
    };
    let spec = TensorSpec { strides: Some(strides.to_vec()), byte_offset: offset as usize, ..spec.clone() };
    // Make the same check as for tensors in shared memory. It ensures that the copy stays inside
    // these bytes.
    check_extent(spec.dtype, &sizes_of(&spec.shape), Some(strides), offset, length as u64)
        .map_err(|cause| Error::Tensor { what: "the DLPack tensor".into(), cause })?;
    // SAFETY: the lowest and the highest of these bytes belong to elements, which are readable. By
    // the meaning of DLPack's strides, the bytes between them belong to the same allocation. The
    // code above checked that the length fits.
    Ok((unsafe { values(first.wrapping_sub(offset as usize), length as u64, "data") }?, offset))
}
