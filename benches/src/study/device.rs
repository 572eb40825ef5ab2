//! The study on a device.

use super::{Lane, Scenario};
use crate::gpu::Card;
use cudarc::driver::CudaStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tensorlend::{Allocator, Client, DType, DeviceDraft, On, Uuid};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceSource {
    /// The floor: existing columns.
    Existing,
    /// `cuMemAlloc` and `cuMemFree`, for each column, with a synchronization of the stream in between.
    Plain,
    /// `cuMemAllocAsync` and `cuMemFreeAsync`, of the device's own pool, which keeps freed memory.
    Ordered,
    /// A slot of a client of tensorlend, by the daemon's allocator.
    Ours(Allocator),
}

impl DeviceSource {
    pub const ALL: [Self; 6] = [
        Self::Existing,
        Self::Plain,
        Self::Ordered,
        Self::Ours(Allocator::Pool),
        Self::Ours(Allocator::Async),
        Self::Ours(Allocator::Arena),
    ];

    /// The daemon's allocators, in the order of [`DeviceSource::ALL`].
    pub const OURS: [Allocator; 3] = [Allocator::Pool, Allocator::Async, Allocator::Arena];

    pub fn label(self) -> &'static str {
        match self {
            Self::Existing => "columns exist (floor)",
            Self::Plain => "cuMemAlloc",
            Self::Ordered => "cuMemAllocAsync",
            Self::Ours(Allocator::Pool) => "tensorlend, pool",
            Self::Ours(Allocator::Async) => "tensorlend, async",
            Self::Ours(Allocator::Arena) => "tensorlend, arena",
        }
    }
}

/// The memory that the threads of one process have at a time.
#[derive(Debug, Default)]
pub struct Gauge {
    live: AtomicU64,
    most: AtomicU64,
}

impl Gauge {
    // All accesses are relaxed, because the counters order no other memory access.
    fn add(&self, bytes: u64) {
        let live = self.live.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most.fetch_max(live, Ordering::Relaxed);
    }

    fn sub(&self, bytes: u64) {
        self.live.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the maximum number of bytes so far.
    pub fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }
}

/// One process's device, streams, and clients.
pub struct Bench {
    /// The device.
    pub card: Card,
    uuid: Uuid,
    /// As many as the busiest scenario has threads. They live as long as this value: an arena belongs to a stream, and
    /// a stream per run would leave one arena behind each time.
    streams: Vec<Arc<CudaStream>>,
    clients: Vec<Client>,
}

impl Bench {
    /// Creates the process's state with clients of daemons with the allocators [`DeviceSource::OURS`].
    pub fn new(card: Card, clients: Vec<Client>) -> Self {
        let threads = Scenario::ALL.into_iter().map(|scenario| scenario.shape().0).max().unwrap_or(1);
        let streams = (0..threads).map(|_| card.stream()).collect();
        card.keep_freed();
        let uuid = card.device.uuid();
        Self { card, uuid, streams, clients }
    }

    /// Returns the client of one of our daemons.
    pub fn client(&self, source: DeviceSource) -> Option<&Client> {
        let DeviceSource::Ours(allocator) = source else { return None };
        DeviceSource::OURS.iter().position(|ours| *ours == allocator).map(|at| &self.clients[at])
    }

    /// Returns the bytes of the segments that our client was lent.
    pub fn segment_bytes(&self, source: DeviceSource) -> u64 {
        let figures = self.client(source).and_then(|client| client.device_memory(self.uuid).ok());
        figures.map_or(0, |figures| figures.segment_bytes)
    }

    /// Returns the lanes of a scenario's threads. With a gauge they count their memory.
    pub fn lanes<'b>(
        &'b self,
        source: DeviceSource,
        scenario: Scenario,
        part: u64,
        gauge: Option<&'b Gauge>,
    ) -> Vec<DeviceLane<'b>> {
        let (threads, _) = scenario.shape();
        let (rows, live) = scenario.most(part);
        let existing = if source == DeviceSource::Existing { live } else { 0 };
        let lane = |stream: &Arc<CudaStream>| DeviceLane {
            source,
            bench: self,
            client: self.client(source),
            stream: stream.clone(),
            existing: (0..existing).map(|_| self.card.allocate(rows * 8)).collect(),
            gauge,
        };
        self.streams[..threads].iter().map(lane).collect()
    }
}

pub struct DeviceLane<'b> {
    source: DeviceSource,
    bench: &'b Bench,
    client: Option<&'b Client>,
    stream: Arc<CudaStream>,
    /// Unused columns; each is as long as the longest.
    existing: Vec<u64>,
    gauge: Option<&'b Gauge>,
}

pub struct DeviceColumn {
    ptr: u64,
    bytes: u64,
    draft: Option<DeviceDraft>,
}

impl DeviceColumn {
    fn check(&self, bytes: u64) -> u64 {
        assert!(bytes <= self.bytes, "a column is too short");
        self.ptr
    }
}

