//! Devices and their features.
#![allow(unsafe_code)]

use crate::api::{self, Api};
use crate::driver::Driver;
use crate::error::{Error, Result, check, number};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use std::ffi::{CStr, c_char};
use std::fmt;
use tensorlend_layout::Uuid;

/// A CUDA device, or a MIG instance of a divided device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    raw: sys::CUdevice,
    ordinal: u32,
    uuid: Uuid,
    name: String,
    bytes_total: u64,
    compute_capability: (u32, u32),
    supports: Supports,
    is_mig: bool,
}

/// The features of a device that tensorlend uses.
///
/// Source: CUDA Driver API 13.0, section "Device Management", `cuDeviceGetAttribute`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Supports {
    /// Physical memory and addresses can be managed separately, as allocations and mappings.
    pub vmm: bool,
    /// A descriptor can represent an allocation.
    pub posix_handles: bool,
    /// The device has stream-ordered memory pools that a descriptor can represent.
    pub pools: bool,
    /// Another process can open events and plain blocks by a handle of 64 bytes.
    pub ipc_events: bool,
    /// Host and device have one address space.
    pub unified_addressing: bool,
    /// Host memory can be registered as read-only for the device. Only so can a read-only mapping
    /// be registered.
    pub read_only_registration: bool,
}

/// The allocation granularity of a device; both sizes are powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granularity {
    /// Every allocation and mapping is a multiple of this size.
    pub bytes_min: u64,
    /// A multiple of this size performs best.
    pub bytes_recommended: u64,
}

impl Driver {
    /// Returns the devices that this process sees, by ordinal. `CUDA_VISIBLE_DEVICES` hides and
    /// reorders devices.
    ///
    /// # Errors
    /// The driver's error, such as for a device that fell off the bus; [`Error::is_forked`] in a forked child.
    pub fn devices(&self) -> Result<Vec<Device>> {
        let (api, mut count) = (Self::api()?, 0);
        // SAFETY: the call writes one int.
        let answer = unsafe { (api.cuDeviceGetCount)(&raw mut count) };
        check(answer, "cuDeviceGetCount", || "counting devices".into())?;
        (0..count).map(|ordinal| Device::look(self, api, ordinal)).collect()
    }

    /// Returns the device with this UUID, if this process sees it.
    ///
    /// # Errors
    /// The errors of [`Driver::devices`].
    pub fn device(&self, uuid: Uuid) -> Result<Option<Device>> {
        Ok(self.devices()?.into_iter().find(|device| device.uuid == uuid))
    }
}

impl Device {
    fn look(driver: &Driver, api: &Api, ordinal: i32) -> Result<Self> {
        let doing = || format!("asking about device {ordinal}");
        let mut raw = 0;
        // SAFETY: the call writes one handle. For an ordinal that is out of range, it returns an
        // error.
        check(unsafe { (api.cuDeviceGet)(&raw mut raw, ordinal) }, "cuDeviceGet", doing)?;
        const NAME_BYTES: u8 = 255;
        let mut name: [c_char; NAME_BYTES as usize + 1] = [0; _];
        // SAFETY: the call writes at most the given number of bytes, including the null byte.
        let answer = unsafe { (api.cuDeviceGetName)(name.as_mut_ptr(), NAME_BYTES.into(), raw) };
        check(answer, "cuDeviceGetName", doing)?;
        // SAFETY: the length given to the call excluded the last byte of the array, so this byte is still null.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: the call writes 16 bytes.
        check(unsafe { (api.cuDeviceGetUuid_v2)(&raw mut uuid, raw) }, "cuDeviceGetUuid_v2", doing)?;
        let mut whole = uuid;
        if let Some(whole_uuid) = driver.whole_uuid() {
            // SAFETY: the call writes 16 bytes. Its result does not matter, because `whole` stays
            // unchanged on failure.
            unsafe { whole_uuid(&raw mut whole, raw) };
        }
        let mut bytes_total = 0;
        // SAFETY: the call writes one usize.
        check(unsafe { (api.cuDeviceTotalMem_v2)(&raw mut bytes_total, raw) }, "cuDeviceTotalMem_v2", doing)?;
        let attribute = |attribute| Self::attribute(api, raw, attribute);
        let has = |attribute| Self::attribute(api, raw, attribute) == 1;
        let pool_handles = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES);
        let supports = Supports {
            vmm: has(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED),
            posix_handles: has(Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
            pools: driver.has_pools()
                && has(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)
                && pool_handles & api::POSIX.0 != 0,
            ipc_events: driver.has_ipc() && has(Attribute::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED),
            unified_addressing: has(Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING),
            read_only_registration: has(Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED),
        };
        let compute_capability = (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        );
        // No attribute reports whether the device is a MIG instance. If the library has both forms
        // of the UUID call, they differ for an instance: the first returns the whole device's UUID,
        // the second the instance's. If the library has only the second form, the name decides:
        // "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
        let is_mig = whole.bytes != uuid.bytes || name.split_whitespace().any(|word| word == "MIG");
        let ordinal = ordinal.unsigned_abs();
        let uuid = Uuid(api::bytes(uuid.bytes));
        Ok(Self { raw, ordinal, uuid, name, bytes_total: bytes_total as u64, compute_capability, supports, is_mig })
    }

    /// Returns an attribute. Returns 0 if this driver does not know the attribute, because such a
    /// driver does not support the feature.
    fn attribute(api: &Api, raw: sys::CUdevice, attribute: Attribute) -> u32 {
        let mut value = 0;
        // SAFETY: the call writes one int. For an attribute that the driver does not know, it
        // returns an error.
        let answer = unsafe { (api.cuDeviceGetAttribute)(&raw mut value, attribute, raw) };
        if answer == number::SUCCESS { u32::try_from(value).unwrap_or(0) } else { 0 }
    }

