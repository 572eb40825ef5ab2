//! Tensors on devices, through the public API: with the fake driver, across processes.
#![allow(unsafe_code)]

mod on_fake;

use on_fake::{Gate, MIB, Other, broker, calls, client, eventually, on_fake, role, until_released};
use std::sync::Arc;
use std::time::Duration;
use tensorlend::{
    Allocator, Client, DType, Device, DeviceDraft, DeviceTrouble, Draft, Error, InfoKind, OnStream, Start, TensorSpec,
    Value, ValueDraft, ValueKind,
};
use tensorlend_cuda::{Context, Driver, Stream, copy, ipc::PlainBlock};
use tensorlend_daemon::Embedded;
use tensorlend_layout::random::splitmix64;

const GPU: Device = Device::cuda(0);

fn pool() -> Embedded {
    broker(Allocator::Pool, 256 * MIB)
}

fn context() -> Context {
    Context::primary(&Driver::get().unwrap().devices().unwrap()[0]).unwrap()
}

fn stream() -> Arc<Stream> {
    Arc::new(Stream::new(&context()).unwrap())
}

/// Queues filling a range of the device on a stream.
fn fill(stream: &Stream, ptr: u64, bytes: u64, value: u8) {
    let context = context();
    let _current = context.enter().unwrap();
    // SAFETY: the callers own a draft or a block in this range, which outlives the stream's work.
    unsafe { copy::memset_d8_async(ptr, value, bytes as usize, stream) }.unwrap();
}

/// Publishes a tensor filled with one value.
fn publish(client: &Client, name: &str, bytes: u64, value: u8) {
    client.put_on(GPU, name, &vec![value; bytes as usize]).unwrap();
}

fn holds(client: &Client, name: &str, value: u8) {
    let all = client.get_device(name).unwrap().to_vec::<u8>().unwrap();
    assert!(all.iter().all(|&byte| byte == value), "{name} holds {:?}", &all[..8.min(all.len())]);
}

