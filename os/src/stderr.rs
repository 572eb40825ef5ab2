//! Standard error as a log that never blocks the program ([`LogQueue`]).
//!
//! Programs call [`start`] first, write through [`Stderr`] and [`say`], and call [`flush`] before they
//! end. Threads must not use `std::io::stderr` for lines that a program writes regularly: it blocks,
//! and holds a lock in the meantime.

use crate::log_queue::{FLUSH_MAX, LogQueue, Target};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::{Errno, Result};
use rustix::net::{SendFlags, send};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::panic::PanicHookInfo;
use std::sync::OnceLock;

/// The log of this process, once [`start`] has run.
static LOG: OnceLock<LogQueue> = OnceLock::new();

/// Standard error as a writer. It writes each buffer as one line, without waiting for the reader.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stderr;

impl io::Write for Stderr {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match LOG.get() {
            Some(log) => log.write(line),
            None => io::stderr().write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes [`Stderr`] and the reports of panics independent of the reader of standard error. `report`
/// writes a line with the number of dropped lines to [`Stderr`].
pub fn start(report: fn(u64)) {
    if LOG.set(LogQueue::new(Descriptor::of(rustix::stdio::stderr()), report)).is_ok() {
        std::panic::set_hook(Box::new(report_panic));
    }
}

/// Writes a line to standard error, without waiting for the reader if [`start`] has run.
pub fn say(text: &str) {
    let _ = io::Write::write_all(&mut Stderr, format!("{text}\n").as_bytes());
}

/// Waits until the stored lines are written, for [`FLUSH_MAX`] at most. Programs call it when they end.
pub fn flush() {
    if let Some(log) = LOG.get() {
        log.flush(FLUSH_MAX);
    }
}

/// Returns the text with which a program reports that it dropped lines of its log.
pub fn dropped_text(lines: u64) -> String {
    format!("{lines} lines of the log were dropped, because its reader did not read or a write failed")
}

/// Reports a panic in the form of the standard library, whose own report would block.
fn report_panic(panic: &PanicHookInfo<'_>) {
    let Some(log) = LOG.get() else { return };
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("<unnamed>");
    let place = panic.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    let message = panic.payload_as_str().unwrap_or("Box<dyn Any>");
    let trace = Backtrace::capture();
    let trace = if trace.status() == BacktraceStatus::Captured {
        format!("stack backtrace:\n{trace}")
    } else {
        "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n".to_owned()
    };
    log.write_last(format!("\nthread '{name}' panicked at {place}:\n{message}\n{trace}").as_bytes());
    // The process may abort after this report.
    log.flush(FLUSH_MAX);
}

/// A descriptor to which a log writes. How it is written without blocking depends on its kind.
enum Descriptor<'fd> {
    /// A file. It has no reader that could stall.
    File(BorrowedFd<'fd>),
    /// A socket, to which single calls can write without blocking.
    Socket(BorrowedFd<'fd>),
    /// A pipe or a terminal, which this process has opened again. `O_NONBLOCK` belongs to an open
    /// file that other processes share, so the process cannot set it for the inherited descriptor.
    Reopened(OwnedFd),
    /// Any other descriptor: only the queue's thread writes to it.
    Other(BorrowedFd<'fd>),
}

impl<'fd> Descriptor<'fd> {
    fn of(fd: BorrowedFd<'fd>) -> Self {
        match fstat(fd).map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::RegularFile) => Self::File(fd),
            Ok(FileType::Socket) => Self::Socket(fd),
            Ok(FileType::Fifo | FileType::CharacterDevice) => {
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
                // Another user's pipe or terminal cannot be opened again.
                let reopened = open(format!("/proc/self/fd/{}", fd.as_raw_fd()), flags, Mode::empty());
                reopened.map_or(Self::Other(fd), Self::Reopened)
            }
            _ => Self::Other(fd),
        }
    }
}

impl Target for Descriptor<'static> {
    fn try_write(&self, line: &[u8]) -> Result<usize> {
        match self {
            Self::File(fd) => rustix::io::write(fd, line),
            Self::Socket(fd) => send(fd, line, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
            Self::Reopened(fd) => rustix::io::write(fd, line),
            Self::Other(_) => Err(Errno::AGAIN),
        }
    }

    fn write(&self, line: &[u8]) -> Result<usize> {
        let fd = match self {
            Self::File(fd) | Self::Socket(fd) | Self::Other(fd) => fd.as_fd(),
            Self::Reopened(fd) => fd.as_fd(),
        };
        loop {
            match rustix::io::write(fd, line) {
                // This descriptor has O_NONBLOCK, or the inherited one has got it from another process.
                Err(Errno::AGAIN) => poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::OUT)], None)?,
                done => return done,
            };
        }
    }
}

