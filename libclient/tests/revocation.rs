//! Leases that are held for too long while memory is short, through the public API.

use std::time::Duration;
use tensorlend::{Client, DType, Error, Lease};
use tensorlend_daemon::{Config, Embedded};

const MB: u64 = 1 << 20;

fn broker(uid: &str) -> Embedded {
    let config = format!("[pool]\nbytes_max = \"64MiB\"\nsegment_bytes = \"8MiB\"\nspare_segments = 0\n[uid]\n{uid}\n");
    tensorlend_daemon::embedded_with(&Config::parse(&config).unwrap()).unwrap()
}

fn client(broker: &Embedded) -> Client {
    Client::builder().socket(broker.socket()).connect().unwrap()
}

/// Leases every value before its producer replaces it, until the pool is full.
fn fill(producer: &Client, reader: &Client) -> Vec<Lease> {
    let mut held = Vec::new();
    loop {
        match producer.create(DType::U8, &[7 * MB]) {
            Ok(mut draft) => {
                draft.bytes_mut().fill(held.len() as u8);
                draft.publish("x").unwrap();
                held.push(reader.get("x").unwrap());
            }
            Err(e) => {
                assert!(e.is_limit(), "{e}");
                return held;
            }
        }
    }
}

#[test]
fn a_holder_that_is_ended_learns_it_and_its_memory_comes_back() {
    let broker = broker("lease_ms_max = 200");
    let (producer, hoarder, honest) = (client(&broker), client(&broker), client(&broker));
    let held = fill(&producer, &hoarder);
    // Leases the current value, which occupies no extra memory.
    let newest = honest.get("x").unwrap();
    // On a slow machine, the session may have ended by now.
    assert!(held.iter().all(Lease::validate) || honest.stat().unwrap().sessions_revoked == 1);
    // Retry: the daemon counts the time until it revokes leases from the first refusal.
    let draft = loop {
        match producer.create(DType::U8, &[7 * MB]) {
            Ok(draft) => break draft,
            Err(e) => assert!(e.is_limit(), "{e}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    draft.publish("y").unwrap();
    assert!(held.iter().all(|lease| !lease.validate()), "its session is over");
    assert!(matches!(hoarder.get("x"), Err(Error::SessionEnded)));
    assert!(newest.validate());
    assert_eq!(usize::from(newest.bytes()[0]), held.len() - 1);
    assert_eq!(honest.stat().unwrap().sessions_revoked, 1);
    // The client can connect again.
    drop(held);
    assert!(client(&broker).get("x").unwrap().validate());
}

#[test]
fn by_default_a_lease_holds_as_long_as_its_holder() {
    let broker = broker("");
    let (producer, hoarder) = (client(&broker), client(&broker));
    let held = fill(&producer, &hoarder);
    for _ in 0..100 {
        assert!(producer.create(DType::U8, &[7 * MB]).is_err_and(|e| e.is_limit()));
        std::thread::sleep(Duration::from_millis(10));
    }
    for (at, lease) in held.iter().enumerate() {
        assert!(lease.validate() && lease.bytes().iter().all(|&byte| usize::from(byte) == at));
    }
    let stat = hoarder.stat().unwrap();
    assert_eq!(stat.sessions_revoked, 0);
    assert!(stat.uids[0].bytes_kept_by_leases >= 7 * MB * (held.len() as u64 - 1), "{stat:?}");
    drop(held);
    producer.create(DType::U8, &[7 * MB]).unwrap();
}
