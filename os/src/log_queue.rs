//! A log that never blocks the program that writes it.
//!
//! A log has a reader: a terminal, the process at the other end of a pipe, the journal. A plain
//! write blocks while the reader does not read. This module writes without blocking. As long as the
//! reader keeps up, a line is written when the call returns. Otherwise a bounded queue stores the
//! line, and a thread of its own writes it. If the queue is full, the module drops lines and counts
//! them. When the reader has read the stored lines, the module reports the count in the log. Lines
//! whose write fails, as on a full disk, count as dropped, too. Their report follows the next line
//! that is written.

use crate::mutex::lock;
use crate::thread;
use rustix::io::{Errno, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// Maximum size of the stored lines, with [`LINE_OVERHEAD`] for each line.
const BYTES_MAX: usize = 1 << 20;

/// Memory that a stored line needs besides its text.
const LINE_OVERHEAD: usize = 64;

/// Interval at which a program that ends writes stored lines itself, if no thread can be started.
const WRITE_INTERVAL: Duration = Duration::from_millis(5);

/// Maximum time for which a program that ends waits for the reader of its log.
pub const FLUSH_MAX: Duration = Duration::from_secs(1);

/// The destination of a log.
pub trait Target: Send + Sync + 'static {
    /// Writes at least one byte of a line without blocking, and returns the number of bytes.
    ///
    /// # Errors
    /// `EAGAIN` if this is not possible without blocking. After any other error, the line is lost.
    fn try_write(&self, line: &[u8]) -> Result<usize>;

    /// Writes at least one byte of a line, and returns the number of bytes. Waits for the reader.
    ///
    /// # Errors
    /// After any error but `EINTR`, the line is lost.
    fn write(&self, line: &[u8]) -> Result<usize>;
}

/// A log with its queue. Clones write to the same log.
#[derive(Clone)]
pub struct LogQueue(Arc<Shared>);

struct Shared {
    target: Box<dyn Target>,
    /// Writes a line with the number of dropped lines to this log.
    report: fn(u64),
    state: Mutex<State>,
    /// The state has changed: there is a line to write, or no line is left.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    lines: VecDeque<Line>,
    /// The size of `lines`, which [`BYTES_MAX`] limits.
    bytes: usize,
    /// Number of dropped lines that no report contains yet. While it is not 0, no line is stored: the
    /// report then stands where lines are missing.
    dropped: u64,
    /// Number of lines whose write has failed since the last successful write. A report would fail, too, so the
    /// lines count as dropped from the next successful write on.
    failed: u64,
    /// The thread that writes the stored lines. It starts when the first line is stored.
    thread: Option<ThreadId>,
    /// A line that is no longer in `lines` is being written, or dropped lines are being reported.
    is_writing: bool,
    /// The thread that reports dropped lines now, and their number.
    report: Option<(ThreadId, u64)>,
}

/// A stored line.
struct Line {
    text: Vec<u8>,
    /// Number of lines that are lost if this line is not written. A report is worth the lines that it counts.
    worth: u64,
}

fn size(line: &[u8]) -> usize {
    line.len() + LINE_OVERHEAD
}

impl State {
    fn is_idle(&self) -> bool {
        self.lines.is_empty() && !self.is_writing && self.dropped == 0
    }

    fn pop(&mut self) -> Option<Line> {
        let line = self.lines.pop_front()?;
        self.bytes -= size(&line.text);
        Some(line)
    }

    /// Notes that a line was written, or that its write failed.
    fn note(&mut self, is_written: bool, worth: u64) {
        if is_written {
            self.dropped += std::mem::take(&mut self.failed);
        } else {
            self.failed += worth;
        }
    }
}

impl LogQueue {
    /// Creates a log. `report` writes a line with the number of dropped lines to this log. The
    /// queue's thread calls it.
    pub fn new(target: impl Target, report: fn(u64)) -> Self {
        let (state, changed) = Default::default();
        Self(Arc::new(Shared { target: Box::new(target), report, state, changed }))
    }

    /// Writes a line, and does not wait for the log's reader.
    pub fn write(&self, line: &[u8]) {
        self.push(line, false);
    }

    /// Writes a line as [`Self::write`] does, and stores it even if the queue is full. Only for the
    /// last lines of a program.
    pub fn write_last(&self, line: &[u8]) {
        self.push(line, true);
    }

