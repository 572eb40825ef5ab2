//! The attacks on lent memory, each written once for protected and unprotected targets.

use crate::calls::{self, Mapping};
use rustix::fs::{FallocateFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

/// A memfd that this process was lent.
pub struct Object {
    /// The memfd's role.
    pub what: &'static str,
    /// The descriptors as received.
    pub lent: Vec<OwnedFd>,
    /// Offset of a byte that the victim checks.
    pub at: u64,
}

/// Another process, and the address at which it has mapped the attacked memory (0: unknown).
#[derive(Clone, Copy)]
pub struct Target {
    pub pid: u32,
    pub address: u64,
}

/// The result of an attack.
pub enum Outcome {
    Breach(String),
    Held(String),
    /// This machine cannot carry the attack out on any target.
    Impossible(String),
}

const READ: i32 = libc::PROT_READ;
const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn reopen(fd: RawFd, flags: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{fd}");
    Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?)
}

/// State of the memory, compared before and after an attack.
#[derive(PartialEq, Eq, Clone, Debug)]
struct State {
    bytes: Vec<u8>,
    length: u64,
    seals: SealFlags,
}

impl Object {
    fn state(&self) -> io::Result<State> {
        let stat = rustix::fs::fstat(&self.lent[0])?;
        let mut bytes = vec![0; 16];
        let read = rustix::io::pread(&self.lent[0], &mut bytes, self.at)?;
        bytes.truncate(read);
        let seals = rustix::fs::fcntl_get_seals(&self.lent[0])?;
        Ok(State { bytes, length: stat.st_size as u64, seals })
    }

    /// Returns all obtainable descriptors: those that were lent, and each of them reopened for writing.
    fn descriptors(&self) -> Vec<OwnedFd> {
        let lent = self.lent.iter().filter_map(|fd| fd.try_clone().ok());
        let again = self.lent.iter().filter_map(|fd| reopen(fd.as_raw_fd(), OFlags::RDWR).ok());
        lent.chain(again).collect()
    }

    /// Tries `attempt` with every descriptor; a visible change is a breach.
    fn try_all(&self, attempt: impl Fn(&OwnedFd) -> io::Result<()>) -> io::Result<()> {
        let before = self.state()?;
        let mut last = None;
        for fd in self.descriptors() {
            last = attempt(&fd).err().or(last);
            if self.state()? != before {
                return Ok(());
            }
        }
        Err(last.unwrap_or_else(|| io::Error::other("carried out, and nothing changed")))
    }

    fn length(&self) -> u64 {
        rustix::fs::fstat(&self.lent[0]).map_or(0, |stat| stat.st_size as u64)
    }

    fn write(&self, fd: &OwnedFd) -> io::Result<()> {
        let mut byte = [0];
        rustix::io::pread(fd, &mut byte, self.at)?;
        rustix::io::pwrite(fd, &[!byte[0]], self.at)?;
        Ok(())
    }

    fn reopen(&self) -> io::Result<()> {
        let before = self.state()?;
        let mut last = io::Error::from(Errno::ACCESS);
        for lent in &self.lent {
            let written = reopen(lent.as_raw_fd(), OFlags::RDWR).and_then(|fd| {
                self.write(&fd).or_else(|_| Mapping::new(&fd, self.length(), BOTH).map(|mapping| mapping.flip()))
            });
            last = written.err().unwrap_or(last);
            if self.state()? != before {
                return Ok(());
            }
        }
        Err(last)
    }

    /// Makes the file writable for all users; if that has no effect, makes it inaccessible for all.
    fn chmod(&self) -> io::Result<()> {
        let fd = &self.lent[self.lent.len() - 1];
        rustix::fs::fchmod(fd, Mode::from_raw_mode(0o666))?;
        let written = self.reopen();
        if written.is_err() {
            rustix::fs::fchmod(fd, Mode::empty())?;
        }
        written
    }

    fn map(&self, change: impl Fn(&Mapping) -> io::Result<()>) -> io::Result<()> {
        self.try_all(|fd| {
            let mapping = Mapping::new(fd, self.length(), READ)?;
            change(&mapping)?;
            mapping.flip();
            Ok(())
        })
    }

