//! A stream: pieces of work in order, done by a thread of its own.
//!
//! Invariants: `done <= submitted`, and the pieces `done+1..=submitted` are in the queue, or the worker is doing them.
//! A piece is done when all earlier ones are. Work that must follow work of another stream names that stream and the
//! number of its last piece.

use crate::code::{Code, Done, ILLEGAL_ADDRESS, INVALID_CONTEXT, INVALID_HANDLE, NOT_READY};
use crate::handles::Table;
use crate::linger::{self, Mirror};
use crate::regions::Touch;
use crate::{context, settings};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub const NON_BLOCKING: u32 = 1;

pub struct Piece {
    pub touches: Vec<Touch>,
    /// True for work of the card. Other work is the driver's own, and is lost when the process dies.
    pub on_card: bool,
    /// True for work that is done even after a fault, so that waits for it end.
    pub always: bool,
    pub run: Box<dyn Fn() + Send>,
}

impl Piece {
    pub fn card(touches: Vec<Touch>, run: impl Fn() + Send + 'static) -> Self {
        Self { touches, on_card: true, always: false, run: Box::new(run) }
    }

    pub fn event(run: impl Fn() + Send + 'static) -> Self {
        Self { touches: Vec::new(), on_card: true, always: true, run: Box::new(run) }
    }

    pub fn host(run: impl Fn() + Send + 'static) -> Self {
        Self { touches: Vec::new(), on_card: false, always: true, run: Box::new(run) }
    }
}

type After = Vec<(Arc<Stream>, u64)>;

struct Queued {
    number: u64,
    after: After,
    piece: Piece,
    helper: Option<libc::pid_t>,
}

struct State {
    queue: VecDeque<Queued>,
    submitted: u64,
    done: u64,
    started: bool,
    closing: bool,
}

pub struct Stream {
    pub id: u64,
    pub device: u32,
    pub context: u64,
    pub flags: u32,
    pub priority: i32,
    legacy: bool,
    state: Mutex<State>,
    changed: Condvar,
    mirror: Mirror,
}

/// The `CUresult` of a kernel that accessed invalid memory. It remains, like a context's error.
static FAULT: AtomicU32 = AtomicU32::new(0);

pub fn fault() -> Option<Code> {
    match FAULT.load(Ordering::Acquire) {
        0 => None,
        code => Some(Code(code)),
    }
}

static STREAMS: Table<Stream> = Table::new();

/// Per device: the default stream that all threads share.
static LEGACY: Mutex<Option<HashMap<u32, Arc<Stream>>>> = Mutex::new(None);

/// Blocking streams that have no handle: the threads' own default streams.
static UNNAMED: Mutex<Vec<Arc<Stream>>> = Mutex::new(Vec::new());

