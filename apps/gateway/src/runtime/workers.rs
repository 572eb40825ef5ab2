//! Threads for tasks that may take long, such as copies into drafts, packing, and sends into a full
//! transport.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use tensorlend_os::mutex::lock;
use tensorlend_os::thread;

type Job = Box<dyn FnOnce() + Send>;

const QUEUED_MAX: usize = 4096;

/// A pool of threads, which start jobs in the order of arrival. The threads end when the last
/// handle is dropped.
#[derive(Clone)]
pub struct Workers(Arc<Handle>);

/// The handle of a pool. Its end ends the threads.
struct Handle(Arc<Queue>);

/// The jobs that wait for a thread. A job wakes one thread.
#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    is_over: bool,
}

impl Workers {
    /// Starts a pool of `threads` threads.
    ///
    /// # Errors
    /// The kernel's error, if a thread cannot be started.
    pub fn start(name: &str, threads: usize) -> std::io::Result<Self> {
        let workers = Self(Arc::new(Handle(Arc::default())));
        for _ in 0..threads {
            let queue = workers.0.0.clone();
            thread::spawn(name, move || {
                while let Some(job) = queue.next() {
                    job();
                }
            })?;
        }
        Ok(workers)
    }

    /// Queues a job. Returns false, and drops the job, if the queue is full.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        self.queue(Box::new(job))
    }

    /// Makes a job for the calling thread, or for these workers if that thread cannot run it.
    pub fn defer(&self, job: impl FnOnce() + Send + 'static) -> Deferred {
        Deferred { job: Box::new(job), workers: self.clone() }
    }

    fn queue(&self, job: Job) -> bool {
        let queue = &self.0.0;
        let mut state = lock(&queue.state);
        if state.jobs.len() >= QUEUED_MAX {
            // Drop the job after the unlock, because the drop may queue another job.
            drop(state);
            return false;
        }
        state.jobs.push_back(job);
        drop(state);
        queue.arrived.notify_one();
        true
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        lock(&self.0.state).is_over = true;
        self.0.arrived.notify_all();
    }
}

impl Queue {
    /// Waits for the next job. Returns `None` if the pool is over and no job is queued.
    fn next(&self) -> Option<Job> {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.is_over {
                return None;
            }
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A job that may wait for the transport, such as a send. Some thread runs it after it has released the state.
pub struct Deferred {
    job: Job,
    workers: Workers,
}

impl Deferred {
    /// Runs the job on this thread.
    pub fn run(self) {
        (self.job)();
    }

    /// Queues the job for workers, or drops it if their queue is full.
    pub fn hand_over(self) {
        self.workers.queue(self.job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn queued_jobs_run_after_the_last_handle_is_dropped() {
        let workers = Workers::start("test", 2).unwrap();
        let (ran, runs) = channel();
        for number in 0..100 {
            let ran = ran.clone();
            assert!(workers.run(move || ran.send(number).unwrap()));
        }
        drop((workers, ran));
        let mut numbers: Vec<i32> = runs.iter().collect();
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(0..100));
    }
}
