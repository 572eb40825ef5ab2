//! Instruments, limits, copies to the host and several devices, on the fake driver.
#![allow(unsafe_code)]

mod on_fake;

use on_fake::{MIB, broker, calls, client, on_fake};
use tensorlend::{AllocationState, Allocator, Client, DType, Device, DeviceTrouble, Error, OnStream, TensorSpec};
use tensorlend_cuda::Driver;

const GPU: Device = Device::cuda(0);

#[test]
fn device_slots_count() {
    on_fake("device_slots_count", &[], || {
        for allocator in [Allocator::Pool, Allocator::Arena, Allocator::Async] {
            let broker = broker(allocator, 256 * MIB);
            let log = on_fake::machine().join(format!("allocations-{allocator}"));
            let client = Client::builder()
                .socket(broker.socket())
                .statistics()
                .tracking()
                .allocation_log(&log)
                .connect()
                .unwrap();
            let unit = if allocator == Allocator::Async { client.devices()[0].segment_bytes } else { 512 };
            let draft = client.create_on(GPU, DType::U8, &[100]).unwrap();
            let seen = client.instruments().statistics().unwrap();
            assert_eq!((seen.current_bytes, seen.current_count), (unit as i64, 1), "{allocator}");
            draft.publish("x").unwrap();
            client.put("host", &[1u8; 64]).unwrap();
            let outstanding = client.instruments().outstanding().unwrap();
            let states: Vec<_> = outstanding.allocations().iter().map(|it| (it.bytes, it.state)).collect();
            assert!(states.contains(&(unit, AllocationState::Held)), "{states:?}");
            drop(client.create_on(GPU, DType::U8, &[100]).unwrap());
            let seen = client.instruments().statistics().unwrap();
            let used = client.memory().slot_bytes + client.device_memory(GPU).unwrap().slot_bytes;
            assert_eq!((seen.current_bytes, seen.current_count), (used as i64, 2), "{allocator}");
            assert_eq!((seen.total_count, seen.peak_bytes), (3, 2 * unit + 64), "{allocator}");
            client.instruments().stop_log().unwrap();
            let text = std::fs::read_to_string(log).unwrap();
            let lines = |action: &str| {
                text.lines().filter(|line| line.contains(action) && line.ends_with(&format!(",{unit}"))).count()
            };
            assert_eq!((lines(",allocate,"), lines(",free,")), (2, 1), "{text}");
        }
    });
}

