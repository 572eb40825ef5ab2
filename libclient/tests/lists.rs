//! Reading whole lists, and many leases, through the public API.

use std::sync::atomic::{AtomicBool, Ordering};
use tensorlend::{Client, DType, Draft, Error, TensorSpec, Value};
use tensorlend_daemon::Embedded;

fn broker() -> Embedded {
    tensorlend_daemon::embedded().expect("an embedded broker starts")
}

fn client(broker: &Embedded) -> Client {
    Client::builder().socket(broker.socket()).connect().expect("a client connects")
}

fn draft(client: &Client, value: u64, elements: u64) -> Draft {
    let mut draft = client.create(DType::U64, &[elements]).unwrap();
    draft.as_mut_slice::<u64>().unwrap().fill(value);
    draft
}

fn only(value: &Value) -> u64 {
    value.as_tensor().unwrap().as_slice::<u64>().unwrap()[0]
}

#[test]
fn a_list_of_all_kinds_comes_back_item_by_item() {
    const ITEMS: u64 = 400;
    let broker = broker();
    let (producers, consumer) = ([client(&broker), client(&broker), client(&broker)], client(&broker));
    for number in 0..ITEMS {
        let producer = &producers[number as usize % 3];
        match number % 8 {
            0..=1 => producer.append("all", draft(producer, number, 4)).unwrap(),
            2 => {
                // More dimensions and metadata than fit into a record.
                let mut wide = producer.create(DType::U64, &[1, 1, 1, 1, 2]).unwrap();
                wide.as_mut_slice::<u64>().unwrap().fill(number);
                wide.set_metadata(&[3; 500]).unwrap();
                producer.append("all", wide).unwrap()
            }
            kind => {
                let members = [0, 1, 4, 70][number as usize / 8 % 4];
                let mut dataset = producer.dataset().timestamp(number);
                for member in 0..members {
                    let mut tensor = draft(producer, number * 100 + member, 1 + 600 * (member % 2));
                    if kind == 4 && member == 1 {
                        tensor.set_metadata(b"odd").unwrap();
                    }
                    dataset = dataset.add(&format!("m{}", 99 - member), tensor).unwrap();
                }
                let dataset = match kind {
                    5 => dataset.metadata(b"short").unwrap(),
                    6 => dataset.metadata(&[9; 1000]).unwrap(),
                    _ => dataset,
                };
                producer.append("all", dataset).unwrap()
            }
        };
    }
    for range in [0..ITEMS, 0..1, 63..65, 1..ITEMS - 1, ITEMS - 1..ITEMS + 5, 7..7] {
        let values = consumer.get_range("all", range.clone()).unwrap();
        assert_eq!(values.len() as u64, range.end.min(ITEMS).saturating_sub(range.start));
        for (number, value) in range.zip(&values) {
            match number % 8 {
                0..=1 => assert_eq!(only(value), number),
                2 => {
                    let wide = value.as_tensor().unwrap();
                    assert_eq!((wide.shape(), wide.metadata()), (&[1, 1, 1, 1, 2][..], &[3; 500][..]));
                    assert_eq!(only(value), number);
                }
                kind => {
                    let dataset = value.as_dataset().unwrap();
                    let members = [0, 1, 4, 70][number as usize / 8 % 4];
                    assert_eq!((dataset.len() as u64, dataset.timestamp()), (members, number));
                    let metadata: &[u8] = match kind {
                        5 => b"short",
                        6 => &[9; 1000],
                        _ => b"",
                    };
                    assert_eq!(dataset.metadata(), metadata);
                    for (member, (name, tensor)) in (0..).zip(dataset.iter()) {
                        assert_eq!(name, format!("m{}", 99 - member));
                        assert_eq!(tensor.as_slice::<u64>().unwrap()[0], number * 100 + member);
                        assert_eq!(tensor.shape(), [1 + 600 * (member as usize % 2)]);
                        let odd = kind == 4 && member == 1;
                        assert_eq!(tensor.metadata(), if odd { &b"odd"[..] } else { b"" });
                        assert!(std::ptr::eq(dataset.get(name).unwrap(), tensor));
                    }
                    assert!(dataset.get("m100").is_none() && dataset.get("").is_none());
                }
            }
        }
    }
}

