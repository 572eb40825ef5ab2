//! Handles of 64 bytes for other processes: memory of `cuMemAlloc`, and events. A handle names a process and a
//! descriptor, which the importer opens in `/proc`. So the exporter must be alive, in the same pid namespace, and of
//! the same user.

use crate::args::Out;
use crate::backing::{Backing, Use};
use crate::code::{Code, INVALID_CONTEXT, INVALID_VALUE};
use crate::event::{self, EVENTS, INTERPROCESS};
use crate::pages::{self, PAGE};
use crate::regions::{self, Kind, Region};
use crate::{context, process, stream};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

const MEMORY: u64 = u64::from_le_bytes(*b"fakememo");
const EVENT: u64 = u64::from_le_bytes(*b"fakeevnt");

/// `CUipcMemHandle` and `CUipcEventHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Ticket {
    magic: u64,
    pid: u64,
    start: u64,
    fd: u64,
    inode: u64,
    /// The length that was requested, for memory; the flags, for an event.
    extra: u64,
    device: u64,
    reserved: u64,
}

impl Ticket {
    fn of(magic: u64, file: &File, extra: u64, device: u32) -> Result<Self, Code> {
        let (pid, start) = process::this();
        let (fd, inode) = (file.as_raw_fd() as u64, file.metadata()?.ino());
        Ok(Self { magic, pid, start, fd, inode, extra, device: u64::from(device), reserved: 0 })
    }

    /// Opens the object. As in CUDA, the exporting process itself cannot open it.
    fn open(&self, magic: u64) -> Result<File, Code> {
        if self.magic != magic {
            return Err(INVALID_VALUE);
        }
        if (self.pid, self.start) == process::this() {
            return Err(INVALID_CONTEXT);
        }
        if !process::lives(self.pid, self.start) {
            return Err(INVALID_VALUE);
        }
        let path = format!("/proc/{}/fd/{}", self.pid, self.fd);
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(|_| INVALID_VALUE)?;
        // In the meantime the process may have reused the descriptor's number for another file.
        if file.metadata()?.ino() == self.inode { Ok(file) } else { Err(INVALID_VALUE) }
    }
}

driver! {
    fn cuIpcGetMemHandle(handle: Out<Ticket>, at: u64) {
        let region = regions::find(at).filter(|region| region.kind == Kind::Device).ok_or(INVALID_VALUE)?;
        let backing = region.backing.ok_or(INVALID_VALUE)?;
        handle.put(Ticket::of(MEMORY, &backing.file, region.bytes, region.device)?)
    }

    fn cuIpcOpenMemHandle_v2(place: Out<u64>, handle: Ticket, flags: u32) {
        let context = context::current().ok_or(INVALID_CONTEXT)?;
        if flags & !1 != 0 || place.is_null() {
            return Err(INVALID_VALUE);
        }
        let file = handle.open(MEMORY)?;
        let mut map = regions::lock();
        let open = |region: &&mut Region| {
            region.kind == Kind::Ipc && region.backing.as_ref().is_some_and(|backing| backing.inode == handle.inode)
        };
        if let Some(region) = map.values_mut().find(open) {
            region.extra += 1;
            return place.put(region.start);
        }
        drop(map);
        let backing = Backing::adopt(Use::Alloc, file)?;
        let start = pages::map(&backing.file, 0, backing.bytes, PAGE, 3)?;
        let region = Region::new(start, handle.extra.min(backing.bytes), Kind::Ipc, backing.device);
        regions::insert(Region { context: context.handle, backing: Some(backing), extra: 1, ..region });
        place.put(start)
    }

    fn cuIpcCloseMemHandle(at: u64) {
        let context = context::current().ok_or(INVALID_CONTEXT)?;
        stream::synchronize_all(context.device)?;
        let mut map = regions::lock();
        let region = map.get_mut(&at).filter(|region| region.kind == Kind::Ipc).ok_or(INVALID_VALUE)?;
        region.extra -= 1;
        if region.extra == 0 {
            let region = map.remove(&at).ok_or(INVALID_VALUE)?;
            drop(map);
            pages::unmap(region.start, region.bytes.next_multiple_of(PAGE));
        }
        Ok(())
    }

    fn cuIpcGetEventHandle(handle: Out<Ticket>, event: u64) {
        let event = EVENTS.get(event)?;
        let file = event.file.as_ref().filter(|_| event.flags & INTERPROCESS != 0).ok_or(INVALID_VALUE)?;
        handle.put(Ticket::of(EVENT, file, u64::from(event.flags), event.device)?)
    }

    fn cuIpcOpenEventHandle(event: Out<u64>, handle: Ticket) {
        context::current().ok_or(INVALID_CONTEXT)?;
        let file = handle.open(EVENT)?;
        event.put(event::open(file, handle.extra as u32, handle.device as u32)?)
    }
}
