//! Threads for tasks that may take long, such as copies into drafts, packing, and sends into a full
//! transport.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use tensorlend_os::thread;

type Job = Box<dyn FnOnce() + Send>;

/// Maximum number of queued jobs.
const QUEUED_MAX: usize = 4096;

/// A pool of threads, which start jobs in the order of arrival. The threads end when the last
/// handle is dropped.
#[derive(Clone)]
pub struct Workers {
    jobs: Sender<Job>,
    queued: Arc<AtomicUsize>,
}

impl Workers {
    /// Starts a pool of `threads` threads.
    ///
    /// # Errors
    /// The kernel's error, if a thread cannot be started.
    pub fn start(name: &str, threads: usize) -> std::io::Result<Self> {
        let (jobs, taken) = channel::<Job>();
        let taken = Arc::new(Mutex::new(taken));
        let queued = Arc::new(AtomicUsize::new(0));
        for _ in 0..threads {
            let (taken, queued) = (taken.clone(), queued.clone());
            let next = move |taken: &Mutex<Receiver<Job>>| {
                let job = taken.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()?;
                // Relaxed: the count orders no other memory.
                queued.fetch_sub(1, Ordering::Relaxed);
                Some(job)
            };
            thread::spawn(name, move || {
                while let Some(job) = next(&taken) {
                    job();
                }
            })?;
        }
        Ok(Self { jobs, queued })
    }

    /// Queues a job. Returns false, and drops the job, if the queue is full.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        if self.queued.fetch_add(1, Ordering::Relaxed) >= QUEUED_MAX {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.jobs.send(Box::new(job)).is_ok()
    }
}
