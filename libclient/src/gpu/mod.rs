//! A device as this session uses it: its context, and the events that it keeps for reuse.

pub mod early;
pub mod stream;

use crate::error::{DeviceTrouble, Error, Result};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use stream::OnStream;
use tensorlend_cuda::{Context, Driver, Event};
use tensorlend_layout::{Device, Uuid};
use tensorlend_os::mutex::lock;

/// Events that are kept.
const EVENTS_KEPT: usize = 64;

/// One device of this process.
pub struct Gpu {
    pub device: tensorlend_cuda::Device,
    pub uuid: Uuid,
    /// Made when something is to run: mapping needs none, and it takes some hundred MiB of the device.
    context: Mutex<Option<Context>>,
    events: Mutex<Vec<Event>>,
    pub early: early::Ring,
}

/// Those of this process that somebody uses, for all of its sessions: interprocess events know each other by process.
static GPUS: Mutex<Vec<Weak<Gpu>>> = Mutex::new(Vec::new());

/// An error of the driver, in this crate's words.
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
    /// The device of this UUID.
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
            early: early::Ring::default(),
        });
        all.retain(|gpu| gpu.strong_count() > 0);
        all.push(Arc::downgrade(&gpu));
        Ok(gpu)
    }

    /// The UUID of a device by the number that it has in this process.
    pub fn uuid_at(device: Device, doing: &str) -> Result<Uuid> {
        if device.kind() != Device::cuda(0).kind() {
            return Err(Error::Argument(format!(
                "{doing}: {device} is no CUDA device: use create, or give a CUDA device"
            )));
        }
        // The same as long as the process lives.
        static UUIDS: OnceLock<Vec<Uuid>> = OnceLock::new();
        let driver = driver(doing)?;
        if UUIDS.get().is_none() {
            let _ = UUIDS
                .set(driver.devices().map_err(trouble(doing))?.iter().map(tensorlend_cuda::Device::uuid).collect());
        }
        let found = UUIDS.get().and_then(|uuids| uuids.get(usize::from(device.id())).copied());
        found.ok_or_else(|| Error::Device { doing: doing.to_owned(), cause: DeviceTrouble::NoSuchDevice(device.id()) })
    }

    /// Its number in this process.
    pub fn local(&self) -> Device {
        Device::cuda(u8::try_from(self.device.ordinal()).unwrap_or(u8::MAX))
    }

    /// Its primary context.
    pub fn context(&self, doing: &str) -> Result<Context> {
        let mut context = lock(&self.context);
        if let Some(context) = &*context {
            return Ok(context.clone());
        }
        let made = Context::primary(&self.device).map_err(trouble(doing))?;
        *context = Some(made.clone());
        Ok(made)
    }

    /// An event that nobody uses.
    pub fn event(&self, doing: &str) -> Result<Event> {
        if let Some(event) = lock(&self.events).pop() {
            return Ok(event);
        }
        Event::new(&self.context(doing)?, false).map_err(trouble(doing))
    }

    /// Takes an event back that has fired.
    pub fn give_event(&self, event: Event) {
        let mut events = lock(&self.events);
        if events.len() < EVENTS_KEPT {
            events.push(event);
        }
    }

    /// An event that stands for what is in a stream now.
    pub fn record(&self, stream: &OnStream, doing: &str) -> Result<Event> {
        let event = self.event(doing)?;
        let context = self.context(doing)?;
        // The default streams are those of whatever context is current.
        let _current = context.enter().map_err(trouble(doing))?;
        event.record(stream.by_ref()).map_err(trouble(doing))?;
        Ok(event)
    }

    /// Waits for all that was put into any stream of the context.
    pub fn synchronize(&self, doing: &str) -> Result<()> {
        self.context(doing)?.synchronize().map_err(trouble(doing))
    }

    /// What is put into this stream from now on begins after what the event stands for; nobody waits here.
    pub fn order(&self, stream: &OnStream, event: &Event, doing: &str) -> Result<()> {
        let context = self.context(doing)?;
        // The default streams are those of whatever context is current.
        let _current = context.enter().map_err(trouble(doing))?;
        stream.by_ref().wait_event(event).map_err(trouble(doing))
    }

    /// When memory that was used in these streams can be let go of; in none of them: in any.
    pub fn end_of<'s>(&self, streams: impl Iterator<Item = &'s OnStream>, doing: &str) -> End {
        let events: Result<Vec<_>> = streams.map(|stream| self.record(stream, doing)).collect();
        match events {
            Ok(events) if !events.is_empty() => End::Events(events),
            _ if self.synchronize(doing).is_ok() => End::Now,
            _ => End::Unknown,
        }
    }
}

/// When the work on some memory ends.
pub enum End {
    /// When these have fired.
    Events(Vec<Event>),
    /// It has ended.
    Now,
    /// Nothing can be waited for, and nobody knows what still runs: the memory stays in use.
    Unknown,
}