/// Returns true if standard error is a stream of systemd's journal, which adds the time to each line.
pub fn leads_to_journal() -> bool {
    is_stream(std::env::var("JOURNAL_STREAM").ok().as_deref(), io::stderr())
}

/// Returns true if `file` is the stream that the variable JOURNAL_STREAM names. The service manager
/// sets the variable at the start. The output may have been redirected since then, so the file is
/// compared.
fn is_stream(stream: Option<&str>, file: impl AsFd) -> bool {
    let named = stream.and_then(|stream| {
        let (device, inode) = stream.split_once(':')?;
        Some((device.parse::<u64>().ok()?, inode.parse::<u64>().ok()?))
    });
    named.is_some_and(|named| fstat(file).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == named))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// Writes without a reader until the target would block. Returns the number of bytes.
    fn fill(target: &Descriptor<'static>) -> usize {
        let mut written = 0;
        loop {
            match target.try_write(&[b'x'; 1000]) {
                Ok(bytes) => written += bytes,
                Err(error) => {
                    assert_eq!(error, Errno::AGAIN);
                    return written;
                }
            }
        }
    }

    /// Leaks a descriptor, as those of the standard streams live for the whole process.
    fn forever(fd: impl Into<OwnedFd>) -> BorrowedFd<'static> {
        let fd: &'static OwnedFd = Box::leak(Box::new(fd.into()));
        fd.as_fd()
    }

    #[test]
    fn pipes_terminals_and_sockets_without_a_reader_do_not_block() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let writer = forever(writer);
        assert!(fill(&Descriptor::of(writer)) >= 4096);
        // Other processes share the open file, so its flags must stay.
        assert!(!rustix::fs::fcntl_getfl(writer).unwrap().contains(OFlags::NONBLOCK));
        drop(reader);
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert!(fill(&Descriptor::of(forever(ours))) >= 1000);
        let master = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY).unwrap();
        rustix::pty::grantpt(&master).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let name = rustix::pty::ptsname(&master, Vec::new()).unwrap();
        let terminal = open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert!(fill(&Descriptor::of(forever(terminal))) >= 1000);
    }

    #[test]
    fn a_file_is_written_at_once() {
        let path = std::env::temp_dir().join(format!("tensorlend-stderr-{}", std::process::id()));
        let target = Descriptor::of(forever(std::fs::File::create(&path).unwrap()));
        assert_eq!(target.try_write(b"line\n"), Ok(5));
        assert_eq!(std::fs::read(&path).unwrap(), b"line\n");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn only_the_stream_that_is_named_is_the_journal() {
        let (file, other) = UnixStream::pair().unwrap();
        let stat = fstat(&file).unwrap();
        let stream = format!("{}:{}", stat.st_dev, stat.st_ino);
        assert!(is_stream(Some(&stream), &file));
        assert!(!is_stream(Some(&stream), &other));
        for wrong in [None, Some(""), Some("8"), Some("a:b"), Some("-1:2")] {
            assert!(!is_stream(wrong, &file), "{wrong:?}");
        }
    }
}