impl Lane for DeviceLane<'_> {
    type Column = DeviceColumn;

    fn allocate(&mut self, bytes: u64) -> DeviceColumn {
        if let Some(gauge) = self.gauge {
            gauge.add(bytes);
        }
        let card = &self.bench.card;
        let ptr = match self.source {
            DeviceSource::Existing => self.existing.pop().expect("no scenario has more at a time"),
            DeviceSource::Plain => card.allocate(bytes),
            DeviceSource::Ordered => card.allocate_async(&self.stream, bytes),
            DeviceSource::Ours(_) => {
                let client = self.client.expect("there is one for each allocator");
                let on = On::from(self.bench.uuid);
                let draft =
                    client.create_on_stream(on, &self.stream, DType::U8, &[bytes]).expect("the device has room");
                return DeviceColumn { ptr: draft.ptr(), bytes, draft: Some(draft) };
            }
        };
        DeviceColumn { ptr, bytes, draft: None }
    }

    fn fill(&mut self, column: &mut DeviceColumn, rows: u64) {
        self.bench.card.fill(&self.stream, column.check(rows * 4), rows, 7);
    }

    fn cast(&mut self, from: &mut DeviceColumn, to: &mut DeviceColumn, rows: u64) {
        self.bench.card.cast(&self.stream, to.check(rows * 8), from.check(rows * 4), rows);
    }

    fn add(&mut self, one: &mut DeviceColumn, other: &mut DeviceColumn, to: &mut DeviceColumn, rows: u64) {
        let [one, other, to] = [one, other, to].map(|column| column.check(rows * 4));
        self.bench.card.add(&self.stream, to, (one, other), rows);
    }

    fn free(&mut self, column: DeviceColumn) {
        if let Some(gauge) = self.gauge {
            gauge.sub(column.bytes);
        }
        let card = &self.bench.card;
        match self.source {
            DeviceSource::Existing => self.existing.push(column.ptr),
            DeviceSource::Plain => {
                self.finish();
                card.free(column.ptr);
            }
            DeviceSource::Ordered => card.free_async(&self.stream, column.ptr),
            DeviceSource::Ours(_) => drop(column.draft),
        }
    }

    fn finish(&mut self) {
        self.stream.synchronize().expect("the work goes well");
    }
}

impl Drop for DeviceLane<'_> {
    fn drop(&mut self) {
        for ptr in self.existing.drain(..) {
            self.bench.card.free(ptr);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::run;
    use super::*;
    use tensorlend_daemon::{Bytes, Config, Embedded, embedded_with};

    /// Runs if there is a driver: also the fake one, if `LD_LIBRARY_PATH` names its folder.
    fn bench() -> Option<(Vec<Embedded>, Bench)> {
        let card = Card::open().map_err(|why| eprintln!("SKIPPED: no device: {why}")).ok()?;
        let broker = |allocator| {
            let mut config = Config::default();
            config.cuda.devices = vec!["all".into()];
            config.cuda.allocator = allocator;
            config.cuda.allow_fake = card.device.is_fake();
            config.cuda.segment_bytes = Some(Bytes(16 << 20));
            embedded_with(&config).unwrap()
        };
        let brokers: Vec<Embedded> = DeviceSource::OURS.into_iter().map(broker).collect();
        let connect = |broker: &Embedded| Client::builder().socket(broker.socket()).connect().unwrap();
        let clients = brokers.iter().map(connect).collect();
        Some((brokers, Bench::new(card, clients)))
    }

    #[test]
    fn every_source_serves_every_scenario() {
        let Some((_brokers, bench)) = bench() else { return };
        for source in DeviceSource::ALL {
            for scenario in Scenario::ALL {
                let gauge = Gauge::default();
                assert!(run(scenario, 10_000, &mut bench.lanes(source, scenario, 10_000, Some(&gauge))) > 0.0);
                assert!((1..=scenario.bytes_max(10_000)).contains(&gauge.most()));
            }
        }
    }

    #[test]
    fn the_work_is_done() {
        let Some((_brokers, bench)) = bench() else { return };
        for source in DeviceSource::ALL {
            let mut lanes = bench.lanes(source, Scenario::RapidChurn, 100, None);
            let lane = &mut lanes[0];
            let [mut one, mut other, mut sum] = [400, 400, 800].map(|bytes| lane.allocate(bytes));
            lane.fill(&mut one, 100);
            lane.fill(&mut other, 100);
            lane.add(&mut one, &mut other, &mut sum, 100);
            assert_eq!(bench.card.element(&lane.stream, sum.ptr + 99 * 4), 14, "{source:?}");
            lane.cast(&mut one, &mut sum, 100);
            let high = bench.card.element(&lane.stream, sum.ptr + 99 * 8 + 4);
            assert_eq!(u64::from(high) << 32, 7f64.to_bits(), "{source:?}");
            for column in [one, other, sum] {
                lane.free(column);
            }
        }
    }
}
