//! Device memory over real sockets and the fake driver: see `tests/fakecuda`. Tests that need the driver start this
//! binary again, with the fake driver in the loader's path.
//!
//! Skipped, with a message, if the fake driver is not built: `cargo build -p tensorlend-fakecuda`.
#![cfg(feature = "cuda")]

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tensorlend_cuda::mapping::Access;
use tensorlend_cuda::{Allocation, Context, Driver, Mapping, pool::Pool};
use tensorlend_layout::Uuid;
use tensorlend_layout::wire::{
    Allocator, DeviceSegment, Export, Hello, Refusal, Reply, Request, Stat, Welcome, decode, encode,
};
use tensorlend_os::packet;

const ROLE: &str = "TENSORLEND_DEVICE_TEST";

/// Returns the fake driver's library, where cargo puts it.
fn stand_in() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let folders = here.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join("libfakecuda.so")).find(|path| path.exists());
    found.expect("the stand-in is a dependency of this test: cargo build -p tensorlend-fakecuda")
}

/// A simulated machine with a device.
struct World {
    folder: tempfile::TempDir,
    configuration: &'static str,
    arguments: &'static [&'static str],
}

impl World {
    fn new(configuration: &'static str, arguments: &'static [&'static str]) -> Self {
        let library = stand_in();
        let folder = tempfile::tempdir().unwrap();
        for name in ["libcuda.so", "libcuda.so.1"] {
            std::os::unix::fs::symlink(&library, folder.path().join(name)).unwrap();
        }
        std::fs::write(folder.path().join("tensorlendd.toml"), configuration).unwrap();
        Self { folder, configuration, arguments }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn surround<'c>(&self, command: &'c mut Command, log: &str) -> &'c mut Command {
        command.env("LD_LIBRARY_PATH", self.folder.path()).env("FAKECUDA_DIR", self.folder.path());
        command.env("FAKECUDA_LOG", self.at(log)).env_remove("NOTIFY_SOCKET").env_remove("XDG_RUNTIME_DIR")
    }

    fn daemon(&self) -> Daemon {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tensorlendd"));
        self.surround(&mut command, "daemon.log");
        command.arg("--socket").arg(self.at("s")).arg("--config").arg(self.at("tensorlendd.toml"));
        let child = command.args(self.arguments).stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let daemon = Daemon(child);
        let start = Instant::now();
        while !self.at("s").exists() {
            assert!(start.elapsed() < Duration::from_mins(5), "no daemon with {:?}", self.configuration);
            std::thread::sleep(Duration::from_millis(5));
        }
        daemon
    }

    /// Runs a test of this file as a client process.
    fn client(&self, test: &str) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        self.surround(&mut command, "client.log");
        let output = command.args(["--exact", test, "--nocapture"]).env(ROLE, self.at("s")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns the driver calls of the daemon's process.
    fn calls(&self) -> String {
        std::fs::read_to_string(self.at("daemon.log")).unwrap_or_default()
    }
}

struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the daemon's socket if this process is such a client.
fn role() -> Option<PathBuf> {
    std::env::var_os(ROLE).map(PathBuf::from)
}

struct Client {
    socket: OwnedFd,
    welcome: Welcome,
}

impl Client {
    fn join(path: &Path) -> Self {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let start = Instant::now();
        while let Err(error) = connect(&socket, &SocketAddrUnix::new(path).unwrap()) {
            assert!(start.elapsed() < Duration::from_mins(5), "{error}");
            std::thread::sleep(Duration::from_millis(5));
        }
        say(&socket, &Request::Hello(Hello::new(None, "device")));
        let (Reply::Welcome(welcome), _) = hear(&socket) else { panic!("not welcome") };
        say(&socket, &Request::Ack);
        Self { socket, welcome }
    }

    fn ask(&self, request: &Request) -> (Reply, Vec<OwnedFd>) {
        say(&self.socket, request);
        let answer = hear(&self.socket);
        if !answer.1.is_empty() {
            say(&self.socket, &Request::Ack);
        }
        answer
    }

    fn stat(&self) -> Stat {
        match self.ask(&Request::Stat) {
            (Reply::Stat(stat), _) => *stat,
            other => panic!("{other:?}"),
        }
    }

    fn wish(&self, bytes: u64) -> Request {
        Request::DeviceSegment { uuid: self.welcome.devices[0].uuid, bytes, slots_log2: 4 }
    }

