//! Addresses for device memory.
#![allow(unsafe_code)]

use crate::allocation::Allocation;
use crate::api::{self, Api};
use crate::device::Device;
use crate::driver::Driver;
use crate::error::{Result, check};
use cudarc::driver::sys::{self, CUmemAccess_flags as Flags};
use tensorlend_layout::size;

/// The access that a mapping permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only: a kernel that writes the memory faults, and its context is lost.
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

/// An [`Allocation`] at an address. The address is the same for every device and context of this
/// process.
///
/// The mapping keeps the memory alive, so the caller may drop the allocation first. The mapping
/// process chooses the access, so [`Access::Read`] protects only against accidents. Work that still
/// uses the address when the mapping is dropped faults. So the caller waits for that work first.
///
/// Believed, and to be confirmed on hardware: no context is needed, as for [`Allocation`].
///
/// Source: CUDA Driver API 13.0, section "Virtual Memory Management".
#[derive(Debug)]
pub struct Mapping {
    ptr: sys::CUdeviceptr,
    bytes: u64,
    access: Access,
}

/// A reserved range of addresses. If `is_mapped` is true, memory is mapped at these addresses.
struct Reserved {
    api: &'static Api,
    ptr: sys::CUdeviceptr,
    bytes: usize,
    is_mapped: bool,
}

impl Mapping {
    /// Maps the first `bytes` of an allocation, for work on `device`. `bytes` is a multiple of the
    /// device's [granularity](Device::granularity) and at most the allocation's length.
    ///
    /// # Errors
    /// [`is_out_of_memory`](crate::Error::is_out_of_memory) if there are not enough addresses;
    /// otherwise the driver's error: `CUDA_ERROR_INVALID_VALUE` for a wrong length,
    /// `CUDA_ERROR_INVALID_DEVICE` for a device that cannot access the memory. On failure, the
    /// function undoes its earlier steps.
    pub fn map(allocation: &Allocation, bytes: u64, device: &Device, access: Access) -> Result<Self> {
        let doing = || format!("mapping {bytes} bytes for {device}");
        let (api, bytes_usize) = (Driver::api()?, size::index(bytes));
        let mut reserved = Reserved::make(api, bytes_usize, doing)?;
        // SAFETY: `reserved` owns the addresses, which have no memory yet. The allocation is
        // borrowed, so its handle is valid. 0 is the only offset that the manual allows.
        let answer = unsafe { (api.cuMemMap)(reserved.ptr, bytes_usize, 0, allocation.handle(), 0) };
        check(answer, "cuMemMap", doing)?;
        reserved.is_mapped = true;
        set_access(api, reserved.ptr, bytes_usize, access, device)?;
        let ptr = reserved.keep();
        Ok(Self { ptr, bytes, access })
    }

    /// Lets another device use the address too, with the same access.
    ///
    /// # Errors
    /// The driver's error, if that device cannot access the memory: see [`Device::can_access`].
    pub fn allow(&self, device: &Device) -> Result<()> {
        set_access(Driver::api()?, self.ptr, size::index(self.bytes), self.access, device)
    }

    /// Returns the address on the device.
    #[inline]
    pub fn ptr(&self) -> u64 {
        self.ptr
    }

    /// Returns the mapping's length in bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the access that the mapping permits.
    #[inline]
    pub fn access(&self) -> Access {
        self.access
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Ok(api) = Driver::api() {
            drop(Reserved { api, ptr: self.ptr, bytes: size::index(self.bytes), is_mapped: true });
        }
    }
}

impl Reserved {
    fn make(api: &'static Api, bytes: usize, doing: impl FnOnce() -> String) -> Result<Self> {
        let mut ptr = 0;
        // SAFETY: the call writes one address. Alignment 0 means the device's own alignment,
        // address 0 means any address, and 0 is the only valid flag.
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
        // If unmapping fails, the addresses still have memory and cannot be freed. They are leaked,
        // because another mapping must not get them.
        // SAFETY: the call unmaps exactly the range that was mapped, once.
        if self.is_mapped && unsafe { (self.api.cuMemUnmap)(self.ptr, self.bytes) } != 0 {
            return;
        }
        // SAFETY: the call frees exactly the range that was reserved, once. No memory is mapped at
        // these addresses any more.
        unsafe { (self.api.cuMemAddressFree)(self.ptr, self.bytes) };
    }
}

fn set_access(api: &Api, ptr: sys::CUdeviceptr, bytes: usize, access: Access, device: &Device) -> Result<()> {
    let wish = access.on(device);
    // SAFETY: the call reads one access descriptor, and changes the access to addresses that the caller owns.
    let answer = unsafe { (api.cuMemSetAccess)(ptr, bytes, &raw const wish, 1) };
    check(answer, "cuMemSetAccess", || format!("letting {device} use {bytes} mapped bytes"))
}
