//! Members of datasets on devices.

#[cfg(feature = "cuda")]
use super::tensor::{DeviceTensor, Place};
use super::{Described, describe};
use crate::error::{Error, Result};
use crate::lease::companion::Chained;
use crate::lease::raw::Held;
use crate::session::Session;
use crate::tensor::dims::as_usize;
use std::sync::Arc;
#[cfg(feature = "cuda")]
use std::sync::OnceLock;
use tensorlend_layout::tensor::BadTensor;
use tensorlend_layout::{DType, Uuid};

/// A dataset's tensor on a device: see [`Member`](crate::Member). Its description needs no driver. So every process can
/// describe such a dataset and read its tensors in host memory.
///
/// With the feature `cuda`, `DeviceMember::tensor` maps the tensor's memory.
pub struct DeviceMember {
    said: Arc<Described>,
    #[cfg(feature = "cuda")]
    place: Place,
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
        let said = Arc::new(describe(session, held, segment, info, name)?);
        Ok(Self {
            said,
            #[cfg(feature = "cuda")]
            place: Place {
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
        })
    }

    /// Returns the tensor in place. The first call maps its memory.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if this process cannot use the device.
    #[cfg(feature = "cuda")]
    pub fn tensor(&self) -> Result<&DeviceTensor> {
        if let Some(tensor) = self.tensor.get() {
            return Ok(tensor);
        }
        let tensor = DeviceTensor::new(self.place.clone(), self.said.clone(), &self.name)?;
        // If another thread was faster, its tensor is the one on which streams are recorded.
        Ok(self.tensor.get_or_init(|| tensor))
    }

    /// Returns the tensor, if it is mapped.
    #[cfg(feature = "cuda")]
    pub(crate) fn mapped(&self) -> Option<&DeviceTensor> {
        self.tensor.get()
    }

    /// Returns the UUID of the device, which identifies the device in every process.
    pub fn uuid(&self) -> Uuid {
        self.said.uuid
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.said.dtype
    }

    /// Returns the sizes in elements.
    pub fn shape(&self) -> &[usize] {
        as_usize(&self.said.layout.shape)
    }

    /// Returns the strides in elements, one for each dimension.
    pub fn strides(&self) -> &[i64] {
        &self.said.layout.strides
    }

    /// Returns whether the tensor's elements are contiguous, in C order.
    pub fn is_row_major(&self) -> bool {
        self.said.layout.row_major
    }

    /// Returns the number of elements. Returns 1 for a tensor without dimensions.
    pub fn elements(&self) -> usize {
        self.said.layout.elements as usize
    }

    /// Returns the number of bytes of the elements, without gaps.
    pub fn nbytes(&self) -> usize {
        self.elements() * self.dtype().item_bytes()
    }

    /// Returns the metadata that the tensor's producer set. Empty if the producer set none.
    pub fn metadata(&self) -> &[u8] {
        &self.said.layout.metadata
    }

    /// Returns the timestamp that the tensor's producer set, in nanoseconds. Returns 0 if the producer set none.
    pub fn timestamp(&self) -> u64 {
        self.said.timestamp_ns
    }
}

impl std::fmt::Debug for DeviceMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceMember")
            .field("device", &self.uuid())
            .field("dtype", &self.dtype())
            .field("shape", &self.shape())
            .finish_non_exhaustive()
    }
}
