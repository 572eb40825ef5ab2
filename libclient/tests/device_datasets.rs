//! Datasets with tensors in host memory and on devices, on the fake driver.
#![allow(unsafe_code)]

mod on_fake;

use on_fake::{Gate, MIB, Other, broker, calls, client, eventually, on_fake, role, until_released};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tensorlend::{
    Allocator, Client, DType, Dataset, Device, Error, InfoKind, Member, OnStream, Start, TensorSpec, Value, ValueKind,
};
use tensorlend_cuda::{Context, Driver, Stream, copy, ipc::PlainBlock};

const GPU: Device = Device::cuda(0);

fn context() -> Context {
    Context::primary(&Driver::get().unwrap().devices().unwrap()[0]).unwrap()
}

fn stream() -> Arc<Stream> {
    Arc::new(Stream::new(&context()).unwrap())
}

/// Publishes a dataset of one tensor on the device, whose bytes all have this value, and one in host memory.
fn publish(client: &Client, name: &str, bytes: u64, value: u8) {
    let mut features = client.create_on(GPU, DType::U8, [bytes]).unwrap();
    features.copy_from_host(&vec![value; bytes as usize]).unwrap();
    let mut label = client.create(DType::U8, [1]).unwrap();
    label.bytes_mut().fill(value);
    client.dataset().add("features", features).unwrap().add("label", label).unwrap().publish(name).unwrap();
}

/// Returns the value of a dataset of [`publish`], after checking all its bytes.
fn value_of(dataset: &Dataset) -> u8 {
    let label = dataset.tensor("label").unwrap().bytes()[0];
    let features = dataset.device("features").unwrap().to_vec::<u8>().unwrap();
    assert!(features.iter().all(|&byte| byte == label), "{label}: {:?}", &features[..8.min(features.len())]);
    label
}

fn read_frame(frame: &Dataset) {
    let described: Vec<_> = frame
        .members()
        .map(|(name, member)| (name.to_owned(), member.dtype(), member.shape().to_vec(), member.uuid().is_some()))
        .collect();
    let expected = [
        ("image", DType::U8, vec![2, 3], false),
        ("points", DType::F32, vec![2, 2], true),
        ("depth", DType::I32, vec![3], false),
        ("mask", DType::U8, vec![700], true),
    ];
    assert_eq!(described, expected.map(|(name, dtype, shape, on)| (name.to_owned(), dtype, shape, on)));
    assert_eq!((frame.len(), frame.tensors().len()), (4, 2));
    let host: Vec<&str> = frame.iter().map(|(name, _)| name).collect();
    assert_eq!(host, ["image", "depth"]);
    assert_eq!(frame.iter().nth_back(0).unwrap().1.as_slice::<i32>().unwrap(), [7, 8, 9]);
    assert_eq!(frame.tensor("depth").unwrap().as_slice::<i32>().unwrap(), [7, 8, 9]);
    let points = frame.device("points").unwrap();
    assert_eq!((points.strides(), points.is_row_major()), (&[1, 2][..], false));
    assert_eq!(points.to_vec::<f32>().unwrap(), [1.0, 3.0, 2.0, 4.0]);
    assert_eq!((points.metadata(), points.timestamp()), (&b"metres"[..], 5));
    assert!(frame.device("mask").unwrap().to_vec::<u8>().unwrap().iter().all(|&byte| byte == 6));
    assert_eq!((frame.metadata(), frame.timestamp()), (&b"frame 7"[..], 11));
}

