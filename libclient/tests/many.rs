//! Leasing the values of many names at once. Each result is that of a single call.

use std::cell::RefCell;
use tensorlend::{Client, DType, Error, TensorSpec, Value};
use tensorlend_daemon::Embedded;

fn broker() -> Embedded {
    tensorlend_daemon::embedded().expect("an embedded broker starts")
}

fn client(broker: &Embedded) -> Client {
    Client::builder().socket(broker.socket()).connect().expect("a client connects")
}

/// Returns the text of an error, or the bytes of each tensor of a value.
fn shown(result: &tensorlend::Result<Value>) -> String {
    match result {
        Ok(Value::Tensor(lease)) => format!(
            "{:?} {:?} {:?} {:?} {} {:?}",
            lease.dtype(),
            lease.shape(),
            lease.strides(),
            lease.metadata(),
            lease.timestamp(),
            lease.row_major_bytes(),
        ),
        Ok(Value::Dataset(dataset)) => format!(
            "{:?} {} {:?}",
            dataset.metadata(),
            dataset.timestamp(),
            dataset.iter().map(|(name, tensor)| format!("{name} {:?}", tensor.bytes())).collect::<Vec<_>>(),
        ),
        #[allow(unreachable_patterns)]
        Ok(other) => format!("{other:?}"),
        Err(e) => e.to_string(),
    }
}

/// Publishes values of every kind, and returns their names and names without a value.
fn publish(producer: &Client) -> Vec<String> {
    producer.put("a", &[1u8, 2]).unwrap();
    let spec = TensorSpec { strides: Some(vec![4, 1]), ..TensorSpec::new(DType::U8, [2, 3]) };
    let mut strided = producer.create_spec(spec).unwrap();
    strided.bytes_mut().copy_from_slice(&[1, 2, 3, 0, 4, 5, 6]);
    strided.publish("strided").unwrap();
    let mut described = producer.create_from(&[3u16]).unwrap();
    described.set_metadata(b"a unit, and more than the record has room for").unwrap().set_timestamp(7);
    described.publish("described").unwrap();
    producer.create(DType::F64, [0, 5]).unwrap().publish("empty").unwrap();
    producer.create(DType::U8, [1, 2, 1, 2, 1]).unwrap().publish("of five dimensions").unwrap();
    for length in [63, 64, 65, 97, 255] {
        producer.put(&"n".repeat(length), &[length as u8]).unwrap();
    }
    let both = producer.dataset().add("x", producer.create_from(&[4u8]).unwrap()).unwrap();
    both.add("y", producer.create_from(&[5u8, 6]).unwrap()).unwrap().publish("both").unwrap();
    producer.append("list", producer.create_from(&[8u8]).unwrap()).unwrap();
    producer.put("deleted", &[9u8]).unwrap();
    producer.delete("deleted").unwrap();
    let mut names: Vec<String> =
        ["a", "both", "strided", "described", "empty", "of five dimensions", "deleted", "list", "none", "a"]
            .map(str::to_owned)
            .into();
    names.extend([63, 64, 65, 97, 255, 256, 300].map(|length| "n".repeat(length)));
    names.extend(["", "\u{1}", "no\nname"].map(str::to_owned));
    // The key of the list's item.
    names.push(String::from_utf8(tensorlend_layout::name::item_key(1, 0).to_vec()).unwrap());
    // So many new names that the producer announces some of them, and that they need more than one batch.
    for number in 0..200u8 {
        let name = format!("new/{number}");
        producer.put(&name, &[number; 3]).unwrap();
        names.push(name);
    }
    names
}

#[test]
fn each_result_is_that_of_a_single_call() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    let mut names = publish(&producer);
    let other = client(&broker);
    other.put("a", &[11u8]).unwrap();
    for round in 0..3 {
        for client in [&consumer, &producer] {
            let many = client.get_many(&names);
            assert_eq!(many.len(), names.len());
            for (name, many) in names.iter().zip(&many) {
                let single = client.get_value(name);
                assert_eq!(shown(many), shown(&single), "{name:?}");
                if let (Ok(many), Ok(single)) = (many, &single) {
                    assert_eq!((many.version(), many.validate()), (single.version(), true), "{name:?}");
                }
            }
        }
        names.rotate_left(50 + round);
    }
    let none: [&str; 0] = [];
    assert!(consumer.get_many(&none).is_empty());
}

