//! Forked children that wait for their parent, and then check their values.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tensorlend::Client;
use tensorlend_tests::{PATIENCE, eventually};

/// The value that children read.
pub const VALUE: [u64; 3] = [1, 2, 3];

/// Replaces many values of the size of [`VALUE`]: a slot that is free is used again.
pub fn write_a_lot(owner: &Client) {
    for round in 0..200u64 {
        owner.put("other", &[round; 3]).unwrap();
    }
    owner.delete("other").unwrap();
}

/// Waits until no lease of a child is left.
pub fn comes_back(owner: &Client) {
    eventually("the end of the children's leases", || {
        write_a_lot(owner);
        owner.instruments().leased().unwrap() == 0
    });
}

/// A forked process. It checks its values on the order of the test.
pub struct Child {
    pub pid: libc::pid_t,
    pub reports: PipeReader,
    pub resume: PipeWriter,
}

impl Child {
    /// Forks; see [`forked`].
    pub fn fork<C: FnOnce() -> bool>(work: impl FnOnce() -> C) -> Self {
        let ((reports, report), (wait, resume)) = (pipe().unwrap(), pipe().unwrap());
        Self { pid: forked(report, wait, work), reports, resume }
    }

    /// Waits for a report.
    pub fn report(&mut self) -> char {
        let mut byte = [0];
        self.reports.read_exact(&mut byte).expect("the child reports before it ends");
        byte[0].into()
    }

    /// Tells the child to check its values, and asserts that all are correct.
    pub fn finish(mut self) {
        self.resume.write_all(&[0]).unwrap();
        assert_eq!(self.report(), '+', "what the child reads has changed");
        self.wait();
    }

    /// Waits for the child's end.
    pub fn wait(&self) {
        // SAFETY: waits for a child of this process, or returns at once.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}

/// Forks. The child reports once after `work`, waits, calls what `work` returned, and reports its result. Returns its number.
pub fn forked<C: FnOnce() -> bool>(
    mut report: PipeWriter,
    mut wait: PipeReader,
    work: impl FnOnce() -> C,
) -> libc::pid_t {
    // SAFETY: the thread that forks is the only one of this process that holds a lock.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no fork");
    if pid > 0 {
        return pid;
    }
    // SAFETY: touches no memory. The alarm kills a child that hangs.
    unsafe { libc::alarm(PATIENCE.as_secs() as u32) };
    let done = catch_unwind(AssertUnwindSafe(|| {
        let check = work();
        report.write_all(b"1").unwrap();
        wait.read_exact(&mut [0]).unwrap();
        check()
    }));
    let _ = report.write_all(if done.unwrap_or(false) { b"+" } else { b"-" });
    // SAFETY: ends the process without running inherited destructors.
    unsafe { libc::_exit(0) }
}