/// A reader of a list that is cleared and refilled gets a prefix of one of its epochs.
#[test]
fn a_list_that_is_cleared_meanwhile_shows_items_of_one_life() {
    const ROUNDS: u64 = 150;
    const ITEMS: u64 = 150;
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (consumer, over) = (&consumer, &over);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let values = match consumer.get_all("l") {
                        Ok(values) => values,
                        Err(Error::NoSuch { .. }) => continue,
                        Err(e) => panic!("{e}"),
                    };
                    let Some(first) = values.first().map(only) else { continue };
                    assert_eq!(first % ITEMS, 0);
                    for (number, value) in (first..).zip(&values) {
                        assert!(value.as_tensor().unwrap().as_slice::<u64>().unwrap().iter().all(|v| *v == number));
                    }
                }
            });
        }
        for round in 0..ROUNDS {
            for item in 0..ITEMS {
                producer.append("l", draft(&producer, round * ITEMS + item, 16)).unwrap();
            }
            assert!(producer.clear("l").unwrap());
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn leases_come_and_go_in_any_order_and_number() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    for number in 0..300 {
        producer.append("l", draft(&producer, number, 1)).unwrap();
    }
    producer.put("x", &[7u64]).unwrap();
    let mut state = 1u64;
    let mut held: Vec<(u64, Value)> = Vec::new();
    for _ in 0..2000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = state >> 33;
        match random % 4 {
            0 if held.len() < 3000 => {
                let from = random / 4 % 300;
                held.extend((from..).zip(consumer.get_range("l", from..from + random / 1200 % 100).unwrap()));
            }
            1 => held.truncate(held.len() - held.len().min(random as usize / 4 % 300)),
            2 if !held.is_empty() => drop(held.swap_remove(random as usize / 4 % held.len())),
            _ => assert_eq!(consumer.get("x").unwrap().as_slice::<u64>().unwrap(), [7]),
        }
    }
    assert!(held.iter().all(|(number, value)| only(value) == *number));
    drop(held);
    consumer.get("x").unwrap();
    // Every lease entry is free again, also for another thread.
    std::thread::scope(|scope| {
        scope.spawn(|| drop((0..3900).map(|_| consumer.get("x").unwrap()).collect::<Vec<_>>()));
    });
}

#[test]
fn a_list_of_more_items_than_leases_is_refused_and_leaves_none() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    for number in 0..4100 {
        producer.append("l", draft(&producer, number, 1)).unwrap();
    }
    for _ in 0..2 {
        assert!(matches!(consumer.get_all("l"), Err(Error::Leases(4096))));
    }
    let values = consumer.get_range("l", 4..).unwrap();
    assert_eq!((values.len(), only(&values[4095])), (4096, 4099));
}

#[test]
fn a_dataset_with_strides_and_views_keeps_them() {
    let broker = broker();
    let (producer, consumer) = (client(&broker), client(&broker));
    let spec = TensorSpec { dtype: DType::U8, shape: vec![2, 3], strides: Some(vec![1, 2]), byte_offset: 4 };
    let mut strided = producer.create_spec(spec).unwrap();
    strided.bytes_mut().copy_from_slice(&[0, 0, 0, 0, 1, 4, 2, 5, 3, 6]);
    let dataset = producer.dataset().add("plain", draft(&producer, 5, 2)).unwrap().add("strided", strided).unwrap();
    dataset.publish("both").unwrap();
    producer.copy("both", "again").unwrap();
    for name in ["both", "again"] {
        let both = consumer.get_dataset(name).unwrap();
        let mut copy = [0; 6];
        both.get("strided").unwrap().copy_to(&mut copy).unwrap();
        assert_eq!(copy, [1, 2, 3, 4, 5, 6]);
        assert_eq!(both.get("plain").unwrap().as_slice::<u64>().unwrap(), [5, 5]);
    }
}
