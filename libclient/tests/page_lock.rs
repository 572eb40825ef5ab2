//! Page-locked host segments, and copies from them, on the fake driver: the segments that a client registers, the
//! flags, and the time at which it unregisters them.

mod on_fake;

use on_fake::{Gate, MIB, Other, broker, broker_with, calls, calls_of, client, eventually, log, on_fake, role};
use std::sync::Arc;
use tensorlend::{Allocator, Client, DType, Device, Value, page_locks};
use tensorlend_cuda::pointer::{Memory, Pointer};
use tensorlend_cuda::{Context, Driver, Stream};
use tensorlend_daemon::{Bytes, Embedded};

const GPU: Device = Device::cuda(0);
const REGISTER: &str = "cuMemHostRegister_v2";
const UNREGISTER: &str = "cuMemHostUnregister";
/// The segment is portable and mapped for devices.
const WRITABLE: &str = "cuMemHostRegister flags 3";
/// The same, but read-only for devices.
const READ_ONLY: &str = "cuMemHostRegister flags 11";

fn locking() -> Embedded {
    broker_with(Allocator::Pool, 256 * MIB, |config| {
        config.pool.page_lock = true;
        config.pool.segment_bytes = Bytes(4 * MIB);
    })
}

fn stream() -> Arc<Stream> {
    let device = &Driver::get().unwrap().devices().unwrap()[0];
    Arc::new(Stream::new(&Context::primary(device).unwrap()).unwrap())
}

/// The other processes of these tests.
#[test]
fn another_process() {
    let Some(role) = role() else { return };
    let client = Client::connect().unwrap();
    match role.as_str() {
        "read and publish" => {
            let _stream = stream();
            let lease = client.get("theirs").unwrap();
            client.put("mine", &vec![2u8; 3 * MIB as usize]).unwrap();
            assert_eq!((calls(READ_ONLY), calls(WRITABLE)), (1, 1));
            client.put("ready", &[1u8]).unwrap();
            on_fake::until_released();
            drop(lease);
        }
        "without the device" => {
            assert_eq!(client.get("theirs").unwrap().bytes()[0], 1);
            client.put("mine", &[2u8; 64]).unwrap();
            assert_eq!(log().lines().filter(|line| line.starts_with(&std::process::id().to_string())).count(), 0);
        }
        other => panic!("nobody is {other:?}"),
    }
}

#[test]
fn each_mapping_is_locked_once_and_unlocked_before_it_is_unmapped() {
    on_fake("each_mapping_is_locked_once_and_unlocked_before_it_is_unmapped", &[], || {
        let broker = locking();
        let (producer, reader) = (client(&broker), client(&broker));
        producer.put("early", &vec![1u8; 3 * MIB as usize]).unwrap();
        drop(reader.get("early").unwrap());
        assert_eq!(calls(REGISTER), 0, "this process has no context yet");
        let stream = stream();
        // Segments that were mapped before the process used the device are locked at the first copy.
        let draft = reader.get("early").unwrap().to_device(GPU, &stream).unwrap();
        drop(reader.get("early").unwrap().to_device(GPU, &stream).unwrap());
        assert_eq!((calls(REGISTER), calls(READ_ONLY)), (1, 1), "the reader's mapping, once");
        drop(draft);
        producer.put("later", &vec![2u8; 3 * MIB as usize]).unwrap();
        assert_eq!((calls(REGISTER), calls(WRITABLE)), (2, 1), "the producer's own mapping, when it is mapped");
        let lease = reader.get("later").unwrap();
        assert_eq!((calls(REGISTER), calls(READ_ONLY)), (3, 2), "the reader's");
        let locks = page_locks();
        assert_eq!((locks.segments, locks.refusal), (3, None));
        assert!(locks.bytes >= 9 * MIB);
        drop(lease);
        assert_eq!(calls(UNREGISTER), 0, "a mapping stays for the next lease");
        drop((producer, reader));
        eventually("the end of all mappings", || page_locks().segments == 0);
        assert_eq!((calls(REGISTER), calls(UNREGISTER), page_locks().bytes), (3, 3, 0));
        assert!(!log().contains("after the unmapping"), "{}", log());
    });
}

