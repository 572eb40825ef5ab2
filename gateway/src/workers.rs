//! Threads for what may take long: copies into drafts, packing, ways that are full.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use tensorlend_os::thread;

type Job = Box<dyn FnOnce() + Send>;

/// Jobs that may wait, at most.
const WAITING_MAX: usize = 4096;

/// Threads that take jobs in the order in which they come. They end with the last of their handles.
#[derive(Clone)]
pub struct Workers {
    jobs: Sender<Job>,
    waiting: Arc<AtomicUsize>,
}

impl Workers {
    /// Starts so many.
    ///
    /// # Errors
    /// The kernel's.
    pub fn start(name: &str, threads: usize) -> std::io::Result<Self> {
        let (jobs, taken) = channel::<Job>();
        let taken = Arc::new(Mutex::new(taken));
        let waiting = Arc::new(AtomicUsize::new(0));
        for _ in 0..threads {
            let (taken, waiting) = (taken.clone(), waiting.clone());
            let next = move |taken: &Mutex<Receiver<Job>>| {
                let job = taken.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()?;
                // A count, which orders nothing.
                waiting.fetch_sub(1, Ordering::Relaxed);
                Some(job)
            };
            thread::spawn(name, move || {
                while let Some(job) = next(&taken) {
                    job();
                }
            })?;
        }
        Ok(Self { jobs, waiting })
    }

    /// Has it done. False: there is too much to do, and this is dropped.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.jobs.send(Box::new(job)).is_ok()
    }
}