/// The other processes of these tests.
#[test]
fn another_process() {
    let Some(role) = role() else { return };
    let client = Client::connect().unwrap();
    match role.as_str() {
        "read the frame" => read_frame(&client.get_dataset("frame").unwrap()),
        "read without the device" => {
            let set = client.get_dataset("set").unwrap();
            assert_eq!(set.tensor("label").unwrap().bytes(), [4]);
            assert!(set.device("features").unwrap_err().is_device());
            let InfoKind::Dataset(members) = client.info("set").unwrap().kind else { panic!("a dataset was put") };
            assert_eq!((members[0].1.shape.as_slice(), members[0].1.device.is_some()), (&[100][..], true));
            assert_eq!(members[1].1.device, None);
        }
        "hold" => {
            let held = client.get_dataset("held").unwrap();
            assert_eq!(value_of(&held), 1);
            client.put("ready", &[1u8]).unwrap();
            until_released();
            assert!(value_of(&held) == 1 && held.validate());
        }
        "copy behind a gate" => {
            let (context, stream) = (context(), stream());
            let block = PlainBlock::allocate(&context, MIB).unwrap();
            let gate = Gate::of(std::process::id());
            let held = client.get_dataset("held").unwrap();
            let features = held.device("features").unwrap();
            let _current = context.enter().unwrap();
            // SAFETY: a leased range, whose lease ends after the stream has executed the copy, and a block that lives
            // longer.
            unsafe { copy::dtod_async(block.ptr(), features.ptr(), MIB as usize, &*stream) }.unwrap();
            features.record_stream(&stream).unwrap();
            drop(held);
            client.put("ready", &[1u8]).unwrap();
            until_released();
            drop(gate);
            stream.synchronize().unwrap();
            let mut copied = vec![0u8; MIB as usize];
            // SAFETY: the block has this length.
            unsafe { copy::dtoh(copied.as_mut_ptr(), block.ptr(), copied.len()) }.unwrap();
            assert!(copied.iter().all(|&byte| byte == 1), "overwritten before it was read");
        }
        "publish, then wait" => {
            publish(&client, "left", MIB, 9);
            client.put("ready", &[1u8]).unwrap();
            until_released();
        }
        other => panic!("nobody is {other:?}"),
    }
}

fn ready(client: &Client) {
    eventually("the other process", || client.exists("ready").unwrap());
}

#[test]
fn members_are_in_both_memories() {
    on_fake("members_are_in_both_memories", &[], || {
        for allocator in [Allocator::Pool, Allocator::Arena, Allocator::Async] {
            let broker = broker(allocator, 256 * MIB);
            let (producer, consumer) = (client(&broker), client(&broker));
            let image = producer.create(DType::U8, [2, 3]).unwrap();
            let spec = TensorSpec { strides: Some(vec![1, 2]), ..TensorSpec::new(DType::F32, [2, 2]) };
            let mut points = producer.create_spec_on(GPU, spec).unwrap();
            points.copy_from_host(&[1.0f32, 2.0, 3.0, 4.0]).unwrap();
            points.set_metadata(b"metres").unwrap().set_timestamp(5);
            let mut depth = producer.create(DType::I32, [3]).unwrap();
            depth.as_mut_slice::<i32>().unwrap().copy_from_slice(&[7, 8, 9]);
            let mut mask = producer.create_on(GPU, DType::U8, [700]).unwrap();
            mask.copy_from_host(&[6u8; 700]).unwrap();
            let frame = producer.dataset().add("image", image).unwrap().add("points", points).unwrap();
            let frame = frame.add("depth", depth).unwrap().add("mask", mask).unwrap();
            let version = frame.metadata(b"frame 7").unwrap().timestamp(11).publish("frame").unwrap();
            let frame = consumer.get_dataset("frame").unwrap();
            assert!(frame.version() == version && frame.validate());
            read_frame(&frame);
            Other::start("read the frame", &broker).succeeds();
            // A copy has its members in the same memories.
            consumer.copy("frame", "copied").unwrap();
            producer.delete("frame").unwrap();
            read_frame(&producer.get_dataset("copied").unwrap());
            let info = producer.info("copied").unwrap();
            let InfoKind::Dataset(members) = info.kind else { panic!("a dataset was put") };
            let uuid = producer.devices()[0].uuid;
            let on: Vec<_> = members.iter().map(|(_, member)| member.device).collect();
            assert_eq!((on, info.device, info.nbytes), (vec![None, Some(uuid), None, Some(uuid)], None, 734));
            assert_eq!(producer.list("*").unwrap().len(), 1);
        }
    });
}

