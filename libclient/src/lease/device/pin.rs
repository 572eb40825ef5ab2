//! Pins of drafts on devices.

use crate::error::Result;
use crate::gpu::Gpu;
use crate::gpu::stream::OnStream;
use crate::lease::pin::Pin;
use crate::session::Session;
use crate::tensor::device::copies;
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
        let session = self.session();
        let pin = Pin::new(session, self.cell())?;
        let (gpu, mut streams, worked) = self.work();
        if worked && streams.is_empty() {
            // The legacy stream waits for all streams, except those created as non-blocking.
            streams.push(OnStream::LEGACY);
        }
        Ok(DevicePin { session: session.clone(), gpu: gpu.clone(), streams, pin: Some(pin) })
    }
}

impl Drop for DevicePin {
    fn drop(&mut self) {
        if let Some(pin) = self.pin.take()
            && !self.session.is_forked()
            && !self.streams.is_empty()
        {
            copies::drop_after(&self.gpu, &self.session.lendings.janitor, self.streams.iter(), pin);
        }
    }
}

impl std::fmt::Debug for DevicePin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DevicePin").finish_non_exhaustive()
    }
}
