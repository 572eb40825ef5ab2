//! One loan of a segment of device memory. The session maps it once, at its first use, and unmaps it after its last
//! holder.

use crate::error::{DeviceTrouble, Error, Result};
use crate::gpu::{Gpu, trouble};
use crate::segment::bytes::OwnRecord;
use crate::segment::lendings::Lendings;
use std::any::Any;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};
use tensorlend_cuda::{Access, Allocation, Mapping, pool};
use tensorlend_layout::Uuid;
use tensorlend_layout::wire::{DeviceSegment, Export, LendingId};
use tensorlend_layout::word::Cell;
use tensorlend_os::fork;
use tensorlend_os::mutex::lock;

/// The access with which this process maps the memory. The daemon cannot enforce it, because the process that maps device
/// memory chooses the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Another client's memory. A kernel that writes to it by mistake faults, and affects only its own context.
    Read,
    /// This client's own memory.
    Write,
}

/// A lent segment of device memory.
pub struct DeviceMap {
    lent: DeviceSegment,
    wanted: Use,
    /// `None` after the memory was mapped.
    descriptor: Mutex<Option<OwnedFd>>,
    mapped: OnceLock<Mapped>,
    forks: u64,
    lendings: Arc<Lendings>,
    /// Keeps the session alive. Declared last, because dropping this field may end the session, and the memory must
    /// be unmapped before that.
    _session: Arc<dyn Any + Send + Sync>,
}

struct Mapped {
    ptr: u64,
    memory: Memory,
    gpu: Arc<Gpu>,
}

enum Memory {
    Allocation(Mapping),
    Block(pool::Imported),
}

impl DeviceMap {
    /// Creates the map of a loan, which is not mapped yet. The map keeps `session` alive.
    pub fn new(
        session: Arc<dyn Any + Send + Sync>,
        lendings: Arc<Lendings>,
        lent: DeviceSegment,
        descriptor: OwnedFd,
        wanted: Use,
    ) -> Self {
        let descriptor = Mutex::new(Some(descriptor));
        Self {
            lent,
            wanted,
            descriptor,
            mapped: OnceLock::new(),
            forks: fork::generation(),
            lendings,
            _session: session,
        }
    }

    pub fn lending(&self) -> LendingId {
        self.lent.lending
    }

    pub fn bytes(&self) -> u64 {
        self.lent.bytes
    }

    pub fn uuid(&self) -> Uuid {
        self.lent.uuid
    }

    /// Returns the start address on the device, and the device. Maps the memory if it is not mapped yet.
    pub fn mapped(&self, doing: &str) -> Result<(u64, &Arc<Gpu>)> {
        if self.forks != fork::generation() {
            return Err(Error::Forked);
        }
        if let Some(mapped) = self.mapped.get() {
            return Ok((mapped.ptr, &mapped.gpu));
        }
        let mut descriptor = lock(&self.descriptor);
        if self.mapped.get().is_none() {
            let held = descriptor.as_ref().ok_or(Error::Protocol { doing: "map device memory" })?;
            let mapped = self.map(held, doing)?;
            // This cannot fail: only the holder of this lock sets `mapped`.
            let _ = self.mapped.set(mapped);
            *descriptor = None;
        }
        let mapped = self.mapped.get().expect("set above, or before");
        Ok((mapped.ptr, &mapped.gpu))
    }

    fn map(&self, descriptor: &OwnedFd, doing: &str) -> Result<Mapped> {
        let gpu = Gpu::find(self.lent.uuid, doing)?;
        let fails = trouble(doing);
        let access = if self.wanted == Use::Write { Access::ReadWrite } else { Access::Read };
        match &self.lent.export {
            Export::Allocation => {
                gpu.device.require_sharing().map_err(|error| {
                    let mig =
                        if gpu.device.is_mig() { " (it is an instance of a device that MIG has divided)" } else { "" };
                    let cause = DeviceTrouble::Unsupported(format!("{error}{mig}"));
                    Error::Device { doing: doing.to_owned(), cause }
                })?;
                let allocation = Allocation::import(descriptor.as_fd()).map_err(&fails)?;
                if !allocation.is_on(&gpu.device).map_err(&fails)? {
                    return Err(Error::Protocol { doing: "map device memory" });
                }
                let mapping = Mapping::map(&allocation, self.lent.bytes, &gpu.device, access).map_err(fails)?;
                Ok(Mapped { ptr: mapping.ptr(), memory: Memory::Allocation(mapping), gpu })
            }
            Export::Block { pool, pointer } => {
                gpu.device.require_pools().map_err(&fails)?;
                let context = gpu.context(doing)?;
                let pool = self.lendings.janitor.pool(*pool, |known| match known {
                    Some(pool) => Ok(pool),
                    None => pool::Pool::import(descriptor.as_fd()).map_err(&fails),
                })?;
                let mut data = [0; 64];
                for (to, from) in data.iter_mut().zip(pointer.iter().flatten()) {
                    *to = *from;
                }
                let block = pool.import_pointer(&context, &data).map_err(fails)?;
                Ok(Mapped { ptr: block.ptr(), memory: Memory::Block(block), gpu })
            }
        }
    }
}

impl Drop for DeviceMap {
    fn drop(&mut self) {
        // In a forked child the memory is not mapped, and the driver does not work. So there is nothing to unmap or to
        // report. The drops of the fields have no effect on the device.
        if self.forks != fork::generation() {
            return;
        }
        // Every lease and draft of this segment held a reference to this map. So all of them have been dropped, and their
        // known device work has ended.
        match self.mapped.take().map(|mapped| mapped.memory) {
            Some(Memory::Allocation(mapping)) => drop(mapping),
            Some(Memory::Block(block)) => drop(block),
            None => {}
        }
        *lock(&self.descriptor) = None;
        self.lendings.gone(self.lent.lending);
    }
}

/// A range of device addresses. It is never a reference.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRange {
    pub ptr: u64,
    pub bytes: u64,
}

/// A slot on a device that a draft holds.
pub struct TakenOn {
    /// The slot's number and generation.
    pub value: Cell,
    /// The slot's offset in the segment.
    pub offset: u64,
    /// The requested length in bytes.
    pub bytes: u64,
    /// The slot's record.
    pub record: OwnRecord,
    /// The segment.
    pub map: Arc<DeviceMap>,
    /// The arena and the occupied length. Another draft in this arena with the same length may reuse the slot.
    pub extent: (u16, u64),
}
