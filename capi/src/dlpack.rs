//! Tensors as other libraries know them: `DLPack`.

use super::arguments::{Out, handle, tell, values};
use super::client::tensorlend_client;
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
use tensorlend::{Client, DType, Draft, Error, Result, TensorSpec, ValueDraft, check_name};
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
    shape: &'a [u64],
    strides: Vec<i64>,
    /// The element with index 0.
    data: *mut u8,
    flags: DlpackFlags,
}

fn hand_out(out: Out<DLManagedTensorVersioned>, looks: Looks<'_>, owner: Owner) {
    // Sizes were checked to be below 2^63 when the tensor was made.
    let shape: Vec<i64> = looks.shape.iter().map(|&size| size as i64).collect();
    let empty = shape.contains(&0);
    let dl_tensor = DLTensor {
        data: if empty { std::ptr::null_mut() } else { looks.data.cast::<c_void>() },
        device: DLDevice { device_type: DLDeviceType::CPU, device_id: 0 },
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
    // SAFETY: it was boxed just now, and nobody else has it.
    let it = unsafe { &mut *handed };
    it.managed.manager_ctx = handed.cast();
    it.managed.dl_tensor.shape = it.shape.as_mut_ptr();
    it.managed.dl_tensor.strides = it.strides.as_mut_ptr();
    // SAFETY: a field of what `handed` leads to.
    out.fill_raw(unsafe { &raw mut (*handed).managed });
}

/// The deleter of an exported tensor.
unsafe extern "C" fn delete(tensor: *mut DLManagedTensorVersioned) {
    look((), || {
        // SAFETY: 5: NULL, or one of ours that is still whole.
        let handed = unsafe { tensor.as_ref() }?.manager_ctx.cast::<Handed>();
        // SAFETY: 5: `hand_out` put the box there, and its user calls this once.
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
        // SAFETY: 5: the deleter is at the same place in every version; NULL if there is nothing to do.
        let deleter = unsafe { (&raw const (*tensor).deleter).read() }?;
        // SAFETY: 5: it was not called before.
        unsafe { deleter(tensor) };
        None
    });
}

/// Returns the row-major strides of a shape with at most 16 dimensions.
fn row_major_strides(shape: &[u64]) -> Vec<i64> {
    Strides::row_major(shape).map_or_else(Vec::new, |strides| strides.to_vec())
}

/// Exports a leased tensor in place to another library, read-only (`DLPACK_FLAG_BITMASK_READ_ONLY`). `member` is NULL
/// for a tensor, and the name of the tensor for a dataset. The lease's memory is kept until the tensor's deleter was
/// called and the handle is freed, in any order. Free the tensor with `tensorlend_dlpack_free`, unless another library
/// took it over.
///
/// `TENSORLEND_NOT_FOUND` if there is no such member.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_lease_to_dlpack(
    lease: *const tensorlend_lease,
    member: *const c_char,
    tensor: *mut *mut DLManagedTensorVersioned,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: 2, 1, 3.
        let (out, lease, member) =
            unsafe { (Out::new(tensor, "tensor")?, shared(lease)?, optional(member, "member")?) };
        let found = lease.find(member)?;
        let looks = Looks {
            dtype: found.dtype(),
            shape: found.shape(),
            strides: found.strides().to_vec(),
            data: found.bytes().as_ptr().wrapping_add(found.byte_offset() as usize).cast_mut(),
            flags: DlpackFlags::READ_ONLY,
        };
        hand_out(out, looks, Owner::Lease(lease.clone()));
        Ok(())
    })
}

/// Exports a draft to another library, which writes it in place. Until the tensor is freed (`tensorlend_dlpack_free`,
/// or by the library that took it over), the draft cannot be published, sent or appended (`TENSORLEND_ARGUMENT`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_draft_to_dlpack(
    draft: *mut tensorlend_draft,
    tensor: *mut *mut DLManagedTensorVersioned,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: 2, 1.
        let (out, draft) = unsafe { (Out::new(tensor, "tensor")?, handle(draft, "draft")?) };
        let spec = draft.change(|payload| match payload {
            ValueDraft::Tensor(tensor) => Ok(tensor.spec()),
            ValueDraft::Dataset(_) => Err(Error::Argument("the draft is a dataset: hand out its members".into())),
            _ => Err(Error::Argument("the draft is on a device".into())),
        })?;
        let looks = Looks {
            dtype: spec.dtype,
            shape: &spec.shape,
            strides: spec.strides.unwrap_or_else(|| row_major_strides(&spec.shape)),
            data: draft.data().wrapping_add(spec.byte_offset as usize),
            flags: DlpackFlags::empty(),
        };
        hand_out(out, looks, Owner::Draft(draft.shared.clone()));
        Ok(())
    })
}

