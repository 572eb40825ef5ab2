//! Tests of every wrapper with a driver: this machine's, or the one in the folder that `TENSORLEND_CUDA_LIB` names, as
//! `libcuda.so` and `libcuda.so.1`. Without a driver the tests are skipped with a message.
//!
//! A process finds its libraries once, and sharing needs two processes: so the tests start themselves again, with the
//! name of one test and a role. A descriptor is passed as the child's standard input.
//!
//! Lines that begin with `OBSERVED` answer questions that the manual leaves open.
#![allow(unsafe_code)]

mod stage;

use rustix::io::FdFlags;
use stage::{as_role, observed, on_a_driver, role};
use std::os::fd::AsFd;
use std::ptr::NonNull;
use tensorlend_cuda::copy::{self, HostRegistration};
use tensorlend_cuda::ipc::{self, Opened, PlainBlock};
use tensorlend_cuda::pointer::{Memory, Pointer};
use tensorlend_cuda::pool::{Figures, Pool};
use tensorlend_cuda::{Access, Allocation, Context, Device, Driver, Event, Mapping, Stream, StreamRef, Unavailable};

fn device() -> Device {
    Driver::get().unwrap().devices().unwrap().swap_remove(0)
}

fn sharing() -> Option<(Device, u64)> {
    let device = device();
    match device.granularity() {
        Ok(granularity) => Some((device, granularity.bytes_min)),
        Err(error) => {
            assert!(error.is_unsupported(), "{error}");
            stage::skip(&error.to_string());
            None
        }
    }
}

/// Returns the bytes on the device, in a current context.
fn read(ptr: u64, bytes: usize) -> Vec<u8> {
    let mut there = vec![0xee; bytes];
    // SAFETY: 1: the callers pass memory that they have mapped or allocated. 2: and wait for their earlier work.
    unsafe { copy::dtoh(there.as_mut_ptr(), ptr, bytes) }.unwrap();
    there
}

fn fill(ptr: u64, value: u8, bytes: usize) {
    // SAFETY: as for `read`.
    unsafe { copy::memset_d8(ptr, value, bytes) }.unwrap();
    StreamRef::LEGACY.synchronize().unwrap();
}

#[test]
fn devices_are_told() {
    if !on_a_driver("devices_are_told") {
        return;
    }
    let driver = Driver::get().unwrap();
    for device in driver.devices().unwrap() {
        println!("CUDA {}: {device:?}", driver.version());
        assert_eq!(driver.device(device.uuid()).unwrap().as_ref(), Some(&device));
        assert_eq!(device.uuid(), device.uuid().to_string().parse().unwrap());
        assert!(device.bytes_total() > 0 && !device.name().is_empty() && device.can_access(&device).unwrap());
        if device.require_sharing().is_ok() {
            let granularity = device.granularity().unwrap();
            println!("{granularity:?}");
            assert!(
                granularity.bytes_min.is_power_of_two() && granularity.bytes_recommended % granularity.bytes_min == 0
            );
        }
    }
    assert_eq!(driver.device("GPU-00000000-0000-0000-0000-000000000001".parse().unwrap()).unwrap(), None);
}