    fn punch(&self, fd: &OwnedFd) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(fd, flags, 0, self.length())?)
    }

    fn remove(&self, fd: &OwnedFd) -> io::Result<()> {
        let mapping = Mapping::new(fd, self.length(), BOTH).or_else(|_| Mapping::new(fd, self.length(), READ))?;
        mapping.advise(libc::MADV_REMOVE)
    }

    /// Fills holes of the file through its own page faults: once a way to write to a read-only mapping.
    fn fault(&self) -> io::Result<()> {
        let fault = calls::userfaultfd()?;
        for fd in self.descriptors() {
            let _ = self.punch(&fd);
        }
        self.try_all(|fd| {
            let length = self.length();
            let mapping = Mapping::new(fd, length, BOTH).or_else(|_| Mapping::new(fd, length, READ))?;
            calls::fill_by_fault(&fault, &mapping)
        })
    }
}

/// Adds one seal at a time: the kernel would refuse all of them if it refused one. The seal that forbids further seals
/// comes last.
fn seal(fd: &OwnedFd) -> io::Result<()> {
    let seals = [SealFlags::WRITE, SealFlags::FUTURE_WRITE, SealFlags::GROW, SealFlags::SHRINK, SealFlags::SEAL];
    let mut last = Ok(());
    for seal in seals {
        last = rustix::fs::fcntl_add_seals(fd, seal);
    }
    Ok(last?)
}

fn on_objects(objects: &[Object], attack: impl Fn(&Object) -> io::Result<()>) -> Outcome {
    let mut breached = Vec::new();
    let mut last = String::from("nothing was lent");
    for object in objects {
        match attack(object) {
            Ok(()) => breached.push(object.what),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return Outcome::Impossible(error.to_string()),
            Err(error) => last = error.to_string(),
        }
    }
    if breached.is_empty() { Outcome::Held(last) } else { Outcome::Breach(breached.join(", ")) }
}

fn from(result: io::Result<String>) -> Outcome {
    match result {
        Ok(what) => Outcome::Breach(what),
        Err(error) => Outcome::Held(error.to_string()),
    }
}

/// Returns the address of a process's writable mapping of a memfd, if /proc shows it.
fn writable_in(pid: u32, object: &Object) -> Option<u64> {
    let inode = rustix::fs::fstat(object.lent.first()?).ok()?.st_ino.to_string();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    maps.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let writable = words.get(1)?.starts_with("rw") && *words.get(4)? == inode;
        let (start, _) = words[0].split_once('-')?;
        writable.then(|| u64::from_str_radix(start, 16).ok())?
    })
}

/// Replaces a possibly read-only address by the writer's own.
fn aim(objects: &[Object], target: Target) -> Target {
    let found = objects.first().and_then(|it| Some(writable_in(target.pid, it)? + it.at));
    Target { address: found.filter(|_| target.address != 0).unwrap_or(target.address), ..target }
}

fn byte_there(target: Target) -> io::Result<(std::fs::File, u8)> {
    let memory = std::fs::File::options().read(true).write(true).open(format!("/proc/{}/mem", target.pid))?;
    let mut byte = [0];
    if target.address != 0 {
        memory.read_exact_at(&mut byte, target.address)?;
    }
    Ok((memory, byte[0]))
}

fn proc_mem(target: Target) -> io::Result<String> {
    let (memory, byte) = byte_there(target)?;
    if target.address != 0 {
        memory.write_all_at(&[!byte], target.address)?;
    }
    Ok("memory opened for writing".into())
}

fn vm_writev(target: Target) -> io::Result<String> {
    match calls::write_to_process(target.pid, target.address, &[0xA5]) {
        // Access was permitted, but the address was invalid.
        Err(error) if target.address == 0 && error.raw_os_error() == Some(libc::EFAULT) => Ok("allowed".into()),
        done => done.map(|()| "memory written".into()),
    }
}

