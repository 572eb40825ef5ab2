//! The study in host memory, for machines without a device.

use super::{Lane, Scenario};
use crate::ones::heap;
use crate::pool::ExactPool;
use std::hint::black_box;
use tensorlend::{Client, DType, Draft};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostSource {
    /// The floor: existing columns.
    Existing,
    /// The heap, for each column.
    Heap,
    /// Heap memory that each thread caches by exact size.
    HeapPool,
    /// A slot of a client of tensorlend.
    Ours,
}

impl HostSource {
    pub const ALL: [Self; 4] = [Self::Existing, Self::Heap, Self::HeapPool, Self::Ours];

    pub fn label(self) -> &'static str {
        match self {
            Self::Existing => "columns exist (floor)",
            Self::Heap => "heap",
            Self::HeapPool => "heap, pool",
            Self::Ours => "tensorlend",
        }
    }

    /// Returns the lanes of a scenario's threads.
    pub fn lanes(self, client: &Client, scenario: Scenario, part: u64) -> Vec<HostLane<'_>> {
        let (threads, _) = scenario.shape();
        let (rows, live) = scenario.most(part);
        let existing = || (0..live).map(|_| touched(rows * 8)).collect();
        let lane = || HostLane {
            source: self,
            client,
            pool: ExactPool::new(None),
            existing: if self == Self::Existing { existing() } else { Vec::new() },
        };
        (0..threads).map(|_| lane()).collect()
    }
}

/// Returns heap memory with all pages touched.
fn touched(bytes: u64) -> Box<[u64]> {
    let mut words = heap(bytes as usize);
    words.fill(1);
    words
}

/// A thread that works in host memory.
pub struct HostLane<'c> {
    source: HostSource,
    client: &'c Client,
    pool: ExactPool<Box<[u64]>>,
    /// Unused columns; each is as long as the longest.
    existing: Vec<Box<[u64]>>,
}

pub struct HostColumn {
    memory: Memory,
    bytes: u64,
}

enum Memory {
    Heap(Box<[u64]>),
    Slot(Draft),
}

impl HostColumn {
    fn elements<T: bytemuck::Pod>(&mut self, rows: u64) -> &mut [T] {
        let rows = rows as usize;
        match &mut self.memory {
            Memory::Heap(words) => &mut bytemuck::cast_slice_mut(words)[..rows],
            Memory::Slot(draft) => &mut bytemuck::cast_slice_mut(draft.bytes_mut())[..rows],
        }
    }
}

impl Lane for HostLane<'_> {
    type Column = HostColumn;

    fn allocate(&mut self, bytes: u64) -> HostColumn {
        let memory = match self.source {
            HostSource::Existing => Memory::Heap(self.existing.pop().expect("no scenario has more at a time")),
            HostSource::Heap => Memory::Heap(heap(bytes as usize)),
            HostSource::HeapPool => Memory::Heap(self.pool.take(bytes as usize, heap)),
            HostSource::Ours => {
                Memory::Slot(self.client.create(DType::U8, &[bytes]).expect("the pool is large enough"))
            }
        };
        HostColumn { memory, bytes }
    }

    fn fill(&mut self, column: &mut HostColumn, rows: u64) {
        column.elements::<i32>(rows).fill(black_box(7));
    }

    fn cast(&mut self, from: &mut HostColumn, to: &mut HostColumn, rows: u64) {
        for (to, from) in to.elements::<f64>(rows).iter_mut().zip(from.elements::<i32>(rows)) {
            *to = f64::from(*from);
        }
        black_box(to.elements::<f64>(rows).as_ptr());
    }

    fn add(&mut self, one: &mut HostColumn, other: &mut HostColumn, to: &mut HostColumn, rows: u64) {
        let terms = one.elements::<i32>(rows).iter().zip(other.elements::<i32>(rows));
        for (sum, (one, other)) in to.elements::<i32>(rows).iter_mut().zip(terms) {
            *sum = one.wrapping_add(*other);
        }
        black_box(to.elements::<i32>(rows).as_ptr());
    }

    fn free(&mut self, column: HostColumn) {
        match (self.source, column.memory) {
            (HostSource::Existing, Memory::Heap(words)) => self.existing.push(words),
            (HostSource::HeapPool, Memory::Heap(words)) => self.pool.give(column.bytes as usize, words),
            (_, memory) => drop(memory),
        }
    }

    fn finish(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::super::run;
    use super::*;

    #[test]
    fn every_source_serves_every_scenario() {
        let broker = tensorlend_daemon::embedded().unwrap();
        let client = Client::builder().socket(broker.socket()).connect().unwrap();
        for source in HostSource::ALL {
            for scenario in Scenario::ALL {
                assert!(run(scenario, 10_000, &mut source.lanes(&client, scenario, 10_000)) > 0.0);
            }
        }
    }

    #[test]
    fn the_work_is_done() {
        let broker = tensorlend_daemon::embedded().unwrap();
        let client = Client::builder().socket(broker.socket()).connect().unwrap();
        for source in HostSource::ALL {
            let mut lane = source.lanes(&client, Scenario::RapidChurn, 1000).remove(0);
            let [mut one, mut other, mut sum] = [400, 400, 800].map(|bytes| lane.allocate(bytes));
            lane.fill(&mut one, 100);
            lane.fill(&mut other, 100);
            lane.add(&mut one, &mut other, &mut sum, 100);
            assert_eq!(sum.elements::<i32>(100), [14; 100]);
            lane.cast(&mut one, &mut sum, 100);
            assert!(sum.elements::<f64>(100).iter().all(|v| v.to_bits() == 7f64.to_bits()));
            for column in [one, other, sum] {
                lane.free(column);
            }
        }
    }
}