#[test]
fn memory_is_shared_by_descriptor() {
    if let Some(role) = role() {
        // The other process: standard input is the descriptor.
        let (device, bytes) = sharing().unwrap();
        let context = Context::primary(&device).unwrap();
        let _current = context.enter().unwrap();
        let allocation = Allocation::import(std::io::stdin().as_fd()).unwrap();
        assert!(allocation.is_on(&device).unwrap());
        let reader = Mapping::map(&allocation, bytes, &device, Access::Read).unwrap();
        assert_eq!(read(reader.ptr(), 4096), [0x5a; 4096]);
        if role == "write" {
            let writer = Mapping::map(&allocation, bytes, &device, Access::ReadWrite).unwrap();
            fill(writer.ptr() + bytes - 1, 0x77, 1);
            assert_eq!(read(reader.ptr() + bytes - 2, 2), [0x5a, 0x77]);
        }
        return;
    }
    if !on_a_driver("memory_is_shared_by_descriptor") {
        return;
    }
    let Some((device, bytes)) = sharing() else { return };
    // First without any context, as in the daemon.
    assert_eq!(Context::current().unwrap(), None);
    let allocation = Allocation::create(&device, bytes).unwrap();
    let fd = allocation.export().unwrap();
    observed("cuMemCreate and export need no context");
    assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(FdFlags::CLOEXEC));
    drop(allocation);
    let allocation = Allocation::import(fd.as_fd()).unwrap();
    observed("imported memory lives by its descriptor, without a context and without its first handle");
    match Mapping::map(&allocation, bytes, &device, Access::ReadWrite) {
        Ok(_) => observed("mapping needs no context"),
        Err(error) => observed(&format!("mapping needs a context: {error}")),
    }

    let context = Context::primary(&device).unwrap();
    let _current = context.enter().unwrap();
    let mapping = Mapping::map(&allocation, bytes, &device, Access::ReadWrite).unwrap();
    drop(allocation);
    observed(&format!(
        "fresh device memory is {}",
        if read(mapping.ptr(), 4096) == [0; 4096] { "zero" } else { "not zero" }
    ));
    fill(mapping.ptr(), 0x5a, bytes as usize);
    assert_eq!((mapping.bytes(), mapping.access()), (bytes, Access::ReadWrite));
    mapping.allow(&device).unwrap();
    as_role("memory_is_shared_by_descriptor", "read", fd.try_clone().unwrap());
    as_role("memory_is_shared_by_descriptor", "write", fd.try_clone().unwrap());
    assert_eq!(read(mapping.ptr() + bytes - 2, 2), [0x5a, 0x77], "one memory in both");
    let ptr = mapping.ptr();
    drop(mapping);
    assert_eq!(Pointer::ask(ptr).unwrap().memory, Memory::Unknown, "the address is free again");
    // The descriptor alone has preserved the memory.
    let again = Allocation::import(fd.as_fd()).unwrap();
    let again = Mapping::map(&again, bytes, &device, Access::Read).unwrap();
    assert_eq!(read(again.ptr() + bytes - 2, 2), [0x5a, 0x77]);
}

#[test]
fn a_peer_uses_the_same_address() {
    if !on_a_driver("a_peer_uses_the_same_address") {
        return;
    }
    let Some((device, bytes)) = sharing() else { return };
    let devices = Driver::get().unwrap().devices().unwrap();
    let Some(peer) = devices.iter().find(|peer| **peer != device && peer.can_access(&device).unwrap()) else {
        return stage::skip("needs two devices that reach each other's memory");
    };
    let mapping =
        Mapping::map(&Allocation::create(&device, bytes).unwrap(), bytes, &device, Access::ReadWrite).unwrap();
    mapping.allow(peer).unwrap();
    let allocation = Allocation::create(peer, bytes).unwrap();
    assert!(allocation.is_on(peer).unwrap() && !allocation.is_on(&device).unwrap());
    let contexts = [&device, peer].map(|device| Context::primary(device).unwrap());
    let _first = contexts[0].enter().unwrap();
    fill(mapping.ptr(), 0x21, 4096);
    let _second = contexts[1].enter().unwrap();
    assert_eq!(Context::current().unwrap().unwrap().device, peer.ordinal());
    assert_eq!(read(mapping.ptr(), 4096), [0x21; 4096]);
}

