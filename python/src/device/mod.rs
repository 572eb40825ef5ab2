//! Tensors on devices, as Python holds them: `draft.rs` and `lease.rs` are the classes, `view.rs` keeps what they show, `export.rs`
//! shows it by DLPack and the array interface of CUDA, `array.rs` reads what a caller has on a device. `stream.rs` takes streams
//! of whatever library.

pub mod array;
pub mod draft;
mod export;
pub mod lease;
mod legacy;
pub mod stream;
mod view;

pub use draft::DeviceDraft;
pub use lease::DeviceLease;
pub use legacy::LegacyExport;

use crate::errors::{OrRaise, argument};
use pyo3::prelude::*;
use tensorlend::{On, Uuid};

/// Where a caller wants a tensor to be.
#[derive(Clone, Copy, Default)]
pub enum Place {
    /// Where its elements are.
    #[default]
    Anywhere,
    /// In host memory.
    Host,
    /// On a device.
    Device(On),
}

impl Place {
    /// As `device=` says it: "cpu", "cuda:0", a UUID, a number, or something of which one of these is the text or the `uuid`.
    pub fn parse(given: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let Some(given) = given else { return Ok(Self::Anywhere) };
        if let Ok(number) = given.extract::<u8>() {
            return Ok(Self::Device(tensorlend::Device::cuda(number).into()));
        }
        if let Ok(device) = given.cast::<Device>() {
            return Ok(Self::Device(device.get().offer.uuid.into()));
        }
        let text = given.str()?.to_string();
        let wrong = || {
            argument(format!(
                "device {text:?}: use \"cuda:0\" for this process's first one, its UUID as client.devices() tells it, or \"cpu\""
            ))
        };
        let number = |text: &str| text.parse().map(tensorlend::Device::cuda).map_err(|_| wrong());
        match text.strip_prefix("cuda") {
            Some("") => Ok(Self::Device(tensorlend::Device::cuda(0).into())),
            Some(rest) => rest.strip_prefix(':').ok_or_else(wrong).and_then(number).map(|it| Self::Device(it.into())),
            None if text == "cpu" => Ok(Self::Host),
            None => text.parse::<Uuid>().map(|uuid| Self::Device(uuid.into())).map_err(|_| wrong()),
        }
    }

    /// The device, where one is needed.
    pub fn device(self) -> Option<On> {
        match self {
            Self::Device(on) => Some(on),
            Self::Anywhere | Self::Host => None,
        }
    }
}

/// The number that a device has in this process; `None` if it is not seen here.
fn number_of(uuid: Uuid) -> Option<u8> {
    let uuids = (0..=u8::MAX).map_while(|number| On::from(tensorlend::Device::cuda(number)).find().ok());
    uuids.zip(0..).find(|(found, _)| *found == uuid).map(|(_, number)| number)
}

/// A device of which the daemon lends memory.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Device {
    offer: tensorlend::DeviceOffer,
}

impl Device {
    /// As the daemon offers it.
    pub fn new(offer: tensorlend::DeviceOffer) -> Self {
        Self { offer }
    }
}

#[pymethods]
impl Device {
    /// Its name in every process, "GPU-..." or "MIG-...".
    #[getter]
    fn uuid(&self) -> String {
        self.offer.uuid.to_string()
    }

    /// What its driver calls it.
    #[getter]
    fn name(&self) -> &str {
        &self.offer.name
    }

    /// Who allocates: "pool", "arena" or "async".
    #[getter]
    fn allocator(&self) -> &'static str {
        self.offer.allocator.name()
    }

    /// Length of an ordinary segment, in bytes; with "async", of what slots are multiples of.
    #[getter]
    fn segment_bytes(&self) -> u64 {
        self.offer.segment_bytes
    }

    /// Length of the longest segment, in bytes.
    #[getter]
    fn segment_bytes_max(&self) -> u64 {
        self.offer.segment_bytes_max
    }

    /// The number that it has in this process, as in "cuda:0"; None if this process does not see it. Looks for a driver.
    #[getter]
    fn index(&self, py: Python<'_>) -> Option<u8> {
        let uuid = self.offer.uuid;
        py.detach(|| number_of(uuid))
    }

    fn __str__(&self) -> String {
        self.uuid()
    }

    fn __repr__(&self) -> String {
        format!("<Device {} {:?}, {}>", self.offer.uuid, self.offer.name, self.offer.allocator)
    }
}

/// Bytes of a client's slots in use on a device, and of the segments that it was lent there.
pub fn memory(py: Python<'_>, client: &tensorlend::Client, device: &Bound<'_, PyAny>) -> PyResult<(u64, u64)> {
    let on = Place::parse(Some(device))?.device();
    let on = on.ok_or_else(|| argument("host memory is no device's: see Client.memory"))?;
    let memory = py.detach(|| client.device_memory(on)).or_raise()?;
    Ok((memory.slot_bytes, memory.segment_bytes))
}
