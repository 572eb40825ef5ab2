//! Benchmarks of tensorlend, each compared with its floor: the machine's minimum cost of such an exchange.
//! `cargo bench -p tensorlend-benches --bench NAME`; results depend on the machine, so compare within one run.
//!
//! - `names`, `streams`: single operations, by criterion.
//! - `alloc`: allocate, fill, drop: heap, shared memory, pools, and a client's own slots.
//! - `throughput`, `aggregation`: a tensor database on the application's machine: tensorlend, Redis, files.
//! - `allocators`: a study of device allocators, on devices and in host memory.
//! - `handover` (feature `cuda`): a tensor on a device, from one process to another. `gpu.sh` runs the benchmarks that
//!   need a device.
//! - `scaling`, `reclaim`: the cost of one operation as other quantities grow.
//! - `many_names`: reading any of a million names, one at a time and many at once.
//!
//! All but the first do not use criterion, since their contenders are interleaved in one run and work in several
//! processes: the program starts copies of itself ([`worker`]). Each prints tables and writes them as JSON into the
//! folder `tensorlend` in the build folder, or into the one that `TENSORLEND_RESULTS_DIR` names ([`report`]). With `--quick` (`cargo bench ... -- --quick`) they take a few samples of fewer sizes.

pub mod datasets;
#[cfg(feature = "cuda")]
pub mod gpu;
pub mod npy;
pub mod ones;
pub mod placement;
pub mod pool;
pub mod random;
pub mod redis;
pub mod report;
pub mod resp;
pub mod shm;
pub mod stats;
pub mod study;
pub mod table;
pub mod worker;

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Two words of shared memory, one for each side's stores.
#[derive(Debug, Default)]
pub struct Words {
    mine: AtomicU64,
    theirs: AtomicU64,
}

impl Words {
    /// The minimum of any exchange in which two processes must not miss each other: store one's own word, fence, load
    /// the other's.
    pub fn store_fence_look(&self) -> u64 {
        self.mine.store(black_box(1), Ordering::Release);
        fence(Ordering::SeqCst);
        black_box(&self.theirs).load(Ordering::Relaxed)
    }
}