#[test]
fn what_is_wrong_is_answered() {
    if !on_a_driver("what_is_wrong_is_answered") {
        return;
    }
    let Some((device, bytes)) = sharing() else { return };
    let nothing = std::fs::File::open("/dev/null").unwrap();
    let error = Allocation::import(nothing.as_fd()).unwrap_err();
    println!("{error}");
    assert_eq!(error.call(), Some("cuMemImportFromShareableHandle"));
    assert!(!error.answer().unwrap().name.is_empty() && !error.is_lost());
    let error = Allocation::create(&device, bytes + 1).unwrap_err();
    assert_eq!(error.answer().unwrap().name, "CUDA_ERROR_INVALID_VALUE", "{error}");
    let error = Allocation::create(&device, (2 * device.bytes_total()).next_multiple_of(bytes)).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    let allocation = Allocation::create(&device, bytes).unwrap();
    let longer = Mapping::map(&allocation, 2 * bytes, &device, Access::ReadWrite);
    assert!(longer.is_err_and(|error| error.call() == Some("cuMemMap")), "more than there is");
    let context = Context::primary(&device).unwrap();
    if device.supports().ipc_events {
        println!("{}", Event::open(&context, &[0x41; 64]).unwrap_err());
        println!("{}", Opened::open(&context, &[0x41; 64]).unwrap_err());
        println!("{}", Event::new(&context, true).unwrap().ipc_handle().unwrap_err());
    }
    if device.supports().pools {
        println!("{}", Pool::import(nothing.as_fd()).unwrap_err());
        let pool = Pool::create(&device, 0, 0).unwrap();
        println!("{}", pool.export_pointer(0x1000).unwrap_err());
        println!("{}", pool.import_pointer(&context, &[0x41; 64]).unwrap_err());
    }
}

#[test]
fn contexts_nest() {
    if !on_a_driver("contexts_nest") {
        return;
    }
    let device = device();
    assert_eq!(Context::current().unwrap(), None);
    let context = Context::primary(&device).unwrap();
    assert!(context.is_of(&device));
    {
        let outer = context.enter().unwrap();
        let current = Context::current().unwrap().unwrap();
        assert_eq!((current.raw, current.device), (context.raw(), device.ordinal()));
        // SAFETY: 1: the values were just read. 2: `context` lives longer.
        let borrowed = unsafe { Context::from_raw(current.raw, &device) };
        let inner = borrowed.enter().unwrap();
        assert_eq!(inner.context().raw(), outer.context().raw());
        let other = std::thread::scope(|scope| scope.spawn(|| Context::current().unwrap()).join().unwrap());
        assert_eq!(other, None, "current in one thread only");
        drop(inner);
        assert!(Context::current().unwrap().is_some());
    }
    assert_eq!(Context::current().unwrap(), None);
    // Objects of a context preserve it.
    let stream = Stream::new(&context).unwrap();
    drop(context);
    stream.synchronize().unwrap();
}

#[test]
fn streams_and_events() {
    if !on_a_driver("streams_and_events") {
        return;
    }
    let context = Context::primary(&device()).unwrap();
    let (first, second) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
    let (quick, patient) = (Event::new(&context, false).unwrap(), Event::new(&context, true).unwrap());
    assert!(quick.query().unwrap(), "never recorded");
    // No context is current here.
    quick.record(&first).unwrap();
    second.wait_event(&quick).unwrap();
    patient.record(&second).unwrap();
    patient.synchronize().unwrap();
    assert!(quick.query().unwrap() && patient.query().unwrap());
    observed("events and own streams need no current context");
    second.synchronize().unwrap();
    assert!(second.query().unwrap() && first.query().unwrap());
    assert_eq!(first.context().raw(), context.raw());
    println!("without a current context: {:?}", StreamRef::LEGACY.query());
    let _current = context.enter().unwrap();
    for stream in [StreamRef::LEGACY, StreamRef::PER_THREAD, first.by_ref()] {
        // SAFETY: 1: the default streams, and one of this process. 2: which lives longer.
        let same = unsafe { StreamRef::from_raw(stream.as_raw()) };
        assert_eq!(same, stream);
        let event = Event::new(&context, true).unwrap();
        event.record(same).unwrap();
        same.wait_event(&event).unwrap();
        same.synchronize().unwrap();
        assert!(same.query().unwrap() && event.query().unwrap());
    }
    // SAFETY: 1 and 2: the legacy default stream.
    unsafe { StreamRef::from_raw(0) }.synchronize().unwrap();
    // From another thread, where no context is current.
    let event = Event::new(&context, true).unwrap();
    event.record(&first).unwrap();
    std::thread::scope(|scope| scope.spawn(|| event.synchronize().unwrap()).join().unwrap());
}