    /// Waits until the stored lines are written, for `time_max` at most. Returns true if they are.
    pub fn flush(&self, time_max: Duration) -> bool {
        let end = Instant::now() + time_max;
        let mut state = lock(&self.0.state);
        if state.thread == Some(std::thread::current().id()) {
            return false;
        }
        while state.thread.is_none() && !state.is_idle() {
            drop(state);
            self.0.write_without_thread();
            state = lock(&self.0.state);
            if !state.is_idle() {
                if Instant::now() >= end {
                    return false;
                }
                self.start_thread(&mut state);
                drop(state);
                std::thread::sleep(WRITE_INTERVAL);
                state = lock(&self.0.state);
            }
        }
        let left = end.saturating_duration_since(Instant::now());
        let waited = self.0.changed.wait_timeout_while(state, left, |state| !state.is_idle());
        waited.unwrap_or_else(PoisonError::into_inner).0.is_idle()
    }

    fn push(&self, line: &[u8], is_last: bool) {
        let mut state = lock(&self.0.state);
        if state.thread.is_none() && !state.is_idle() {
            drop(state);
            self.0.write_without_thread();
            state = lock(&self.0.state);
        }
        let mut rest = line;
        // The lines stay in order: a line does not overtake stored lines.
        if state.is_idle() {
            match self.0.try_write(&mut rest) {
                Err(Errno::AGAIN) => {}
                done => state.note(done.is_ok(), 1),
            }
        }
        if !rest.is_empty() {
            let current = std::thread::current().id();
            let reported = state.report.filter(|(thread, _)| *thread == current).map(|(_, lines)| lines);
            let is_part = rest.len() < line.len();
            let fits = state.dropped == 0 && state.bytes + size(rest) <= BYTES_MAX;
            if fits || is_part || is_last || reported.is_some() {
                state.bytes += size(rest);
                // Lines that other threads have stored since then come after the report.
                let at = if reported.is_some() { 0 } else { state.lines.len() };
                state.lines.insert(at, Line { text: rest.to_vec(), worth: reported.unwrap_or(1) });
            } else {
                state.dropped += 1;
            }
        }
        if !state.is_idle() {
            self.start_thread(&mut state);
            self.0.changed.notify_all();
        }
    }

    /// Starts the thread if it does not run. Without a thread, the lines stay stored until the next line or [`Self::flush`].
    fn start_thread(&self, state: &mut State) {
        if state.thread.is_none() && state.report.is_none() {
            let shared = Arc::clone(&self.0);
            let started = thread::spawn("tensorlend-log", move || shared.write_stored());
            state.thread = started.ok().map(|thread| thread.thread().id());
        }
    }
}