#[test]
fn each_member_has_its_own_kind() {
    on_fake("each_member_has_its_own_kind", &[], || {
        let broker = broker(Allocator::Pool, 256 * MIB);
        let (one, two) = (client(&broker), client(&broker));
        publish(&one, "set", 100, 4);
        let set = two.get_dataset("set").unwrap();
        let kind = |error: Error| match error {
            Error::Kind { found, wanted, .. } => (found, wanted),
            other => panic!("{other}"),
        };
        assert_eq!(kind(set.tensor("features").unwrap_err()), (ValueKind::DeviceTensor, ValueKind::Tensor));
        assert_eq!(kind(set.device("label").unwrap_err()), (ValueKind::Tensor, ValueKind::DeviceTensor));
        let host = set.require_host("set").unwrap_err();
        assert!(host.to_string().contains("\"set/features\" holds a tensor on a device"), "{host}");
        assert_eq!(kind(host), (ValueKind::DeviceTensor, ValueKind::HostValue));
        let missing = set.device("image").unwrap_err().to_string();
        assert!(missing.contains("it has \"features\", \"label\""), "{missing}");
        assert!(set.get("features").is_none() && matches!(set.member("features"), Some(Member::Device(_))));
        kind(Value::Dataset(set).copy_on_write(&two).unwrap_err());
        // A draft of another client, and a name twice.
        let foreign = two.create_on(GPU, DType::U8, [1]).unwrap();
        assert!(matches!(one.dataset().add("x", foreign), Err(Error::Argument(_))));
        let mut twice = one.dataset().add("x", one.create_on(GPU, DType::U8, [1]).unwrap()).unwrap();
        assert!(twice.push("x", one.create_on(GPU, DType::U8, [1]).unwrap()).is_err());
        drop(twice);
        let remote = one.dataset().add("x", one.create_on(GPU, DType::U8, [1]).unwrap()).unwrap();
        assert!(one.remote().put_draft("elsewhere/x", remote).is_err());
        // A process without the device reads the members in host memory.
        Other::start_with("read without the device", &broker, &[("FAKECUDA_DEVICES", "0")]).succeeds();
        one.delete("set").unwrap();
        eventually("the slots of the members", || one.device_memory(GPU).unwrap().slot_bytes <= 512);
    });
}

#[test]
fn streams_and_lists_carry_them() {
    on_fake("streams_and_lists_carry_them", &[], || {
        let broker = broker(Allocator::Pool, 256 * MIB);
        let (producer, consumer) = (client(&broker), client(&broker));
        let camera = producer.stream("camera").capacity(4).open().unwrap();
        let mut frames = consumer.subscription("camera").start_at(Start::Oldest).open().unwrap();
        let draft = |number: u8| {
            let mut features = producer.create_on(GPU, DType::U8, [1000]).unwrap();
            features.copy_from_host(&[number; 1000]).unwrap();
            let mut label = producer.create(DType::U8, [1]).unwrap();
            label.bytes_mut().fill(number);
            producer.dataset().add("label", label).unwrap().add("features", features).unwrap()
        };
        for number in 0..10 {
            camera.send(draft(number)).unwrap();
            let message = frames.recv_timeout(Duration::from_mins(5)).unwrap();
            assert_eq!(value_of(message.dataset().unwrap()), number);
            camera.send(draft(number)).unwrap();
            let borrowed = frames.try_borrow().unwrap().unwrap();
            assert_eq!(value_of(borrowed.dataset().unwrap()), number);
        }
        for number in 0..70 {
            assert_eq!(producer.append("list", draft(number)).unwrap(), u64::from(number));
        }
        let items = consumer.get_all("list").unwrap();
        let values: Vec<u8> = items.iter().map(|item| value_of(item.dataset().unwrap())).collect();
        assert_eq!(values, (0..70).collect::<Vec<_>>());
        publish(&producer, "named", 100, 77);
        producer.append_names("list", &["named"]).unwrap();
        let last = consumer.get_range("list", 70..).unwrap().remove(0);
        assert_eq!(value_of(last.dataset().unwrap()), 77);
    });
}