    /// Returns the device's number in this process: `cuda:0` in frameworks, `device_id` in DLPack.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Returns the UUID that names the device in every process.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// Returns the device's name, such as `NVIDIA H200`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the size of the device's memory, in bytes.
    pub fn bytes_total(&self) -> u64 {
        self.bytes_total
    }

    /// Returns the compute capability: its major and its minor version.
    pub fn compute_capability(&self) -> (u32, u32) {
        self.compute_capability
    }

    /// Returns the features that the device supports.
    pub fn supports(&self) -> Supports {
        self.supports
    }

    /// Returns true if this is a MIG instance of a divided device.
    pub fn is_mig(&self) -> bool {
        self.is_mig
    }

    /// Returns true if this is the tests' fake device, which is unfit for measurements.
    pub fn is_fake(&self) -> bool {
        self.name.to_ascii_lowercase().contains("fake")
    }

    /// Returns true if `peer`'s memory can be mapped for this device. A device can always access
    /// its own memory.
    ///
    /// Source: CUDA Driver API 13.0, section "Peer Context Memory Access", `cuDeviceCanAccessPeer`.
    ///
    /// # Errors
    /// The driver's error.
    pub fn can_access(&self, peer: &Self) -> Result<bool> {
        if self.raw == peer.raw {
            return Ok(true);
        }
        let (api, mut can) = (Driver::api()?, 0);
        // SAFETY: the call writes one int.
        let answer = unsafe { (api.cuDeviceCanAccessPeer)(&raw mut can, self.raw, peer.raw) };
        check(answer, "cuDeviceCanAccessPeer", || format!("asking whether {self} can access {peer}"))?;
        Ok(can == 1)
    }

    /// Returns the granularity of [`Allocation`](crate::Allocation)s and
    /// [`Mapping`](crate::Mapping)s on this device.
    ///
    /// Source: CUDA Driver API 13.0, section "Virtual Memory Management",
    /// `cuMemGetAllocationGranularity`.
    ///
    /// # Errors
    /// [`Error::is_unsupported`] if the device cannot share memory by descriptors; otherwise the
    /// driver's error.
    pub fn granularity(&self) -> Result<Granularity> {
        use sys::CUmemAllocationGranularity_flags as Flags;
        self.require_sharing()?;
        let (api, properties) = (Driver::api()?, api::exportable(self.raw));
        let ask = |flag| {
            let mut bytes = 0;
            // SAFETY: the call reads the properties and writes one usize.
            let answer = unsafe { (api.cuMemGetAllocationGranularity)(&raw mut bytes, &raw const properties, flag) };
            check(answer, "cuMemGetAllocationGranularity", || format!("asking for the granularity of {self}"))?;
            Ok::<_, Error>(bytes as u64)
        };
        Ok(Granularity {
            bytes_min: ask(Flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM)?,
            bytes_recommended: ask(Flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)?,
        })
    }

    /// Checks that processes can share the device's memory through file descriptors. tensorlend's
    /// default allocator requires this.
    ///
    /// # Errors
    /// [`Error::is_unsupported`], which names the device and the missing feature.
    pub fn require_sharing(&self) -> Result<()> {
        if !self.supports.vmm {
            return Err(Error::lacking(self, "virtual memory management (cuMemCreate)"));
        }
        if !self.supports.posix_handles {
            return Err(Error::lacking(self, "memory that can be exported as a file descriptor"));
        }
        Ok(())
    }

    /// Checks that the device has pools that other processes can import.
    ///
    /// # Errors
    /// [`Error::is_unsupported`].
    pub fn require_pools(&self) -> Result<()> {
        if self.supports.pools { Ok(()) } else { Err(Error::lacking(self, "exportable memory pools")) }
    }

    /// Checks that other processes can open the device's events and plain blocks.
    ///
    /// # Errors
    /// [`Error::is_unsupported`].
    pub fn require_ipc(&self) -> Result<()> {
        if self.supports.ipc_events { Ok(()) } else { Err(Error::lacking(self, "inter-process handles")) }
    }

    pub(crate) fn raw(&self) -> sys::CUdevice {
        self.raw
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, supports: Supports) -> Device {
        Device {
            raw: 0,
            ordinal: 0,
            uuid: Uuid([7; 16]),
            name: name.into(),
            bytes_total: 1 << 30,
            compute_capability: (9, 0),
            supports,
            is_mig: false,
        }
    }

    #[test]
    fn what_is_lacking_is_named() {
        let tegra = device("Orin", Supports { vmm: true, ..Supports::default() });
        let error = tegra.require_sharing().unwrap_err();
        assert!(error.is_unsupported());
        assert_eq!(
            error.to_string(),
            "Orin (GPU-07070707-0707-0707-0707-070707070707) does not support memory that can be exported as a file descriptor"
        );
        assert!(device("old", Supports::default()).require_sharing().unwrap_err().to_string().contains("cuMemCreate"));
        assert!(
            tegra.require_pools().unwrap_err().is_unsupported() && tegra.require_ipc().unwrap_err().is_unsupported()
        );
        let whole = Supports { vmm: true, posix_handles: true, pools: true, ipc_events: true, ..Supports::default() };
        let whole = device("NVIDIA H200", whole);
        assert!(whole.require_sharing().and(whole.require_pools()).and(whole.require_ipc()).is_ok());
        assert!(!whole.is_fake() && device("Fake CUDA device", Supports::default()).is_fake());
    }
}