#[test]
fn leased_values_stand_while_their_names_are_overwritten() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    let names: Vec<String> = (0..100).map(|number| format!("n/{number}")).collect();
    for name in &names {
        producer.put(name, &[0u64; 64]).unwrap();
    }
    let old = consumer.get_many(&names);
    for round in 1..20u64 {
        for name in &names {
            producer.put(name, &[round; 64]).unwrap();
        }
        for value in consumer.get_many(&names) {
            assert_eq!(value.unwrap().tensor().unwrap().as_slice::<u64>().unwrap(), [round; 64]);
        }
    }
    for value in old {
        assert_eq!(value.unwrap().tensor().unwrap().as_slice::<u64>().unwrap(), [0; 64], "a leased slot was reused");
    }
}

#[test]
fn a_client_without_free_leases_gets_errors_for_the_rest() {
    let broker = broker();
    let client = client(&broker);
    client.put("x", &[1u8]).unwrap();
    let many = client.get_many(&vec!["x"; 5000]);
    let held = many.iter().take_while(|value| value.is_ok()).count();
    assert!((4000..=4096).contains(&held), "{held}");
    assert!(many[held..].iter().all(|value| matches!(value, Err(Error::Leases(_)))));
    drop(many);
    assert!(client.get_many(&["x"; 100]).iter().all(Result::is_ok));
}

#[test]
fn a_value_is_read_while_it_is_overwritten() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    let names: Vec<String> = (0..8).map(|number| format!("n/{number}")).collect();
    for name in &names {
        producer.put(name, &[0u64; 8]).unwrap();
    }
    let thread = std::thread::spawn({
        let names = names.clone();
        move || {
            for round in 1..3000u64 {
                for name in &names {
                    producer.put(name, &[round; 8]).unwrap();
                }
            }
        }
    });
    let mut last = [0; 8];
    while last[0] + 1 < 3000 {
        for (last, value) in last.iter_mut().zip(consumer.get_many(&names)) {
            let value = value.unwrap();
            let words = value.tensor().unwrap().as_slice::<u64>().unwrap();
            assert!(words.iter().all(|word| *word == words[0]), "a torn value: {words:?}");
            assert!(words[0] >= *last, "{} after {last}", words[0]);
            *last = words[0];
        }
    }
    thread.join().unwrap();
}

/// A thread keeps the empty boxes of its leases. Its thread-local variables are dropped before or after them.
#[test]
fn leases_in_thread_local_variables_end_with_their_thread() {
    thread_local! {
        static EARLIER: RefCell<Vec<Value>> = const { RefCell::new(Vec::new()) };
        static LATER: RefCell<Vec<Value>> = const { RefCell::new(Vec::new()) };
    }
    let broker = broker();
    let client = client(&broker);
    client.put("x", &[1u8; 4096]).unwrap();
    let both = client.dataset().add("y", client.create_from(&[4u8; 4096]).unwrap()).unwrap();
    both.publish("both").unwrap();
    let names: Vec<&str> = ["x", "both"].into_iter().cycle().take(200).collect();
    let leased = || -> Vec<Value> { client.get_many(&names).into_iter().map(Result::unwrap).collect() };
    std::thread::scope(|scope| {
        let kept = scope.spawn(|| {
            EARLIER.with_borrow_mut(Vec::clear);
            drop(leased());
            EARLIER.set(leased());
            LATER.set(leased());
            assert!(client.instruments().leased().unwrap() > 0);
            // Other threads drop leases of this thread, too.
            leased()
        });
        drop(kept.join().unwrap());
    });
    assert_eq!(client.instruments().leased().unwrap(), 0);
    assert_eq!(client.get("x").unwrap().bytes(), [1; 4096]);
}