#[test]
fn copies() {
    if !on_a_driver("copies") {
        return;
    }
    let device = device();
    let context = Context::primary(&device).unwrap();
    let _current = context.enter().unwrap();
    let [block, other] = [(); 2].map(|()| PlainBlock::allocate(&context, 8192).unwrap());
    assert_eq!(block.bytes(), 8192);
    let from: Vec<u8> = (0..8192).map(|at| at as u8 ^ (at >> 8) as u8).collect();
    // SAFETY: 1: 8192 bytes each. 2: nothing else uses them, and the last copy waits.
    unsafe {
        copy::htod(block.ptr(), from.as_ptr(), 8192).unwrap();
        copy::dtod(other.ptr(), block.ptr(), 8192).unwrap();
        copy::memset_d8(other.ptr() + 8191, 0xab, 1).unwrap();
    }
    let there = read(other.ptr(), 8192);
    assert!(there[..8191] == from[..8191] && there[8191] == 0xab);

    let stream = Stream::new(&context).unwrap();
    let mut to = vec![0_u8; 8192];
    // SAFETY: 1: as above. 2: the stream is synchronized before the ranges end or are read.
    unsafe {
        copy::memset_d8_async(block.ptr(), 0x11, 8192, &stream).unwrap();
        copy::htod_async(block.ptr(), from.as_ptr(), 4096, &stream).unwrap();
        copy::dtod_async(other.ptr(), block.ptr(), 8192, &stream).unwrap();
        copy::dtoh_async(to.as_mut_ptr(), other.ptr(), 8192, &stream).unwrap();
    }
    stream.synchronize().unwrap();
    assert!(to[..4096] == from[..4096] && to[4096..] == [0x11; 4096]);
}

#[test]
fn host_memory_is_registered() {
    if !on_a_driver("host_memory_is_registered") {
        return;
    }
    let device = device();
    let context = Context::primary(&device).unwrap();
    let _current = context.enter().unwrap();
    let bytes = 1 << 16;
    let fd = tensorlend_os::memfd::create("test", bytes as u64).unwrap();
    let map = |access| {
        let segment = tensorlend_os::map::segment(&fd, bytes, access, false).unwrap();
        (NonNull::new(segment.start()).unwrap(), segment)
    };
    let (start, view) = map(tensorlend_os::memfd::Access::Write);
    // SAFETY: 1: the view lives longer, and all copies are waited for.
    let registration = unsafe { HostRegistration::register(&context, &device, start, bytes, false) }.unwrap();
    // SAFETY: as above.
    let twice = unsafe { HostRegistration::register(&context, &device, start, bytes, false) };
    println!("twice: {:?}", twice.err());
    assert!(!registration.is_read_only());
    let there = registration.device_pointer().unwrap();
    observed(&format!("registered memory at {:#x} is at {there:#x} for the device", start.as_ptr() as usize));
    let pointer = Pointer::ask(start.as_ptr() as u64).unwrap();
    println!("{pointer:?}");
    assert_eq!(pointer.memory, Memory::Host);
    let block = PlainBlock::allocate(&context, bytes as u64).unwrap();
    fill(block.ptr(), 0x3c, bytes);
    let stream = Stream::new(&context).unwrap();
    // SAFETY: 1: both have this length. 2: waited for.
    unsafe { copy::dtoh_async(start.as_ptr(), block.ptr(), bytes, &stream) }.unwrap();
    stream.synchronize().unwrap();
    // SAFETY: mapped, and no longer written.
    assert_eq!(unsafe { start.add(bytes - 1).read_volatile() }, 0x3c);
    drop(registration);
    drop(view);

    let (start, view) = map(tensorlend_os::memfd::Access::Read);
    // SAFETY: 1: the view lives longer.
    match unsafe { HostRegistration::register(&context, &device, start, bytes, true) } {
        Ok(registration) => {
            observed(&format!(
                "a read-only mapping is registered, read-only for the device: {}",
                registration.is_read_only()
            ));
            fill(block.ptr(), 0, bytes);
            // SAFETY: 1: both have this length. 2: waited for.
            unsafe { copy::htod_async(block.ptr(), start.as_ptr(), bytes, &stream) }.unwrap();
            stream.synchronize().unwrap();
            assert_eq!(read(block.ptr(), bytes), vec![0x3c; bytes]);
        }
        Err(error) => observed(&format!("a read-only mapping is not registered: {error}")),
    }
    drop(view);
}

