//! Benchmarks of tensorlend, each beside its floor: what the machine takes for the least that any such exchange needs.
//! `cargo bench -p tensorlend-benches --bench NAME`; the machine decides the figures, so compare within one run.
//!
//! - `names`, `streams`: single operations, by criterion.
//! - `alloc`: allocate, fill, drop: heap, shared memory, pools, and a client's own slots.
//! - `throughput`, `aggregation`: a tensor database beside the application: tensorlend, Redis, files.
//! - `allocators`: a study of device allocators, on devices and in host memory.
//! - `handover` (feature `cuda`): a tensor on a device, from one process to another. `gpu.sh` runs what needs a device.
//! - `scaling`, `reclaim`: what one operation costs when there is more of everything else.
//!
//! All but the first measure by themselves, since their contenders take turns in one run and work in several processes: the
//! program starts copies of itself ([`worker`]). Each prints tables and writes them as JSON, with its plots, into the
//! folder `tensorlend` beside the build, or into the one that `TENSORLEND_RESULTS_DIR` names ([`report`]). With
//! `--quick` (`cargo bench ... -- --quick`) they take a few samples of fewer sizes.

#[cfg(feature = "cuda")]
pub mod gpu;
pub mod npy;
pub mod ones;
pub mod placement;
pub mod plot;
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

/// Two words of shared memory: what one side stores and what the other does.
#[derive(Debug, Default)]
pub struct Words {
    mine: AtomicU64,
    theirs: AtomicU64,
}

impl Words {
    /// The least of any exchange in which two processes must not overlook each other: store one's own word, fence, look at
    /// the other's.
    pub fn store_fence_look(&self) -> u64 {
        self.mine.store(black_box(1), Ordering::Release);
        fence(Ordering::SeqCst);
        black_box(&self.theirs).load(Ordering::Relaxed)
    }
}
