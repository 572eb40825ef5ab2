//! Addresses for device memory.
#![allow(unsafe_code)]

use crate::allocation::Allocation;
use crate::api::{self, Api};
use crate::device::Device;
use crate::driver::Driver;
use crate::error::{Result, check};
use cudarc::driver::sys::{self, CUmemAccess_flags as Flags};

/// The access through an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only: a kernel that writes there faults, and its context is lost.
    Read,
    /// Read and write.
    ReadWrite,
}

impl Access {
    pub(crate) fn on(self, device: &Device) -> sys::CUmemAccessDesc {
        let flags = match self {
            Self::Read => Flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
            Self::ReadWrite => Flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        sys::CUmemAccessDesc { location: api::on(device.raw()), flags }
    }
}

/// An [`Allocation`] at an address, the same for every device and context of this process.
///
/// The mapping preserves the memory: the caller may drop the allocation before it. The mapping process chooses the access, so
/// [`Access::Read`] guards against accidents only. Work that still uses the address when the mapping is dropped faults: wait for
/// that work first.
///
/// No context is needed: believed, as for [`Allocation`], and to be confirmed on hardware.
///
/// Source: CUDA Driver API 13.0, section "Virtual Memory Management".
#[derive(Debug)]
pub struct Mapping {
    ptr: sys::CUdeviceptr,
    bytes: u64,
    access: Access,
}

/// A reserved range of addresses; memory is mapped there if `is_mapped` is true.
struct Reserved {
    api: &'static Api,
    ptr: sys::CUdeviceptr,
    bytes: usize,
    is_mapped: bool,
}

impl Mapping {
    /// Maps the first `bytes` of an allocation, a multiple of the device's [granularity](Device::granularity) and at most its
    /// length, for work on `device`.
    ///
    /// # Errors
    /// [`is_out_of_memory`](crate::Error::is_out_of_memory) if there are not enough addresses; else the driver's error:
    /// `CUDA_ERROR_INVALID_VALUE` for a wrong length, `CUDA_ERROR_INVALID_DEVICE` for a device that cannot reach the memory. On
    /// failure, the call undoes its former steps.
    pub fn map(allocation: &Allocation, bytes: u64, device: &Device, access: Access) -> Result<Self> {
        let doing = || format!("mapping {bytes} bytes for {device}");
        let (api, bytes_usize) = (Driver::api()?, bytes as usize);
        let mut reserved = Reserved::make(api, bytes_usize, doing)?;
        // SAFETY: `reserved` owns the addresses, which have no memory yet; the allocation is borrowed, so its handle is valid.
        // The offset 0 is the only one that the manual allows.
        let answer = unsafe { (api.cuMemMap)(reserved.ptr, bytes_usize, 0, allocation.handle(), 0) };
        check(answer, "cuMemMap", doing)?;
        reserved.is_mapped = true;
        set_access(api, reserved.ptr, bytes_usize, access, device)?;
        let ptr = reserved.keep();
        Ok(Self { ptr, bytes, access })
    }

    /// Lets another device use the address, too, with the same access.
    ///
    /// # Errors
    /// The driver's error, if that device cannot reach the memory: see [`Device::can_access`].
    pub fn allow(&self, device: &Device) -> Result<()> {
        set_access(Driver::api()?, self.ptr, self.bytes as usize, self.access, device)
    }

    /// Returns the address on the device.
    #[inline]
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the access.
    #[inline]
    pub fn access(&self) -> Access {
        self.access
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Ok(api) = Driver::api() {
            drop(Reserved { api, ptr: self.ptr, bytes: self.bytes as usize, is_mapped: true });
        }
    }
}

impl Reserved {
    fn make(api: &'static Api, bytes: usize, doing: impl FnOnce() -> String) -> Result<Self> {
        let mut ptr = 0;
        // SAFETY: the call writes one address. Alignment 0 means the device's own, address 0 means any address, and 0 is the
        // only flag.
        let answer = unsafe { (api.cuMemAddressReserve)(&raw mut ptr, bytes, 0, 0, 0) };
        check(answer, "cuMemAddressReserve", doing)?;
        Ok(Self { api, ptr, bytes, is_mapped: false })
    }

    fn keep(self) -> sys::CUdeviceptr {
        let ptr = self.ptr;
        std::mem::forget(self);
        ptr
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // Addresses that still have memory cannot be freed: leak them rather than give them to another mapping.
        // SAFETY: the call unmaps exactly the range that was mapped, once.
        if self.is_mapped && unsafe { (self.api.cuMemUnmap)(self.ptr, self.bytes) } != 0 {
            return;
        }
        // SAFETY: the call frees exactly the range that was reserved, once; no memory is mapped there any more.
        unsafe { (self.api.cuMemAddressFree)(self.ptr, self.bytes) };
    }
}

fn set_access(api: &Api, ptr: sys::CUdeviceptr, bytes: usize, access: Access, device: &Device) -> Result<()> {
    let wish = access.on(device);
    // SAFETY: the call reads one access descriptor, and changes the access to addresses that the caller owns.
    let answer = unsafe { (api.cuMemSetAccess)(ptr, bytes, &raw const wish, 1) };
    check(answer, "cuMemSetAccess", || format!("letting {device} use {bytes} mapped bytes"))
}