#[test]
fn pools_are_shared() {
    if let Some(data) = role() {
        let device = device();
        let context = Context::primary(&device).unwrap();
        let _current = context.enter().unwrap();
        let pool = Pool::import(std::io::stdin().as_fd()).unwrap();
        pool.set_access(&device, Access::ReadWrite).unwrap();
        let stream = Stream::new(&context).unwrap();
        let error = pool.allocate(4096, &stream).unwrap_err();
        assert!(error.to_string().contains("only the process that made a pool"), "{error}");
        let imported = pool.import_pointer(&context, &stage::from_hex(&data)).unwrap();
        drop(pool);
        assert_eq!(read(imported.ptr(), 4096), [0x5a; 4096]);
        fill(imported.ptr(), 0x77, 1);
        drop(imported);
        // Two imports, of which each may be dropped first.
        let pool = Pool::import(std::io::stdin().as_fd()).unwrap();
        for first in [true, false] {
            let import = || pool.import_pointer(&context, &stage::from_hex(&data)).unwrap();
            let (one, two) = (import(), import());
            let (dropped, kept) = if first { (one, two) } else { (two, one) };
            drop(dropped);
            assert_eq!(read(kept.ptr(), 2), [0x77, 0x5a]);
        }
        return;
    }
    if !on_a_driver("pools_are_shared") {
        return;
    }
    let device = device();
    if let Err(error) = device.require_pools() {
        return stage::skip(&error.to_string());
    }
    let context = Context::primary(&device).unwrap();
    let _current = context.enter().unwrap();
    let (stream, bytes_max) = (Stream::new(&context).unwrap(), 64 << 20);
    let pool = Pool::create(&device, 32 << 20, bytes_max).unwrap();
    assert_eq!(pool.figures().unwrap(), Figures::default());
    let ptr = pool.allocate(1 << 20, &stream).unwrap();
    // SAFETY: 1: just allocated. 2: nothing else uses it.
    unsafe { copy::memset_d8_async(ptr, 0x5a, 1 << 20, &stream) }.unwrap();
    stream.synchronize().unwrap();
    let figures = pool.figures().unwrap();
    println!("{figures:?}, {:?}", Pointer::ask(ptr));
    assert!(figures.used_bytes >= 1 << 20 && figures.reserved_bytes >= figures.used_bytes);
    let error = pool.allocate(4 * bytes_max, &stream).unwrap_err();
    observed(&format!("beyond the maximum: {error}"));
    let fd = pool.export().unwrap();
    assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(FdFlags::CLOEXEC));
    let data = pool.export_pointer(ptr).unwrap();
    as_role("pools_are_shared", &stage::to_hex(&data), fd);
    assert_eq!(read(ptr, 2), [0x77, 0x5a]);
    // SAFETY: 1: allocated above. 2: the importer has ended, and everything was waited for.
    unsafe { pool.free(ptr, &stream) }.unwrap();
    stream.synchronize().unwrap();
    pool.trim(0).unwrap();
    let figures = pool.figures().unwrap();
    observed(&format!("after free and trim {figures:?}"));
    assert!(figures.used_bytes == 0 && figures.used_bytes_max >= 1 << 20);
}