/// Threads that find no room at the same time request one segment, not one each.
#[test]
fn threads_share_a_new_segment() {
    on_fake("threads_share_a_new_segment", &[], || {
        let broker = broker(Allocator::Pool, 256 * MIB);
        let client = client(&broker);
        let barrier = std::sync::Barrier::new(16);
        let drafts: Vec<_> = std::thread::scope(|scope| {
            let draft = || {
                barrier.wait();
                client.create_on(GPU, DType::U8, &[1000]).unwrap()
            };
            let threads: Vec<_> = (0..16).map(|_| scope.spawn(draft)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let memory = client.device_memory(GPU).unwrap();
        assert_eq!((drafts.len(), memory.slot_bytes, memory.segment_bytes), (16, 16 * 1024, 4 * MIB));
    });
}

#[test]
fn a_memory_limit_includes_devices() {
    on_fake("a_memory_limit_includes_devices", &[], || {
        let broker = broker(Allocator::Pool, 256 * MIB);
        let client = Client::builder().socket(broker.socket()).memory_limit(2 * MIB).connect().unwrap();
        let half = client.create_on(GPU, DType::U8, &[MIB as usize]).unwrap();
        let host = client.create(DType::U8, &[MIB as usize]).unwrap();
        let error = client.create_on(GPU, DType::U8, &[1]).unwrap_err();
        assert!(matches!(error, Error::MemoryLimit { asked: 512, used, .. } if used == 2 * MIB), "{error}");
        drop(half);
        client.create_on(GPU, DType::U8, &[MIB as usize]).unwrap().publish("x").unwrap();
        assert!(client.create_on(GPU, DType::U8, &[1]).unwrap_err().is_limit());
        client.delete("x").unwrap();
        client.create_on(GPU, DType::U8, &[1]).unwrap();
        drop(host);
    });
}

#[test]
fn long_copies_to_the_host_are_staged_and_drafts_are_written_in_place() {
    on_fake("long_copies_to_the_host_are_staged_and_drafts_are_written_in_place", &[], || {
        let broker = broker(Allocator::Pool, 256 * MIB);
        let client = client(&broker);
        // Lengths around the halves of the staging buffer.
        for length in [1, 300_000, 2 << 20, (2 << 20) + 1, (4 << 20) - 3, 7 << 20] {
            let numbers: Vec<u8> = (0..length).map(|at: usize| (at * 7 % 251) as u8).collect();
            client.put_on(GPU, "x", &numbers).unwrap();
            let lease = client.get_device("x").unwrap();
            assert!(lease.to_vec::<u8>().unwrap() == numbers, "{length} bytes");
            let mut draft = client.create(DType::U8, &[length]).unwrap();
            lease.copy_to_draft(&mut draft).unwrap();
            draft.publish("host").unwrap();
            assert!(client.get("host").unwrap().bytes() == numbers, "{length} bytes");
        }
        assert!(calls("cuMemcpyDtoHAsync_v2") >= 4, "long copies run through the stage");
        assert!(calls("cuMemHostRegister_v2") >= 1);
        let lease = client.get_device("x").unwrap();
        let mut other = client.create(DType::F32, &[3]).unwrap();
        assert!(matches!(lease.copy_to_draft(&mut other), Err(Error::DType { .. })));
        let mut short = client.create(DType::U8, &[3]).unwrap();
        assert!(matches!(lease.copy_to_draft(&mut short), Err(Error::Length { .. })));
        let strided = TensorSpec { strides: Some(vec![1, 2]), ..TensorSpec::new(DType::U8, [2, 2]) };
        let mut draft = client.create_spec_on(GPU, strided).unwrap();
        draft.copy_from_bytes(&[1, 2, 3, 4]).unwrap();
        draft.publish("strided").unwrap();
        let mut order = client.create(DType::U8, &[2, 2]).unwrap();
        client.get_device("strided").unwrap().copy_to_draft(&mut order).unwrap();
        assert_eq!(order.bytes_mut(), [1, 3, 2, 4]);
    });
}

/// Each tensor is mapped for its own device. Another device of the process reaches it by the driver's copies.
#[test]
fn several_devices() {
    on_fake("several_devices", &[("FAKECUDA_DEVICES", "3")], || {
        let broker = broker(Allocator::Pool, 64 * MIB);
        let client = client(&broker);
        assert_eq!(client.devices().len(), 3);
        let devices = Driver::get().unwrap().devices().unwrap();
        for number in 0..3u8 {
            client.put_on(Device::cuda(number), &format!("x/{number}"), &[number; 1000]).unwrap();
            assert_eq!(client.device_memory(Device::cuda(number)).unwrap().slot_bytes, 1024);
        }
        for number in 0..3u8 {
            let lease = client.get_device(&format!("x/{number}")).unwrap();
            assert_eq!((lease.device(), lease.to_vec::<u8>().unwrap()), (Device::cuda(number), vec![number; 1000]));
            let next = &devices[usize::from((number + 1) % 3)];
            assert!(next.can_access(&devices[usize::from(number)]).unwrap());
            // A draft on the next device takes the elements over, as work of a stream there.
            let to = Device::cuda((number + 1) % 3);
            let mut draft = client.create_on(to, DType::U8, &[1000]).unwrap();
            // SAFETY: the lease keeps the elements until the draft is published, which waits for the copy.
            unsafe { draft.copy_from_ptr(lease.ptr(), &OnStream::LEGACY) }.unwrap();
            draft.publish("copy").unwrap();
            let copy = client.get_device("copy").unwrap();
            assert_eq!((copy.device(), copy.to_vec::<u8>().unwrap()), (to, vec![number; 1000]));
            client.delete("copy").unwrap();
        }
        let absent = client.create_on(Device::cuda(3), DType::U8, &[1]).unwrap_err();
        assert!(matches!(absent, Error::Device { cause: DeviceTrouble::NoSuchDevice(3), .. }), "{absent}");
    });
}