#[test]
fn a_process_without_the_device_locks_nothing() {
    on_fake("a_process_without_the_device_locks_nothing", &[], || {
        let broker = locking();
        let producer = client(&broker);
        producer.put("theirs", &[1u8; 64]).unwrap();
        Other::start("without the device", &broker).succeeds();
    });
}

#[test]
fn a_killed_clients_segments_are_locked_again_by_others() {
    on_fake("a_killed_clients_segments_are_locked_again_by_others", &[], || {
        let broker = locking();
        let watcher = client(&broker);
        watcher.put("theirs", &vec![1u8; 3 * MIB as usize]).unwrap();
        let other = Other::start("read and publish", &broker);
        eventually("the other process", || watcher.exists("ready").unwrap());
        let pid = other.pid();
        other.kill();
        // The third call is for the small segment of "ready".
        assert_eq!((calls_of(pid, REGISTER), calls_of(pid, UNREGISTER)), (3, 0));
        let stream = stream();
        // The values of the killed client, and those that it read, are copied from pages that this process locks itself.
        for (name, value) in [("theirs", 1), ("mine", 2)] {
            let copy = watcher.get(name).unwrap().to_device(GPU, &stream).unwrap();
            copy.publish("copy").unwrap();
            let read = watcher.get_device("copy").unwrap().to_vec::<u8>().unwrap();
            assert!(read.iter().all(|&byte| byte == value), "{name}");
        }
        assert_eq!(calls(READ_ONLY), 2);
    });
}

