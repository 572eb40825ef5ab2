//! The negative control: memory lent without protection. A memfd as `memfd_create` returns it, passed as it is, and
//! again through a read-only descriptor; and an eventfd that both processes share.

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tensorlend_os::map::{self, Segment};
use tensorlend_os::memfd::Access;
use tensorlend_os::packet;

const BYTES: usize = 1 << 20;

/// The unprotected memfd, and an eventfd.
pub struct Unprotected {
    fd: OwnedFd,
    /// The target of `/proc/PID/mem` and similar attacks.
    mapping: Segment,
    bell: OwnedFd,
    content: u8,
}

impl Unprotected {
    pub fn new() -> io::Result<Self> {
        let fd = rustix::fs::memfd_create("unprotected", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::io::pwrite(&fd, &vec![0xC3; BYTES], 0)?;
        let mapping = map::segment(&fd, BYTES, Access::Write, true)?;
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd, mapping, bell, content: 0xC3 })
    }

    pub fn address(&self) -> usize {
        self.mapping.start().addr()
    }

    fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd())
    }

    fn lend(&self, socket: &OwnedFd) -> io::Result<()> {
        let reader = rustix::fs::open(self.path(), OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
        let descriptors = [self.fd.as_fd(), reader.as_fd(), self.bell.as_fd()];
        Ok(packet::send(socket, b"lent", &descriptors, SendFlags::empty())?)
    }

    /// Returns whether the memory, its length and its seals are unchanged, as text.
    pub fn look(&self) -> io::Result<String> {
        let mut bytes = vec![0; BYTES];
        let read = rustix::io::pread(&self.fd, &mut bytes, 0)?;
        let seals = rustix::fs::fcntl_get_seals(&self.fd)?;
        let same = read == BYTES && bytes.iter().all(|byte| *byte == self.content) && seals == SealFlags::empty();
        Ok(if same { "same".into() } else { format!("changed: {read} bytes, {seals:?}") })
    }

    /// Reuses the memory of a dead client without the probe.
    pub fn recycle(&mut self) -> io::Result<()> {
        self.content = 0x3C;
        rustix::io::pwrite(&self.fd, &vec![self.content; BYTES], 0)?;
        Ok(())
    }

    /// Returns true if opening it for writing would have to wait for a lease.
    pub fn is_stalled(&self) -> bool {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        rustix::fs::open(self.path(), flags, Mode::empty()).err() == Some(rustix::io::Errno::AGAIN)
    }

    /// Returns true if writing to the bell would block for ever.
    pub fn would_block(&self) -> io::Result<bool> {
        let mut poll = [PollFd::new(&self.bell, PollFlags::OUT)];
        let full = rustix::event::poll(&mut poll, Some(&rustix::time::Timespec::default()))? == 0;
        Ok(full && !rustix::fs::fcntl_getfl(&self.bell)?.contains(OFlags::NONBLOCK))
    }
}

/// Lends the memfd to every process that connects.
pub fn serve(path: &Path, shared: Arc<Mutex<Unprotected>>) -> io::Result<()> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    tensorlend_tests::open_to_all(path);
    rustix::net::listen(&socket, 16)?;
    std::thread::spawn(move || {
        while let Ok(client) = rustix::net::accept(&socket) {
            let _ = shared.lock().unwrap_or_else(PoisonError::into_inner).lend(&client);
        }
    });
    Ok(())
}

/// Fetches the memfd's two descriptors, and the bell.
pub fn fetch(path: &Path) -> io::Result<(Vec<OwnedFd>, OwnedFd)> {
    let mut packet = packet::receive(tensorlend_tests::hand::dial(path)?, RecvFlags::empty())?;
    let bell = packet.descriptors.pop().ok_or_else(|| io::Error::other("nothing was lent"))?;
    Ok((packet.descriptors, bell))
}