#[test]
fn plain_blocks_and_events_are_shared() {
    if let Some(handles) = role() {
        let context = Context::primary(&device()).unwrap();
        let _current = context.enter().unwrap();
        let (block, event) = handles.split_at(128);
        let event = Event::open(&context, &stage::from_hex(event)).unwrap();
        event.synchronize().unwrap();
        let opened = Opened::open(&context, &stage::from_hex(block)).unwrap();
        assert_eq!(read(opened.ptr(), 4096), [0x5a; 4096]);
        fill(opened.ptr(), 0x77, 1);
        let stream = Stream::new(&context).unwrap();
        event.record(&stream).unwrap();
        stream.synchronize().unwrap();
        opened.close().unwrap();
        return;
    }
    if !on_a_driver("plain_blocks_and_events_are_shared") {
        return;
    }
    let device = device();
    if let Err(error) = device.require_ipc() {
        return stage::skip(&error.to_string());
    }
    let context = Context::primary(&device).unwrap();
    let _current = context.enter().unwrap();
    let block = PlainBlock::allocate(&context, 1 << 20).unwrap();
    let event = Event::interprocess(&context).unwrap();
    fill(block.ptr(), 0x5a, 1 << 20);
    let stream = Stream::new(&context).unwrap();
    event.record(&stream).unwrap();
    let handle = match block.ipc_handle() {
        Err(error) if error.is_unsupported() => return stage::skip(&error.to_string()),
        handle => handle.unwrap(),
    };
    assert_eq!(ipc::handle_of(block.ptr()).unwrap(), handle);
    let handles = stage::to_hex(&handle) + &stage::to_hex(&event.ipc_handle().unwrap());
    as_role("plain_blocks_and_events_are_shared", &handles, std::fs::File::open("/dev/null").unwrap());
    assert_eq!(read(block.ptr(), 2), [0x77, 0x5a]);
    event.synchronize().unwrap();
    if let Some((device, bytes)) = sharing() {
        let mapping =
            Mapping::map(&Allocation::create(&device, bytes).unwrap(), bytes, &device, Access::ReadWrite).unwrap();
        observed(&format!("a plain handle of mapped memory: {:?}", ipc::handle_of(mapping.ptr()).err()));
    }
}

#[test]
fn addresses_are_known() {
    if !on_a_driver("addresses_are_known") {
        return;
    }
    let device = device();
    let context = Context::primary(&device).unwrap();
    let _current = context.enter().unwrap();
    let block = PlainBlock::allocate(&context, 1 << 20).unwrap();
    let pointer = Pointer::ask(block.ptr() + 5).unwrap();
    println!("plain: {pointer:?}");
    assert_eq!((pointer.memory, pointer.device, pointer.is_managed), (Memory::Device, Some(device.ordinal()), false));
    assert_eq!(pointer.context, Some(context.raw()));
    assert!(pointer.holds(block.ptr(), 1 << 20));
    let local = 7_u64;
    let pointer = Pointer::ask(&raw const local as u64).unwrap();
    assert_eq!((pointer.memory, pointer.device), (Memory::Unknown, None));
    assert_eq!(Pointer::ask(0).unwrap().memory, Memory::Unknown);
    if let Some((device, bytes)) = sharing() {
        let mapping =
            Mapping::map(&Allocation::create(&device, bytes).unwrap(), bytes, &device, Access::ReadWrite).unwrap();
        let pointer = Pointer::ask(mapping.ptr()).unwrap();
        println!("mapped: {pointer:?}");
        assert_eq!((pointer.memory, pointer.device), (Memory::Device, Some(device.ordinal())));
        assert!(pointer.holds(mapping.ptr(), bytes));
    }
}

#[test]
fn a_forked_child_is_refused() {
    if !on_a_driver("a_forked_child_is_refused") {
        return;
    }
    let context = Context::primary(&device()).unwrap();
    let event = Event::new(&context, false).unwrap();
    // SAFETY: the child ends by `_exit`, and before that does nothing that a fork of several threads forbids: the calls
    // return an error before they lock anything, and an error is small.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = matches!(Driver::get(), Err(Unavailable::Forked))
            && event.query().is_err_and(|error| error.is_forked())
            && context.enter().is_err_and(|error| error.is_forked());
        drop(event);
        // SAFETY: it only ends the process.
        unsafe { libc::_exit(if refused { 7 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: the child was created above, and one int is written.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(libc::WEXITSTATUS(status), 7);
    assert!(event.query().unwrap(), "the parent goes on");
}
