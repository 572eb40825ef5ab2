//! Descriptors of values: types, shapes and metadata, without the bytes of the elements.

use super::NodeName;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use tensorlend::{DType, METADATA_MAX, Tensor, Value};
use tensorlend_layout::dataset::MEMBERS_MAX;
use tensorlend_layout::name;
use tensorlend_layout::tensor::{NDIM_MAX, check_extent};

/// Maximum bytes of a head. A receiver rejects a longer head without decoding it. So a dataset with
/// longer metadata cannot be exported.
pub const HEAD_BYTES_MAX: usize = 4 << 20;

/// The descriptor of a name's value, a list's item or a stream's message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Descriptor {
    /// The node that first published the value. This first node drops the value if another node
    /// sends it back.
    pub origin: NodeName,
    /// The element types, shapes and metadata of the value.
    pub shape: Shape,
}

/// The descriptor's content: a tensor or a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    Tensor(TensorShape),
    /// Several named tensors with common metadata.
    Dataset {
        /// The members: names and tensors, in the dataset's order.
        members: Vec<(String, TensorShape)>,
        metadata: Vec<u8>,
        /// Timestamp of the dataset, in nanoseconds; 0 if none.
        timestamp_ns: u64,
    },
}

/// One tensor, whose bytes are row-major.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorShape {
    /// The element type: code, bits and lanes of a `DLDataType`.
    pub dtype: (u8, u8, u16),
    /// Size of each dimension, in elements.
    pub shape: Vec<u64>,
    pub metadata: Vec<u8>,
    /// Timestamp from the user, in nanoseconds; 0 if none.
    pub timestamp_ns: u64,
}

/// The reason why a descriptor is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadDescriptor {
    /// This version does not support the element type.
    #[error("an unknown element type {0:?}")]
    DType((u8, u8, u16)),
    /// The value has too many dimensions, members or bytes, or the product of its sizes overflows.
    #[error("{what}: {found}, at most {max}")]
    Limit {
        /// The quantity that exceeds its limit.
        what: &'static str,
        found: u64,
        max: u64,
    },
    /// A member's name is invalid, or occurs twice.
    #[error("a member's name that cannot be: {0:?}")]
    Member(String),
    /// The value is in device memory, from which the gateway cannot send.
    #[error("a tensor on a device is not sent to other machines: copy it to the host")]
    Device,
}

impl Descriptor {
    /// Returns the descriptor of a value that this process has leased.
    ///
    /// # Errors
    /// [`BadDescriptor::Device`], also for a dataset with a member on a device, or [`BadDescriptor::Limit`] for a dataset with more metadata than
    /// a message may have.
    pub fn of(value: &Value, origin: NodeName) -> Result<Self, BadDescriptor> {
        let shape = match value {
            Value::Tensor(lease) => Shape::Tensor(TensorShape::of(lease)),
            Value::Dataset(dataset) if dataset.require_host("").is_err() => return Err(BadDescriptor::Device),
            Value::Dataset(dataset) => Shape::Dataset {
                members: dataset.iter().map(|(name, tensor)| (name.to_owned(), TensorShape::of(tensor))).collect(),
                metadata: dataset.metadata().to_vec(),
                timestamp_ns: dataset.timestamp(),
            },
            _ => return Err(BadDescriptor::Device),
        };
        shape.check()?;
        Ok(Self { origin, shape })
    }

    /// Returns the number of bytes of the value's elements, summed over all members. The descriptor must have been
    /// [checked](Descriptor::check).
    pub fn bytes(&self) -> u64 {
        self.shape.tensors().map(|(_, tensor)| tensor.bytes().unwrap_or(0)).sum()
    }
}

impl Shape {
    /// Returns the value's tensors with their names, in the order of their bytes. A tensor that is not in a dataset has
    /// an empty name.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &TensorShape)> {
        let (one, members) = match self {
            Self::Tensor(tensor) => (Some(("", tensor)), [].as_slice()),
            Self::Dataset { members, .. } => (None, members.as_slice()),
        };
        one.into_iter().chain(members.iter().map(|(name, tensor)| (name.as_str(), tensor)))
    }

    /// Checks that a value with this descriptor can exist.
    ///
    /// # Errors
    /// The first violated rule.
    pub fn check(&self) -> Result<(), BadDescriptor> {
        // The size of each tensor is below 2^63. The sum of all sizes must be, too.
        let mut bytes = 0_u64;
        for (_, tensor) in self.tensors() {
            let of_tensor = tensor.bytes()?;
            let sum = bytes.saturating_add(of_tensor);
            limit("bytes of elements", sum, i64::MAX as u64)?;
            limit("bytes of metadata", tensor.metadata.len() as u64, METADATA_MAX as u64)?;
            bytes = sum;
        }
        if let Self::Dataset { members, metadata, .. } = self {
            limit("members of a dataset", members.len() as u64, MEMBERS_MAX as u64)?;
            limit("bytes of metadata", metadata.len() as u64, METADATA_MAX as u64)?;
            let mut names = HashSet::with_capacity(members.len());
            for (name, _) in members {
                if name::check(name).is_err() || !names.insert(name.as_str()) {
                    return Err(BadDescriptor::Member(name.chars().take(40).collect()));
                }
            }
            // Names and metadata may take half of a head's maximum length. The other half is enough for the other
            // fields, even if each number has its longest encoding.
            let said =
                metadata.len() + members.iter().map(|(name, one)| name.len() + one.metadata.len()).sum::<usize>();
            limit("bytes of names and metadata in a dataset", said as u64, HEAD_BYTES_MAX as u64 / 2)?;
        }
        Ok(())
    }
}

impl TensorShape {
    /// Returns the descriptor of a leased tensor.
    pub fn of(tensor: &Tensor) -> Self {
        let dtype = tensor.dtype();
        Self {
            dtype: (dtype.code(), dtype.bits(), dtype.lanes()),
            shape: tensor.shape().iter().map(|&size| size as u64).collect(),
            metadata: tensor.metadata().to_vec(),
            timestamp_ns: tensor.timestamp(),
        }
    }

    /// Returns the tensor's element type.
    ///
    /// # Errors
    /// [`BadDescriptor::DType`].
    pub fn dtype(&self) -> Result<DType, BadDescriptor> {
        let (code, bits, lanes) = self.dtype;
        DType::from_codes(code, bits, lanes).ok_or(BadDescriptor::DType(self.dtype))
    }

    /// Returns the number of bytes of the tensor's elements.
    ///
    /// # Errors
    /// [`BadDescriptor::DType`], or [`BadDescriptor::Limit`] for more dimensions than a tensor may
    /// have, or more than 2^63 bytes.
    pub fn bytes(&self) -> Result<u64, BadDescriptor> {
        let dtype = self.dtype()?;
        limit("dimensions", self.shape.len() as u64, NDIM_MAX as u64)?;
        let elements = check_extent(dtype, &self.shape, None, 0, i64::MAX as u64);
        let overflow = BadDescriptor::Limit { what: "bytes of elements", found: u64::MAX, max: i64::MAX as u64 };
        elements.ok().and_then(|elements| elements.checked_mul(dtype.item_bytes() as u64)).ok_or(overflow)
    }
}

fn limit(what: &'static str, found: u64, max: u64) -> Result<(), BadDescriptor> {
    if found <= max { Ok(()) } else { Err(BadDescriptor::Limit { what, found, max }) }
}
