//! Members of datasets on devices.

use super::describe;
#[cfg(feature = "cuda")]
use super::tensor::{DeviceSlot, DeviceTensor};
use crate::error::{Error, Result};
use crate::lease::companion::Chained;
use crate::lease::lease::Held;
use crate::session::Session;
use crate::tensor::Tensor;
#[cfg(feature = "cuda")]
use std::sync::OnceLock;
use tensorlend_layout::Uuid;
use tensorlend_layout::tensor::BadTensor;

/// A dataset's tensor on a device: see [`Member`](crate::Member). Its description needs no driver. So every process can
/// describe such a dataset and read its tensors in host memory.
///
/// With the feature `cuda`, `DeviceMember::tensor` maps the tensor's memory.
pub type DeviceMember = Tensor<Unmapped>;

/// Memory on a device that this process maps at the first access.
pub struct Unmapped {
    uuid: Uuid,
    #[cfg(feature = "cuda")]
    slot: DeviceSlot,
    /// The name of the dataset, for error messages.
    #[cfg(feature = "cuda")]
    name: String,
    /// The tensor. It is mapped at the first access.
    #[cfg(feature = "cuda")]
    tensor: OnceLock<DeviceTensor>,
}

impl DeviceMember {
    /// Returns the member in a slot of the dataset's chain.
    pub(crate) fn new(session: &Session, held: &Held, chained: &Chained, name: &str) -> Result<Self> {
        let Chained { info, segment, .. } = chained;
        // A dataset is published after the work on its members. A mark would only let its producer block readers.
        if info.early {
            return Err(Error::Damaged { name: name.to_owned(), cause: BadTensor::Record });
        }
        let said = describe(session, held, segment, info, name)?;
        Ok(said.with(Unmapped {
            uuid: said.memory,
            #[cfg(feature = "cuda")]
            slot: DeviceSlot {
                owner: held.owner,
                slot: chained.slot,
                data_offset: info.data_offset,
                data_bytes: info.data_bytes,
                segment: segment.clone(),
            },
            #[cfg(feature = "cuda")]
            name: name.to_owned(),
            #[cfg(feature = "cuda")]
            tensor: OnceLock::new(),
        }))
    }

    /// Returns the tensor in place. The first call maps its memory.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if this process cannot use the device.
    #[cfg(feature = "cuda")]
    pub fn tensor(&self) -> Result<&DeviceTensor> {
        let Unmapped { slot, name, tensor, .. } = &self.memory;
        if let Some(tensor) = tensor.get() {
            return Ok(tensor);
        }
        let mapped = DeviceTensor::new(slot.clone(), self, false, name)?;
        // If another thread was faster, its tensor is the one on which streams are recorded.
        Ok(tensor.get_or_init(|| mapped))
    }

    /// Returns the tensor, if it is mapped.
    #[cfg(feature = "cuda")]
    pub(crate) fn mapped(&self) -> Option<&DeviceTensor> {
        self.memory.tensor.get()
    }

    /// Returns the UUID of the device, which identifies the device in every process.
    pub fn uuid(&self) -> Uuid {
        self.memory.uuid
    }
}
