//! The cost of a new member for clients that do not use its values, counted in the daemon's requests.

use std::time::{Duration, Instant};
use tensorlend::Client;
use tensorlend_daemon::{Config, Embedded, embedded_with};

fn broker() -> Embedded {
    let mut config = Config::default();
    config.uid.sessions_max = 1000;
    embedded_with(&config).expect("an embedded broker starts")
}

fn client(broker: &Embedded) -> Client {
    Client::builder().socket(broker.socket()).connect().expect("a client connects")
}

/// Requests that the daemon hears while a new writer joins, publishes names and overwrites them.
fn requests_of_a_writer(idle: usize) -> u64 {
    let broker = broker();
    let hub = client(&broker);
    hub.put("hub", &[1u8; 64]).unwrap();
    let idle: Vec<Client> = (0..idle).map(|_| client(&broker)).collect();
    for reader in idle.iter().step_by(2) {
        assert_eq!(reader.get("hub").unwrap().bytes(), [1; 64]);
    }
    let before = hub.stat().unwrap().requests;
    let writer = client(&broker);
    for round in 0..20u8 {
        for name in 0..20 {
            writer.put(&format!("new {name}"), &[round; 64]).unwrap();
        }
    }
    let after = hub.stat().unwrap().requests;
    assert_eq!(hub.get("new 7").unwrap().bytes(), [19; 64]);
    after - before
}

#[test]
fn a_writer_asks_no_more_because_of_idle_members() {
    assert_eq!(requests_of_a_writer(64), requests_of_a_writer(0));
}

/// Requests that the daemon counts while `writers` clients join in turn, and each publishes `names` names.
fn requests_of_writers(broker: &Embedded, writers: usize, names: usize) -> (u64, Duration) {
    let counter = client(broker);
    let before = counter.stat().unwrap().requests;
    let began = Instant::now();
    let writers: Vec<Client> = (0..writers).map(|_| client(broker)).collect();
    for name in 0..names {
        for (number, writer) in writers.iter().enumerate() {
            writer.put(&format!("{number} {name}"), &[1u8; 64]).unwrap();
        }
    }
    (counter.stat().unwrap().requests - before, began.elapsed())
}

#[test]
fn many_writers_ask_a_few_times_for_each_name() {
    let broker = broker();
    let (requests, _) = requests_of_writers(&broker, 60, 5);
    assert!(requests < 60 * (5 * 3 + 5), "{requests} requests");
}

/// Returns the cost of new names, published in turn, in microseconds: minimum, median, maximum.
fn new_names(writer: &Client, name: impl Fn(u32) -> String) -> String {
    let mut took: Vec<f64> = (0..3000)
        .map(|number| {
            let (name, began) = (name(number), Instant::now());
            writer.put(&name, &[1u8; 64]).unwrap();
            began.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    took.sort_by(f64::total_cmp);
    format!("p50 {:.1} us (min {:.1}, max {:.0})", took[1500], took[0], took[2999])
}

/// Not a test: `cargo test -p tensorlend --test joining -- --ignored --nocapture` prints the metrics of
/// docs/results/names.md.
#[test]
#[ignore = "measures"]
fn metrics() {
    for _ in 0..3 {
        let (requests, took) = requests_of_writers(&broker(), 200, 10);
        println!("200 writers x 10 names: {requests} requests, {:.2} s", took.as_secs_f64());
    }
    for idle in [0, 64] {
        println!("{idle} idle members, of which half read: {} requests of a writer", requests_of_a_writer(idle));
    }
    for idle in [0, 500] {
        let broker = broker();
        let idle: Vec<Client> = (0..idle).map(|_| client(&broker)).collect();
        let writer = client(&broker);
        let before = writer.stat().unwrap().requests;
        writer.put("first", &[1u8; 64]).unwrap();
        writer.put("second", &[1u8; 64]).unwrap();
        let requests = writer.stat().unwrap().requests - before - 1;
        let cost = new_names(&writer, |number| format!("n{number}"));
        println!("{} idle members: {requests} requests for two new names; each further one {cost}", idle.len());
    }
    for announcers in [1, 8, 32, 64, 128] {
        let broker = broker();
        let writers: Vec<Client> = (0..announcers).map(|_| client(&broker)).collect();
        for (number, writer) in writers.iter().enumerate() {
            for name in 0..=number {
                writer.put(&format!("{number} {name}"), &[1u8; 64]).unwrap();
            }
        }
        let announced = new_names(&writers[0], |number| format!("n{number}"));
        let asked = new_names(&writers[0], |number| format!("{number:>80}"));
        println!("{announcers} writers that announce: a new name {announced}; asked of the daemon {asked}");
    }
}