thread_local! {
    static OWN: RefCell<HashMap<u32, Arc<Stream>>> = RefCell::new(HashMap::new());
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stream {
    fn new(device: u32, context: u64, flags: u32, priority: i32, legacy: bool) -> Self {
        let state = State { queue: VecDeque::new(), submitted: 0, done: 0, started: false, closing: false };
        let (state, changed, mirror) = (Mutex::new(state), Condvar::new(), Mirror::new());
        Self { id: crate::handles::fresh(), device, context, flags, priority, legacy, state, changed, mirror }
    }

    /// Adds a piece to the end of the queue. Returns its number, for waits.
    pub fn enqueue(self: &Arc<Self>, piece: Piece) -> u64 {
        let after = self.implied();
        let mut state = lock(&self.state);
        while settings::get().depth.is_some_and(|depth| state.submitted - state.done >= depth) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.submitted += 1;
        let number = state.submitted;
        let helper = if piece.on_card { self.mirror.prepare(number, &after, &piece) } else { None };
        state.queue.push_back(Queued { number, after, piece, helper });
        if !state.started {
            state.started = true;
            let stream = self.clone();
            std::thread::Builder::new().name("fakecuda".into()).spawn(move || stream.work()).expect("a thread");
        }
        drop(state);
        self.changed.notify_all();
        number
    }

    /// The default stream waits for all blocking streams, and they wait for it.
    fn implied(&self) -> After {
        let pending = |stream: Arc<Self>| {
            let state = lock(&stream.state);
            let number = state.submitted;
            let open = state.done < number;
            drop(state);
            open.then_some((stream, number))
        };
        if self.legacy {
            blocking(self.device).into_iter().filter_map(pending).collect()
        } else if self.flags & NON_BLOCKING == 0 {
            lock(&LEGACY)
                .as_ref()
                .and_then(|legacy| legacy.get(&self.device))
                .cloned()
                .and_then(pending)
                .into_iter()
                .collect()
        } else {
            Vec::new()
        }
    }

    fn work(&self) {
        loop {
            let mut state = lock(&self.state);
            let Queued { number, after, piece, helper } = loop {
                if let Some(next) = state.queue.pop_front() {
                    break next;
                }
                if state.closing {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            for (stream, number) in &after {
                stream.wait(*number);
            }
            while settings::gates().iter().any(|gate| gate.exists()) {
                std::thread::sleep(Duration::from_millis(1));
            }
            if fault().is_none() && !piece.touches.iter().all(Touch::is_allowed) {
                FAULT.store(ILLEGAL_ADDRESS.0, Ordering::Release);
            }
            if piece.always || fault().is_none() {
                (piece.run)();
            }
            self.mirror.done(number);
            lock(&self.state).done = number;
            self.changed.notify_all();
            linger::dismiss(helper);
        }
    }

    pub fn submitted(&self) -> u64 {
        lock(&self.state).submitted
    }

    pub fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    pub fn wait(&self, number: u64) {
        let mut state = lock(&self.state);
        while state.done < number {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn synchronize(&self) -> Done {
        for (stream, number) in self.implied() {
            stream.wait(number);
        }
        self.wait(self.submitted());
        fault().map_or(Ok(()), Err)
    }

    pub fn query(&self) -> Done {
        let state = lock(&self.state);
        match fault() {
            Some(code) => Err(code),
            None if state.done < state.submitted || !self.implied_by_legacy() => Err(NOT_READY),
            None => Ok(()),
        }
    }

    /// Returns true if all streams that the default stream waits for have no pending work.
    fn implied_by_legacy(&self) -> bool {
        !self.legacy || self.implied().is_empty()
    }
}

fn blocking(device: u32) -> Vec<Arc<Stream>> {
    let named = STREAMS.all().into_iter().map(|(_, stream)| stream);
    let all = named.chain(lock(&UNNAMED).clone());
    all.filter(|stream| stream.device == device && stream.flags & NON_BLOCKING == 0).collect()
}

pub fn legacy(device: u32, context: u64) -> Arc<Stream> {
    let mut map = lock(&LEGACY);
    let make = || Arc::new(Stream::new(device, context, 0, 0, true));
    map.get_or_insert_default().entry(device).or_insert_with(make).clone()
}

fn own(device: u32, context: u64) -> Arc<Stream> {
    OWN.with_borrow_mut(|streams| {
        let make = || {
            let stream = Arc::new(Stream::new(device, context, 0, 0, false));
            lock(&UNNAMED).push(stream.clone());
            stream
        };
        streams.entry(device).or_insert_with(make).clone()
    })
}

/// The stream of a handle: 0 and 1 are the default stream of all threads, 2 the thread's own.
pub fn find(handle: u64) -> Result<Arc<Stream>, Code> {
    if handle > 2 {
        return STREAMS.get(handle);
    }
    let context = context::current().ok_or(INVALID_CONTEXT)?;
    Ok(if handle == 2 { own(context.device, context.handle) } else { legacy(context.device, context.handle) })
}

pub fn create(flags: u32, priority: i32) -> Result<u64, Code> {
    let context = context::current().ok_or(INVALID_CONTEXT)?;
    Ok(STREAMS.add(Stream::new(context.device, context.handle, flags, priority.clamp(-5, 0), false)))
}

/// Destroys the stream. The card still does the queued work.
pub fn destroy(handle: u64) -> Done {
    if handle <= 2 {
        return Err(INVALID_HANDLE);
    }
    let stream = STREAMS.remove(handle)?;
    lock(&stream.state).closing = true;
    stream.changed.notify_all();
    Ok(())
}

/// Waits until the device has done all work of this process.
pub fn synchronize_all(device: u32) -> Done {
    let named = STREAMS.all().into_iter().map(|(_, stream)| stream);
    let unnamed = lock(&UNNAMED).clone();
    let legacy = lock(&LEGACY).as_ref().and_then(|map| map.get(&device)).cloned();
    for stream in named.chain(unnamed).chain(legacy).filter(|stream| stream.device == device) {
        stream.wait(stream.submitted());
    }
    fault().map_or(Ok(()), Err)
}
