//! Leases on tensors in device memory.

use super::describe;
use super::tensor::{DeviceSlot, DeviceTensor};
use crate::error::Result;
use crate::lease::lease::Held;
use crate::names::version::Version;
use crate::session::Session;
use std::ops::Deref;
use std::sync::Arc;
use tensorlend_layout::tensor::SlotInfo;

/// The right to read one tensor on a device, in place. While the lease exists, no client reuses the memory, whatever
/// happens to the name or to the producer.
///
/// After the drop, the lease ends when all streams recorded on it ([`DeviceTensor::record_stream`],
/// [`DeviceTensor::slice`]) have finished their work up to the drop. The drop does not block. Without recorded streams
/// the lease ends at once, so the caller must have waited for its own device work before.
///
/// A lease derefs to [`DeviceTensor`], which has the methods to read the tensor.
///
/// ```no_run
/// use tensorlend::Client;
///
/// let client = Client::connect()?;
/// let image = client.get_device("camera/front")?; // no copy: the producer's own memory
/// println!("{} {:?} at {:#x} on {}", image.dtype(), image.shape(), image.ptr(), image.device());
/// let pixels: Vec<f32> = image.to_vec()?;
/// # Ok::<(), tensorlend::Error>(())
/// ```
pub struct DeviceLease {
    /// `None` only during the drop.
    inner: Option<Box<Inner>>,
}

struct Inner {
    /// The lease. Declared first, because it must be cleared before the memory is unmapped.
    held: Held,
    tensor: DeviceTensor,
}

impl DeviceLease {
    /// Returns a lease on the tensor that the record describes. The caller has checked the record against the segment. The
    /// producer's work may still be pending.
    pub(crate) fn new(session: &Session, held: Held, info: &SlotInfo, name: &str) -> Result<Self> {
        let said = describe(session, &held, held.segment(), info, name)?;
        let slot = DeviceSlot {
            owner: held.owner,
            slot: held.cell.slot(),
            data_offset: info.data_offset,
            data_bytes: info.data_bytes,
            segment: held.segment().clone(),
        };
        let tensor = DeviceTensor::new(slot, &said, info.early, name)?;
        Ok(Self { inner: Some(Box::new(Inner { held, tensor })) })
    }

    fn inner(&self) -> &Inner {
        self.inner.as_deref().expect("there until it is dropped")
    }

    pub(crate) fn held(&self) -> &Held {
        &self.inner().held
    }

    /// Returns the version of the leased value.
    pub fn version(&self) -> Version {
        self.held().version()
    }

    /// Validates the lease like [`crate::Lease::validate`]. Returns false in the child of a fork, where no device
    /// memory is mapped.
    pub fn validate(&self) -> bool {
        !self.held().link().is_forked() && self.held().validate()
    }
}

impl Deref for DeviceLease {
    type Target = DeviceTensor;

    fn deref(&self) -> &DeviceTensor {
        &self.inner().tensor
    }
}

impl Drop for DeviceLease {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else { return };
        let link = inner.held.segment().link.clone();
        if !link.is_forked() {
            let inner = Arc::new(inner);
            inner.tensor.drop_after(&link.lendings.janitor, inner.clone());
        }
    }
}

impl std::fmt::Debug for DeviceLease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceLease").field("device", &self.uuid()).field("tensor", &**self).finish_non_exhaustive()
    }
}