impl Shared {
    /// Writes the stored lines, for as long as the process runs.
    fn write_stored(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(line) = state.pop() {
                state.is_writing = true;
                drop(state);
                let is_written = self.write_line(&line.text);
                state = lock(&self.state);
                state.note(is_written, line.worth);
                state.is_writing = false;
            } else if state.dropped > 0 {
                state = self.report_dropped(state);
            } else {
                self.changed.notify_all();
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// Does the thread's work while no thread could be started, as far as this is possible without blocking.
    fn write_without_thread(&self) {
        let mut state = lock(&self.state);
        while state.thread.is_none() && !state.is_writing {
            if let Some(Line { mut text, worth }) = state.pop() {
                let mut rest = &text[..];
                let done = self.try_write(&mut rest);
                if done == Err(Errno::AGAIN) {
                    text.drain(..text.len() - rest.len());
                    state.bytes += size(&text);
                    state.lines.push_front(Line { text, worth });
                    return;
                }
                state.note(done.is_ok(), worth);
            } else if state.dropped > 0 {
                state = self.report_dropped(state);
            } else {
                return;
            }
        }
    }

    /// Stores a report of the dropped lines as the first line.
    fn report_dropped<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let dropped = std::mem::take(&mut state.dropped);
        state.is_writing = true;
        state.report = Some((std::thread::current().id(), dropped));
        drop(state);
        (self.report)(dropped);
        state = lock(&self.state);
        (state.is_writing, state.report) = (false, None);
        state
    }

    /// Writes a line without blocking, and removes the written bytes from it.
    fn try_write(&self, rest: &mut &[u8]) -> Result<()> {
        while !rest.is_empty() {
            match self.target.try_write(rest) {
                Ok(written) => *rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(error) => {
                    if error != Errno::AGAIN {
                        *rest = &[];
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Writes a line, and waits for the reader. Returns true if the whole line is written.
    fn write_line(&self, line: &[u8]) -> bool {
        let mut rest = line;
        while !rest.is_empty() {
            match self.target.write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::{PipeFlags, pipe_with};
    use std::fmt::Write as _;
    use std::io::{BufRead, BufReader};
    use std::os::fd::OwnedFd;
    use std::sync::OnceLock;

    /// The writing end of a pipe, without and with `O_NONBLOCK`.
    struct Pipe(OwnedFd, OwnedFd);

    impl Pipe {
        fn new() -> (Self, BufReader<std::fs::File>) {
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer));
            let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
            let again = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).unwrap();
            (Self(again, writer), BufReader::new(reader.into()))
        }
    }

    impl Target for Pipe {
        fn try_write(&self, line: &[u8]) -> Result<usize> {
            rustix::io::write(&self.0, line)
        }

        fn write(&self, line: &[u8]) -> Result<usize> {
            rustix::io::write(&self.1, line)
        }
    }

    #[test]
    fn lines_are_written_at_once_where_the_reader_keeps_up() {
        let (pipe, mut reader) = Pipe::new();
        let queue = LogQueue::new(pipe, |_| panic!("no line is dropped"));
        for number in 0..100_000 {
            queue.write(format!("{number}\n").as_bytes());
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            assert_eq!(line, format!("{number}\n"));
        }
        assert!(lock(&queue.0.state).thread.is_none(), "no thread was needed");
        assert!(queue.flush(Duration::ZERO));
    }

    #[test]
    fn a_reader_that_stalls_blocks_nobody_and_loses_a_counted_number_of_lines() {
        static QUEUE: OnceLock<LogQueue> = OnceLock::new();
        const LINES: u64 = 50_000;
        let (pipe, reader) = Pipe::new();
        let report = |dropped| QUEUE.get().unwrap().write(format!("dropped {dropped}\n").as_bytes());
        let queue = QUEUE.get_or_init(|| LogQueue::new(pipe, report));
        let line = |number: u64| format!("{number} {}\n", "x".repeat(80));
        for number in 0..LINES {
            queue.write(line(number).as_bytes());
        }
        assert!(!queue.flush(Duration::from_millis(1)), "the reader stalls");
        queue.write_last(b"last\n");
        let mut lines = reader.lines().map(|line| line.unwrap());
        let mut next = 0;
        let dropped = loop {
            let found = lines.next().unwrap();
            if found == "last" {
                continue;
            }
            if let Some(dropped) = found.strip_prefix("dropped ") {
                break dropped.parse::<u64>().unwrap();
            }
            assert_eq!(found + "\n", line(next), "the lines stay in order");
            next += 1;
        };
        // A megabyte is stored, and the pipe has its own buffer.
        assert!(next > 5_000 && dropped > 0, "{next} {dropped}");
        assert_eq!(next + dropped, LINES);
        // The reader keeps up again.
        assert!(queue.flush(Duration::from_mins(5)));
        queue.write(b"healthy\n");
        assert_eq!(lines.next().unwrap(), "healthy");
    }

    /// A line that fits the reader's buffer in part only is not torn.
    #[test]
    fn a_long_line_stays_whole_among_others() {
        let (pipe, reader) = Pipe::new();
        let queue = LogQueue::new(pipe, |_| panic!("no line is dropped"));
        let mut long = String::new();
        for number in 0..40_000 {
            let _ = write!(long, "{number},");
        }
        for _ in 0..3 {
            queue.write(format!("{long}\n").as_bytes());
            queue.write(b"short\n");
        }
        let lines: Vec<_> = reader.lines().take(6).map(|line| line.unwrap()).collect();
        assert!(lines.chunks(2).all(|two| two == [long.as_str(), "short"]));
    }

    #[test]
    fn a_target_without_a_reader_is_no_error() {
        let (pipe, reader) = Pipe::new();
        drop(reader);
        let queue = LogQueue::new(pipe, |_| panic!("no line is dropped"));
        queue.write(b"line\n");
        assert!(queue.flush(Duration::ZERO));
    }
}
