//! The floors: the machine's minimum costs, between two threads on two cores, and for memory and pages. Compare all
//! other results with these, of the same run.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tensorlend_baselines::floors::{self, Pages};
use tensorlend_baselines::{BaselineError, Cores, Meter};

fn bench(c: &mut Criterion, group: &str, id: BenchmarkId, meter: Result<Box<dyn Meter>, BaselineError>) {
    let mut meter = meter.expect("a floor starts");
    c.benchmark_group(group)
        .bench_function(id, |b| b.iter_custom(|operations| meter.total(operations).expect("a floor runs")));
}

fn between_cores(c: &mut Criterion) {
    let cores = Cores::find().expect("the cores are known");
    if cores.are_one() {
        eprintln!("left out: floors between two cores, of which this process may use one");
        return;
    }
    let (placement, line) = floors::calibrate(cores).expect("two cores can be compared");
    println!("cores {} and {} are {}: {:.0} ns", cores.first, cores.second, placement.name(), line.p50_ns);
    let id = BenchmarkId::from_parameter;
    bench(c, "one way", id("cache line"), floors::cacheline(cores));
    bench(c, "one way", id("futex, receiver asleep"), floors::futex_wake(cores));
    bench(c, "one way", id("eventfd and epoll, receiver asleep"), floors::eventfd_epoll(cores));
    bench(c, "round trip", id("Unix socket"), floors::unix_socket(cores));
    bench(c, "round trip", id("Unix socket, connected anew"), floors::unix_connect(cores));
    for bytes in [1 << 10, 1 << 16, 1 << 20, 1 << 22] {
        bench(c, "one way", BenchmarkId::new("written and read", bytes), floors::written_read(cores, bytes));
    }
}

fn on_one_core(c: &mut Criterion) {
    let id = BenchmarkId::from_parameter;
    bench(c, "one core", id("store, fence, look"), Ok(floors::store_fence_look()));
    bench(c, "page", id("fresh"), Ok(floors::page_faults(Pages::Fresh)));
    bench(c, "page", id("existing"), Ok(floors::page_faults(Pages::Existing)));
    bench(c, "page", id("populated"), Ok(floors::page_faults(Pages::Populated)));
    let mut group = c.benchmark_group("memcpy");
    for bytes in [1 << 10, 1 << 16, 1 << 20, 1 << 24] {
        let mut meter = floors::memcpy(bytes);
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::from_parameter(bytes), |b| {
            b.iter_custom(|operations| meter.total(operations).expect("a copy"));
        });
    }
    group.finish();
}

criterion_group!(benches, between_cores, on_one_core);
criterion_main!(benches);
