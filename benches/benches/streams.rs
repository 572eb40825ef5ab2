//! The cost of a message at its two ends, one after the other on one core, so that no cache line moves. The floor is
//! the protocol's minimum: a fence after the send, one after the lease, one after the cursor's advance.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use tensorlend::{Client, DType, Policy};
use tensorlend_benches::Words;

fn streams(c: &mut Criterion) {
    let broker = tensorlend_daemon::embedded().expect("a broker starts");
    let connect = || Client::builder().socket(broker.socket()).connect().expect("a client connects");
    let (producer, consumer) = (connect(), connect());
    let mut group = c.benchmark_group("stream");
    let words = Words::default();
    group.bench_function("floor: three times store, fence, look", |b| {
        b.iter(|| (words.store_fence_look(), words.store_fence_look(), words.store_fence_look()));
    });
    for (name, policy) in [("block", Policy::Block), ("drop oldest", Policy::DropOldest)] {
        let stream = producer.stream(name).capacity(8).policy(policy).open().expect("open");
        let mut messages = consumer.subscribe(name).expect("subscribe");
        group.bench_function(format!("create, send and receive, {name}"), |b| {
            b.iter(|| {
                stream.send(producer.create(DType::U8, &[1024]).expect("create")).expect("send");
                black_box(messages.recv().expect("receive"))
            });
        });
    }
    group.finish();
}

criterion_group!(benches, streams);
criterion_main!(benches);
