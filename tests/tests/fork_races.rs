//! Forks in the middle of other work: concurrent work of the parent's other threads, memory that no lease protects, and
//! a child that forks.
//!
//! Like `fork.rs`, this test runs without the test harness. A handler of `pthread_atfork` acts for another thread, so
//! that its work happens between the library's own handlers.
#![allow(unsafe_code)]

#[path = "fork/child.rs"]
mod child;

use child::{Child, VALUE, comes_back, forked, write_a_lot};
use std::cell::Cell;
use std::io::{Write, pipe};
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tensorlend::{Client, DType, Lease, Tensor};
use tensorlend_tests::{Daemon, harness};

/// Work between the library's handler before a fork and the fork.
static WORK: Mutex<Option<Box<dyn FnOnce() + Send>>> = Mutex::new(None);

fn owner() -> (Daemon, Client) {
    let daemon = Daemon::start("");
    let owner = daemon.client();
    owner.put("x", &VALUE).unwrap();
    owner.put("y", &VALUE).unwrap();
    (daemon, owner)
}

fn is_refused(lease: &Lease) -> bool {
    std::panic::set_hook(Box::new(|_| {}));
    !lease.validate() && catch_unwind(AssertUnwindSafe(|| lease.bytes().len())).is_err()
}

fn a_lease_that_a_thread_takes_during_the_fork() {
    static TAKEN: Mutex<Option<Lease>> = Mutex::new(None);
    let (daemon, owner) = owner();
    let reader = daemon.client();
    let lease = reader.get("x").unwrap();
    let takes = reader.clone();
    *WORK.lock().unwrap() = Some(Box::new(move || *TAKEN.lock().unwrap() = Some(takes.get("y").unwrap())));
    let mut child = Child::fork(|| {
        || {
            let taken = TAKEN.lock().unwrap();
            let taken = taken.as_ref().expect("it was taken before the fork");
            !taken.validate() && lease.validate() && lease.as_slice::<u64>().unwrap() == VALUE
        }
    });
    assert_eq!(child.report(), '1');
    assert!(TAKEN.lock().unwrap().take().unwrap().validate());
    drop(lease);
    owner.delete("x").unwrap();
    owner.delete("y").unwrap();
    write_a_lot(&owner);
    child.finish();
    comes_back(&owner);
}

/// A cursor protects a borrowed message, and moves on when the parent drops it. The bytes of a small message are in its entry.
fn a_borrowed_message_stays_with_the_parent() {
    for elements in [3, 300] {
        let (daemon, owner) = owner();
        let stream = owner.stream("stream").capacity(2).open().unwrap();
        let reader = daemon.client();
        let lease = reader.get("x").unwrap();
        let mut subscription = reader.subscribe("stream").unwrap();
        let send = |value: u64| {
            let mut draft = owner.create(DType::U64, &[elements]).unwrap();
            draft.as_mut_slice::<u64>().unwrap().fill(value);
            stream.send(draft).unwrap()
        };
        let has = |tensor: &Tensor, value: u64| tensor.as_slice::<u64>().unwrap().iter().all(|&it| it == value);
        send(1);
        drop(subscription.try_borrow().unwrap().expect("it was sent"));
        send(2);
        let borrowed = subscription.try_borrow().unwrap().expect("it was sent");
        assert!(has(borrowed.tensor().unwrap(), 2));
        let mut child = Child::fork(|| {
            || {
                std::panic::set_hook(Box::new(|_| {}));
                let read = catch_unwind(AssertUnwindSafe(|| borrowed.tensor().unwrap().bytes().len()));
                !borrowed.validate() && read.is_err() && lease.as_slice::<u64>().unwrap() == VALUE
            }
        });
        assert_eq!(child.report(), '1');
        drop(borrowed);
        for round in 0..100 {
            send(100 + round);
            assert!(has(subscription.recv().unwrap().tensor().unwrap(), 100 + round));
        }
        child.finish();
    }
}

/// A child that reads its parent's leases, and has one of its own that it cannot pass on.
fn a_grandchild_without_a_token() {
    let (daemon, owner) = owner();
    let lease = daemon.client().get("x").unwrap();
    let mut child = Child::fork(|| {
        let own = daemon.client().get("y").unwrap();
        let ((reports, report), (wait, resume)) = (pipe().unwrap(), pipe().unwrap());
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: sets the limit from a local variable; open descriptors stay open.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) }, 0);
        let pid = forked(report, wait, || || is_refused(&own) && is_refused(&lease));
        let mut grandchild = Child { pid, reports, resume };
        assert_eq!(grandchild.report(), '1');
        move || {
            grandchild.finish();
            lease.validate() && lease.as_slice::<u64>().unwrap() == VALUE
        }
    });
    assert_eq!(child.report(), '1');
    child.finish();
    drop(owner);
}

