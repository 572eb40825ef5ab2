//! An event: the number of its records, and the last record that the card has reached. Its words are in shared memory,
//! so that other processes wait for the event itself.

use crate::code::{Code, Done, INVALID_HANDLE, NOT_READY};
use crate::handles::Table;
use crate::pages::{self, Shared};
use crate::stream::{self, Piece, Stream};
use crate::{process, settings};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub const DISABLE_TIMING: u32 = 2;
pub const INTERPROCESS: u32 = 4;

/// Invariant: `completed <= recorded`. The event is ready when both are equal. Any process that records the event
/// writes them.
#[repr(C)]
pub struct Words {
    pub recorded: AtomicU64,
    pub completed: AtomicU64,
    /// Time at which the card reached the last record.
    at_ns: AtomicU64,
    /// The process that recorded the event last, and the time for which its card continues after the process's end.
    pid: AtomicU64,
    start: AtomicU64,
    linger_ms: AtomicU64,
}

pub struct Event {
    pub words: Shared<Words>,
    pub flags: u32,
    /// The file of an event that processes share; other events have none.
    pub file: Option<File>,
    pub device: u32,
}

pub static EVENTS: Table<Event> = Table::new();

pub fn create(flags: u32, device: u32) -> Result<u64, Code> {
    let (words, file) = if flags & INTERPROCESS == 0 {
        (Shared::anonymous()?, None)
    } else {
        let file = pages::memfd("fakecuda-event", pages::PAGE)?;
        (Shared::of_file(&file)?, Some(file))
    };
    Ok(EVENTS.add(Event { words, flags, file, device }))
}

/// Opens the event of another process.
pub fn open(file: File, flags: u32, device: u32) -> Result<u64, Code> {
    let words = Shared::of_file(&file)?;
    Ok(EVENTS.add(Event { words, flags, file: Some(file), device }))
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Event {
    pub fn record(self: &Arc<Self>, stream: &Arc<Stream>) {
        let (pid, start) = process::this();
        let linger = settings::get().linger.map_or(0, |linger| linger.as_millis() as u64);
        self.words.pid.store(pid, Ordering::Relaxed);
        self.words.start.store(start, Ordering::Relaxed);
        self.words.linger_ms.store(linger, Ordering::Relaxed);
        // Release: a process that sees the record also sees the process that made it.
        let number = self.words.recorded.fetch_add(1, Ordering::AcqRel) + 1;
        let event = self.clone();
        stream.enqueue(Piece::event(move || {
            event.words.at_ns.store(now_ns(), Ordering::Relaxed);
            // Release: a process that sees the record completed also sees the writes of the work before it.
            event.words.completed.fetch_max(number, Ordering::AcqRel);
        }));
    }

    pub fn recorded(&self) -> u64 {
        self.words.recorded.load(Ordering::Acquire)
    }

    fn reached(&self, number: u64) -> bool {
        self.words.completed.load(Ordering::Acquire) >= number
    }

    pub fn query(&self) -> Done {
        if let Some(code) = stream::fault() {
            return Err(code);
        }
        if self.reached(self.recorded()) { Ok(()) } else { Err(NOT_READY) }
    }

    /// Waits for a record. The event of a killed process never fires, as with driver 580.159, so a wait for it never
    /// ends.
    pub fn wait(&self, number: u64) {
        while !self.reached(number) {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Milliseconds from another event to this one.
    pub fn since(&self, start: &Self) -> Result<f32, Code> {
        if (self.flags | start.flags) & DISABLE_TIMING != 0 || self.recorded() == 0 || start.recorded() == 0 {
            return Err(INVALID_HANDLE);
        }
        start.query()?;
        self.query()?;
        let (from, to) = (start.words.at_ns.load(Ordering::Relaxed), self.words.at_ns.load(Ordering::Relaxed));
        Ok(((to as f64 - from as f64) / 1e6) as f32)
    }
}
