//! Queries about addresses.
#![allow(unsafe_code)]

use crate::driver::Driver;
use crate::error::{Result, check};
use cudarc::driver::sys::{self, CUmemorytype as Type, CUpointer_attribute as Attribute};
use std::ffi::c_void;

/// The kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Memory {
    /// Memory that the driver does not know: ordinary host memory, or no memory.
    Unknown,
    /// Memory on the host that the driver allocated or registered.
    Host,
    /// Memory on a device.
    Device,
    /// Another kind, given by the driver's number.
    Other(u32),
}

/// The driver's data about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// The kind of memory.
    pub memory: Memory,
    /// The ordinal of the memory's device, if it has one.
    pub device: Option<u32>,
    /// Whether the memory is managed, so that it moves between host and device.
    pub is_managed: bool,
    /// The `CUcontext` of the allocation. Also `None` for mapped memory and for a pool's memory,
    /// which have no context.
    pub context: Option<usize>,
    /// The start of the allocation; 0 if the driver does not know the address.
    pub range_start: u64,
    /// The length of the allocation in bytes.
    pub range_bytes: u64,
}

impl Pointer {
    /// Queries an address. The address may be any number.
    ///
    /// Source: CUDA Driver API 13.0, section "Unified Addressing", `cuPointerGetAttributes`.
    ///
    /// # Errors
    /// The driver's error, for example if this process has no context yet.
    pub fn ask(ptr: u64) -> Result<Self> {
        let api = Driver::api()?;
        let (mut memory, mut device, mut is_managed) = (0_u32, -1_i32, 0_u32);
        let (mut context, mut range_start, mut range_bytes) = (0_usize, 0_u64, 0_usize);
        const OUTPUTS: u32 = 6;
        let mut attributes: [Attribute; OUTPUTS as usize] = [
            Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED,
            Attribute::CU_POINTER_ATTRIBUTE_CONTEXT,
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        ];
        let mut values: [*mut c_void; OUTPUTS as usize] = [
            (&raw mut memory).cast(),
            (&raw mut device).cast(),
            (&raw mut is_managed).cast(),
            (&raw mut context).cast(),
            (&raw mut range_start).cast(),
            (&raw mut range_bytes).cast(),
        ];
        // SAFETY: there are as many attributes as outputs, each of the type in the manual: an
        // unsigned int, an int, an unsigned int (a bool would suffice), a pointer, an address, a
        // size. The driver looks the address up and does not follow it. For unknown data, the
        // driver writes zero or leaves the output unchanged.
        let answer =
            unsafe { (api.cuPointerGetAttributes)(OUTPUTS, attributes.as_mut_ptr(), values.as_mut_ptr(), ptr) };
        check(answer, "cuPointerGetAttributes", || format!("asking about the address {ptr:#x}"))?;
        const HOST: u32 = Type::CU_MEMORYTYPE_HOST as u32;
        const DEVICE: u32 = Type::CU_MEMORYTYPE_DEVICE as u32;
        let memory = match memory {
            0 => Memory::Unknown,
            HOST => Memory::Host,
            DEVICE => Memory::Device,
            other => Memory::Other(other),
        };
        Ok(Self {
            memory,
            device: if memory == Memory::Unknown { None } else { u32::try_from(device).ok() },
            is_managed: is_managed & 0xff != 0,
            context: (context != 0).then_some(context),
            range_start,
            range_bytes: range_bytes as u64,
        })
    }

    /// Returns true if the `bytes` bytes from `ptr` on are in this allocation.
    pub fn holds(&self, ptr: u64, bytes: u64) -> bool {
        ptr >= self.range_start
            && ptr.checked_add(bytes).is_some_and(|end| end <= self.range_start.saturating_add(self.range_bytes))
    }
}

const _: () = assert!(size_of::<sys::CUcontext>() == size_of::<usize>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_where_they_end() {
        let pointer = Pointer {
            memory: Memory::Device,
            device: Some(0),
            is_managed: false,
            context: None,
            range_start: 0x1000,
            range_bytes: 0x1000,
        };
        assert!(pointer.holds(0x1000, 0x1000) && pointer.holds(0x2000, 0) && pointer.holds(0x1fff, 1));
        assert!(!pointer.holds(0xfff, 1) && !pointer.holds(0x1fff, 2) && !pointer.holds(u64::MAX, 1));
    }
}
