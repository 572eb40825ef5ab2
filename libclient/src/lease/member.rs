//! Members of leased datasets.

use crate::lease::device::member::DeviceMember;
use crate::tensor::Tensor;
use tensorlend_layout::{DType, Uuid};

/// A member of a [`Dataset`](crate::Dataset).
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::{DType, Member};
///
/// client.dataset().add("depth", client.create(DType::F32, [4, 4])?)?.publish("frame")?;
/// let frame = client.get_dataset("frame")?;
/// for (name, member) in frame.members() {
///     match member {
///         Member::Host(tensor) => println!("{name}: {} bytes in host memory", tensor.nbytes()),
///         Member::Device(tensor) => println!("{name}: {} bytes on {}", tensor.nbytes(), tensor.uuid()),
///     }
/// }
/// assert_eq!(frame.member("depth").unwrap().shape(), [4, 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Member<'d> {
    /// A tensor in host memory.
    Host(&'d Tensor),
    /// A tensor on a device.
    Device(&'d DeviceMember),
}

impl<'d> Member<'d> {
    /// Returns the element type.
    pub fn dtype(self) -> DType {
        match self {
            Self::Host(tensor) => tensor.dtype(),
            Self::Device(tensor) => tensor.dtype(),
        }
    }

    /// Returns the sizes in elements.
    pub fn shape(self) -> &'d [usize] {
        match self {
            Self::Host(tensor) => tensor.shape(),
            Self::Device(tensor) => tensor.shape(),
        }
    }

    /// Returns the strides in elements.
    pub fn strides(self) -> &'d [i64] {
        match self {
            Self::Host(tensor) => tensor.strides(),
            Self::Device(tensor) => tensor.strides(),
        }
    }

    /// Returns the number of bytes of the elements, without gaps.
    pub fn nbytes(self) -> usize {
        match self {
            Self::Host(tensor) => tensor.nbytes(),
            Self::Device(tensor) => tensor.nbytes(),
        }
    }

    /// Returns the device's UUID. `None`: host memory.
    pub fn uuid(self) -> Option<Uuid> {
        match self {
            Self::Host(_) => None,
            Self::Device(tensor) => Some(tensor.uuid()),
        }
    }
}
