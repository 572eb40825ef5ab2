//! A role that two threads share.
//!
//! One thread has the role, and the other is its spare. The thread with the role runs jobs that may wait, such as sends into
//! a transport that may be full. So such a job wakes no other thread. If the jobs take longer than [`PATIENCE`], the spare
//! takes the role over, and workers run the jobs that have not begun. Until the other thread has returned, the role has no
//! spare, and workers run all jobs.
//!
//! The spare wakes after each [`PATIENCE`] to look at the role. A wakeup for each run of jobs would cost more.

use super::workers::Deferred;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tensorlend_os::mutex::lock;

/// Time after which the spare takes the role over from a thread that runs jobs. It takes at most twice this time.
const PATIENCE: Duration = Duration::from_millis(100);

/// A role with its resource, for two threads.
pub struct Role<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
    patience: Duration,
}

struct State<T> {
    /// The resource while its thread runs jobs, or before the first thread has taken it.
    lent: Option<T>,
    /// The jobs of the thread that has lent the resource, without the one that it runs.
    waiting: VecDeque<Deferred>,
    /// Number of times that a thread has lent the resource.
    lends: u64,
    /// Number of threads that wait to take the role over.
    spares: u32,
    /// Number of threads that have lost the role while they ran jobs, and have not returned.
    stuck: u32,
    is_over: bool,
}

impl<T> Role<T> {
    /// Makes a role that the first thread takes at once.
    pub fn new(resource: T) -> Self {
        Self::with_patience(resource, PATIENCE)
    }

    fn with_patience(resource: T, patience: Duration) -> Self {
        let state =
            State { lent: Some(resource), waiting: VecDeque::new(), lends: 0, spares: 0, stuck: 0, is_over: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), patience }
    }

    /// Waits until this thread has the role, and returns the resource. Returns `None` once the role is over.
    pub fn take_over(&self) -> Option<T> {
        let mut state = lock(&self.state);
        state.spares += 1;
        let mut seen = None;
        let taken = loop {
            if state.is_over {
                break None;
            }
            if state.lends == 0 {
                if let Some(resource) = state.lent.take() {
                    break Some(resource);
                }
            } else if state.lent.is_some() && seen == Some(state.lends) {
                state.stuck += 1;
                break state.lent.take();
            }
            seen = state.lent.is_some().then_some(state.lends);
            state = self.changed.wait_timeout(state, self.patience).unwrap_or_else(PoisonError::into_inner).0;
        };
        state.spares -= 1;
        hand_over(state);
        taken
    }

    /// Runs jobs on this thread, which has the role. Without a spare, hands the jobs to workers. Returns the resource, or
    /// `None` if the spare has taken it.
    pub fn run(&self, resource: T, jobs: Vec<Deferred>) -> Option<T> {
        if jobs.is_empty() {
            return Some(resource);
        }
        let mut state = lock(&self.state);
        if state.spares == 0 || state.is_over {
            drop(state);
            jobs.into_iter().for_each(Deferred::hand_over);
            return Some(resource);
        }
        state.lent = Some(resource);
        state.lends += 1;
        state.waiting = jobs.into();
        while state.lent.is_some()
            && let Some(job) = state.waiting.pop_front()
        {
            drop(state);
            job.run();
            state = lock(&self.state);
        }
        let returned = state.lent.take();
        if returned.is_none() && state.stuck > 0 {
            state.stuck -= 1;
        }
        // Jobs are left only if this thread has lost the role, or the role has ended.
        hand_over(state);
        returned
    }

    /// Ends the role. Returns true if both threads end soon, and false if one of them still runs a job. May be called again.
    pub fn end(&self) -> bool {
        let mut state = lock(&self.state);
        state.is_over = true;
        self.changed.notify_all();
        let lent = state.lent.take();
        if lent.is_some() {
            state.stuck += 1;
        }
        let is_stuck = state.stuck > 0;
        drop(state);
        drop(lent);
        !is_stuck
    }
}

/// Lets workers run the jobs that have not begun.
fn hand_over<T>(mut state: MutexGuard<'_, State<T>>) {
    let jobs = std::mem::take(&mut state.waiting);
    drop(state);
    jobs.into_iter().for_each(Deferred::hand_over);
}

#[cfg(test)]
mod tests {
    use super::super::workers::Workers;
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    #[test]
    fn a_spare_takes_over_from_a_thread_that_is_stuck() {
        let role = Arc::new(Role::new(7));
        let workers = Workers::start("test", 1).unwrap();
        let resource = role.take_over().unwrap();
        let (taken, takes) = channel();
        let (spare, other) = (role.clone(), workers.clone());
        let thread = std::thread::spawn(move || {
            let resource = spare.take_over().unwrap();
            // The other thread is stuck, so the role has no spare: a worker runs this job.
            let (ran, runs) = channel();
            let job = other.defer(move || ran.send(std::thread::current().id()).unwrap());
            assert_eq!(spare.run(resource, vec![job]), Some(7));
            assert_ne!(runs.recv().unwrap(), std::thread::current().id());
            taken.send(()).unwrap();
            assert_eq!(spare.take_over(), None);
        });
        while lock(&role.state).spares == 0 {
            std::thread::yield_now();
        }
        let here = std::thread::current().id();
        // A job that waits until the spare has the role, and until a worker has run the job behind it.
        let (behind, runs_behind) = channel();
        let first = workers.defer(move || {
            takes.recv().unwrap();
            assert_ne!(runs_behind.recv().unwrap(), here);
        });
        let second = workers.defer(move || behind.send(std::thread::current().id()).unwrap());
        assert_eq!(role.run(resource, vec![first, second]), None);
        assert!(role.end());
        thread.join().unwrap();
    }

    #[test]
    fn a_short_job_runs_on_the_thread_that_has_the_role() {
        let role = Arc::new(Role::with_patience(7, Duration::from_hours(1)));
        let workers = Workers::start("test", 1).unwrap();
        let resource = role.take_over().unwrap();
        let spare = role.clone();
        let thread = std::thread::spawn(move || assert_eq!(spare.take_over(), None));
        while lock(&role.state).spares == 0 {
            std::thread::yield_now();
        }
        let (ran, runs) = channel();
        let job = workers.defer(move || ran.send(std::thread::current().id()).unwrap());
        assert_eq!(role.run(resource, vec![job]), Some(7));
        assert_eq!(runs.recv().unwrap(), std::thread::current().id());
        assert!(role.end());
        thread.join().unwrap();
    }

    #[test]
    fn a_stuck_thread_is_known_at_each_end() {
        let role = Role::new(7);
        lock(&role.state).lends = 1;
        // The resource is lent: its thread runs a job.
        assert!(!role.end() && !role.end());
    }
}
