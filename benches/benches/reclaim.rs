//! The cost of finding the remaining readers: the time of one overwriting publication, by the numbers of clients and of
//! leases. The producer scans the clients' lease tables once per batch of publications.

use serde::{Deserialize, Serialize};
use std::path::Path;
use tensorlend::{Client, DType, Lease};
use tensorlend_benches::Words;
use tensorlend_benches::report::Report;
use tensorlend_benches::stats::{Samples, Summary, cpu_timed};
use tensorlend_benches::table::{Table, bytes, nanos, spread};
use tensorlend_benches::worker::{Role, Worker};
use tensorlend_daemon::embedded;

/// Number of publications of one sample: several batches of the smallest tensors.
const BATCH: u32 = 1024;
const SIZES: [u64; 4] = [64, 4 << 10, 64 << 10, 1 << 20];
/// Number of leases that each client holds on the producer's tensors.
const LEASES: [usize; 3] = [0, 1, 16];
const HELD: usize = 16;

#[derive(Serialize, Deserialize)]
enum Order {
    /// Hold exactly this many leases.
    Hold(usize),
    /// Publish tensors for others to hold.
    Offer,
    /// Overwrite a name with tensors of this many bytes, not filled.
    Publish { bytes: u64, samples: u32 },
    /// The minimum work of a publication.
    Floor { samples: u32 },
}

fn main() {
    if let Some(role) = Role::mine() {
        return work(role);
    }
    let mut report = Report::begin("reclaim");
    let counts: &[usize] = if report.quick { &[0, 4, 16] } else { &[0, 1, 2, 4, 8, 16, 32, 64] };
    let samples = if report.quick { 5 } else { 15 };
    let broker = embedded().expect("a broker starts");
    let start = || Worker::start("client", &[broker.socket().display().to_string()]);
    let mut producer = start();
    producer.ask::<Vec<f64>>(&Order::Offer);
    let mut holders: Vec<Worker> = Vec::new();
    // By number of leases, then by size, then by number of clients.
    let mut found: Vec<Vec<Vec<Summary>>> = vec![vec![Vec::new(); SIZES.len()]; LEASES.len()];
    let mut floor = Samples::default();
    for &count in counts {
        while holders.len() < count {
            holders.push(start());
        }
        floor.extend(producer.ask::<Vec<f64>>(&Order::Floor { samples }));
        for (of_leases, leases) in found.iter_mut().zip(LEASES) {
            for holder in &mut holders {
                holder.ask::<Vec<f64>>(&Order::Hold(leases));
            }
            for (of_size, bytes) in of_leases.iter_mut().zip(SIZES) {
                let mut all = Samples::default();
                all.extend(producer.ask::<Vec<f64>>(&Order::Publish { bytes, samples }));
                of_size.push(all.summary());
            }
        }
    }
    for (of_leases, leases) in found.iter().zip(LEASES) {
        tables(&mut report, counts, leases, of_leases);
    }
    report.note(format!("Floor (store, fence, look): {}", spread(&floor.summary())));
    report.end();
}

fn tables(report: &mut Report, counts: &[usize], leases: usize, found: &[Vec<Summary>]) {
    let title = format!(
        "Overwrite a name while others hold {leases} leases each: processor time of create and publish, median (least .. \
         most); in brackets, what the other clients add"
    );
    let sizes = SIZES.map(bytes);
    let mut head = vec!["other clients"];
    head.extend(sizes.iter().map(String::as_str));
    let mut table = Table::new(title, &head);
    for (at, count) in counts.iter().enumerate() {
        let cell = |all: &Vec<Summary>| format!("{} [{}]", spread(&all[at]), nanos(all[at].p50 - all[0].p50));
        table.row(std::iter::once(count.to_string()).chain(found.iter().map(cell)));
    }
    report.table(&format!("leases_{leases}"), &table);
    report.value(
        &format!("leases_{leases}_samples"),
        serde_json::json!({ "other_clients": counts, "bytes": SIZES, "ns": found }),
    );
}

fn work(mut role: Role) {
    let client = Client::builder().socket(Path::new(&role.args[0])).connect().expect("a client connects");
    let mut held: Vec<Lease> = Vec::new();
    let words = Words::default();
    while let Some(order) = role.order::<Order>() {
        let answer = match order {
            Order::Hold(count) => {
                held.clear();
                held.extend((0..count).map(|i| client.get(&format!("held/{}", i % HELD)).expect("offered")));
                Vec::new()
            }
            Order::Offer => {
                for i in 0..HELD {
                    client.put(&format!("held/{i}"), &[1_u8; 64]).expect("put");
                }
                Vec::new()
            }
            Order::Publish { bytes, samples } => {
                let mut publish = || {
                    let draft = client.create(DType::U8, &[bytes]).expect("a slot");
                    draft.publish("overwritten").expect("publish");
                };
                cpu_timed(BATCH, &mut publish);
                (0..samples).map(|_| cpu_timed(BATCH, &mut publish)).collect::<Vec<f64>>()
            }
            Order::Floor { samples } => {
                (0..samples).map(|_| cpu_timed(BATCH, || _ = std::hint::black_box(words.store_fence_look()))).collect()
            }
        };
        role.answer(&answer);
    }
}
