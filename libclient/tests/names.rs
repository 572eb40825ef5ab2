//! Names, through the public API, with an embedded daemon.

use std::time::Duration;
use tensorlend::{Client, DType, Error, TensorSpec, TensorView, Version};
use tensorlend_daemon::Embedded;

fn broker() -> Embedded {
    tensorlend_daemon::embedded().expect("an embedded broker starts")
}

fn client(broker: &Embedded) -> Client {
    Client::builder().socket(broker.socket()).label("test").connect().expect("a client connects")
}

#[test]
fn a_tensor_goes_from_one_client_to_another_without_a_copy() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    let mut draft = producer.create(DType::F32, &[2, 3]).unwrap();
    draft.as_mut_slice::<f32>().unwrap().copy_from_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    draft.set_metadata(b"units: K").unwrap().set_timestamp(42);
    let published = draft.publish("temperature").unwrap();

    let lease = consumer.get("temperature").unwrap();
    assert_eq!((lease.dtype(), lease.shape(), lease.strides()), (DType::F32, &[2, 3][..], &[3, 1][..]));
    assert_eq!(lease.as_slice::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!((lease.metadata(), lease.timestamp(), lease.version()), (&b"units: K"[..], 42, published));
    assert!(lease.validate());
    assert!(matches!(lease.as_slice::<f64>(), Err(Error::DType { .. })));
}

#[test]
fn a_leased_value_stands_while_its_name_is_overwritten() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    producer.put("x", &[0u64; 512]).unwrap();
    let old = consumer.get("x").unwrap();
    for round in 1..500u64 {
        producer.put("x", &[round; 512]).unwrap();
        let now = consumer.get("x").unwrap();
        assert!(now.as_slice::<u64>().unwrap().iter().all(|&v| v == round));
    }
    assert!(old.as_slice::<u64>().unwrap().iter().all(|&v| v == 0), "the leased slot was reused");
    let used = producer.memory();
    let (used, segments) = (used.slot_bytes, used.segment_bytes);
    assert!(used < 2 << 20, "{used} bytes in use after overwriting one name of 4 KiB");
    assert!(segments <= 4 << 20, "{segments} bytes of segments");
}

#[test]
fn every_dtype_and_odd_shapes() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    let shapes: [&[usize]; 7] = [&[], &[0], &[3, 0, 5], &[1; 16], &[2, 3, 4, 5], &[2, 2, 2, 2, 2], &[5000]];
    for &dtype in DType::ALL {
        for (at, shape) in shapes.iter().enumerate() {
            let count: usize = shape.iter().product();
            let bytes: Vec<u8> = (0..count * dtype.item_bytes()).map(|i| (i % 251) as u8).collect();
            let name = format!("{dtype}/{at}");
            producer.put(&name, &TensorView { dtype, shape, bytes: &bytes }).unwrap();
            let lease = consumer.get(&name).unwrap();
            assert_eq!((lease.dtype(), lease.shape(), lease.bytes()), (dtype, *shape, &bytes[..]));
            assert_eq!(lease.elements(), count);
            let align = if bytes.len() >= 4096 { 4096 } else { 64 };
            assert_eq!(lease.bytes().as_ptr() as usize % align, 0);
            let mut copy = vec![0; bytes.len()];
            consumer.get_into(&name, &mut copy).unwrap();
            assert_eq!(copy, bytes);
        }
    }
    assert_eq!(consumer.list("*").unwrap().len(), DType::ALL.len() * shapes.len());
}

#[test]
fn strides_and_offsets() {
    let broker = broker();
    let client = client(&broker);
    // Fortran order: columns first.
    let spec = TensorSpec { strides: Some(vec![1, 2]), ..TensorSpec::new(DType::I32, &[2, 3]) };
    let mut draft = client.create_spec(spec).unwrap();
    draft.as_mut_slice::<i32>().unwrap().copy_from_slice(&[1, 4, 2, 5, 3, 6]);
    draft.publish("fortran").unwrap();
    let lease = client.get("fortran").unwrap();
    assert_eq!(lease.strides(), [1, 2]);
    assert!(matches!(lease.as_slice::<i32>(), Err(Error::Strided)));
    let mut out = vec![0u8; 24];
    lease.copy_to(&mut out).unwrap();
    let rows: Vec<i32> = out.chunks(4).map(|c| i32::from_le_bytes(c.try_into().unwrap())).collect();
    assert_eq!(rows, [1, 2, 3, 4, 5, 6]);

    // A row in reverse order.
    let spec = TensorSpec { strides: Some(vec![-1]), byte_offset: 12, ..TensorSpec::new(DType::I32, &[4]) };
    let mut draft = client.create_spec(spec).unwrap();
    draft.as_mut_slice::<i32>().unwrap().copy_from_slice(&[1, 2, 3, 4]);
    draft.publish("backwards").unwrap();
    let mut out = vec![0u8; 16];
    client.get_into("backwards", &mut out).unwrap();
    assert_eq!(out[..4], 4i32.to_le_bytes());

    let outside = TensorSpec { strides: Some(vec![-1]), byte_offset: 8, ..TensorSpec::new(DType::I32, &[4]) };
    assert!(matches!(client.create_spec(outside), Err(Error::Tensor { .. })));
    for shape in [&[1u64 << 40, 1 << 40][..], &[u64::MAX][..], &[1; 17][..]] {
        assert!(matches!(client.create(DType::F64, shape), Err(Error::Tensor { .. })), "{shape:?}");
    }
}