fn ptrace(target: Target) -> io::Result<String> {
    if target.address == 0 {
        calls::trace(target.pid)?;
    } else {
        calls::trace_and_write(target.pid, target.address, |word| !word)?;
    }
    Ok("attached".into())
}

fn getfd(target: Target) -> io::Result<String> {
    let pid = Pid::from_raw(target.pid as i32).ok_or(Errno::SRCH)?;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    let mut refused = io::Error::from(Errno::BADF);
    let taken = (0..64)
        .filter(|&number| {
            let got = rustix::process::pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty());
            match got {
                Ok(_) => true,
                Err(Errno::BADF) => false,
                Err(error) => {
                    refused = error.into();
                    false
                }
            }
        })
        .count();
    if taken > 0 { Ok(format!("{taken} descriptors taken")) } else { Err(refused) }
}

fn proc_fd(target: Target) -> io::Result<String> {
    let mut opened = 0;
    for file in std::fs::read_dir(format!("/proc/{}/fd", target.pid))? {
        let path = file?.path();
        let is_memory = std::fs::read_link(&path).is_ok_and(|to| to.to_string_lossy().contains("memfd:"));
        if is_memory && std::fs::File::options().read(true).write(true).open(&path).is_ok() {
            opened += 1;
        }
    }
    if opened > 0 { Ok(format!("{opened} memfds opened")) } else { Err(io::Error::other("no memfd to be opened")) }
}

/// Carries an attack out.
pub fn attack(name: &str, objects: &[Object], target: Target) -> Option<Outcome> {
    Some(match name {
        "write" => on_objects(objects, |it| it.try_all(|fd| it.write(fd))),
        "reopen" => on_objects(objects, Object::reopen),
        "fchmod" => on_objects(objects, Object::chmod),
        "mprotect" => on_objects(objects, |it| it.map(|mapping| mapping.protect(BOTH))),
        "pkey_mprotect" => on_objects(objects, |it| it.map(|mapping| mapping.protect_by_key(BOTH))),
        "ftruncate" => on_objects(objects, |it| it.try_all(|fd| Ok(rustix::fs::ftruncate(fd, 0)?))),
        "punch" => on_objects(objects, |it| it.try_all(|fd| it.punch(fd))),
        "madv_remove" => on_objects(objects, |it| it.try_all(|fd| it.remove(fd))),
        "add_seals" => on_objects(objects, |it| it.try_all(seal)),
        "userfaultfd" => on_objects(objects, Object::fault),
        "pidfd_getfd" => from(getfd(target)),
        "proc_fd" => from(proc_fd(target)),
        "proc_mem" => from(proc_mem(aim(objects, target))),
        "process_vm_writev" => from(vm_writev(aim(objects, target))),
        "ptrace" => from(ptrace(aim(objects, target))),
        _ => return None,
    })
}

/// Attacks for a process that has only received descriptors.
pub const BY_DESCRIPTOR: [&str; 10] = [
    "write",
    "reopen",
    "fchmod",
    "mprotect",
    "pkey_mprotect",
    "ftruncate",
    "punch",
    "madv_remove",
    "add_seals",
    "userfaultfd",
];

/// Takes every lease that the kernel grants, on every obtainable descriptor: a process that opens the file against one
/// of them is blocked. Returns the descriptors that must stay open.
pub fn stall(objects: &[Object]) -> (Vec<OwnedFd>, usize) {
    let mut granted = 0;
    let mut kept = Vec::new();
    for object in objects {
        // Read-only descriptors first: an open writable one would prevent their leases.
        let readers = object.lent.iter().filter_map(|fd| reopen(fd.as_raw_fd(), OFlags::RDONLY).ok());
        for fd in readers.chain(object.lent.iter().filter_map(|fd| fd.try_clone().ok())).collect::<Vec<_>>() {
            let taken = calls::lease(fd.as_fd(), libc::F_WRLCK).or_else(|_| calls::lease(fd.as_fd(), libc::F_RDLCK));
            granted += usize::from(taken.is_ok());
            kept.push(fd);
        }
    }
    (kept, granted)
}
