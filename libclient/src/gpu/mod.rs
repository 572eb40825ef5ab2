//! A device in use by this process: its context, and events for reuse.

pub mod gates;
pub mod stream;

use crate::error::{DeviceTrouble, Error, Result};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use stream::OnStream;
use tensorlend_cuda::{Context, Driver, Event, Stream};
use tensorlend_layout::{Device, Uuid};
use tensorlend_os::mutex::lock;

/// Maximum numbers of events and of streams kept for reuse.
const EVENTS_KEPT: usize = 64;
const STREAMS_KEPT: usize = 8;

/// One device of this process.
pub struct Gpu {
    pub device: tensorlend_cuda::Device,
    pub uuid: Uuid,
    /// The device's context, which the first device work creates. Mapping needs no context, and a context takes some
    /// hundred MiB of the device's memory.
    context: Mutex<Option<Context>>,
    events: Mutex<Vec<Event>>,
    streams: Mutex<Vec<Stream>>,
}

/// The devices in use. All sessions of this process share them.
static GPUS: Mutex<Vec<Weak<Gpu>>> = Mutex::new(Vec::new());

/// Converts an error of the driver.
pub fn trouble(doing: &str) -> impl Fn(tensorlend_cuda::Error) -> Error + '_ {
    move |error| {
        let cause = if error.is_forked() {
            return Error::Forked;
        } else if let Some(unavailable) = error.unavailable() {
            DeviceTrouble::NoDriver(unavailable.to_string())
        } else if error.is_out_of_memory() {
            DeviceTrouble::Memory(format!("({error})"))
        } else if error.is_unsupported() {
            DeviceTrouble::Unsupported(error.to_string())
        } else {
            DeviceTrouble::Driver(error.to_string())
        };
        Error::Device { doing: doing.to_owned(), cause }
    }
}

fn driver(doing: &str) -> Result<&'static Driver> {
    Driver::get().map_err(|unavailable| trouble(doing)(unavailable.into()))
}

impl Gpu {
    pub fn find(uuid: Uuid, doing: &str) -> Result<Arc<Self>> {
        let driver = driver(doing)?;
        let mut all = lock(&GPUS);
        if let Some(gpu) = all.iter().filter_map(Weak::upgrade).find(|gpu| gpu.uuid == uuid) {
            return Ok(gpu);
        }
        let devices = driver.devices().map_err(trouble(doing))?;
        let device = devices.into_iter().find(|device| device.uuid() == uuid);
        let cause = DeviceTrouble::NotVisible(uuid);
        let device = device.ok_or_else(|| Error::Device { doing: doing.to_owned(), cause })?;
        let gpu = Arc::new(Self {
            device,
            uuid,
            context: Mutex::new(None),
            events: Mutex::new(Vec::new()),
            streams: Mutex::new(Vec::new()),
        });
        all.retain(|gpu| gpu.strong_count() > 0);
        all.push(Arc::downgrade(&gpu));
        Ok(gpu)
    }

    /// Returns a device on which this process already has a context. Neither loads the driver nor creates a context.
    pub fn in_use() -> Option<Arc<Self>> {
        let devices = Driver::in_use()?.devices().ok()?;
        let device = devices.into_iter().find(|device| Context::is_primary_active(device).unwrap_or(false))?;
        Self::find(device.uuid(), "lock pages").ok()
    }

    pub fn uuid_at(device: Device, doing: &str) -> Result<Uuid> {
        if device.kind() != Device::cuda(0).kind() {
            return Err(Error::Argument(format!(
                "{doing}: {device} is no CUDA device: use create, or give a CUDA device"
            )));
        }
        // The devices and their numbers do not change during the life of the process.
        static UUIDS: OnceLock<Vec<Uuid>> = OnceLock::new();
        let driver = driver(doing)?;
        if UUIDS.get().is_none() {
            let _ = UUIDS
                .set(driver.devices().map_err(trouble(doing))?.iter().map(tensorlend_cuda::Device::uuid).collect());
        }
        let found = UUIDS.get().and_then(|uuids| uuids.get(usize::from(device.id())).copied());
        found.ok_or_else(|| Error::Device { doing: doing.to_owned(), cause: DeviceTrouble::NoSuchDevice(device.id()) })
    }