#[test]
fn metadata_from_nothing_to_64_kib() {
    let broker = broker();
    let client = client(&broker);
    for length in [0, 1, 32, 33, 4096, 65536] {
        let metadata = vec![7u8; length];
        let mut draft = client.create(DType::U8, &[3]).unwrap();
        draft.bytes_mut().copy_from_slice(&[1, 2, 3]);
        draft.set_metadata(&metadata).unwrap();
        draft.publish("m").unwrap();
        let lease = client.get("m").unwrap();
        assert_eq!((lease.metadata(), lease.bytes()), (&metadata[..], &[1, 2, 3][..]));
    }
    let mut draft = client.create(DType::U8, &[3]).unwrap();
    assert!(matches!(draft.set_metadata(&vec![0; 65537]), Err(Error::Metadata(65537))));
}

#[test]
fn names_at_their_limits() {
    let broker = broker();
    let client = client(&broker);
    let long = "n".repeat(255);
    let near: Vec<String> = (0..4).map(|i| format!("{}{i}", "n".repeat(254))).collect();
    let edge = ["a".repeat(96), "a".repeat(97), "a".repeat(104), "a".repeat(105)];
    let names: Vec<&str> = ["a", "温度/センサー 1", long.as_str()]
        .into_iter()
        .chain(near.iter().chain(&edge).map(String::as_str))
        .collect();
    for (i, name) in names.iter().enumerate() {
        client.put(name, &[i as u64]).unwrap();
    }
    for (i, name) in names.iter().enumerate() {
        assert_eq!(client.get(name).unwrap().as_slice::<u64>().unwrap(), [i as u64], "{name}");
    }
    assert_eq!(client.list("*").unwrap().len(), names.len());
    let too_long = "n".repeat(256);
    for name in ["", too_long.as_str(), "a\nb", "\u{1}x", "x\0"] {
        assert!(matches!(client.put(name, &[1u8]), Err(Error::Name { .. })), "{name:?}");
        assert!(matches!(client.get(name), Err(Error::Name { .. })));
    }
}

#[test]
fn delete_exists_rename_copy() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    assert!(!a.delete("x").unwrap() && !a.exists("x").unwrap());
    assert!(matches!(a.get("x"), Err(Error::NotFound(_))));
    a.put("x", &[1u8]).unwrap();
    assert!(b.exists("x").unwrap());
    assert!(a.delete("x").unwrap() && !a.delete("x").unwrap() && !b.exists("x").unwrap());
    a.put("x", &[2u8]).unwrap();
    let held = a.get("x").unwrap();
    assert!(b.delete("x").unwrap(), "somebody else's name");
    assert!(!a.exists("x").unwrap());
    assert_eq!(held.bytes(), [2]);

    a.put("from", &[3u8]).unwrap();
    a.rename("from", "to").unwrap();
    assert!(!b.exists("from").unwrap());
    assert_eq!(b.get("to").unwrap().bytes(), [3]);
    b.rename("to", "again").unwrap();
    assert!(!a.exists("to").unwrap());
    assert_eq!(a.get("again").unwrap().bytes(), [3]);
    a.copy("again", "copy").unwrap();
    a.put("again", &[4u8]).unwrap();
    assert_eq!((b.get("copy").unwrap().bytes(), b.get("again").unwrap().bytes()), (&[3u8][..], &[4u8][..]));
    assert!(matches!(a.rename("nothing", "x"), Err(Error::NotFound(_))));
}

#[test]
fn a_name_taken_over_by_another_producer() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    for round in 0..200u32 {
        let (writer, reader) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        writer.put("shared", &[round; 2000]).unwrap();
        assert_eq!(reader.get("shared").unwrap().as_slice::<u32>().unwrap()[1999], round);
    }
    // Both clients get their slots and cells back each time.
    assert!(a.memory().slot_bytes < 4 << 20 && b.memory().slot_bytes < 4 << 20, "{:?} {:?}", a.memory(), b.memory());
}

