//! Leased values of any kind.

use crate::error::{Error, Result, ValueKind};
use crate::lease::dataset::Dataset;
#[cfg(feature = "cuda")]
use crate::lease::device::lease::DeviceLease;
use crate::lease::lease::{Held, Lease};
use crate::names::version::Version;

/// A leased tensor or dataset: the value of a name, a stream's message or a list's item.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// let version = client.put("numbers", &[1u8, 2])?;
/// let value = client.get_value("numbers")?;
/// assert_eq!(value.tensor()?.shape(), [2]);
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

    /// Returns the tensor, if the value is a tensor in host memory.
    ///
    /// Returns `None` for a dataset and for a tensor on a device. Match the enum to take the lease out of the value.
    pub fn as_tensor(&self) -> Option<&Lease> {
        match self {
            Self::Tensor(lease) => Some(lease),
            Self::Dataset(_) => None,
            #[cfg(feature = "cuda")]
            Self::Device(_) => None,
        }
    }

    /// Returns the dataset, if the value is a dataset.
    ///
    /// Returns `None` for a single tensor.
    pub fn as_dataset(&self) -> Option<&Dataset> {
        match self {
            Self::Dataset(dataset) => Some(dataset),
            Self::Tensor(_) => None,
            #[cfg(feature = "cuda")]
            Self::Device(_) => None,
        }
    }

    /// Returns the tensor on a device, if the value is such a tensor.
    #[cfg(feature = "cuda")]
    pub fn as_device(&self) -> Option<&DeviceLease> {
        match self {
            Self::Device(lease) => Some(lease),
            Self::Tensor(_) | Self::Dataset(_) => None,
        }
    }

    /// Returns the tensor. Any other kind of value is an error.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.append("episodes", client.create(tensorlend::DType::F32, [100, 6])?)?;
    /// for episode in client.get_all("episodes")? {
    ///     assert_eq!(episode.tensor()?.shape(), [100, 6]);
    ///     let lease: tensorlend::Lease = episode.into_tensor()?; // to keep
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Kind`] if the value is a dataset, or a tensor on a device.
    pub fn tensor(&self) -> Result<&Lease> {
        self.as_tensor().ok_or_else(|| self.not_a(ValueKind::Tensor, "the value"))
    }

    /// Returns the dataset. Any other kind of value is an error.
    ///
    /// # Errors
    /// [`Error::Kind`] if the value is a single tensor.
    pub fn dataset(&self) -> Result<&Dataset> {
        self.as_dataset().ok_or_else(|| self.not_a(ValueKind::Dataset, "the value"))
    }

    /// Turns the value into its tensor, which the program can keep.
    ///
    /// # Errors
    /// The errors of [`Value::tensor`].
    pub fn into_tensor(self) -> Result<Lease> {
        match self {
            Self::Tensor(lease) => Ok(lease),
            other => Err(other.not_a(ValueKind::Tensor, "the value")),
        }
    }

    /// Turns the value into its dataset, which the program can keep.
    ///
    /// # Errors
    /// The errors of [`Value::dataset`].
    pub fn into_dataset(self) -> Result<Dataset> {
        match self {
            Self::Dataset(dataset) => Ok(dataset),
            other => Err(other.not_a(ValueKind::Dataset, "the value")),
        }
    }

    /// Returns the error of a method that wants a value of another kind than this one.
    #[cold]
    pub(crate) fn not_a(&self, wanted: ValueKind, name: &str) -> Error {
        let (found, remedy) = match self {
            Self::Tensor(_) => (ValueKind::Tensor, "tensor"),
            Self::Dataset(_) => (ValueKind::Dataset, "dataset"),
            #[cfg(feature = "cuda")]
            Self::Device(_) => (ValueKind::DeviceTensor, "as_device"),
        };
        Error::Kind { name: name.to_owned(), found, wanted, remedy }
    }

    /// Validates the lease like [`Lease::validate`].
    pub fn validate(&self) -> bool {
        self.held().validate()
    }

    /// Returns the version of the leased value.
    pub fn version(&self) -> Version {
        self.held().version()
    }
}

/// Returns the error of a method that wants a value of another kind and finds a tensor on a device.
#[cfg(feature = "cuda")]
pub fn is_on_device(name: &str, wanted: ValueKind) -> Error {
    let remedy = "get_device (or get_value), and its to_vec for a copy on the host";
    Error::Kind { name: name.to_owned(), found: ValueKind::DeviceTensor, wanted, remedy }
}
