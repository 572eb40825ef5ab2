//! Pins of drafts on devices.

use crate::error::Result;
use crate::gpu::stream::OnStream;
use crate::gpu::{End, Gpu};
use crate::lease::pin::Pin;
use crate::segment::janitor::Ending;
use crate::session::Session;
use crate::tensor::device::draft::DeviceDraft;
use std::sync::Arc;

/// Keeps the memory of a [`crate::DeviceDraft`] in place, as [`Pin`] does for a draft in host memory. The drop does
/// not block: the pin ends when the draft's recorded streams have finished the work that was queued in them at the
/// drop.
///
/// ```no_run
/// use tensorlend::{Client, DType, Device};
///
/// let client = Client::connect()?;
/// let draft = client.create_on(Device::cuda(0), DType::F32, [1024])?;
/// let pin = draft.pin()?;
/// draft.publish("weights")?;
/// client.delete("weights")?; // the memory stays in place
/// drop(pin); // now it can be reused
/// # Ok::<(), tensorlend::Error>(())
/// ```
pub struct DevicePin {
    session: Arc<Session>,
    gpu: Arc<Gpu>,
    streams: Vec<OnStream>,
    /// `None` only during the drop.
    pin: Option<Pin>,
}

impl DeviceDraft {
    /// Pins the draft's memory for the life of the returned value, as [`crate::Draft::pin`] does.
    ///
    /// # Errors
    /// The errors of [`crate::Draft::pin`].
    pub fn pin(&self) -> Result<DevicePin> {
        let (session, value) = (self.session(), self.cell());
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
            // The legacy stream waits for all streams, except those created as non-blocking.
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