/// A child closes all descriptors, as daemons do, and opens others, which then have the numbers of the parent's.
fn a_child_closes_no_descriptor_but_its_own() {
    let (daemon, owner) = owner();
    let lease = daemon.client().get("x").unwrap();
    let mut first = Child::fork(|| || true);
    assert_eq!(first.report(), '1');
    let ((reports, report), (wait, resume)) = (pipe().unwrap(), pipe().unwrap());
    // SAFETY: the thread that forks is the only one of this process that holds a lock.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let whole = catch_unwind(|| {
            let limit = 64;
            let pipes = [report.as_raw_fd(), wait.as_raw_fd()];
            for number in (3..limit).filter(|number| !pipes.contains(number)) {
                // SAFETY: the child owns all its descriptors, and uses none of them any more, except the two pipes.
                unsafe { libc::close(number) };
            }
            let mine: Vec<OwnedFd> = (0..limit).map(|_| std::fs::File::open("/dev/null").unwrap().into()).collect();
            let own = daemon.client();
            assert_eq!(own.get("y").unwrap().as_slice::<u64>().unwrap(), VALUE);
            // SAFETY: asks whether a number is a descriptor.
            assert!(mine.iter().all(|fd| unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) } >= 0));
        });
        let _ = (&report).write_all(if whole.is_ok() { b"+" } else { b"-" });
        // SAFETY: ends the process without running inherited destructors.
        unsafe { libc::_exit(0) }
    }
    drop(report);
    let mut child = Child { pid, reports, resume };
    assert_eq!(child.report(), '+', "the child has lost a descriptor");
    child.wait();
    first.finish();
    drop((wait, lease, owner));
}

/// The destructors of a thread's values may fork after those of the library.
fn a_thread_forks_as_it_ends() {
    struct Forks;
    impl Drop for Forks {
        fn drop(&mut self) {
            *FORKED.lock().unwrap() = Some(Child::fork(|| || true));
        }
    }
    thread_local!(static AT_END: Cell<Option<Forks>> = const { Cell::new(None) });
    static FORKED: Mutex<Option<Child>> = Mutex::new(None);
    let (daemon, owner) = owner();
    let reader = daemon.client();
    let lease = reader.get("x").unwrap();
    let thread = std::thread::spawn(|| {
        AT_END.set(Some(Forks));
        let mut child = Child::fork(|| || true);
        assert_eq!(child.report(), '1');
        child.finish();
    });
    thread.join().unwrap();
    let mut child = FORKED.lock().unwrap().take().unwrap();
    assert_eq!(child.report(), '1');
    child.finish();
    drop(lease);
    owner.delete("x").unwrap();
    comes_back(&owner);
}

/// Two threads fork while others lease, connect and replace values.
fn threads_lease_while_others_fork() {
    const WORDS: usize = 512;
    let daemon = Daemon::start("");
    let (owner, reader) = (daemon.client(), daemon.client());
    let fill = |value: u64| {
        owner.put("x", &[value; WORDS]).unwrap();
    };
    fill(0);
    let over = AtomicBool::new(false);
    let is_running = || !over.load(Ordering::Relaxed);
    let fork = || {
        for _ in 0..40 {
            let lease = reader.get("x").unwrap();
            let words = lease.as_slice::<u64>().unwrap();
            // SAFETY: the child makes system calls, reads leased memory, and nothing else.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                let stays = (0..40).all(|_| {
                    // SAFETY: touches no memory.
                    unsafe { libc::usleep(500) };
                    words.iter().all(|&word| word == words[0]) && lease.validate()
                });
                // SAFETY: ends the process without running inherited destructors.
                unsafe { libc::_exit(i32::from(!stays)) };
            }
            drop(lease);
            let mut status = 0;
            // SAFETY: waits for the child, and writes to a local variable.
            let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
            assert_eq!((waited, status), (pid, 0), "what a child reads has changed");
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 0;
            while is_running() {
                value += 1;
                fill(value);
            }
        });
        scope.spawn(|| {
            while is_running() {
                drop(daemon.client().get("x").unwrap());
            }
        });
        for _ in 0..4 {
            scope.spawn(|| {
                while is_running() {
                    let lease = reader.get("x").unwrap();
                    let words = lease.as_slice::<u64>().unwrap();
                    assert!(words.iter().all(|&word| word == words[0]));
                }
            });
        }
        let done = [scope.spawn(fork), scope.spawn(fork)].map(|thread| thread.join().is_ok());
        over.store(true, Ordering::Relaxed);
        assert_eq!(done, [true; 2]);
    });
    owner.delete("x").unwrap();
    comes_back(&owner);
}

/// The tests by name, as harnesses list them.
const TESTS: [(&str, fn()); 6] = [
    ("threads_lease_while_others_fork", threads_lease_while_others_fork),
    ("a_lease_that_a_thread_takes_during_the_fork", a_lease_that_a_thread_takes_during_the_fork),
    ("a_borrowed_message_stays_with_the_parent", a_borrowed_message_stays_with_the_parent),
    ("a_grandchild_without_a_token", a_grandchild_without_a_token),
    ("a_child_closes_no_descriptor_but_its_own", a_child_closes_no_descriptor_but_its_own),
    ("a_thread_forks_as_it_ends", a_thread_forks_as_it_ends),
];

fn main() -> std::process::ExitCode {
    extern "C" fn before() {
        let work = WORK.lock().unwrap().take();
        if let Some(work) = work {
            work();
        }
    }
    // SAFETY: the function is part of the program, and a panic in it ends the process. Registered before the library's, so that
    // it runs after the library's.
    assert_eq!(unsafe { libc::pthread_atfork(Some(before), None, None) }, 0);
    harness::main(&TESTS)
}
