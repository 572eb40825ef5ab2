//! Early publication: a producer publishes a tensor before the device work on it is done.
//!
//! The producer P records an interprocess event, and the tensor's extension contains the event's handle. Each device has a
//! fixed number of events. P records an event again only after it has fired. So a reader R that waits for the event because
//! of an older tensor may wait too long, but never too briefly. When the event has fired, P clears the mark in the record.
//! If P ends before that, no process can know whether the work was done.

use super::stream::OnStream;
use super::{Gpu, trouble};
use crate::error::{DeviceTrouble, Error, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tensorlend_cuda::Event;
use tensorlend_layout::tensor::EARLY_BYTES;
use tensorlend_os::mutex::lock;

/// Number of events of one device in one process.
const EVENTS: usize = 64;
/// Maximum number of other processes' events that stay open.
const OPENED_MAX: usize = 1024;

type Handle = [u8; 64];

/// The mark of an early publication in an extension: the event's handle and more.
pub type Mark = [u8; EARLY_BYTES];

fn handle_of(mark: &Mark) -> Handle {
    *mark.first_chunk().expect("a mark begins with it")
}

/// One device's events.
#[derive(Default)]
pub struct Ring {
    own: Mutex<Own>,
    opened: Mutex<BTreeMap<Handle, Arc<Event>>>,
}

#[derive(Default)]
struct Own {
    events: Vec<(Handle, Arc<Event>)>,
    next: usize,
}

impl Ring {
    /// Records one of the events on a stream. Returns the mark for readers. Blocks if all events are outstanding.
    pub fn record(&self, gpu: &Gpu, stream: &OnStream, doing: &str) -> Result<Mark> {
        gpu.device.require_ipc().map_err(trouble(doing))?;
        let context = gpu.context(doing)?;
        let _current = context.enter().map_err(trouble(doing))?;
        let fired = |(_, event): &(Handle, Arc<Event>)| event.query().unwrap_or(false);
        let mut own = lock(&self.own);
        let at = loop {
            if let Some(at) = own.events.iter().position(fired) {
                break at;
            }
            if own.events.len() < EVENTS {
                let event = Event::interprocess(&context).map_err(trouble(doing))?;
                let handle = event.ipc_handle().map_err(trouble(doing))?;
                own.events.push((handle, Arc::new(event)));
                break own.events.len() - 1;
            }
            // Wait without the lock: the awaited work may depend on another thread that takes this lock.
            let oldest = own.events[own.next % EVENTS].1.clone();
            drop(own);
            oldest.synchronize().map_err(trouble(doing))?;
            own = lock(&self.own);
        };
        own.next = at + 1;
        let (handle, event) = &own.events[at];
        event.record(stream.by_ref()).map_err(trouble(doing))?;
        let mut mark = [0; EARLY_BYTES];
        mark[..handle.len()].copy_from_slice(handle);
        mark[handle.len()..].copy_from_slice(&(at as u64).to_le_bytes());
        Ok(mark)
    }

    /// Returns the event that a mark identifies. The event may belong to this process or to another.
    pub fn open(&self, gpu: &Gpu, mark: &Mark, doing: &str) -> Result<Arc<Event>> {
        let handle = handle_of(mark);
        // A process cannot open the handle of its own event.
        if let Some((_, event)) = lock(&self.own).events.iter().find(|(own, _)| *own == handle) {
            return Ok(event.clone());
        }
        let mut opened = lock(&self.opened);
        if let Some(event) = opened.get(&handle) {
            return Ok(event.clone());
        }
        let event = Event::open(&gpu.context(doing)?, &handle).map_err(trouble(doing))?;
        let event = Arc::new(event);
        if opened.len() >= OPENED_MAX {
            opened.clear();
        }
        opened.insert(handle, event.clone());
        Ok(event)
    }
}

/// Returns the error for a tensor whose event a reader cannot await any more.
pub fn unfinished(name: &str) -> Error {
    Error::Device { doing: format!("wait for {name:?}, which was published early"), cause: DeviceTrouble::Unfinished }
}
