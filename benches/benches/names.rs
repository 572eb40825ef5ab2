//! The costs of a name: create, publish, get, put. The floor of a get and of a publication is one store and one fence,
//! that of a put a copy into allocated memory.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use tensorlend::{Client, DType};
use tensorlend_benches::Words;

fn names(c: &mut Criterion) {
    let broker = tensorlend_daemon::embedded().expect("a broker starts");
    let connect = || Client::builder().socket(broker.socket()).connect().expect("a client connects");
    let (producer, consumer) = (connect(), connect());
    for i in 0..1000u32 {
        producer.put(&format!("name/{i}"), &[i; 16]).expect("put");
    }
    let mut group = c.benchmark_group("name");
    let words = Words::default();
    group.bench_function("floor: store, fence, look", |b| b.iter(|| words.store_fence_look()));
    group.bench_function("get", |b| b.iter(|| black_box(consumer.get("name/500").expect("get"))));
    group.bench_function("exists", |b| b.iter(|| black_box(consumer.exists("name/500").expect("exists"))));
    group.bench_function("create and drop", |b| {
        b.iter(|| black_box(producer.create(DType::U8, &[64]).expect("create")));
    });
    group.bench_function("create and publish", |b| {
        b.iter(|| producer.create(DType::U8, &[64]).expect("create").publish("name/7").expect("publish"));
    });
    group.bench_function("list length", |b| {
        producer.append("list", producer.create(DType::U8, &[1]).expect("create")).expect("append");
        b.iter(|| black_box(consumer.length("list")));
    });
    group.finish();

    let mut group = c.benchmark_group("put");
    for bytes in [1 << 10, 1 << 16, 1 << 20, 1 << 24] {
        let source = vec![1u8; bytes];
        let mut target = vec![0u8; bytes];
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::new("floor: memcpy", bytes), |b| {
            b.iter(|| target.copy_from_slice(black_box(&source)));
        });
        group.bench_function(BenchmarkId::new("put", bytes), |b| {
            b.iter(|| producer.put("name/put", black_box(&source)).expect("put"));
        });
        group.bench_function(BenchmarkId::new("get_into", bytes), |b| {
            b.iter(|| consumer.get_into("name/put", &mut target).expect("get_into"));
        });
    }
    group.finish();
}

criterion_group!(benches, names);
criterion_main!(benches);
