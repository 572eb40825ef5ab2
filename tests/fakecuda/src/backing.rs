//! The memory of an allocation: a memfd that counts on a device as long as this process holds it.

use crate::code::{Code, INVALID_VALUE};
use crate::{control, pages, settings};
use rustix::fs::SealFlags;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

/// The purpose of the memory. The memfd's name contains it, so it can be read from the descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    Alloc,
    Vmm,
    Pool,
}

impl Use {
    fn name(self) -> &'static str {
        match self {
            Self::Alloc => "fakecuda-alloc-",
            Self::Vmm => "fakecuda-vmm-",
            Self::Pool => "fakecuda-pool-",
        }
    }
}

pub struct Backing {
    pub file: File,
    pub bytes: u64,
    pub device: u32,
    pub inode: u64,
}

impl Backing {
    /// Creates memory. Fails unless the device has `counted` free bytes.
    pub fn create(purpose: Use, device: u32, bytes: u64, counted: u64) -> Result<Arc<Self>, Code> {
        let file = pages::memfd(&format!("{}{device}", purpose.name()), bytes)?;
        let inode = file.metadata()?.ino();
        // As on a card, a process that gets a descriptor of device memory cannot change the memory's length.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(std::io::Error::from)?;
        control::hold(inode, device, counted, false)?;
        let backing = Self { file, bytes, device, inode };
        if purpose != Use::Pool {
            backing.soil(0, bytes)?;
        }
        Ok(Arc::new(backing))
    }

    /// Takes over memory from a descriptor of this or another process. Refuses descriptors of any other kind.
    pub fn adopt(purpose: Use, file: File) -> Result<Arc<Self>, Code> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let link = link.to_string_lossy().into_owned();
        let name = link.strip_prefix("/memfd:").and_then(|name| name.strip_prefix(purpose.name()));
        let device = name.and_then(|name| name.split(' ').next()).and_then(|name| name.parse().ok());
        let device = device.filter(|device| *device < settings::get().devices).ok_or(INVALID_VALUE)?;
        let metadata = file.metadata()?;
        // A pool that no process counts any more has length 0 here, because this process does not know which ranges are
        // written.
        let counted = if purpose == Use::Pool { 0 } else { metadata.len() };
        control::hold(metadata.ino(), device, counted, true)?;
        Ok(Arc::new(Self { file, bytes: metadata.len(), device, inode: metadata.ino() }))
    }

    pub fn duplicate(fd: i32) -> Result<File, Code> {
        if fd < 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the driver's caller keeps the descriptor open during the call. The kernel refuses an invalid number.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        fd.try_clone_to_owned().map(File::from).map_err(|_| INVALID_VALUE)
    }

    /// Fills fresh device memory with a pattern, so that no program relies on zeros.
    pub fn soil(&self, at: u64, bytes: u64) -> Result<(), Code> {
        const MOST: u64 = 64 << 20;
        if !settings::get().zero && bytes <= MOST {
            self.fill(at, bytes, 0xA5)?;
        }
        Ok(())
    }

    pub fn fill(&self, at: u64, bytes: u64, value: u8) -> Result<(), Code> {
        let chunk = vec![value; bytes.min(1 << 20) as usize];
        let mut done = 0;
        while done < bytes {
            let length = (bytes - done).min(chunk.len() as u64);
            self.file.write_all_at(&chunk[..length as usize], at + done)?;
            done += length;
        }
        Ok(())
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        control::release(self.inode);
    }
}
