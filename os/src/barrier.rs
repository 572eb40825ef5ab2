//! A memory barrier on every running thread of this process, so that a fast path needs no fence.
//!
//! The barrier is `membarrier(2)` with `PRIVATE_EXPEDITED`, which orders the threads of *one* process. Between processes, both
//! sides execute fences of their own.
//!
//! A process must be registered first. In a process with several threads, the kernel then waits until each processor has passed
//! through its scheduler: 5 to 20 ms. So a thread registers the process in the background ([`register`]), and until then the fast
//! path uses a fence. Two words say how far the registration is. Both only ever change from false to true.
//!
//! | thread | steps |
//! |---|---|
//! | the registering one | registers the process; `REGISTERED` := true; a barrier on all threads; `READY` := true (Release) |
//! | a reader, on the fast path | sets its flag; a fence, unless `READY` (Acquire); reads the table |
//! | a remover | changes the table; SeqCst fence; a barrier on all threads if `REGISTERED`; reads the flags |
//!
//! Without the remover's barrier, a reader that has left out its fence could be overlooked. This does not occur. The remover finds
//! `REGISTERED` false only before it passes the registering thread's barrier. So its change to the table is also before that
//! barrier, and a reader that finds `READY` true sees the change.
//!
//! The kernel copies the registration and the two words to a forked child at different times of the fork. So the words can be true
//! in a child that is not registered. The child's first barrier then registers it.

use rustix::thread::{MembarrierCommand, membarrier};
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

static REGISTERED: AtomicBool = AtomicBool::new(false);
static READY: AtomicBool = AtomicBool::new(false);

/// Registers this process, which can take 20 ms. Returns false if the kernel refuses, for example because a sandbox forbids the
/// system call.
pub fn register() -> bool {
    if READY.load(Ordering::Relaxed) {
        return true;
    }
    let registered = membarrier(MembarrierCommand::RegisterPrivateExpedited);
    REGISTERED.fetch_or(registered.is_ok(), Ordering::SeqCst);
    let is_ready = registered.is_ok() && membarrier(MembarrierCommand::PrivateExpedited).is_ok();
    READY.fetch_or(is_ready, Ordering::Release);
    is_ready
}

/// The fence of the fast path: stores before it come before reads after it, as [`all_threads`] sees them.
#[inline(always)]
pub fn light_fence() {
    if READY.load(Ordering::Acquire) {
        // Keeps the order in the compiler. The remover's barrier keeps it in the processor.
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The fence of the slow path. For each other thread, one of two things holds: this thread sees what the other one stored before
/// its last [`light_fence`], or the other one sees what this thread stored before this call.
///
/// # Panics
/// If the kernel or a sandbox refuses what it has allowed before.
pub fn all_threads() {
    fence(Ordering::SeqCst);
    if REGISTERED.load(Ordering::SeqCst) && membarrier(MembarrierCommand::PrivateExpedited).is_err() {
        // A child of a fork during the registration.
        let again = membarrier(MembarrierCommand::RegisterPrivateExpedited);
        again.and_then(|()| membarrier(MembarrierCommand::PrivateExpedited)).expect("membarrier worked before");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// As in a child of a fork during the registration.
    #[test]
    fn a_process_that_only_seems_registered_registers_itself() {
        // In a process of its own: others of this file register theirs.
        const CHILD: &str = "TENSORLEND_SEEMS_REGISTERED";
        if std::env::var_os(CHILD).is_some() {
            REGISTERED.store(true, Ordering::SeqCst);
            READY.store(true, Ordering::SeqCst);
            return all_threads();
        }
        let name = "barrier::tests::a_process_that_only_seems_registered_registers_itself";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(CHILD, "1")
            .output();
        let child = child.unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    }

    /// Each of two threads stores to a word of its own, and reads the other's. At least one must see the other's store, before,
    /// while and after the process is registered.
    #[test]
    fn one_of_two_threads_sees_the_other() {
        const ROUNDS: u64 = 30_000;
        let (flag, table, turn) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        // The threads begin each round together.
        let meet = |round: u64| {
            turn.fetch_add(1, Ordering::AcqRel);
            while turn.load(Ordering::Acquire) < 2 * round {
                std::hint::spin_loop();
            }
        };
        let play = |own: &AtomicU64, other: &AtomicU64, fence: fn()| -> Vec<bool> {
            let mut seen = Vec::new();
            for round in 1..=ROUNDS {
                meet(round);
                own.store(round, Ordering::Relaxed);
                fence();
                seen.push(other.load(Ordering::Relaxed) == round);
            }
            seen
        };
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| play(&flag, &table, light_fence));
            let remover = scope.spawn(|| play(&table, &flag, all_threads));
            std::thread::sleep(std::time::Duration::from_millis(2));
            let is_ready = register();
            let (reader, remover) = (reader.join().unwrap(), remover.join().unwrap());
            let missed = reader.iter().zip(&remover).filter(|(one, other)| !**one && !**other).count();
            assert_eq!(missed, 0, "of {ROUNDS} rounds");
            if !is_ready {
                crate::skip::skip("this kernel or sandbox has no membarrier");
            }
        });
    }
}