    /// Returns the device's number in this process.
    pub fn local(&self) -> Device {
        Device::cuda(u8::try_from(self.device.ordinal()).unwrap_or(u8::MAX))
    }

    /// Returns the device's primary context.
    pub fn context(&self, doing: &str) -> Result<Context> {
        let mut context = lock(&self.context);
        if let Some(context) = &*context {
            return Ok(context.clone());
        }
        let made = Context::primary(&self.device).map_err(trouble(doing))?;
        *context = Some(made.clone());
        Ok(made)
    }

    pub fn event(&self, doing: &str) -> Result<Event> {
        if let Some(event) = lock(&self.events).pop() {
            return Ok(event);
        }
        Event::new(&self.context(doing)?, false).map_err(trouble(doing))
    }

    /// Stores an event for reuse after it has fired.
    pub fn give_event(&self, event: Event) {
        let mut events = lock(&self.events);
        if events.len() < EVENTS_KEPT {
            events.push(event);
        }
    }

    /// Records an event after the present work of a stream.
    pub fn record(&self, stream: &OnStream, doing: &str) -> Result<Event> {
        let event = self.event(doing)?;
        let context = self.context(doing)?;
        // The default streams belong to the current context.
        let _current = context.enter().map_err(trouble(doing))?;
        event.record(stream.by_ref()).map_err(trouble(doing))?;
        Ok(event)
    }

    /// Queues work in an unused stream, in the device's context, and blocks until the work is done.
    pub fn with_stream(&self, doing: &str, queue: impl FnOnce(&Stream) -> tensorlend_cuda::Result<()>) -> Result<()> {
        let context = self.context(doing)?;
        let _current = context.enter().map_err(trouble(doing))?;
        let kept = lock(&self.streams).pop();
        let stream = kept.map_or_else(|| Stream::new(&context), Ok).map_err(trouble(doing))?;
        let queued = queue(&stream).map_err(trouble(doing));
        // Wait even after an error: the queued work uses the caller's memory.
        let done = stream.synchronize().map_err(trouble(doing));
        let mut streams = lock(&self.streams);
        if streams.len() < STREAMS_KEPT {
            streams.push(stream);
        }
        queued.and(done)
    }

    /// Blocks until all work in all streams of the context is done.
    pub fn synchronize(&self, doing: &str) -> Result<()> {
        self.context(doing)?.synchronize().map_err(trouble(doing))
    }

    /// Calls a function of the host after the present work of a stream.
    ///
    /// # Safety
    /// The rules of [`tensorlend_cuda::StreamRef::call`].
    #[allow(unsafe_code)]
    pub unsafe fn call(
        &self,
        stream: &OnStream,
        function: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
        doing: &str,
    ) -> Result<()> {
        let context = self.context(doing)?;
        // The default streams belong to the current context.
        let _current = context.enter().map_err(trouble(doing))?;
        // SAFETY: the caller keeps the rules.
        unsafe { stream.by_ref().call(function, data) }.map_err(trouble(doing))
    }

    /// Makes later work of a stream wait for an event. Does not block.
    pub fn order(&self, stream: &OnStream, event: &Event, doing: &str) -> Result<()> {
        let context = self.context(doing)?;
        // The default streams belong to the current context.
        let _current = context.enter().map_err(trouble(doing))?;
        stream.by_ref().wait_event(event).map_err(trouble(doing))
    }

    /// Returns the end of the work in these streams, after which their memory may be freed. Without streams, returns the end
    /// of the work in all streams.
    pub fn end_of<'s>(&self, streams: impl Iterator<Item = &'s OnStream>, doing: &str) -> End {
        let events: Result<Vec<_>> = streams.map(|stream| self.record(stream, doing)).collect();
        match events {
            Ok(events) if !events.is_empty() => End::Events(events),
            _ if self.synchronize(doing).is_ok() => End::Now,
            _ => End::Unknown,
        }
    }
}

/// The end of the work on some memory.
pub enum End {
    /// The work ends when these events have fired.
    Events(Vec<Event>),
    /// The work has ended.
    Now,
    /// The end is unknown, because this process could not record an event. The memory stays in use.
    Unknown,
}
