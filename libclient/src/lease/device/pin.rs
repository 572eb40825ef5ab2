//! What keeps the memory of a device's draft in place after it was published.

use crate::error::Result;
use crate::gpu::stream::OnStream;
use crate::gpu::{End, Gpu};
use crate::lease::pin::Pin;
use crate::segment::janitor::Ending;
use crate::session::Session;
use crate::tensor::device::draft::DeviceDraft;
use std::sync::Arc;

/// Keeps the bytes of a [`crate::DeviceDraft`] where they are, as [`Pin`] does those of a draft in host memory. Dropped, it ends
/// when what is by then in the streams that were recorded on the draft has ended; nobody waits for that.
pub struct DevicePin {
    session: Arc<Session>,
    gpu: Arc<Gpu>,
    streams: Vec<OnStream>,
    /// Until it is dropped.
    pin: Option<Pin>,
}

impl DeviceDraft {
    /// Keeps its memory in place for as long as the answer lives, as [`crate::Draft::pin`] does.
    ///
    /// # Errors
    /// As [`crate::Draft::pin`].
    pub fn pin(&self) -> Result<DevicePin> {
        let (session, value) = (self.session(), self.cell()?);
        let pin = Pin::new(session, value)?;
        let (gpu, streams, worked) = self.work();
        Ok(DevicePin::new(session, gpu, streams, worked, pin))
    }
}

impl DevicePin {
    pub(crate) fn new(
        session: &Arc<Session>,
        gpu: &Arc<Gpu>,
        mut streams: Vec<OnStream>,
        worked: bool,
        pin: Pin,
    ) -> Self {
        if worked && streams.is_empty() {
            // It comes after what is in any stream but those that were made not to wait for it.
            streams.push(OnStream::LEGACY);
        }
        Self { session: session.clone(), gpu: gpu.clone(), streams, pin: Some(pin) }
    }
}

impl Drop for DevicePin {
    fn drop(&mut self) {
        let Some(pin) = self.pin.take().filter(|_| !self.session.is_forked() && !self.streams.is_empty()) else {
            return;
        };
        let doing = "let go of a draft's memory";
        match self.gpu.end_of(self.streams.iter(), doing) {
            End::Events(events) => {
                let then = Box::new(move |_| drop(pin));
                self.session.lendings.janitor.leave(Ending { gpu: self.gpu.clone(), events, then, dropped: None });
            }
            End::Now => drop(pin),
            End::Unknown => std::mem::forget(pin),
        }
    }
}

impl std::fmt::Debug for DevicePin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DevicePin").finish_non_exhaustive()
    }
}
