//! Devices, and the memory that a caller requests for a tensor.

use crate::errors::{ResultExt, argument};
use pyo3::prelude::*;
use tensorlend::{On, Uuid};

/// The memory that a caller requests for a tensor.
#[derive(Clone, Copy, Default)]
pub enum Target {
    /// The memory that already contains the caller's elements.
    #[default]
    Anywhere,
    /// Host memory.
    Host,
    /// The memory of a device.
    Device(On),
}

impl Target {
    /// Parses the argument `device=`. Accepts "cpu", "cuda:0", a UUID, a number, or an object whose
    /// text or `uuid` is one of these.
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
                "device {text:?}: use \"cuda:0\" for this process's first device, a UUID from client.devices(), or \"cpu\""
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

    /// Parses an argument that must be a device.
    pub fn parse_device(given: &Bound<'_, PyAny>) -> PyResult<On> {
        Self::parse(Some(given))?.device().ok_or_else(|| argument("\"cpu\" is no device: use \"cuda:0\" or a UUID"))
    }

    /// Returns the device, if a device was requested.
    pub fn device(self) -> Option<On> {
        match self {
            Self::Device(on) => Some(on),
            Self::Anywhere | Self::Host => None,
        }
    }
}

/// Returns the number of a device in this process; `None` if the process does not see the device.
fn number_of(uuid: Uuid) -> Option<u8> {
    let uuids = (0..=u8::MAX).map_while(|number| On::from(tensorlend::Device::cuda(number)).find().ok());
    uuids.zip(0..).find(|(found, _)| *found == uuid).map(|(_, number)| number)
}

/// A device whose memory the daemon lends. `Client.devices` returns such objects.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Device {
    offer: tensorlend::DeviceOffer,
}

impl Device {
    /// Creates the object for a device that the daemon lends.
    pub fn new(offer: tensorlend::DeviceOffer) -> Self {
        Self { offer }
    }
}

#[pymethods]
impl Device {
    /// The device's UUID, "GPU-..." or "MIG-...", which is the same in every process.
    #[getter]
    fn uuid(&self) -> String {
        self.offer.uuid.to_string()
    }

    /// The driver's name of the device.
    #[getter]
    fn name(&self) -> &str {
        &self.offer.name
    }

    /// The allocator: "pool", "arena" or "async".
    #[getter]
    fn allocator(&self) -> &'static str {
        self.offer.allocator.name()
    }

    /// Length of an ordinary segment, in bytes. With the allocator "async", the unit of slots.
    #[getter]
    fn segment_bytes(&self) -> u64 {
        self.offer.segment_bytes
    }

    /// Length of the longest segment, in bytes.
    #[getter]
    fn segment_bytes_max(&self) -> u64 {
        self.offer.segment_bytes_max
    }

    /// The device's number in this process, as in "cuda:0". None if this process does not see it.
    ///
    /// Reading the number loads the driver.
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

/// Returns the bytes of a client's slots in use on a device, and of its segments there.
pub fn memory(py: Python<'_>, client: &tensorlend::Client, device: &Bound<'_, PyAny>) -> PyResult<(u64, u64)> {
    let on = Target::parse(Some(device))?.device();
    let on = on.ok_or_else(|| argument("host memory belongs to no device: see Client.memory"))?;
    let memory = py.detach(|| client.device_memory(on)).or_raise()?;
    Ok((memory.slot_bytes, memory.segment_bytes))
}
