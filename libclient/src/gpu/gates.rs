//! Gates: a stream of this process waits for another process's work without depending on that process.
//!
//! The driver never fires the event of a killed process, and a stream that waits for such an event waits for ever (seen
//! with driver 580.159). So a stream waits for a word of this process instead. A thread of this process watches the other
//! process, and writes the word when the work is done, and also when the work will never be done.
//!
//! | word | writer | readers | a crash leaves |
//! |---|---|---|---|
//! | the mark in a record | the producer's stream, after its work, by a function of the host | this thread, and readers of the lease | the mark; the daemon then ends the producer's membership once its process has ended, which opens the gates |
//! | a gate | this thread, with values that only grow | streams of this process | nothing: both end with the process |
//!
//! The thread calls nothing of CUDA, and no thread calls CUDA while it holds the lock of the gates. So the thread never
//! waits for a stream that waits for the thread.
#![allow(unsafe_code)]

use super::stream::OnStream;
use super::{Gpu, trouble};
use crate::error::{Error, Result};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;
use tensorlend_cuda::copy::HostRegistration;
use tensorlend_layout::Uuid;
use tensorlend_os::memfd::Access;
use tensorlend_os::mutex::lock;
use tensorlend_os::{map, memfd, thread};

/// Bytes of the page with the gates.
const PAGE: usize = 4096;
/// The number of gates: streams of one process that can wait at once, on one device.
const GATES: usize = PAGE / size_of::<AtomicU32>();
/// Shortest and longest pause between two checks of the awaited work.
const NAP: (Duration, Duration) = (Duration::from_micros(10), Duration::from_micros(200));
/// The thread ends when no stream has waited for this time.
const IDLE: Duration = Duration::from_secs(2);

/// Returns whether the awaited work is over, done or not.
type IsOver = Box<dyn Fn() -> bool + Send>;

pub struct Gates {
    page: Page,
    state: Mutex<State>,
    bell: Condvar,
}

/// Memory that the device reads. It is never unmapped or unregistered: the device may look at a gate at any time.
struct Page {
    _view: map::Segment,
    _registration: HostRegistration,
    words: NonNull<[AtomicU32; GATES]>,
    /// The first word's address on the device.
    ptr: u64,
}

// SAFETY: the words are atomic, and the page is never unmapped.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

#[derive(Default)]
struct State {
    waits: Vec<Wait>,
    /// Gates that no stream waits for.
    free: Vec<usize>,
    has_thread: bool,
}

struct Wait {
    gate: usize,
    value: u32,
    is_over: IsOver,
}

/// The gates of all devices of this process. They live as long as the process.
static ALL: Mutex<Vec<(Uuid, &'static Gates)>> = Mutex::new(Vec::new());

impl Gates {
    pub fn of(gpu: &Gpu, doing: &str) -> Result<&'static Self> {
        let mut all = lock(&ALL);
        if let Some((_, gates)) = all.iter().find(|(uuid, _)| *uuid == gpu.uuid) {
            return Ok(gates);
        }
        let state = State { free: (0..GATES).rev().collect(), ..State::default() };
        let gates = Self { page: Page::new(gpu, doing)?, state: Mutex::new(state), bell: Condvar::new() };
        let gates: &'static Self = Box::leak(Box::new(gates));
        all.push((gpu.uuid, gates));
        Ok(gates)
    }

    /// Makes later work of a stream wait until `is_over` returns true. Does not block. Returns false if that is impossible:
    /// all gates are in use, or the device has no such wait. Then the caller must wait.
    pub fn order(&'static self, gpu: &Gpu, stream: &OnStream, is_over: IsOver, doing: &str) -> Result<bool> {
        let context = gpu.context(doing)?;
        let _current = context.enter().map_err(trouble(doing))?;
        let (at, value) = {
            let mut state = lock(&self.state);
            let Some(gate) = state.free.pop() else { return Ok(false) };
            if !self.keep_thread(&mut state) {
                state.free.push(gate);
                return Ok(false);
            }
            // The gate's last value is open for every stream that waited for it, so the next value is a new wait.
            let value = self.page.word(gate).load(Ordering::Relaxed).wrapping_add(1);
            // Before the stream waits: if the thread opens the gate first, the stream does not stop at it. If the driver
            // refuses the wait, the thread still frees the gate when the work is over.
            state.waits.push(Wait { gate, value, is_over });
            self.bell.notify_all();
            (self.page.ptr + (gate * size_of::<AtomicU32>()) as u64, value)
        };
        // Without the lock: if the stream's queue is full, the driver blocks this call until the thread opens a gate.
        // SAFETY: 1: the page stays registered as long as the process lives.
        match unsafe { stream.by_ref().wait_word(at, value) } {
            Ok(()) => Ok(true),
            Err(error) if error.is_unsupported() => Ok(false),
            Err(error) => Err(trouble(doing)(error)),
        }
    }

    /// Starts the thread if there is none.
    fn keep_thread(&'static self, state: &mut State) -> bool {
        state.has_thread = state.has_thread || thread::spawn("tensorlend-gates", move || self.run()).is_ok();
        state.has_thread
    }

    fn run(&self) {
        let mut nap = NAP.0;
        let mut state = lock(&self.state);
        loop {
            if state.waits.is_empty() {
                nap = NAP.0;
                let waited = self.bell.wait_timeout_while(state, IDLE, |state| state.waits.is_empty());
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                if state.waits.is_empty() {
                    state.has_thread = false;
                    return;
                }
            }
            let over: Vec<Wait> = state.waits.extract_if(.., |wait| (wait.is_over)()).collect();
            for wait in &over {
                // Release: a device that sees the value sees what this thread saw before.
                self.page.word(wait.gate).store(wait.value, Ordering::Release);
                state.free.push(wait.gate);
            }
            nap = if over.is_empty() { (nap * 2).min(NAP.1) } else { NAP.0 };
            drop(state);
            // Without the lock: `order` takes it.
            drop(over);
            std::thread::sleep(nap);
            state = lock(&self.state);
        }
    }
}

impl Page {
    fn new(gpu: &Gpu, doing: &str) -> Result<Self> {
        let failed = Error::system("map memory for streams to wait in");
        let fd = memfd::create("tensorlend-gates", PAGE as u64).map_err(|error| failed(error.into()))?;
        let view = map::segment(&fd, PAGE, Access::Write, true).map_err(failed)?;
        let start = NonNull::new(view.start()).expect("a mapping is not at address 0");
        let context = gpu.context(doing)?;
        // SAFETY: 1: the page keeps the mapping, and both live as long as the process.
        let registration =
            unsafe { HostRegistration::register(&context, &gpu.device, start, PAGE, true) }.map_err(trouble(doing))?;
        let ptr = registration.device_pointer().map_err(trouble(doing))?;
        Ok(Self { words: start.cast(), _view: view, _registration: registration, ptr })
    }

    fn word(&self, gate: usize) -> &AtomicU32 {
        // SAFETY: the page is mapped for writing, is aligned, and only this process has it. Its words are used only as
        // atomics.
        let words = unsafe { self.words.as_ref() };
        &words[gate]
    }
}
