//! A log of every allocation, as CSV that `tensorlend replay` can replay.
//!
//! An allocating thread stores an event in memory, under a lock that it holds for a few nanoseconds. The log's own
//! thread writes the collected events as text, and sleeps while there are none.

use crate::error::{Error, Result};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tensorlend_layout::number::SlotNo;
use tensorlend_os::clock::duration_ns;
use tensorlend_os::fork;
use tensorlend_os::mutex::lock;

/// The first line of a log file: the names of the columns.
const HEAD: &str = "thread,time_ns,action,slot,generation,bytes\n";
/// The number of events at which the allocating thread wakes the writing thread.
const BATCH: usize = 4096;
/// The time after which the writing thread writes the collected events, even if they are fewer than [`BATCH`].
const GATHER: Duration = Duration::from_millis(100);
/// Maximum number of waiting events (40 MiB). If the disk is slower, the log counts and drops further events.
const EVENTS_MAX: usize = 1 << 20;

/// An event of a slot.
#[derive(Clone, Copy)]
pub enum Action {
    Allocate,
    Free,
    Failure,
    /// The log has lost events here. The field for the bytes contains their number.
    Lost,
}

impl Action {
    fn word(self) -> &'static str {
        match self {
            Self::Allocate => "allocate",
            Self::Free => "free",
            Self::Failure => "allocate failure",
            Self::Lost => "lost",
        }
    }
}

struct Event {
    time_ns: u64,
    generation: u64,
    bytes: u64,
    slot: SlotNo,
    thread: u32,
    action: Action,
}

/// The events that wait. Invariant: `pushed - written` events wait here or are being written.
#[derive(Default)]
struct State {
    events: Vec<Event>,
    lost: u64,
    pushed: u64,
    written: u64,
    /// True if a thread waits until all events are written.
    flushing: bool,
    closing: bool,
    error: Option<io::Error>,
}

struct Shared {
    state: Mutex<State>,
    /// Signals that there are enough events to write.
    news: Condvar,
    /// Signals that events were written.
    done: Condvar,
}

/// An open log. Dropping it writes the collected events.
pub struct Log {
    shared: Arc<Shared>,
    start: Instant,
    writer: Option<JoinHandle<()>>,
    forks: u64,
}

impl Log {
    /// Opens a log. Replaces an existing file.
    pub fn create(path: &Path) -> Result<Self> {
        let fail = |cause: io::Error| Error::System {
            doing: "open the allocation log",
            cause: io::Error::new(cause.kind(), format!("{}: {cause}", path.display())),
        };
        let mut file = BufWriter::with_capacity(1 << 16, File::create(path).map_err(fail)?);
        file.write_all(HEAD.as_bytes()).and_then(|()| file.flush()).map_err(fail)?;
        Self::start(file)
    }