/// The other processes of these tests.
#[test]
fn another_process() {
    let Some(role) = role() else { return };
    let client = Client::connect().unwrap();
    match role.as_str() {
        "read numbers" => {
            let lease = client.get_device("numbers").unwrap();
            assert_eq!(lease.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
            assert_eq!((lease.shape(), lease.strides(), lease.is_row_major()), (&[2, 3][..], &[3, 1][..], true));
            assert_eq!((lease.metadata(), lease.timestamp()), (&b"metres"[..], 7));
            assert_eq!((lease.device(), lease.nbytes(), lease.dtype()), (GPU, 24, DType::F32));
        }
        "read many" => {
            for _ in 0..10 {
                for number in 0..4 {
                    holds(&client, &format!("many/{number}"), number);
                }
            }
            assert_eq!(calls("cuMemImportFromShareableHandle"), 1, "one segment is imported once");
        }
        "read fives" => holds(&client, "early", 5),
        "read fives on a stream" => {
            let (context, stream) = (context(), stream());
            let lease = client.get_device_early("early").unwrap();
            lease.wait(&stream).unwrap();
            let block = PlainBlock::allocate(&context, lease.nbytes() as u64).unwrap();
            let _current = context.enter().unwrap();
            // SAFETY: a leased range and a block of its length; both live until the stream has executed the copy.
            unsafe { copy::dtod_async(block.ptr(), lease.ptr(), lease.nbytes(), &*stream) }.unwrap();
            drop(lease);
            stream.synchronize().unwrap();
            let mut copied = [0; 64];
            // SAFETY: 64 bytes of the block.
            unsafe { copy::dtoh(copied.as_mut_ptr(), block.ptr(), 64) }.unwrap();
            assert_eq!(copied, [5; 64]);
        }
        "hold" => {
            let lease = client.get_device("held").unwrap();
            client.put("ready", &[1u8]).unwrap();
            until_released();
            assert!(lease.to_vec::<u8>().unwrap().iter().all(|&byte| byte == 1));
        }
        "copy behind a gate" => {
            let (context, stream) = (context(), stream());
            let block = PlainBlock::allocate(&context, MIB).unwrap();
            let gate = Gate::of(std::process::id());
            let lease = client.get_device("held").unwrap();
            let _current = context.enter().unwrap();
            // SAFETY: a leased range, whose lease ends after the stream has executed the copy, and a block that lives
            // longer.
            unsafe { copy::dtod_async(block.ptr(), lease.ptr(), MIB as usize, &*stream) }.unwrap();
            lease.record_stream(&stream).unwrap();
            drop(lease);
            client.put("ready", &[1u8]).unwrap();
            until_released();
            drop(gate);
            stream.synchronize().unwrap();
            let mut copied = vec![0u8; MIB as usize];
            // SAFETY: the block has this length.
            unsafe { copy::dtoh(copied.as_mut_ptr(), block.ptr(), copied.len()) }.unwrap();
            assert!(copied.iter().all(|&byte| byte == 1), "overwritten before it was read");
        }
        "hold with work under way" => {
            let (context, stream) = (context(), stream());
            let _gate = Gate::of(std::process::id());
            let lease = client.get_device("held").unwrap();
            let block = PlainBlock::allocate(&context, MIB).unwrap();
            let _current = context.enter().unwrap();
            // SAFETY: as above; this process is killed before anything else happens.
            unsafe { copy::dtod_async(block.ptr(), lease.ptr(), MIB as usize, &*stream) }.unwrap();
            lease.record_stream(&stream).unwrap();
            drop(lease);
            client.put("ready", &[1u8]).unwrap();
            until_released();
        }
        "publish early, then wait" => {
            let stream = stream();
            let _gate = Gate::of(std::process::id());
            let draft = client.create_on(GPU, DType::U8, &[4096]).unwrap();
            fill(&stream, draft.ptr(), 4096, 5);
            draft.publish_early("early", &stream).unwrap();
            client.put("ready", &[1u8]).unwrap();
            until_released();
        }
        "read without the device" => {
            let error = client.get_device("numbers").unwrap_err();
            assert!(error.is_device(), "{error}");
            assert_eq!(client.list("*").unwrap().len(), 2);
            assert_eq!(client.get("beside").unwrap().bytes(), [9]);
        }
        other => panic!("nobody is {other:?}"),
    }
}

fn ready(client: &Client) {
    eventually("the other process", || client.exists("ready").unwrap());
}

#[test]
fn a_tensor_is_read_where_it_lies() {
    on_fake("a_tensor_is_read_where_it_lies", &[], || {
        let broker = pool();
        let client = client(&broker);
        let offers = client.devices();
        assert_eq!((offers.len(), offers[0].allocator), (1, Allocator::Pool));
        let mut draft = client.create_on(GPU, DType::F32, &[2, 3]).unwrap();
        assert_eq!((draft.nbytes(), draft.ptr() % 512, draft.uuid()), (24, 0, offers[0].uuid));
        draft.copy_from_host(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        assert!(draft.copy_from_host(&[1.0f64]).is_err() && draft.copy_from_host(&[1.0f32]).is_err());
        draft.set_metadata(b"metres").unwrap().set_timestamp(7);
        let version = draft.publish("numbers").unwrap();
        let lease = client.get_device("numbers").unwrap();
        assert!(lease.version() == version && lease.validate());
        assert_eq!(lease.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert!(matches!(client.get_value("numbers").unwrap(), Value::Device(_)));
        let info = client.info("numbers").unwrap();
        assert_eq!((info.nbytes, info.metadata_bytes, info.device), (24, 6, Some(offers[0].uuid)));
        let InfoKind::Tensor(tensor) = info.kind else { panic!("a tensor was put") };
        assert_eq!((tensor.dtype, tensor.shape), (DType::F32, vec![2, 3]));
        Other::start("read numbers", &broker).succeeds();
        client.copy("numbers", "copied").unwrap();
        assert_eq!(client.get_device("copied").unwrap().to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(client.get_device("copied").unwrap().metadata(), b"metres");
    });
}

#[test]
fn what_is_somewhere_else_is_said_to_be() {
    on_fake("what_is_somewhere_else_is_said_to_be", &[], || {
        let broker = pool();
        let client = client(&broker);
        client.put("host", &[1u8]).unwrap();
        publish(&client, "device", 100, 1);
        let kind = |error: Error| match error {
            Error::Kind { found, remedy, .. } => (found, remedy),
            other => panic!("{other}"),
        };
        assert_eq!(kind(client.get_device("host").unwrap_err()), (ValueKind::Tensor, "get"));
        let (found, remedy) = kind(client.get("device").unwrap_err());
        assert!(found == ValueKind::DeviceTensor && remedy.starts_with("get_device"), "{found}, {remedy}");
        kind(client.get_dataset("device").unwrap_err());
        assert!(client.get_device("nothing").unwrap_err().is_not_found());
        let absent = client.create_on(Device::cuda(7), DType::U8, &[1]).unwrap_err();
        assert!(matches!(absent, Error::Device { cause: DeviceTrouble::NoSuchDevice(7), .. }), "{absent}");
        let absent = client.create_on(tensorlend::Uuid([1; 16]), DType::U8, &[1]).unwrap_err();
        assert!(matches!(absent, Error::Device { cause: DeviceTrouble::NotLent { .. }, .. }), "{absent}");
        assert!(matches!(client.create_on(Device::CPU, DType::U8, &[1]), Err(Error::Argument(_))));
    });
}

#[test]
fn strides_dimensions_and_long_metadata_travel() {
    on_fake("strides_dimensions_and_long_metadata_travel", &[], || {
        let broker = pool();
        let client = client(&broker);
        let mut draft = client.create_on(GPU, DType::U16, &[1, 2, 1, 3, 1, 2]).unwrap();
        let elements: Vec<u16> = (0..12).collect();
        draft.copy_from_host(&elements).unwrap();
        draft.set_metadata(&[7; 5000]).unwrap();
        draft.publish("six").unwrap();
        let lease = client.get_device("six").unwrap();
        assert_eq!((lease.shape(), lease.metadata()), (&[1, 2, 1, 3, 1, 2][..], &[7; 5000][..]));
        assert_eq!(lease.to_vec::<u16>().unwrap(), elements);
        let spec = TensorSpec { strides: Some(vec![-3, 1]), byte_offset: 3, ..TensorSpec::new(DType::U8, &[2, 3]) };
        let mut flipped = client.create_spec_on(GPU, spec.clone()).unwrap();
        assert_eq!(flipped.spec(), spec);
        flipped.copy_from_bytes(&[1, 2, 3, 4, 5, 6]).unwrap();
        flipped.publish("flipped").unwrap();
        let lease = client.get_device("flipped").unwrap();
        assert_eq!((lease.strides(), lease.byte_offset(), lease.span()), (&[-3, 1][..], 3, 6));
        assert_eq!(lease.to_vec::<u8>().unwrap(), [4, 5, 6, 1, 2, 3]);
        client.create_on(GPU, DType::F32, &[0, 5]).unwrap().publish("empty").unwrap();
        assert_eq!(client.get_device("empty").unwrap().to_vec::<f32>().unwrap(), [0f32; 0]);
        client.create_on(GPU, DType::F32, ()).unwrap().publish("scalar").unwrap();
        assert_eq!(client.get_device("scalar").unwrap().elements(), 1);
    });
}

#[test]
fn long_copies_need_no_locked_pages() {
    on_fake("long_copies_need_no_locked_pages", &[], || {
        let broker = broker(Allocator::Pool, 256 * MIB);
        let client = client(&broker);
        let elements: Vec<u32> = (0..5_000_001).collect();
        client.put_on(GPU, "long", &elements).unwrap();
        client.put_on(GPU, "again", &elements).unwrap();
        assert_eq!(client.get_device("long").unwrap().to_vec::<u32>().unwrap(), elements);
        assert_eq!(calls("cuMemHostRegister_v2"), 0);
        let export = client.get_device("again").unwrap().legacy_export().unwrap();
        assert!(export.handle() != &[0; 64] && export.nbytes() == 20_000_004);
        let mut draft = client.create(DType::U8, &[100]).unwrap();
        draft.bytes_mut().fill(3);
        draft.page_lock(GPU).unwrap();
        draft.publish("locked").unwrap();
        let lease = client.get("locked").unwrap();
        lease.page_lock(GPU).unwrap();
        assert_eq!(calls("cuMemHostRegister_v2"), 2, "the owner's mapping of the segment, and the reader's");
        assert_eq!(lease.bytes(), [3; 100]);
    });
}

#[test]
fn streams_and_lists_carry_them() {
    on_fake("streams_and_lists_carry_them", &[], || {
        let broker = pool();
        let (producer, consumer) = (client(&broker), client(&broker));
        let camera = producer.stream("camera").capacity(4).open().unwrap();
        let mut frames = consumer.subscription("camera").start_at(Start::Oldest).open().unwrap();
        for number in 0..9u8 {
            let mut draft = producer.create_on(GPU, DType::U8, &[1000]).unwrap();
            draft.copy_from_host(&[number; 1000]).unwrap();
            draft.set_timestamp(u64::from(number));
            camera.send(draft).unwrap();
            let message = frames.recv_timeout(Duration::from_mins(5)).unwrap();
            assert_eq!((message.sequence(), message.timestamp()), (number.into(), number.into()));
            let lease = message.value().as_device().unwrap();
            assert_eq!(lease.to_vec::<u8>().unwrap(), [number; 1000]);
            assert!(message.tensor().is_err() && message.dataset().is_err());
            // Host messages in between, borrowed and received.
            let mut beside = producer.create(DType::U8, &[4]).unwrap();
            beside.bytes_mut().fill(number);
            camera.send(ValueDraft::from(beside)).unwrap_or(0);
            assert_eq!(frames.try_borrow().unwrap().unwrap().tensor().unwrap().bytes(), [number; 4]);
            if number == 0 {
                break;
            }
        }
        for number in 0..5u8 {
            let mut draft = producer.create_on(GPU, DType::U8, &[10]).unwrap();
            draft.copy_from_host(&[number; 10]).unwrap();
            producer.append("list", ValueDraft::from(draft)).unwrap();
            producer.append("list", producer.create(DType::U8, &[1]).unwrap()).unwrap();
        }
        let items = consumer.get_all("list").unwrap();
        assert_eq!(items.len(), 10);
        for (number, item) in items.iter().step_by(2).enumerate() {
            assert_eq!(item.as_device().unwrap().to_vec::<u8>().unwrap(), [number as u8; 10]);
        }
        assert!(items.iter().skip(1).step_by(2).all(|item| item.as_tensor().is_some()));
        producer.append_names("list", &["nothing"]).unwrap_err();
    });
}

#[test]
fn what_is_leased_is_not_overwritten() {
    on_fake("what_is_leased_is_not_overwritten", &[], || {
        let broker = broker(Allocator::Pool, 16 * MIB);
        let client = client(&broker);
        publish(&client, "held", MIB, 1);
        let other = Other::start("hold", &broker);
        ready(&client);
        for value in 2..40 {
            publish(&client, "held", MIB, value);
        }
        holds(&client, "held", 39);
        other.succeeds();
        assert!(client.device_memory(GPU).unwrap().segment_bytes <= 8 * MIB, "what was replaced is reused");
    });
}

#[test]
fn a_lease_lasts_as_long_as_the_streams_that_were_recorded() {
    on_fake("a_lease_lasts_as_long_as_the_streams_that_were_recorded", &[], || {
        let broker = broker(Allocator::Pool, 16 * MIB);
        let client = client(&broker);
        publish(&client, "held", MIB, 1);
        let other = Other::start("copy behind a gate", &broker);
        ready(&client);
        for value in 2..40 {
            publish(&client, "held", MIB, value);
        }
        assert_eq!(client.instruments().leased().unwrap(), MIB, "its work is under way");
        other.succeeds();
        eventually("the end of the lease", || client.instruments().leased().unwrap() == 0);
    });
}

#[test]
fn a_publication_waits_for_the_producers_stream() {
    on_fake("a_publication_waits_for_the_producers_stream", &[], || {
        let broker = pool();
        let client = client(&broker);
        for recorded in [true, false] {
            let writing = stream();
            let mut draft = client.create_on(GPU, DType::U8, &[4096]).unwrap();
            let gate = Gate::of(0);
            fill(&writing, draft.ptr(), 4096, 9);
            if recorded {
                draft.record_stream(&writing).unwrap();
            }
            let publishing = std::thread::spawn(move || draft.publish("written").unwrap());
            std::thread::sleep(Duration::from_millis(100));
            assert!(!publishing.is_finished() && !client.exists("written").unwrap());
            drop(gate);
            publishing.join().unwrap();
            holds(&client, "written", 9);
            client.delete("written").unwrap();
        }
    });
}

#[test]
fn an_early_publication_is_waited_for_by_its_readers() {
    on_fake("an_early_publication_is_waited_for_by_its_readers", &[], || {
        let broker = pool();
        let client = client(&broker);
        let writing = stream();
        for round in 0..100u32 {
            let draft = client.create_on(GPU, DType::U8, &[4096]).unwrap();
            let gate = (round % 50 == 0).then(|| Gate::of(std::process::id()));
            fill(&writing, draft.ptr(), 4096, 5);
            draft.publish_early("early", &writing).unwrap();
            if let Some(gate) = gate {
                let role = if round == 0 { "read fives" } else { "read fives on a stream" };
                let other = Other::start(role, &broker);
                std::thread::sleep(Duration::from_millis(200));
                drop(gate);
                other.succeeds();
            }
            holds(&client, "early", 5);
        }
        // One draft is dropped and one value overwritten while work on them is in progress: neither slot is reused
        // before its end.
        let gate = Gate::of(std::process::id());
        let draft = client.create_on_stream(GPU, &writing, DType::U8, &[4096]).unwrap();
        fill(&writing, draft.ptr(), 4096, 6);
        let dropped = draft.ptr();
        drop(draft);
        let draft = client.create_on(GPU, DType::U8, &[4096]).unwrap();
        assert_ne!(draft.ptr(), dropped);
        drop(gate);
        drop(draft);
        let mut held = Vec::new();
        eventually("the end of the first", || {
            held.push(client.create_on(GPU, DType::U8, &[4096]).unwrap());
            held.iter().any(|draft| draft.ptr() == dropped)
        });
    });
}

#[test]
fn a_slot_that_was_dropped_in_a_stream_is_the_next_ones_there_and_not_overtaken() {
    on_fake("a_slot_that_was_dropped_in_a_stream_is_the_next_ones_there_and_not_overtaken", &[], || {
        let broker = pool();
        let client = client(&broker);
        let (one, other) = (stream(), stream());
        let create = |stream: &Arc<Stream>| client.create_on_stream(GPU, stream, DType::U8, &[4096]).unwrap();
        let gated = || {
            let gate = Gate::of(std::process::id());
            let draft = create(&one);
            fill(&one, draft.ptr(), 4096, 6);
            (gate, draft.ptr())
        };
        let opened_later = |gate: Gate| {
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                drop(gate);
            })
        };
        // Reused at once on the same stream; on another only after the work is done.
        let (gate, dropped) = gated();
        assert_ne!(create(&other).ptr(), dropped);
        let draft = create(&one);
        assert_eq!(draft.ptr(), dropped);
        fill(&one, dropped, 4096, 7);
        let opening = opened_later(gate);
        draft.publish("same").unwrap();
        holds(&client, "same", 7);
        opening.join().unwrap();
        // Access outside the stream waits for the work that the slot's last draft left: from the host, and on another
        // stream.
        let (gate, dropped) = gated();
        let mut draft = create(&one);
        assert_eq!(draft.ptr(), dropped);
        let opening = opened_later(gate);
        draft.copy_from_host(&[8u8; 4096]).unwrap();
        draft.publish("host").unwrap();
        holds(&client, "host", 8);
        opening.join().unwrap();
        let (gate, dropped) = gated();
        let mut draft = create(&one);
        assert_eq!(draft.ptr(), dropped);
        draft.record_stream(&other).unwrap();
        fill(&other, dropped, 4096, 9);
        let opening = opened_later(gate);
        draft.publish("elsewhere").unwrap();
        holds(&client, "elsewhere", 9);
        opening.join().unwrap();
    });
}

#[test]
fn an_early_publication_of_a_dead_producer_is_unfinished() {
    on_fake("an_early_publication_of_a_dead_producer_is_unfinished", &[], || {
        let broker = pool();
        let client = client(&broker);
        let other = Other::start("publish early, then wait", &broker);
        ready(&client);
        let lease = client.get_device_early("early").unwrap();
        assert!(!lease.is_finished().unwrap());
        let pid = other.pid();
        other.kill();
        let _ = std::fs::remove_file(on_fake::machine().join(format!("gate.{pid}")));
        eventually("its end", || client.stat().unwrap().clients == 1);
        let error = client.get_device("early").unwrap_err();
        assert!(lease.is_finished().is_err());
        assert!(matches!(error, Error::Device { cause: DeviceTrouble::Unfinished, .. }), "{error}");
        publish(&client, "early", 10, 1);
        holds(&client, "early", 1);
    });
}

#[test]
fn a_full_queue_of_waits_ends_with_the_producer() {
    const DEPTH: usize = 4;
    let settings = [("FAKECUDA_DEPTH", "4")];
    on_fake("a_full_queue_of_waits_ends_with_the_producer", &settings, || {
        let broker = pool();
        let client = client(&broker);
        let other = Other::start("publish early, then wait", &broker);
        ready(&client);
        let lease = client.get_device_early("early").unwrap();
        let waiting = std::thread::spawn(move || {
            let stream = stream();
            // The stream takes no more work before its first wait ends, so a later call blocks in the driver.
            (0..=DEPTH).for_each(|_| lease.wait(&stream).unwrap());
            stream.synchronize().unwrap();
        });
        eventually("the call that blocks", || calls("cuStreamWaitValue32_v2") == DEPTH + 1);
        assert!(!waiting.is_finished());
        other.kill();
        eventually("the end of the waits", || waiting.is_finished());
        waiting.join().unwrap();
    });
}

#[test]
fn a_segment_is_imported_once_and_given_back() {
    on_fake("a_segment_is_imported_once_and_given_back", &[], || {
        let broker = pool();
        let client = client(&broker);
        for number in 0..4u8 {
            publish(&client, &format!("many/{number}"), 1000, number);
        }
        Other::start("read many", &broker).succeeds();
        holds(&client, "many/3", 3);
        assert_eq!(calls("cuMemImportFromShareableHandle"), 1, "its own segment, too");
        // A live reader unmaps a segment that is no longer lent.
        let reader = on_fake::client(&broker);
        publish(&client, "large", 30 * MIB, 1);
        holds(&reader, "large", 1);
        let in_use = || client.stat().unwrap().devices[0].bytes_in_use;
        assert!(in_use() >= 34 * MIB);
        client.delete("large").unwrap();
        drop(client.create_on(GPU, DType::U8, &[64 * MIB]).unwrap());
        drop(client.create_on(GPU, DType::U8, &[100 * MIB]).unwrap());
        eventually("the end of the large one's segment", || in_use() < 200 * MIB);
        drop((reader, client));
    });
}

#[test]
fn a_session_that_ends_lets_go_of_all() {
    on_fake("a_session_that_ends_lets_go_of_all", &[], || {
        let broker = pool();
        let (watcher, producer, reader) = (client(&broker), client(&broker), client(&broker));
        publish(&producer, "a", MIB, 1);
        let lease = reader.get_device("a").unwrap();
        drop(reader);
        producer.delete("a").unwrap();
        drop(producer);
        // A lease keeps its session alive, and so the memory.
        assert_eq!(lease.to_vec::<u8>().unwrap()[7], 1);
        let in_use = || watcher.stat().unwrap().devices[0].bytes_in_use;
        assert!(in_use() >= MIB);
        lease.record_stream(&OnStream::LEGACY).unwrap();
        drop(lease);
        eventually("the end of the segment", || in_use() == 0);
        let unmapped = calls("cuMemUnmap");
        assert_eq!(unmapped, calls("cuMemMap"), "nothing stays mapped");
    });
}

#[test]
fn slices_are_as_cudarc_takes_them() {
    on_fake("slices_are_as_cudarc_takes_them", &[], || {
        let broker = pool();
        let client = client(&broker);
        let context = cudarc::driver::CudaContext::new(0).unwrap();
        let stream = context.new_stream().unwrap();
        let mut draft = client.create_on_stream(GPU, &stream, DType::F32, &[3]).unwrap();
        assert!(matches!(draft.slice::<f64>(&stream), Err(Error::DType { .. })));
        stream.memcpy_htod(&[1.0f32, 2.0, 3.0], &mut *draft.slice::<f32>(&stream).unwrap()).unwrap();
        draft.publish("numbers").unwrap();
        let lease = client.get_device("numbers").unwrap();
        for _ in 0..3 {
            let slice = lease.slice::<f32>(&stream).unwrap();
            assert_eq!(stream.clone_dtoh(&*slice).unwrap(), [1.0, 2.0, 3.0]);
        }
        drop(lease);
        eventually("the end of the lease", || client.instruments().leased().unwrap() == 0);
        let elsewhere = cudarc::driver::CudaContext::new(0).unwrap();
        assert!(client.create_on_stream(GPU, &elsewhere.default_stream(), DType::U8, &[1]).is_ok(), "the same context");
    });
}

#[test]
fn a_consumer_that_is_killed_holds_until_its_work_has_ended() {
    let settings = [("FAKECUDA_LINGER_MS", "50")];
    on_fake("a_consumer_that_is_killed_holds_until_its_work_has_ended", &settings, || {
        let broker = broker(Allocator::Pool, 16 * MIB);
        let client = client(&broker);
        publish(&client, "held", MIB, 1);
        let other = Other::start("hold with work under way", &broker);
        ready(&client);
        assert_eq!(client.instruments().leased().unwrap(), MIB);
        let pid = other.pid();
        other.kill();
        let _ = std::fs::remove_file(on_fake::machine().join(format!("gate.{pid}")));
        client.delete("held").unwrap();
        eventually("its departure", || client.instruments().leased().unwrap() == 0);
        for value in 1..30 {
            publish(&client, "next", MIB, value);
        }
        holds(&client, "next", 29);
    });
}

/// A draft in either kind of memory, and the value of all its bytes.
enum Marked {
    Host(u8, Draft),
    Device(u8, DeviceDraft),
}

#[test]
fn drafts_in_all_places_never_share_a_slot() {
    on_fake("drafts_in_all_places_never_share_a_slot", &[("FAKECUDA_DEVICES", "2")], || {
        for seed in 1..6u64 {
            let broker = broker([Allocator::Pool, Allocator::Async][seed as usize % 2], 64 * MIB);
            let client = client(&broker);
            let mut state = seed;
            let mut bits = move || splitmix64(&mut state);
            let mut live: Vec<Marked> = Vec::new();
            for step in 0..300u32 {
                let (bytes, mark) = ([8, 511, 512, 5000, 100_000, 3 * MIB][bits() as usize % 6], step as u8);
                live.push(match bits() % 3 {
                    0 => {
                        let mut draft = client.create(DType::U8, &[bytes]).unwrap();
                        draft.bytes_mut().fill(mark);
                        Marked::Host(mark, draft)
                    }
                    device => {
                        let mut draft = client.create_on(Device::cuda(device as u8 - 1), DType::U8, &[bytes]).unwrap();
                        draft.copy_from_host(&vec![mark; bytes as usize]).unwrap();
                        Marked::Device(mark, draft)
                    }
                });
                if live.len() > 8 {
                    match live.swap_remove(bits() as usize % 8) {
                        Marked::Host(mark, mut draft) => assert!(draft.bytes_mut().iter().all(|&byte| byte == mark)),
                        Marked::Device(mark, draft) => {
                            // The next publication under this name retires the value.
                            draft.publish("published").unwrap();
                            holds(&client, "published", mark);
                        }
                    }
                }
            }
            drop(live);
            client.delete("published").unwrap();
            assert_eq!(client.memory().slot_bytes, 0);
            for device in 0..2 {
                let whole = client.create_on(Device::cuda(device), DType::U8, &[60 * MIB]).unwrap();
                assert_eq!(client.device_memory(whole.uuid()).unwrap().slot_bytes, 60 * MIB, "all else came back");
            }
        }
    });
}

#[test]
fn each_allocator_serves() {
    on_fake("each_allocator_serves", &[], || {
        for allocator in [Allocator::Pool, Allocator::Arena, Allocator::Async] {
            let broker = broker(allocator, 128 * MIB);
            let (client, reader) = (client(&broker), on_fake::client(&broker));
            assert_eq!(client.devices()[0].allocator, allocator);
            let streams = [stream(), stream()];
            for round in 0..20u8 {
                for (at, stream) in streams.iter().enumerate() {
                    let bytes = 1000 + u64::from(round % 3) * 100_000;
                    let mut draft = client.create_on_stream(GPU, stream, DType::U8, &[bytes]).unwrap();
                    fill(stream, draft.ptr(), bytes, round);
                    draft.record_stream(&OnStream::LEGACY).unwrap();
                    draft.publish(&format!("by/{at}")).unwrap();
                    holds(&reader, &format!("by/{at}"), round);
                    holds(&client, &format!("by/{at}"), round);
                }
            }
            if allocator == Allocator::Async {
                assert!(client.device_memory(GPU).unwrap().segment_bytes < 2 * MIB, "a segment for each slot");
            }
            let mut held = Vec::new();
            let error = loop {
                match client.create_on(GPU, DType::U8, &[9 * MIB]) {
                    Ok(draft) => held.push(draft),
                    Err(error) => break error,
                }
            };
            assert!(error.is_limit(), "{allocator}: {error}");
            assert!(held.len() >= 8, "{allocator}: {}", held.len());
            drop(held);
            drop(client.create_on(GPU, DType::U8, &[60 * MIB]).unwrap());
        }
    });
}

#[test]
fn a_process_without_the_device_is_told_so() {
    on_fake("a_process_without_the_device_is_told_so", &[], || {
        let broker = pool();
        let client = client(&broker);
        client.put_on(GPU, "numbers", &[1.0f32]).unwrap();
        client.put("beside", &[9u8]).unwrap();
        Other::start_with("read without the device", &broker, &[("FAKECUDA_DEVICES", "0")]).succeeds();
    });
}

#[test]
fn a_forked_child_asks_no_driver() {
    on_fake("a_forked_child_asks_no_driver", &[], || {
        let broker = pool();
        let client = client(&broker);
        publish(&client, "numbers", 100, 1);
        let (lease, draft) = (client.get_device("numbers").unwrap(), client.create_on(GPU, DType::U8, &[10]).unwrap());
        lease.record_stream(&OnStream::LEGACY).unwrap();
        // SAFETY: the child calls only functions that take no lock, and ends without destructors.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: the alarm kills a child that hangs.
            unsafe { libc::alarm(20) };
            let refused = matches!(client.get_device("numbers"), Err(Error::Forked))
                && matches!(lease.to_vec::<u8>(), Err(Error::Forked))
                && !lease.validate();
            drop((lease, draft));
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!refused)) }
        }
        let mut status = 0;
        // SAFETY: waits for the child created above, and writes to a local variable.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert_eq!((waited, status), (pid, 0));
        assert_eq!(lease.to_vec::<u8>().unwrap(), [1; 100]);
        draft.publish("after").unwrap();
    });
}