#[test]
fn a_publication_waits_for_all_members() {
    on_fake("a_publication_waits_for_all_members", &[], || {
        let broker = broker(Allocator::Pool, 256 * MIB);
        let client = client(&broker);
        for recorded in [true, false] {
            let writing = [stream(), stream()];
            let mut dataset = client.dataset().add("label", client.create(DType::U8, [1]).unwrap()).unwrap();
            let gate = Gate::of(0);
            for (number, stream) in (0..).zip(&writing) {
                let mut draft = client.create_on(GPU, DType::U8, [4096]).unwrap();
                let (context, ptr) = (context(), draft.ptr());
                let _current = context.enter().unwrap();
                // SAFETY: the draft exists, and publishing waits for the stream.
                unsafe { copy::memset_d8_async(ptr, number, 4096, &**stream) }.unwrap();
                if recorded {
                    draft.record_stream(stream).unwrap();
                }
                dataset.push(&format!("member {number}"), draft).unwrap();
            }
            let publishing = std::thread::spawn(move || dataset.publish("written").unwrap());
            std::thread::sleep(Duration::from_millis(100));
            assert!(!publishing.is_finished() && !client.exists("written").unwrap());
            drop(gate);
            publishing.join().unwrap();
            let written = client.get_dataset("written").unwrap();
            for number in 0..2 {
                let member = written.device(&format!("member {number}")).unwrap();
                assert_eq!(member.to_vec::<u8>().unwrap(), [number; 4096]);
            }
            client.delete("written").unwrap();
        }
    });
}

#[test]
fn what_is_leased_is_not_overwritten() {
    on_fake("what_is_leased_is_not_overwritten", &[], || {
        for role in ["hold", "copy behind a gate"] {
            let broker = broker(Allocator::Pool, 32 * MIB);
            let client = client(&broker);
            publish(&client, "held", MIB, 1);
            let other = Other::start(role, &broker);
            ready(&client);
            for value in 2..40 {
                publish(&client, "held", MIB, value);
            }
            assert_eq!(value_of(&client.get_dataset("held").unwrap()), 39);
            assert!(client.instruments().leased().unwrap() > 0, "{role}");
            other.succeeds();
            eventually("the end of the lease", || client.instruments().leased().unwrap() == 0);
            assert!(client.device_memory(GPU).unwrap().segment_bytes <= 8 * MIB, "what was replaced is reused");
        }
    });
}

#[test]
fn a_killed_producer_leaves_it_and_a_killed_reader_frees_it() {
    on_fake("a_killed_producer_leaves_it_and_a_killed_reader_frees_it", &[], || {
        let broker = broker(Allocator::Pool, 32 * MIB);
        let client = client(&broker);
        let producer = Other::start("publish, then wait", &broker);
        ready(&client);
        producer.kill();
        eventually("its end", || !client.info("left").unwrap().alive);
        let left = client.get_dataset("left").unwrap();
        assert_eq!(value_of(&left), 9);
        client.delete("left").unwrap();
        client.delete("ready").unwrap();
        assert_eq!(value_of(&left), 9, "the lease keeps it");
        drop(left);
        eventually("its memory", || client.stat().unwrap().devices[0].bytes_in_use == 0);
        publish(&client, "held", MIB, 1);
        let reader = Other::start("hold", &broker);
        ready(&client);
        reader.kill();
        client.delete("held").unwrap();
        eventually("the end of its lease", || client.instruments().leased().unwrap() == 0);
        for value in 2..40 {
            publish(&client, "held", MIB, value);
        }
        assert_eq!(value_of(&client.get_dataset("held").unwrap()), 39);
    });
}

