//! Physical memory on a device, which a descriptor can represent.
#![allow(unsafe_code)]

use crate::api;
use crate::device::Device;
use crate::driver::Driver;
use crate::error::{Error, Result, check};
use cudarc::driver::sys;
use rustix::io::FdFlags;
use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use tensorlend_layout::size;

/// Pinned memory of one device, without an address. A [`Mapping`](crate::Mapping) gives the memory
/// an address.
///
/// The memory lives as long as anything refers to it: an `Allocation` in any process, a mapping, or
/// a descriptor. NVIDIA's manual does not promise zeroed bytes. Believed: the driver zeroes them,
/// because they may come from another user's process.
///
/// Believed, and to be confirmed on hardware: allocation needs no context, because the manual
/// requires none here.
///
/// Source: CUDA Driver API 13.0, section "Virtual Memory Management".
#[derive(Debug)]
pub struct Allocation {
    handle: sys::CUmemGenericAllocationHandle,
}

impl Allocation {
    /// Allocates `bytes`, a multiple of the device's [granularity](Device::granularity).
    ///
    /// # Errors
    /// [`Error::is_unsupported`] if the device cannot share memory by descriptors;
    /// [`Error::is_out_of_memory`]; otherwise the driver's error, such as
    /// `CUDA_ERROR_INVALID_VALUE` for a length that is not a multiple.
    pub fn create(device: &Device, bytes: u64) -> Result<Self> {
        device.require_sharing()?;
        let (api, properties, mut handle) = (Driver::api()?, api::exportable(device.raw()), 0);
        // SAFETY: the call reads the properties and writes one handle. 0 is the only valid flag.
        let answer = unsafe { (api.cuMemCreate)(&raw mut handle, size::index(bytes), &raw const properties, 0) };
        check(answer, "cuMemCreate", || format!("allocating {bytes} bytes on {device}"))?;
        Ok(Self { handle })
    }

    /// Returns a close-on-exec descriptor of the memory. The descriptor's holder can map all of the
    /// memory for reading and writing, because CUDA has no read-only descriptors.
    ///
    /// # Errors
    /// The driver's error, or the kernel's error if it cannot set close-on-exec.
    pub fn export(&self) -> Result<OwnedFd> {
        let (api, mut fd) = (Driver::api()?, -1);
        let to = (&raw mut fd).cast::<c_void>();
        // SAFETY: for this type of handle, the call writes one int. This value owns the handle.
        let answer = unsafe { (api.cuMemExportToShareableHandle)(to, self.handle, api::POSIX, 0) };
        check(answer, "cuMemExportToShareableHandle", || "exporting device memory".into())?;
        adopt(fd, "exporting device memory")
    }

    /// Imports the memory of a descriptor from [`Allocation::export`] in any process. The caller
    /// may close the descriptor afterwards. The driver does not report the length of the memory. A
    /// mapping longer than the memory fails.
    ///
    /// # Errors
    /// The driver's error, also for a descriptor that does not represent device memory.
    pub fn import(fd: BorrowedFd<'_>) -> Result<Self> {
        let (api, mut handle) = (Driver::api()?, 0);
        let given = DriverDescriptor::of(fd, "importing device memory")?;
        // SAFETY: for this type of handle, the pointer argument is the descriptor's number, and the
        // driver does not follow it. The descriptor is borrowed, so it is open. The call writes one
        // handle.
        let answer = unsafe { (api.cuMemImportFromShareableHandle)(&raw mut handle, given.pointer(), api::POSIX) };
        check(answer, "cuMemImportFromShareableHandle", || "importing device memory".into())?;
        Ok(Self { handle })
    }

    /// Returns true if the memory is on this device. Imported memory may be on another device.
    ///
    /// # Errors
    /// The driver's error.
    pub fn is_on(&self, device: &Device) -> Result<bool> {
        let (api, mut properties) = (Driver::api()?, MaybeUninit::<sys::CUmemAllocationProp>::zeroed());
        // SAFETY: the call writes one structure.
        let answer = unsafe { (api.cuMemGetAllocationPropertiesFromHandle)(properties.as_mut_ptr(), self.handle) };
        check(answer, "cuMemGetAllocationPropertiesFromHandle", || "asking where device memory lies".into())?;
        let location = properties.as_ptr().wrapping_byte_add(offset_of!(sys::CUmemAllocationProp, location));
        let (kind, id) = (location.cast::<u32>(), location.wrapping_byte_add(offset_of!(sys::CUmemLocation, id)));
        // SAFETY: both pointers refer to aligned ints inside the structure. The ints are
        // initialized with zeros, and the call may have written them. The first is read as an int,
        // not as the Rust enum, because a driver may know more kinds of locations than the header.
        let (kind, id) = unsafe { (kind.read(), id.cast::<i32>().read()) };
        Ok(kind == sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as u32 && id == device.raw())
    }

    pub(crate) fn handle(&self) -> sys::CUmemGenericAllocationHandle {
        self.handle
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Ok(api) = Driver::api() {
            // SAFETY: only this line releases the handle, once. Mappings keep the memory alive by
            // themselves.
            unsafe { (api.cuMemRelease)(self.handle) };
        }
    }
}

/// Takes ownership of a descriptor that the driver has just made, and makes it close-on-exec. The
/// driver does not document whether the descriptor is close-on-exec already. A thread that forks
/// and executes between the two calls would leak the descriptor.
pub(crate) fn adopt(fd: c_int, doing: &'static str) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(Error::refused("the driver made no descriptor, and reported no error", doing.into()));
    }
    // SAFETY: the driver has just made the descriptor for this caller, so the descriptor is open
    // and has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC).map_err(|error| Error::kernel(error, doing.into()))?;
    Ok(fd)
}

/// A descriptor as the driver takes it.
pub(crate) struct DriverDescriptor<'fd> {
    fd: BorrowedFd<'fd>,
    copy: Option<OwnedFd>,
}

impl<'fd> DriverDescriptor<'fd> {
    /// Copies descriptor 0: the driver takes the number as a pointer, and refuses the null pointer.
    /// Seen with driver 580.159.
    pub fn of(fd: BorrowedFd<'fd>, doing: &'static str) -> Result<Self> {
        let copy = (fd.as_raw_fd() == 0).then(|| rustix::io::fcntl_dupfd_cloexec(fd, 1)).transpose();
        Ok(Self { fd, copy: copy.map_err(|error| Error::kernel(error, doing.into()))? })
    }

    /// Returns the pointer that the driver takes for handles of any type.
    pub fn pointer(&self) -> *mut c_void {
        let fd = self.copy.as_ref().map_or(self.fd, OwnedFd::as_fd);
        std::ptr::without_provenance_mut(fd.as_raw_fd().unsigned_abs() as usize)
    }
}