#[test]
fn names_come_and_go_without_end() {
    let broker = broker();
    let client = client(&broker);
    for round in 0..30_000u32 {
        let name = format!("temporary/{round}");
        client.put(&name, &[round]).unwrap();
        assert!(client.delete(&name).unwrap());
    }
    assert!(client.list("*").unwrap().is_empty());
}

#[test]
fn a_thousand_names_listed_by_glob() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    for i in 0..1000u32 {
        a.put(&format!("run/{}/step/{i}", i % 10), &[i]).unwrap();
    }
    assert_eq!(b.list("*").unwrap().len(), 1000);
    assert_eq!(b.list("run/3/*").unwrap().len(), 100);
    let info = b.info("run/3/step/13").unwrap();
    assert_eq!((info.nbytes, info.pid, info.label.as_str(), info.alive), (4, std::process::id(), "test", true));
    for i in 0..1000u32 {
        assert_eq!(b.get(&format!("run/{}/step/{i}", i % 10)).unwrap().as_slice::<u32>().unwrap(), [i]);
    }
    assert!(matches!(b.list("["), Err(Error::Argument(_))));
}

#[test]
fn waiting_for_a_name_and_for_its_next_value() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    let timeout = Some(Duration::from_mins(5));
    assert!(b.wait_for("late", Some(Duration::from_millis(30))).unwrap_err().is_timeout());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let first = b.wait_for("late", timeout).unwrap();
            let mut seen = first.version();
            let mut last = first.as_slice::<u32>().unwrap()[0];
            while last < 50 {
                let next = b.wait_newer("late", seen, timeout).unwrap();
                let value = next.as_slice::<u32>().unwrap()[0];
                assert!(value > last, "{value} after {last}");
                (seen, last) = (next.version(), value);
            }
        });
        for value in 0..=50u32 {
            std::thread::sleep(Duration::from_millis(2));
            a.put("late", &[value]).unwrap();
        }
        waiter.join().unwrap();
    });
    // Its owner deletes it and puts it again, in the same cell.
    let seen = a.get("late").unwrap().version();
    a.delete("late").unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| b.wait_newer("late", seen, timeout).unwrap().as_slice::<u32>().unwrap()[0]);
        std::thread::sleep(Duration::from_millis(20));
        a.put("late", &[99u32]).unwrap();
        assert_eq!(waiter.join().unwrap(), 99);
    });
    assert!(a.get("late").unwrap().version() != Version::NONE);
}

#[test]
fn many_threads_share_a_client() {
    let broker = broker();
    let client = client(&broker);
    std::thread::scope(|scope| {
        for thread in 0..80u32 {
            let client = &client;
            scope.spawn(move || {
                let own = format!("thread/{thread}");
                for round in 0..50u32 {
                    client.put(&own, &[thread, round]).unwrap();
                    client.put("all", &[thread, thread]).unwrap();
                    assert_eq!(client.get(&own).unwrap().as_slice::<u32>().unwrap(), [thread, round]);
                    let all = client.get("all").unwrap();
                    let all = all.as_slice::<u32>().unwrap();
                    assert_eq!(all[0], all[1], "torn");
                }
            });
        }
    });
    assert_eq!(client.list("thread/*").unwrap().len(), 80);
}

/// Publishes value `number`, whose dtype, sizes and bytes follow from the number, which is also its timestamp.
fn put_numbered(client: &Client, name: &str, number: u64) {
    let (dtype, mut shape) = numbered(number);
    if number.is_multiple_of(11) {
        shape.extend([1, 1, 1]);
    }
    let mut draft = client.create(dtype, &shape[..]).unwrap();
    if number.is_multiple_of(13) {
        draft.set_metadata(b"more than a description has").unwrap();
    }
    draft.set_timestamp(number);
    draft.bytes_mut().fill(number as u8);
    draft.publish(name).unwrap();
}

fn numbered(number: u64) -> (DType, Vec<usize>) {
    (
        [DType::U8, DType::F16, DType::I32, DType::C128][number as usize % 4],
        vec![number as usize % 5 + 1, number as usize % 7],
    )
}

fn check_numbered(value: &tensorlend::Lease) {
    let number = value.timestamp();
    let (dtype, shape) = numbered(number);
    assert_eq!((value.dtype(), &value.shape()[..2]), (dtype, &shape[..]), "value {number}");
    assert!(value.bytes().iter().all(|&byte| byte == number as u8), "value {number}");
}