#[test]
fn a_client_counts_all_members() {
    on_fake("a_client_counts_all_members", &[], || {
        let broker = broker(Allocator::Pool, 256 * MIB);
        let client = Client::builder().socket(broker.socket()).statistics().memory_limit(MIB).connect().unwrap();
        publish(&client, "set", 1000, 3);
        let used = client.memory().slot_bytes + client.device_memory(GPU).unwrap().slot_bytes;
        let seen = client.instruments().statistics().unwrap();
        assert_eq!((seen.current_bytes, seen.current_count), (used as i64, 3), "two members and the index");
        let label = client.create(DType::U8, [1]).unwrap();
        let refused = client.create_on(GPU, DType::U8, [MIB]).unwrap_err();
        assert!(matches!(refused, Error::MemoryLimit { .. }), "{refused}");
        drop(label);
        // Replaced datasets leave their slots to the next ones, within the limit.
        for value in 0..20 {
            publish(&client, "set", MIB / 3, value);
        }
        assert_eq!(value_of(&client.get_dataset("set").unwrap()), 19);
    });
}

#[test]
fn a_forked_child_asks_no_driver() {
    on_fake("a_forked_child_asks_no_driver", &[], || {
        let broker = broker(Allocator::Pool, 256 * MIB);
        let client = client(&broker);
        publish(&client, "set", 100, 4);
        publish(&client, "later", 100, 4);
        let (set, later) = (client.get_dataset("set").unwrap(), client.get_dataset("later").unwrap());
        set.device("features").unwrap().record_stream(&OnStream::LEGACY).unwrap();
        let before = calls("cuEventRecord");
        // SAFETY: the child calls only functions that take no lock, and ends without destructors.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: the alarm kills a child that hangs.
            unsafe { libc::alarm(20) };
            let refused = matches!(set.device("features").unwrap().to_vec::<u8>(), Err(Error::Forked))
                && later.device("features").is_err()
                && set.tensor("label").unwrap().bytes() == [4];
            drop((set, later));
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!refused)) }
        }
        let mut status = 0;
        // SAFETY: waits for the child created above, and writes to a local variable.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert_eq!((waited, status, calls("cuEventRecord")), (pid, 0, before));
        assert!(value_of(&set) == 4 && value_of(&later) == 4);
    });
}

/// Sets the flag *early* in the record of this process that has this timestamp, as a hostile producer can.
fn mark_early(timestamp: u64) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let records = maps.lines().filter(|line| line.contains(" rw-s ") && line.contains("/memfd:tensorlend-slots"));
    for line in records {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [from, to] = [from, to].map(|end| usize::from_str_radix(end, 16).unwrap());
        for record in (from..to).step_by(128) {
            // SAFETY: the word is in a mapping of the client, which uses it only as an atomic.
            let word = |at: usize| unsafe { AtomicU64::from_ptr((record + at * 8) as *mut u64) };
            if word(6).load(Ordering::Relaxed) == timestamp {
                word(1).fetch_or(1 << 11, Ordering::Relaxed);
                return;
            }
        }
    }
    panic!("no record has the timestamp {timestamp}:\n{maps}");
}

#[test]
fn a_mark_of_pending_work_in_a_member_blocks_no_reader() {
    on_fake("a_mark_of_pending_work_in_a_member_blocks_no_reader", &[], || {
        const TIMESTAMP: u64 = 0x5EED_0000_1234_5678;
        let broker = broker(Allocator::Pool, 256 * MIB);
        let (producer, reader) = (client(&broker), client(&broker));
        let mut features = producer.create_on(GPU, DType::U8, [100]).unwrap();
        features.copy_from_host(&[4u8; 100]).unwrap();
        // Only a record with an extension may have the flag.
        features.set_metadata(&[7; 1024]).unwrap().set_timestamp(TIMESTAMP);
        producer.dataset().add("features", features).unwrap().publish("set").unwrap();
        assert_eq!(reader.get_dataset("set").unwrap().device("features").unwrap().to_vec::<u8>().unwrap(), [4; 100]);
        mark_early(TIMESTAMP);
        let error = reader.get_dataset("set").unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
    });
}
