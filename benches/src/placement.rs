//! Placement of processes on cores, and the latency between two cores.

use crate::stats::now_ns;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the cores that this process may use.
pub fn cores() -> Vec<usize> {
    let set = sched_getaffinity(None).expect("a process may ask for its cores");
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

/// Restricts this thread, and its children, to the given cores.
pub fn pin(cores: &[usize]) {
    let mut set = CpuSet::new();
    for &core in cores {
        set.set(core);
    }
    sched_setaffinity(None, &set).expect("a process may choose among its cores");
}

/// Returns the time of a cache line from one core to another in nanoseconds; `None` with one core. The placement of a
/// virtual machine's two cores changes between runs, and with it every result of two processes.
pub fn line_ns() -> Option<f64> {
    const ROUNDS: u64 = 20_000;
    let cores = cores();
    let (&first, &last) = (cores.first()?, cores.last()?);
    if first == last {
        return None;
    }
    let word = AtomicU64::new(0);
    let turns = |mine: u64| {
        let mut samples = crate::stats::Samples::default();
        for block in 0..20 {
            let start = now_ns();
            for round in block * ROUNDS / 20..(block + 1) * ROUNDS / 20 {
                while word.load(Ordering::Acquire) != 2 * round + mine {
                    spin_loop();
                }
                word.store(2 * round + mine + 1, Ordering::Release);
            }
            samples.push((now_ns() - start) as f64 / (2 * ROUNDS / 20) as f64);
        }
        samples.summary().p50
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            pin(&[last]);
            turns(1)
        });
        let one = scope.spawn(|| {
            pin(&[first]);
            turns(0)
        });
        other.join().ok().and(one.join().ok())
    })
}