    fn device_segment(&self, request: &Request) -> (DeviceSegment, OwnedFd) {
        match self.ask(request) {
            (Reply::DeviceSegment(it), mut descriptors) => (it, descriptors.remove(0)),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until this many bytes of the device are lent.
    fn waits_for(&self, bytes_in_use: u64) {
        let start = Instant::now();
        while self.stat().devices[0].bytes_in_use != bytes_in_use {
            assert!(start.elapsed() < Duration::from_mins(5), "{:?}", self.stat().devices);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn say(socket: &OwnedFd, request: &Request) {
    packet::send(socket, &encode(request), &[], SendFlags::empty()).unwrap();
}

fn hear(socket: &OwnedFd) -> (Reply, Vec<OwnedFd>) {
    let packet = packet::receive(socket, RecvFlags::empty()).unwrap();
    (decode(&packet.bytes).expect("an answer"), packet.descriptors)
}

fn same(uuid: Uuid, device: &tensorlend_cuda::Device) -> bool {
    device.uuid().0 == uuid.0
}

const POOL: &str = "[cuda]\ndevices = [\"all\"]\nsegment_bytes = \"4MiB\"\nbytes_max = \"16MiB\"\n";
const ASYNC: &str = "[cuda]\ndevices = [\"all\"]\nallocator = \"async\"\n";
const FAKE: &[&str] = &["--allow-fake-cuda"];

#[test]
fn a_segment_is_lent_imported_and_written_and_no_context_is_made() {
    if let Some(path) = role() {
        let (a, b) = (Client::join(&path), Client::join(&path));
        assert_eq!(a.stat().device, "");
        let (lent, fd) = a.device_segment(&a.wish(1));
        assert_eq!((lent.bytes, lent.export), (4 << 20, Export::Allocation));
        // The answer to this request proves that the daemon has read the acknowledgement before it.
        a.stat();
        let driver = Driver::get().unwrap();
        let device = driver.devices().unwrap().into_iter().find(|device| same(lent.uuid, device)).unwrap();
        let written =
            Mapping::map(&Allocation::import(fd.as_fd()).unwrap(), lent.bytes, &device, Access::ReadWrite).unwrap();
        // The fake driver's memory is a memfd, which shows without a copy that both clients have the same memory.
        assert_eq!(rustix::io::pwrite(&fd, b"tensor", 4096), Ok(6));
        let of = Request::SegmentOf { owner: a.welcome.client, slot: lent.lending.base };
        let (seen, fd) = b.device_segment(&of);
        assert_eq!(seen, lent);
        let read = Mapping::map(&Allocation::import(fd.as_fd()).unwrap(), seen.bytes, &device, Access::Read).unwrap();
        let mut bytes = [0; 6];
        assert_eq!(rustix::io::pread(&fd, &mut bytes, 4096), Ok(6));
        assert_eq!(&bytes, b"tensor");
        drop((read, written));
        let lendings = vec![lent.lending];
        let base = lent.lending.base;
        assert_eq!(a.ask(&Request::ReturnSegment { base }).0, Reply::Done);
        assert_eq!(a.ask(&Request::Unmapped { lendings: lendings.clone() }).0, Reply::Done);
        assert_eq!(a.stat().devices[0].bytes_in_use, 4 << 20);
        assert_eq!(b.ask(&Request::Unmapped { lendings }).0, Reply::Done);
        assert_eq!((b.stat().devices[0].bytes_in_use, b.stat().devices[0].bytes), (0, 4 << 20));
        return;
    }
    let world = World::new(POOL, FAKE);
    let _daemon = world.daemon();
    world.client("a_segment_is_lent_imported_and_written_and_no_context_is_made");
    let calls = world.calls();
    assert!(calls.contains("cuMemCreate") && !calls.contains("Ctx"), "{calls}");
}

#[test]
fn a_block_of_a_pool_is_lent_and_freed() {
    if let Some(path) = role() {
        let a = Client::join(&path);
        assert_eq!(a.welcome.devices[0].allocator, Allocator::Async);
        let (lent, fd) = a.device_segment(&a.wish(1000));
        let Export::Block { pool, pointer } = lent.export else { panic!("{lent:?}") };
        assert_eq!(lent.bytes, 1024);
        let (other, _) = a.device_segment(&a.wish(5000));
        assert!(matches!(other.export, Export::Block { pool: same, .. } if same == pool), "one for the namespace");
        let driver = Driver::get().unwrap();
        let device = driver.devices().unwrap().into_iter().find(|device| same(lent.uuid, device)).unwrap();
        let context = Context::primary(&device).unwrap();
        let imported = Pool::import(fd.as_fd()).unwrap();
        let data: Vec<u8> = pointer.concat();
        let block = imported.import_pointer(&context, &data.try_into().unwrap()).unwrap();
        assert_ne!(block.ptr(), 0);
        drop(block);
        for it in [&lent, &other] {
            assert_eq!(a.ask(&Request::ReturnSegment { base: it.lending.base }).0, Reply::Done);
        }
        let lendings = vec![lent.lending, other.lending];
        assert_eq!(a.ask(&Request::Unmapped { lendings }).0, Reply::Done);
        assert_eq!(a.stat().devices[0].bytes, 0);
        let Reply::Refused(Refusal::Bad(why)) = a.ask(&a.wish((4 << 30) + 1)).0 else { panic!() };
        assert!(why.contains("at most 4 GiB"), "{why}");
        return;
    }
    let world = World::new(ASYNC, FAKE);
    let _daemon = world.daemon();
    world.client("a_block_of_a_pool_is_lent_and_freed");
    // A lane frees the block after the daemon's reply.
    let start = Instant::now();
    while !world.calls().contains("cuMemFreeAsync") {
        assert!(start.elapsed() < Duration::from_mins(5), "{}", world.calls());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_killed_holder_departs_and_its_memory_comes_back() {
    if let Some(path) = role() {
        let a = Client::join(&path);
        a.device_segment(&a.wish(1));
        // The test kills this process.
        let _ = std::io::stdin().read_line(&mut String::new());
        return;
    }
    let world = World::new(POOL, FAKE);
    let _daemon = world.daemon();
    let watcher = Client::join(&world.at("s"));
    let mut command = Command::new(std::env::current_exe().unwrap());
    world.surround(&mut command, "client.log");
    let test = "a_killed_holder_departs_and_its_memory_comes_back";
    command.args(["--exact", test]).env(ROLE, world.at("s")).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    watcher.waits_for(4 << 20);
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success(), "{pid}");
    watcher.waits_for(0);
    // A session that ends while its process lives keeps its device memory.
    let holder = Client::join(&world.at("s"));
    let (_, fd) = holder.device_segment(&holder.wish(1));
    drop((holder, fd));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(watcher.stat().devices[0].bytes_in_use, 4 << 20);
}

#[test]
fn a_driver_that_is_a_stand_in_has_to_be_allowed() {
    let world = World::new(POOL, &[]);
    let _daemon = world.daemon();
    let stat = Client::join(&world.at("s")).stat();
    assert!(stat.devices.is_empty() && stat.device.contains("--allow-fake-cuda"), "{}", stat.device);
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let missing = "[cuda]\ndevices = [\"GPU-00000000-0000-0000-0000-000000000001\"]\n";
    let world = World::new(missing, FAKE);
    let _daemon = world.daemon();
    let client = Client::join(&world.at("s"));
    let stat = client.stat();
    assert!(stat.devices.is_empty() && stat.device.contains("names GPU-00000000-0000"), "{}", stat.device);
    let (reply, _) = client.ask(&Request::Segment { bytes: 4096, slots_log2: 2 });
    assert!(matches!(reply, Reply::Segment { .. }), "host memory is lent as ever");
}

#[test]
fn without_a_driver_host_memory_is_lent_and_it_is_said_why() {
    let mut world = World::new(POOL, FAKE);
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::fs::remove_file(world.at(name)).unwrap();
        // Hides a real driver of this machine: the loader searches here first.
        std::fs::write(world.at(name), "no library").unwrap();
    }
    world.configuration = "no driver";
    let _daemon = world.daemon();
    let client = Client::join(&world.at("s"));
    let stat = client.stat();
    assert!(stat.devices.is_empty(), "{:?}", stat.devices);
    assert!(stat.device.starts_with("no device memory is lent: "), "{}", stat.device);
    assert!(matches!(client.ask(&Request::Segment { bytes: 4096, slots_log2: 2 }).0, Reply::Segment { .. }));
}