#[test]
fn a_copy_is_queued_and_keeps_its_tensor() {
    on_fake("a_copy_is_queued_and_keeps_its_tensor", &[], || {
        let broker = locking();
        let (producer, reader) = (client(&broker), client(&broker));
        let stream = stream();
        let mut draft = producer.create(DType::F32, &[2, 3]).unwrap();
        draft.as_mut_slice::<f32>().unwrap().copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        draft.set_metadata(b"metres").unwrap().set_timestamp(7);
        draft.publish("x").unwrap();
        reader.get("x").unwrap().page_lock(GPU).unwrap();
        let gate = Gate::of(std::process::id());
        // With the gate closed, a call that waited for the copy would never return.
        let copy = reader.get("x").unwrap().to_device(GPU, &stream).unwrap();
        producer.delete("x").unwrap();
        for _ in 0..20 {
            producer.put("x", &[9.0f32; 6]).unwrap();
        }
        drop(gate);
        copy.publish("copy").unwrap();
        let copied = reader.get_device("copy").unwrap();
        assert_eq!(copied.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!((copied.shape(), copied.metadata(), copied.timestamp()), (&[2, 3][..], &b"metres"[..], 7));
        // A dropped reference lasts as long as the stream's present work.
        let value = Arc::new(reader.get_value("x").unwrap());
        let weak = Arc::downgrade(&value);
        let gate = Gate::of(std::process::id());
        drop(Value::to_device(&value, 0, GPU, &stream).unwrap());
        value.drop_after(GPU, &stream).unwrap();
        assert!(weak.upgrade().is_some());
        drop(gate);
        eventually("the end of the work", || weak.upgrade().is_none());
    });
}

/// A dataset's tensors lie in other segments than its index.
#[test]
fn all_tensors_of_a_dataset_are_locked() {
    on_fake("all_tensors_of_a_dataset_are_locked", &[], || {
        let is_locked = |value: &Value| {
            let dataset = value.dataset().unwrap();
            let locked = |bytes: &[u8]| Pointer::ask(bytes.as_ptr() as u64).unwrap().memory == Memory::Host;
            dataset.tensors().iter().all(|tensor| locked(tensor.bytes()))
        };
        for configured in [true, false] {
            let broker = if configured { locking() } else { broker(Allocator::Pool, 256 * MIB) };
            let (producer, reader) = (client(&broker), client(&broker));
            let (small, large) =
                (producer.create(DType::U8, &[64]).unwrap(), producer.create(DType::U8, &[3 << 20]).unwrap());
            producer.dataset().add("small", small).unwrap().add("large", large).unwrap().publish("frame").unwrap();
            let frame = Arc::new(reader.get_value("frame").unwrap());
            let stream = stream();
            if configured {
                for member in 0..2 {
                    drop(frame.to_device(member, GPU, &stream).unwrap());
                }
            } else {
                assert!(!is_locked(&frame));
                frame.page_lock(GPU).unwrap();
            }
            assert!(is_locked(&frame), "configured: {configured}");
        }
    });
}

#[test]
fn a_driver_that_refuses_is_reported_and_copies_work() {
    on_fake("a_driver_that_refuses_is_reported_and_copies_work", &[("FAKECUDA_FAIL", "cuMemHostRegister=304")], || {
        let broker = locking();
        let (producer, reader) = (client(&broker), client(&broker));
        let stream = stream();
        producer.put("x", &[7u8; 100]).unwrap();
        for _ in 0..3 {
            reader.get("x").unwrap().to_device(GPU, &stream).unwrap().publish("copy").unwrap();
            assert_eq!(reader.get_device("copy").unwrap().to_vec::<u8>().unwrap(), [7; 100]);
        }
        let locks = page_locks();
        let refusal = locks.refusal.unwrap();
        assert!(locks.segments == 0 && refusal.contains("304") || refusal.contains("CUDA_ERROR"), "{refusal}");
        assert_eq!(calls(REGISTER), 2, "each mapping asks once: the producer's and the reader's");
        assert!(reader.get("x").unwrap().page_lock(GPU).is_err(), "a program that asks itself gets the error");
    });
}

#[test]
fn nothing_is_locked_unless_it_is_configured() {
    on_fake("nothing_is_locked_unless_it_is_configured", &[], || {
        let broker = broker(Allocator::Pool, 256 * MIB);
        let client = client(&broker);
        let stream = stream();
        client.put("x", &[7u8; 100]).unwrap();
        client.get("x").unwrap().to_device(GPU, &stream).unwrap().publish("copy").unwrap();
        assert_eq!(client.get_device("copy").unwrap().to_vec::<u8>().unwrap(), [7; 100]);
        assert_eq!(calls(REGISTER), 0);
        let value = Arc::new(client.get_value("x").unwrap());
        let missing = value.to_device(1, GPU, &stream).map(drop).unwrap_err().to_string();
        assert_eq!(missing, "the value has no tensor number 1: give a number from 0, below 1");
        let unknown = tensorlend::On::of_pointer(0x1000).unwrap_err().to_string();
        assert_eq!(
            unknown,
            "the driver knows no device memory at 0x1000: give an address that CUDA allocated in this process"
        );
        let lease = client.get_value("copy").unwrap();
        assert!(Arc::new(lease).to_device(0, GPU, &stream).is_err(), "it is on a device");
    });
}

/// Pages that the configuration locks do not keep a segment from being spilled; those that the program locks do.
#[test]
fn locked_segments_are_spilled_when_they_are_unmapped() {
    on_fake("locked_segments_are_spilled_when_they_are_unmapped", &[], || {
        let files = tempfile::tempdir().unwrap();
        let broker = broker_with(Allocator::Pool, 256 * MIB, |config| {
            config.pool.page_lock = true;
            config.pool.segment_bytes = Bytes(4 * MIB);
            config.pool.bytes_max = Some(Bytes(24 * MIB));
            config.spill.directory = Some(files.path().to_owned());
        });
        let client = client(&broker);
        let _stream = stream();
        for value in 0..12u8 {
            client.put(&format!("x/{value}"), &vec![value; 3 * MIB as usize]).unwrap();
        }
        assert!(calls(REGISTER) >= 12, "each segment was locked");
        assert!(calls(UNREGISTER) >= 6, "released segments are unlocked");
        assert!(client.stat().unwrap().bytes_spilled > 0);
        // Makes room for segments that are read back.
        for value in 8..12u8 {
            client.delete(&format!("x/{value}")).unwrap();
        }
        for value in 0..8u8 {
            let name = format!("x/{value}");
            assert!(client.get(&name).unwrap().bytes().iter().all(|&byte| byte == value), "{name}");
            client.delete(&name).unwrap();
        }
        assert!(!log().contains("after the unmapping"), "{}", log());
    });
}
