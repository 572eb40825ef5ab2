//! Checks of the kernel's features that tensorlend needs. This process tries each feature. So a
//! sandbox that forbids a feature has the same result as a kernel without the feature.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::system::uname;
use rustix::thread::futex::{self, Wait, WaitFlags, WaitvFlags};
use rustix::time::ClockId;
use tensorlend_os::memfd::{self, Access};
use tensorlend_os::{barrier, kernel};

use super::report::Report;

const SANDBOX: &str =
    "allow this system call in the sandbox (the container's seccomp profile, SystemCallFilter= of a unit)";

pub fn check(report: &mut Report) {
    let release = uname().release().to_string_lossy().into_owned();
    match kernel::check() {
        Ok(()) => report.ok("kernel", format!("Linux {release}")),
        Err(old) => report.fail("kernel", old.to_string(), "run a newer kernel"),
    }
    memfds(report);
    noexec(report);
    match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(pidfd) => {
            let mut polled = [PollFd::new(&pidfd, PollFlags::IN)];
            match rustix::event::poll(&mut polled, Some(&Timespec::default())) {
                Ok(0) => report.ok("pidfd", "processes can be watched"),
                other => report.fail("pidfd", format!("a living process polls as {other:?}"), "run a newer kernel"),
            }
        }
        Err(errno) => report.fail("pidfd", format!("pidfd_open: {errno}"), SANDBOX),
    }
    futexes(report);
    if barrier::register() {
        report.ok("membarrier", "threads that read need no memory fence");
    } else {
        let found = "membarrier does not work here: each lookup needs a memory fence, about 10 ns";
        report.warn("membarrier", found, SANDBOX);
    }
    clock(report);
}

/// Creates, reopens and seals a memfd as the daemon does.
fn memfds(report: &mut Report) {
    let fd = match memfd::create("tensorlend-doctor", 4096) {
        Ok(fd) => fd,
        Err(errno) => {
            let fix = match errno {
                Errno::NOMEM | Errno::NOSPC => "free memory for this process or its control group",
                _ => SANDBOX,
            };
            return report.fail("memfd", format!("memfd_create: {errno}"), fix);
        }
    };
    let sealed = memfd::reopen(fd.as_fd(), Access::Read).and_then(|_reader| {
        memfd::seal_writers(fd.as_fd())?;
        memfd::is_sealed(fd.as_fd())
    });
    match sealed {
        Ok(true) => report.ok("memfd", "memfds can be created and sealed; tensorlend does not use /dev/shm"),
        Ok(false) => report.fail("memfd", "a sealed memfd could still be changed", "run a newer kernel"),
        Err(errno) => {
            let fix = "mount /proc, and allow fcntl(F_ADD_SEALS) in the sandbox";
            report.fail("memfd", format!("a memfd cannot be reopened and sealed: {errno}"), fix);
        }
    }
    match memfd::is_quiescent(fd.as_fd()) {
        Ok(_) => report.ok("file leases", "the kernel reports whether a process can still write memory"),
        Err(errno) => {
            let fix = "run sysctl fs.leases-enable=1, and allow fcntl(F_SETLEASE) in the sandbox";
            report.fail("file leases", format!("F_SETLEASE on a memfd: {errno}"), fix);
        }
    }
}

fn noexec(report: &mut Report) {
    let path = "/proc/sys/vm/memfd_noexec";
    match std::fs::read_to_string(path) {
        // tensorlend sets the flag of each memfd explicitly, so it works with any value of this
        // setting.
        Ok(value) => report.ok(
            "memfd_noexec",
            format!("vm.memfd_noexec is {}: tensorlend's memfds are never executable", value.trim()),
        ),
        Err(_) => report.ok("memfd_noexec", "this kernel (before 6.3), or this namespace, has no vm.memfd_noexec"),
    }
}

/// Checks `futex_waitv` by a wait on a word with an unexpected value. Where the system call exists,
/// it returns at once.
fn futexes(report: &mut Report) {
    let mut wait = Wait::new();
    let value = std::sync::atomic::AtomicU32::new(1);
    wait.uaddr = futex::WaitPtr::new(std::ptr::from_ref(&value).cast_mut().cast());
    wait.flags = WaitFlags::SIZE_U32;
    match futex::waitv(&[wait], WaitvFlags::empty(), None, ClockId::Monotonic) {
        Ok(_) | Err(Errno::AGAIN) => report.ok("futex_waitv", "a thread can wait for several futexes"),
        Err(errno) => {
            let found =
                format!("futex_waitv: {errno}; a thread that waits for several futexes polls every millisecond");
            report.warn("futex_waitv", found, SANDBOX);
        }
    }
}

/// Ages and lifetimes use `CLOCK_BOOTTIME`, so the daemon and its clients must be in the same time namespace.
fn clock(report: &mut Report) {
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let boottime = offsets.lines().find_map(|line| line.strip_prefix("boottime"));
    if boottime.is_some_and(|words| words.split_ascii_whitespace().any(|word| word != "0")) {
        let fix = "run daemon and clients in one time namespace";
        return report.warn("clock", "this is a time namespace: ages and times to live differ from the daemon's", fix);
    }
    let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    match source.as_deref().map(str::trim) {
        Ok(slow @ ("hpet" | "acpi_pm" | "jiffies" | "refined-jiffies")) => {
            let begun = Instant::now();
            for _ in 0..100 {
                std::hint::black_box(Instant::now());
            }
            let each = begun.elapsed().max(Duration::from_nanos(1)) / 100;
            let fix =
                "find out why the kernel does not use the TSC (see the kernel's log), or boot with clocksource=tsc";
            report.warn("clock", format!("the clock source is {slow}: reading the clock takes {each:?}"), fix);
        }
        Ok(source) => report.ok("clock", source.to_owned()),
        Err(_) => report.ok("clock", "the kernel does not show the clock source here"),
    }
}
