//! Tensors in device memory: creating, publishing and leasing them.

use crate::api::overview::MemoryUse;
use crate::client::Client;
use crate::error::{Error, Result, ValueKind, check_name};
use crate::gpu::stream::OnStream;
use crate::gpu::{Gpu, trouble};
use crate::lease::assemble;
use crate::lease::by_name::lease_key;
use crate::lease::device::lease::DeviceLease;
use crate::lease::take::Leased;
use crate::lease::value::Value;
use crate::names::version::Version;
use crate::tensor::device::draft::DeviceDraft;
use crate::tensor::draft::{self, Draft};
use crate::tensor::element::AsTensor;
use crate::tensor::shape::IntoShape;
use crate::tensor::spec::TensorSpec;
use crate::wait::Timeout;
use tensorlend_cuda::pointer::{Memory, Pointer};
use tensorlend_layout::wire::DeviceOffer;
use tensorlend_layout::{DType, Device, Uuid};

/// A device, which the program identifies by its UUID or by its number in this process. The UUID is the same in every
/// process.
///
/// Methods take `impl Into<On>`: you can pass a [`Device`], a [`Uuid`] or a [`DeviceOffer`].
///
/// ```
/// use tensorlend::{Device, On};
///
/// let by_number = On::from(Device::cuda(0));
/// let by_name = On::from("GPU-6b1b6e3c-0a5e-4a10-9d3f-1c3a4b5c6d7e".parse::<tensorlend::Uuid>()?);
/// assert_ne!(by_number, by_name);
/// # Ok::<(), tensorlend::BadUuid>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum On {
    /// The device with this UUID.
    Uuid(Uuid),
    /// The device with this number in this process, as `CUDA_VISIBLE_DEVICES` orders them.
    Local(Device),
}

impl From<Uuid> for On {
    fn from(uuid: Uuid) -> Self {
        Self::Uuid(uuid)
    }
}

impl From<Device> for On {
    fn from(device: Device) -> Self {
        Self::Local(device)
    }
}

impl From<&DeviceOffer> for On {
    fn from(offer: &DeviceOffer) -> Self {
        Self::Uuid(offer.uuid)
    }
}

impl On {
    /// Returns the device of a device address.
    ///
    /// # Errors
    /// [`Error::Argument`] if the driver knows no device for the address; [`Error::Device`] if this process has no
    /// CUDA driver.
    pub fn of_pointer(ptr: u64) -> Result<Self> {
        let doing = "ask where memory is";
        let known = Pointer::ask(ptr).map_err(trouble(doing))?;
        match known.device.filter(|_| known.memory == Memory::Device).map(u8::try_from) {
            Some(Ok(number)) => Gpu::uuid_at(Device::cuda(number), doing).map(Self::Uuid),
            _ => Err(Error::Argument(format!(
                "the driver knows no device memory at {ptr:#x}: give an address that CUDA allocated in this process"
            ))),
        }
    }

    /// Returns the device's UUID, which identifies the device in every process.
    ///
    /// # Errors
    /// [`Error::Device`] if this process has no device with this number.
    pub fn find(self) -> Result<Uuid> {
        self.uuid("look for a device")
    }

    pub(crate) fn uuid(self, doing: &str) -> Result<Uuid> {
        match self {
            Self::Uuid(uuid) => Ok(uuid),
            Self::Local(device) => Gpu::uuid_at(device, doing),
        }
    }
}

const CREATE: &str = "create a tensor on a device";

impl Client {
    /// Creates a draft on a device: row-major, with 0 to 16 sizes in elements. Its bytes are uninitialized.
    ///
    /// If this client has a free slot, the method takes it without the daemon. Otherwise it asks the daemon for a
    /// segment, which blocks for a round trip.
    ///
    /// ```no_run
    /// use tensorlend::{Client, DType, Device};
    ///
    /// let client = Client::connect()?;
    /// let mut weights = client.create_on(Device::cuda(0), DType::F32, [1024])?;
    /// weights.copy_from_host(&[0.0f32; 1024])?;
    /// weights.publish("weights")?;
    /// # Ok::<(), tensorlend::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Tensor`] for an invalid shape; [`Error::Device`] if this process has no such device, or if the daemon
    /// lends no memory of the device; [`Error::Refused`] if the daemon has no memory left to lend.
    pub fn create_on(&self, on: impl Into<On>, dtype: DType, shape: impl IntoShape) -> Result<DeviceDraft> {
        self.create_spec_on(on, TensorSpec::try_new(dtype, shape)?)
    }

    /// Creates a draft like [`Client::create_on`], with strides in elements and a byte offset.
    ///
    /// # Errors
    /// The errors of [`Client::create_on`].
    pub fn create_spec_on(&self, on: impl Into<On>, spec: TensorSpec) -> Result<DeviceDraft> {
        DeviceDraft::on_device(self.session(), on.into().uuid(CREATE)?, None, &spec)
    }