    fn start(file: BufWriter<File>) -> Result<Self> {
        let state = State { events: Vec::with_capacity(2 * BATCH), ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), news: Condvar::new(), done: Condvar::new() });
        let theirs = shared.clone();
        let writer = tensorlend_os::thread::spawn("tensorlend-log", move || theirs.write(file))
            .map_err(Error::system("start the allocation log's thread"))?;
        Ok(Self { shared, start: Instant::now(), writer: Some(writer), forks: fork::generation() })
    }

    pub fn push(&self, action: Action, slot: SlotNo, generation: u64, bytes: u64) {
        let thread = this_thread();
        let mut state = lock(&self.shared.state);
        if state.error.is_some() {
            return;
        }
        if state.events.len() >= EVENTS_MAX {
            state.lost += 1;
            return;
        }
        // Read the time under the lock, so that the lines are sorted by time.
        let time_ns = duration_ns(self.start.elapsed());
        state.events.push(Event { time_ns, generation, bytes, slot, thread, action });
        state.pushed += 1;
        let waiting = state.events.len();
        drop(state);
        if waiting == 1 || waiting == BATCH {
            self.shared.news.notify_one();
        }
    }

    /// Blocks until all pushed events are in the file.
    pub fn flush(&self) -> Result<()> {
        if self.forks != fork::generation() {
            return Ok(());
        }
        let mut state = lock(&self.shared.state);
        let target = state.pushed;
        while state.written < target && state.error.is_none() {
            state.flushing = true;
            self.shared.news.notify_one();
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match &state.error {
            // Keep the error for every later caller, because the log is incomplete from there on.
            Some(e) => {
                Err(Error::System { doing: "write the allocation log", cause: io::Error::new(e.kind(), e.to_string()) })
            }
            None => Ok(()),
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        if self.forks != fork::generation() {
            // The thread and its file belong to the parent, and the child may never get the lock.
            std::mem::forget(writer);
            return;
        }
        lock(&self.shared.state).closing = true;
        self.shared.news.notify_one();
        let _ = writer.join();
    }
}

impl Shared {
    /// The main function of the writing thread. It writes until the log is closed and all events are written.
    fn write(&self, mut file: BufWriter<File>) {
        let mut batch = Vec::with_capacity(2 * BATCH);
        let mut state = lock(&self.state);
        loop {
            state = self.gather(state);
            std::mem::swap(&mut state.events, &mut batch);
            let lost = std::mem::take(&mut state.lost);
            let (closing, broken) = (state.closing, state.error.is_some());
            state.flushing = false;
            drop(state);
            let outcome = if broken { Ok(()) } else { write_events(&mut file, &batch, lost) };
            state = lock(&self.state);
            state.written += batch.len() as u64;
            if let Err(e) = outcome {
                state.error.get_or_insert(e);
            }
            batch.clear();
            self.done.notify_all();
            if closing && state.events.is_empty() {
                return;
            }
        }
    }

    /// Sleeps until there is an event, and then until there are `BATCH` events or the time `GATHER` has passed.
    fn gather<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        let idle = |state: &mut State| state.events.is_empty() && !state.closing && !state.flushing;
        let few = |state: &mut State| state.events.len() < BATCH && !state.closing && !state.flushing;
        let state = self.news.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
        self.news.wait_timeout_while(state, GATHER, few).unwrap_or_else(PoisonError::into_inner).0
    }
}

fn write_events(file: &mut impl Write, events: &[Event], lost: u64) -> io::Result<()> {
    for e in events {
        let action = e.action.word();
        writeln!(file, "{},{},{action},{},{},{}", e.thread, e.time_ns, e.slot, e.generation, e.bytes)?;
    }
    if lost > 0 {
        let time_ns = events.last().map_or(0, |e| e.time_ns);
        writeln!(file, "0,{time_ns},{},0,0,{lost}", Action::Lost.word())?;
    }
    file.flush()
}

/// The kernel's number for this thread.
fn this_thread() -> u32 {
    thread_local! {
        static NUMBER: u32 = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
    }
    NUMBER.with(|number| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_what_is_missing() {
        let event = |action| Event { time_ns: 5, generation: 2, bytes: 64, slot: SlotNo::new(7), thread: 9, action };
        let mut text = Vec::new();
        write_events(&mut text, &[event(Action::Allocate), event(Action::Free), event(Action::Failure)], 3).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text, "9,5,allocate,7,2,64\n9,5,free,7,2,64\n9,5,allocate failure,7,2,64\n0,5,lost,0,0,3\n");
    }

    /// Every write to /dev/full fails.
    #[test]
    fn a_full_disk_is_told_and_blocks_nobody() {
        let full = Path::new("/dev/full");
        let Err(e) = Log::create(full) else { panic!("the head was written") };
        assert!(e.to_string().contains("/dev/full"), "{e}");

        let log = Log::start(BufWriter::new(File::options().write(true).open(full).unwrap())).unwrap();
        log.flush().unwrap();
        for _ in 0..2 {
            log.push(Action::Allocate, SlotNo::new(1), 1, 64);
            let e = log.flush().unwrap_err();
            assert!(e.to_string().contains("write the allocation log"), "{e}");
        }
    }
}
