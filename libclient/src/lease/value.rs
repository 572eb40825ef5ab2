//! Leased values of any kind.

#[cfg(feature = "cuda")]
use crate::error::{Error, ValueKind};
#[cfg(feature = "cuda")]
use crate::lease::device::lease::DeviceLease;
use crate::lease::lease::{Dataset, Lease};
use crate::lease::raw::Held;
use crate::names::version::Version;

/// A leased tensor or dataset: the value of a name, a stream's message or a list's item.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// let version = client.put("numbers", &[1u8, 2])?;
/// let value = client.get_value("numbers")?;
/// assert_eq!(value.as_tensor().unwrap().shape(), [2]);
/// assert!(value.as_dataset().is_none());
/// assert_eq!(value.version(), version);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Value {
    /// One tensor.
    Tensor(Lease),
    /// Several tensors.
    Dataset(Dataset),
    /// One tensor on a device.
    #[cfg(feature = "cuda")]
    Device(DeviceLease),
}

impl Value {
    pub(crate) fn held(&self) -> &Held {
        match self {
            Self::Tensor(lease) => lease.held(),
            Self::Dataset(dataset) => dataset.held(),
            #[cfg(feature = "cuda")]
            Self::Device(lease) => lease.held(),
        }
    }

    /// The tensor, if it is one.
    ///
    /// `None` for a dataset and for a tensor on a device. Match the enum to take the lease out of the value.
    pub fn as_tensor(&self) -> Option<&Lease> {
        match self {
            Self::Tensor(lease) => Some(lease),
            Self::Dataset(_) => None,
            #[cfg(feature = "cuda")]
            Self::Device(_) => None,
        }
    }

    /// The dataset, if it is one.
    ///
    /// `None` for a single tensor.
    pub fn as_dataset(&self) -> Option<&Dataset> {
        match self {
            Self::Dataset(dataset) => Some(dataset),
            Self::Tensor(_) => None,
            #[cfg(feature = "cuda")]
            Self::Device(_) => None,
        }
    }

    /// The tensor on a device, if it is one.
    #[cfg(feature = "cuda")]
    pub fn as_device(&self) -> Option<&DeviceLease> {
        match self {
            Self::Device(lease) => Some(lease),
            Self::Tensor(_) | Self::Dataset(_) => None,
        }
    }

    /// As [`Lease::validate`].
    pub fn validate(&self) -> bool {
        self.held().validate()
    }

    /// The version of the leased value.
    pub fn version(&self) -> Version {
        match self {
            Self::Tensor(lease) => lease.version(),
            Self::Dataset(dataset) => dataset.version(),
            #[cfg(feature = "cuda")]
            Self::Device(lease) => lease.version(),
        }
    }
}

/// The error for a value on a device where another kind is wanted.
#[cfg(feature = "cuda")]
pub fn on_device(name: &str, wanted: ValueKind) -> Error {
    let remedy = "get_device (or get_value), and its to_vec for a copy on the host";
    Error::Kind { name: name.to_owned(), found: ValueKind::DeviceTensor, wanted, remedy }
}