    /// Creates a draft like [`Client::create_on`], for work in a stream. The draft records the stream, so that its
    /// readers wait for the work. If the device's allocator is `arena`, the stream has segments of its own.
    ///
    /// # Errors
    /// The errors of [`Client::create_on`], and [`Error::Device`] for a stream of another context than the device's
    /// primary one.
    pub fn create_on_stream(
        &self,
        on: impl Into<On>,
        stream: impl Into<OnStream>,
        dtype: DType,
        shape: impl IntoShape,
    ) -> Result<DeviceDraft> {
        let spec = TensorSpec::try_new(dtype, shape)?;
        DeviceDraft::on_device(self.session(), on.into().uuid(CREATE)?, Some(stream.into()), &spec)
    }

    /// Copies an array from the host to a device and publishes it there. Blocks until the copy is complete.
    ///
    /// ```no_run
    /// use tensorlend::{Client, Device};
    ///
    /// let client = Client::connect()?;
    /// client.put_on(Device::cuda(0), "numbers", &[1.0f32, 2.0, 3.0])?;
    /// assert_eq!(client.get_device("numbers")?.to_vec::<f32>()?, [1.0, 2.0, 3.0]);
    /// # Ok::<(), tensorlend::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Client::create_on`] and [`Client::put`].
    pub fn put_on(&self, on: impl Into<On>, name: &str, array: &(impl AsTensor + ?Sized)) -> Result<Version> {
        check_name(name)?;
        array.check()?;
        let mut draft = self.create_on(on, array.dtype(), &array.shape())?;
        if let Some(bytes) = array.bytes() {
            draft.copy_from_bytes(bytes)?;
        } else {
            let mut bytes = vec![0; draft.nbytes()];
            array.write_to(&mut bytes);
            draft.copy_from_bytes(&bytes)?;
        }
        // The copy is complete, and no other work is pending.
        draft.publish(name)
    }

    /// Leases a tensor on a device. If its producer published it early, blocks until the producer's work on it is
    /// done.
    ///
    /// # Errors
    /// * [`Error::NotFound`] if the name holds no value.
    /// * [`Error::Kind`] if the name holds a tensor in host memory, or a dataset.
    /// * [`Error::Device`] if this process cannot use the device.
    pub fn get_device(&self, name: &str) -> Result<DeviceLease> {
        let lease = self.get_device_early(name)?;
        lease.finish()?;
        Ok(lease)
    }

    /// Leases like [`Client::get_device`], without waiting for the producer's work. A tensor that was published early
    /// may be incomplete, so call [`DeviceLease::wait`](crate::DeviceTensor::wait) for each stream that reads it.
    ///
    /// # Errors
    /// The errors of [`Client::get_device`].
    pub fn get_device_early(&self, name: &str) -> Result<DeviceLease> {
        check_name(name)?;
        let session = self.session();
        let leased = lease_key(session, name.as_bytes(), name)?.ok_or_else(|| Error::NotFound(name.to_owned()))?;
        match leased {
            Leased::Other(parts) if parts.bytes.is_none() => DeviceLease::new(session, parts.held, &parts.info, name),
            leased => Err(not_on_device(name, &assemble::value(session, leased, name)?)),
        }
    }

    /// Waits like [`Client::wait_newer`], for a tensor on a device.
    ///
    /// # Errors
    /// The errors of [`Client::wait_newer`] and [`Client::get_device`].
    pub fn wait_newer_device(&self, name: &str, seen: Version, timeout: impl Into<Timeout>) -> Result<DeviceLease> {
        match self.wait_value(name, seen, timeout)? {
            Value::Device(lease) => Ok(lease),
            other => Err(not_on_device(name, &other)),
        }
    }

    /// Returns whether this client has created the draft.
    #[doc(hidden)]
    pub fn has_created<M: draft::Memory>(&self, draft: &Draft<M>) -> bool {
        std::sync::Arc::ptr_eq(self.session(), draft.session())
    }

    /// Returns this client's use of memory on one device: bytes of its slots in use, and of its segments.
    ///
    /// # Errors
    /// [`Error::Device`] if no device has this number; [`Error::Forked`].
    pub fn device_memory(&self, on: impl Into<On>) -> Result<MemoryUse> {
        let session = self.session();
        session.check()?;
        let uuid = on.into().uuid("look at a device's memory")?;
        let (slot_bytes, segment_bytes) = session.alloc().figures_on(uuid);
        Ok(MemoryUse { slot_bytes, segment_bytes })
    }
}

fn not_on_device(name: &str, value: &Value) -> Error {
    let (found, remedy) = match value {
        Value::Dataset(_) => (ValueKind::Dataset, "get_dataset"),
        _ => (ValueKind::Tensor, "get"),
    };
    Error::Kind { name: name.to_owned(), found, wanted: ValueKind::DeviceTensor, remedy }
}