/// Threads of one client overwrite and delete names. The cell records of the shorter names describe the values. Each reader sees
/// whole values: the dtype, the sizes and the bytes of one number.
#[test]
fn values_that_threads_overwrite_are_described_as_they_are() {
    const WRITERS: u64 = 3;
    const ROUNDS: u64 = 200_000;
    let broker = broker();
    let (owner, reader) = (client(&broker), client(&broker));
    let names = ["n", &"s".repeat(32), &"l".repeat(33), &"k".repeat(64)];
    for name in names {
        put_numbered(&owner, name, 1);
    }
    let done = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|threads| {
        for writer in 0..WRITERS {
            let (owner, done) = (&owner, &done);
            threads.spawn(move || {
                for round in 0..ROUNDS {
                    let number = round * WRITERS + writer;
                    let name = names[(number / WRITERS % 4) as usize];
                    put_numbered(owner, name, number);
                    if number.is_multiple_of(97) {
                        owner.delete(name).unwrap();
                        put_numbered(owner, name, number);
                    }
                }
                done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            });
        }
        while done.load(std::sync::atomic::Ordering::Relaxed) < WRITERS {
            for name in names {
                match reader.get(name) {
                    Ok(value) => check_numbered(&value),
                    Err(error) => assert!(matches!(error, Error::NotFound(_)), "{error}"),
                }
            }
            for value in reader.get_many(&names).iter().flatten() {
                check_numbered(value.as_tensor().unwrap());
            }
        }
    });
}

#[test]
fn as_many_leases_as_a_client_can_hold() {
    let broker = broker();
    let client = client(&broker);
    client.put("x", &[1u8]).unwrap();
    let mut leases = Vec::new();
    let error = loop {
        match client.get("x") {
            Ok(lease) => leases.push(lease),
            Err(e) => break e,
        }
    };
    assert!(matches!(error, Error::Leases(4096)));
    assert_eq!(leases.len(), 4096);
    leases.truncate(10);
    assert!(client.get("x").is_ok());
}

#[test]
fn a_dropped_draft_gives_its_memory_back() {
    let broker = broker();
    let client = client(&broker);
    for _ in 0..100 {
        let draft = client.create(DType::U8, &[60 << 20]).unwrap();
        drop(draft);
    }
    let memory = client.memory();
    assert_eq!((memory.slot_bytes, memory.segment_bytes), (0, 64 << 20));
}

#[test]
fn a_tensor_larger_than_a_segment_gets_its_own() {
    let broker = broker();
    let (a, b) = (client(&broker), client(&broker));
    for round in 0..10u8 {
        let mut draft = a.create(DType::U8, &[100 << 20]).unwrap();
        draft.bytes_mut().fill(round);
        draft.publish("large").unwrap();
        let lease = b.get("large").unwrap();
        assert!(lease.bytes().iter().step_by(4096).all(|&byte| byte == round));
    }
    assert!(a.memory().segment_bytes <= 300 << 20, "{:?}", a.memory());
}

#[test]
fn a_missing_daemon_is_named() {
    let error = Client::builder().socket("/nonexistent/tensorlend.sock").connect().unwrap_err();
    assert!(error.is_disconnected());
    assert!(error.to_string().contains("/nonexistent/tensorlend.sock"), "{error}");
}

#[test]
fn new_names_are_all_there_while_the_catalogue_grows_and_the_daemon_is_busy() {
    let broker = broker();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let busy = client(&broker);
        let done = &done;
        scope.spawn(move || {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                busy.ping().unwrap();
            }
        });
        let reader = client(&broker);
        let mut missing = Vec::new();
        for round in 0..3 {
            let producer = client(&broker);
            let names: Vec<String> = (0..9000).map(|i| format!("{round}/{i}")).collect();
            for name in &names {
                producer.put(name, &[1u8]).unwrap();
            }
            missing.extend(names.iter().filter(|name| !reader.exists(name).unwrap()).cloned());
            for name in &names {
                assert!(producer.delete(name).unwrap());
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(missing, [""; 0]);
    });
}

/// A client with many names reports up to 512 deleted ones together, in requests of at most 256 names and 64 KiB.
#[test]
fn many_deleted_names_are_forgotten_and_can_be_published_again() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    // The long names cannot be announced, and 246 of them fill a request.
    let name = |number: usize| format!("{number:0width$}", width = if number < 5000 { 10 } else { 255 });
    let names: Vec<String> = (0..10_000).map(name).collect();
    for round in 0..2u64 {
        for (number, name) in names.iter().enumerate() {
            producer.put(name, &[round, number as u64]).unwrap();
        }
        for (number, value) in consumer.get_many(&names[..100]).into_iter().enumerate() {
            assert_eq!(value.unwrap().tensor().unwrap().as_slice::<u64>().unwrap(), [round, number as u64]);
        }
        for name in &names {
            assert!(producer.delete(name).unwrap());
        }
        assert!(names.iter().all(|name| !consumer.exists(name).unwrap()));
        let left = consumer.stat().unwrap().names;
        assert!(left < 64, "{left} deleted names were not reported");
    }
}