/// Creates a row-major draft from a copy of another library's tensor, strided or not. The caller keeps the tensor.
///
/// `TENSORLEND_ARGUMENT` for a `DLPack` version other than 1 or memory of a device; `TENSORLEND_DTYPE` for an element
/// type that tensorlend does not know; otherwise as `tensorlend_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tensorlend_create_from_dlpack(
    client: *const tensorlend_client,
    tensor: *const DLManagedTensorVersioned,
    draft: *mut *mut tensorlend_draft,
) -> tensorlend_status {
    guard(|| {
        // SAFETY: 2, 1.
        let (out, client) = unsafe { (Out::new(draft, "draft")?, &handle(client, "client")?.client) };
        // SAFETY: 5.
        let copy = unsafe { copied(client, tensor) }?;
        out.fill(tensorlend_draft::of(ValueDraft::Tensor(copy)));
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
        // SAFETY: 1, 3.
        let (client, name) = unsafe { both(client, name) }?;
        check_name(name)?;
        // SAFETY: 5.
        let published = unsafe { copied(client, tensor) }?.publish(name)?;
        // SAFETY: 2.
        unsafe { tell(version, published.into()) };
        Ok(())
    })
}

/// A copy of a foreign tensor.
///
/// # Safety
/// 5.
unsafe fn copied(client: &Client, tensor: *const DLManagedTensorVersioned) -> std::result::Result<Draft, Fault> {
    if tensor.is_null() {
        return Err(Error::Argument("tensor is NULL".into()).into());
    }
    // SAFETY: 5: the version is the first field of every version of the structure. Only it may be read before it is
    // checked, so there is no reference to the whole yet.
    let major = unsafe { (&raw const (*tensor).version.major).read() };
    if major != DLPACK_MAJOR_VERSION {
        let why = format!("the tensor is of DLPack {major}: {DLPACK_MAJOR_VERSION} is understood");
        return Err(Error::Argument(why).into());
    }
    // SAFETY: 5: it is of the version that we know.
    let tensor = unsafe { &(*tensor).dl_tensor };
    let device = tensor.device.device_type;
    if ![DLDeviceType::CPU, DLDeviceType::CUDAHOST].contains(&device) {
        let why = format!("the tensor is in memory of device type {}: copy it to the host first", device.0);
        return Err(Error::Argument(why).into());
    }
    let ndim = u64::try_from(tensor.ndim).ok().filter(|&ndim| ndim <= NDIM_MAX as u64);
    let ndim = ndim.ok_or_else(|| Error::Argument(format!("{} dimensions: 0 to {NDIM_MAX}", tensor.ndim)))?;
    // SAFETY: 5: `ndim` sizes, and `ndim` strides unless NULL.
    let (sizes, strides) = unsafe {
        let strides = if tensor.strides.is_null() { 0 } else { ndim };
        (values(tensor.shape, ndim, "shape")?, values(tensor.strides, strides, "strides")?)
    };
    let shape: Option<Vec<u64>> = sizes.iter().map(|&size| u64::try_from(size).ok()).collect();
    let shape = shape.ok_or_else(|| Error::Argument(format!("sizes {sizes:?}: none may be below 0")))?;
    let kind = tensor.dtype;
    let dtype = dtype(u32::from(kind.code.0) | u32::from(kind.bits) << 8 | u32::from(kind.lanes) << 16)?;
    let strides = if tensor.strides.is_null() { row_major_strides(&shape) } else { strides.to_vec() };
    let spec = TensorSpec::new(dtype, &shape);
    // Checked before the offset is added, after which it would not be NULL.
    if tensor.data.is_null() && spec.bytes()? > 0 {
        return Err(Error::Argument("the tensor's data is NULL, and it has elements".into()).into());
    }
    let first = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize);
    // SAFETY: 5.
    let (bytes, offset) = unsafe { reached(first, &spec, &strides) }?;
    let mut draft = client.create_spec(spec)?;
    draft.copy_from_strided(bytes, offset, &strides)?;
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
        let reach = (i128::from(dim) - 1) * i128::from(stride);
        if reach < 0 { low += reach } else { high += reach }
    }
    let (offset, end) = (-low * item, (high - low + 1) * item);
    let (Ok(offset), Ok(length)) = (u64::try_from(offset), i64::try_from(end)) else {
        return Err(Error::Argument(format!("strides {strides:?} lead out of memory")));
    };
    let spec = TensorSpec { strides: Some(strides.to_vec()), byte_offset: offset, ..spec.clone() };
    // The same check as for tensors in shared memory. The copy stays inside these bytes.
    check_extent(spec.dtype, &spec.shape, Some(strides), offset, length as u64)
        .map_err(|cause| Error::Tensor { what: "the DLPack tensor".into(), cause })?;
    // SAFETY: the lowest and the highest of these bytes are elements' bytes, which can be read; what lies between them
    // is memory of the same allocation, as DLPack's strides mean. The length was checked to fit.
    Ok((unsafe { values(first.wrapping_sub(offset as usize), length as u64, "data") }?, offset))
}
