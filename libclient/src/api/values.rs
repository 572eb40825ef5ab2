//! Values under names: creating, publishing, leasing, waiting, deleting.

use crate::client::Client;
use crate::error::{Error, Result, check_name};
use crate::lease::assemble;
use crate::lease::by_name::{exists, lease_key, peek};
use crate::lease::dataset::Dataset;
use crate::lease::lease::Lease;
use crate::lease::many::lease_names;
use crate::lease::rename;
use crate::lease::take::Leased;
use crate::lease::value::Value;
use crate::names::lifetime::Lifetime;
use crate::names::version::Version;
use crate::segment::copy::into_shared;
use crate::tensor::dims::as_u64;
use crate::tensor::draft::Draft;
use crate::tensor::element::AsTensor;
use crate::tensor::shape::IntoShape;
use crate::tensor::spec::TensorSpec;
use crate::wait::{Deadline, Timeout};
use tensorlend_layout::DType;

impl Client {
    /// Creates a draft, which the program writes in place: row-major, with 0 to 16 sizes in elements ([`IntoShape`]).
    /// Its bytes are uninitialized: they contain the data of a former tensor.
    ///
    /// If this client has a free slot, the method takes it without the daemon. Otherwise it asks the daemon for a
    /// segment, which blocks for a round trip. Dropping the draft frees the slot.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use tensorlend::DType;
    ///
    /// let mut image = client.create(DType::U8, [480, 640, 3])?;
    /// assert_eq!(image.bytes_mut().len(), 480 * 640 * 3);
    /// image.bytes_mut().fill(255);
    /// image.publish("camera/front")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Tensor`] or [`Error::Argument`] for an invalid shape; [`Error::Refused`] if the daemon has no memory
    /// left to lend; [`Error::MemoryLimit`] if this client's own limit is reached.
    #[inline]
    pub fn create(&self, dtype: DType, shape: impl IntoShape) -> Result<Draft> {
        Draft::row_major(self.session(), dtype, shape.sizes()?.as_ref())
    }

    /// Creates a draft like [`Client::create`], with strides in elements and a byte offset.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use tensorlend::{DType, TensorSpec};
    ///
    /// // Two rows of three elements, the first padded to four.
    /// let spec = TensorSpec { strides: Some(vec![4, 1]), ..TensorSpec::new(DType::U8, [2, 3]) };
    /// let mut draft = client.create_spec(spec)?;
    /// draft.bytes_mut().copy_from_slice(&[1, 2, 3, 0, 4, 5, 6]);
    /// draft.publish("padded")?;
    ///
    /// let mut elements = [0; 6];
    /// client.get("padded")?.copy_to(&mut elements)?;
    /// assert_eq!(elements, [1, 2, 3, 4, 5, 6]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Tensor`] for an invalid shape, stride or byte offset; otherwise the errors of [`Client::create`].
    pub fn create_spec(&self, spec: TensorSpec) -> Result<Draft> {
        Draft::new(self.session(), &spec)
    }

    /// Creates a draft with a copy of an array. Use it for a stream, a list, a dataset or a request.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let features = client.create_from(&[0.5f32, 1.5])?;
    /// let label = client.create_from(&[7i64])?;
    /// client.append("samples", client.dataset().add("features", features)?.add("label", label)?)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Length`] for an array whose bytes do not match its shape; otherwise the errors of [`Client::create`].
    pub fn create_from(&self, array: &(impl AsTensor + ?Sized)) -> Result<Draft> {
        self.filled("the array", array)
    }

    /// Copies an array into shared memory and publishes it under a name: one copy, no serialization. The new value
    /// replaces a former value of the name. Leases on the former value stay valid.
    ///
    /// Returns the version of the new value. Use [`Client::create`] to write the elements in place, without the copy.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.put("numbers", &[1.0f32, 2.0, 3.0])?;
    /// assert_eq!(client.get("numbers")?.as_slice::<f32>()?, [1.0, 2.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Length`] for an array whose bytes do not match its shape; otherwise the errors of [`Client::create`]
    /// and [`Draft::publish`].
    pub fn put(&self, name: &str, array: &(impl AsTensor + ?Sized)) -> Result<Version> {
        check_name(name)?;
        self.filled(name, array)?.publish(name)
    }

    /// Publishes an array like [`Client::put`], for a name with a lifetime, which ends automatically. See
    /// [`Draft::publish_for`].
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use std::time::Duration;
    /// use tensorlend::Lifetime;
    ///
    /// client.put_for("heartbeat", &[1u8], Lifetime::ttl(Duration::from_millis(1)))?;
    /// while client.exists("heartbeat")? {
    ///     std::thread::sleep(Duration::from_millis(1));
    /// }
    /// assert_eq!(client.stat()?.names_expired, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for a time to live of 0; otherwise the errors of [`Client::put`].
    pub fn put_for(&self, name: &str, array: &(impl AsTensor + ?Sized), lifetime: Lifetime) -> Result<Version> {
        check_name(name)?;
        self.filled(name, array)?.publish_for(name, lifetime)
    }

    #[inline]
    pub(crate) fn filled(&self, name: &str, array: &(impl AsTensor + ?Sized)) -> Result<Draft> {
        array.check()?;
        let mut draft = Draft::row_major(self.session(), array.dtype(), as_u64(&array.shape()))?;
        match array.bytes() {
            Some(bytes) if bytes.len() == draft.bytes_mut().len() => into_shared(draft.bytes_mut(), bytes),
            Some(bytes) => {
                let (found, given) = (draft.bytes_mut().len() as u64, bytes.len() as u64);
                return Err(Error::Length { name: name.to_owned(), found, given });
            }
            None => array.write_to(draft.bytes_mut()),
        }
        Ok(draft)
    }

    #[inline]
    fn lease_of(&self, name: &str) -> Result<Leased> {
        check_name(name)?;
        match lease_key(self.session(), name.as_bytes(), name)? {
            Some(leased) => Ok(leased),
            None => self.lease_far(name),
        }
    }

    /// Leases the tensor that the name holds now, without a copy. A value published later uses other memory, so the
    /// leased bytes do not change.
    ///
    /// The lease uses a lease entry of this client until it is dropped. A client has 4096 entries. Never waits for a
    /// value: see [`Client::wait_for`].
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.put("numbers", &[1.0f32, 2.0, 3.0])?;
    /// let lease = client.get("numbers")?;
    /// client.put("numbers", &[4.0f32])?;
    /// assert_eq!(lease.as_slice::<f32>()?, [1.0, 2.0, 3.0]);
    /// assert!(client.get("nothing").unwrap_err().is_not_found());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// For a name of another machine, `NODE/NAME`, fetches the value unless a copy is on this machine: see
    /// [`crate::remote`].
    ///
    /// # Errors
    /// * [`Error::NotFound`] if the name holds no value.
    /// * [`Error::Kind`] if the name holds a dataset.
    /// * [`Error::Leases`] if this client holds 4096 leases already.
    /// * [`Error::Damaged`] if a faulty client published the value.
    /// * [`Error::Remote`] and [`Error::Timeout`], only for a name of another machine.
    pub fn get(&self, name: &str) -> Result<Lease> {
        match self.lease_of(name)? {
            Leased::Tensor(lease) => Ok(lease),
            Leased::Other(parts) => {
                assemble::tensor_of(assemble::of_parts(self.session(), *parts, name)?, name, "get_dataset")
            }
        }
    }

    /// Leases the dataset that the name holds now. One lease covers all of its tensors, which belong to one
    /// publication.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let image = client.create(tensorlend::DType::U8, [480, 640, 3])?;
    /// client.dataset().add("image", image)?.publish("frame")?;
    /// let frame = client.get_dataset("frame")?;
    /// assert_eq!(frame.get("image").unwrap().shape(), [480, 640, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Kind`] for a single tensor; otherwise the errors of [`Client::get`].
    pub fn get_dataset(&self, name: &str) -> Result<Dataset> {
        assemble::dataset(self.session(), self.lease_of(name)?, name)
    }

    /// Leases the value that the name holds now, whatever its kind.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use tensorlend::Value;
    ///
    /// client.put("numbers", &[1u8, 2])?;
    /// match client.get_value("numbers")? {
    ///     Value::Tensor(lease) => assert_eq!(lease.shape(), [2]),
    ///     Value::Dataset(dataset) => println!("{} tensors", dataset.len()),
    ///     #[allow(unreachable_patterns)]
    ///     other => println!("on a device, with the feature `cuda`: {other:?}"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Client::get`], except [`Error::Kind`].
    pub fn get_value(&self, name: &str) -> Result<Value> {
        match self.lease_of(name)? {
            Leased::Tensor(lease) => Ok(Value::Tensor(lease)),
            Leased::Other(parts) => assemble::of_parts(self.session(), *parts, name),
        }
    }

    /// Leases the values that the names hold now, one result for each name, in the order of the names.
    ///
    /// Equivalent to one [`Client::get_value`] for each name, and faster: the cache misses of up to 64 names overlap. Each
    /// result is the value of its name at some moment during the call. The results together are not a snapshot: another
    /// client may publish between two of these moments. A name that fails does not affect the other names.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use tensorlend::Value;
    ///
    /// client.put("a", &[1u8])?;
    /// client.put("b", &[2u8])?;
    /// let values = client.get_many(&["a", "b", "nothing"]);
    /// assert_eq!(values[1].as_ref().unwrap().tensor()?.bytes(), [2]);
    /// assert!(values[2].as_ref().unwrap_err().is_not_found());
    ///
    /// let all: Result<Vec<Value>, _> = client.get_many(&["a", "b"]).into_iter().collect();
    /// assert_eq!(all?.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Each result has the errors of [`Client::get_value`]. In particular, a client holds at most 4096 leases, so at most
    /// this many names succeed.
    pub fn get_many(&self, names: &[impl AsRef<str>]) -> Vec<Result<Value>> {
        lease_names(self.session(), names, |name| self.get_value(name))
    }

    /// Leases like [`Client::get_value`], on this machine only: asks no other machine and never waits. Returns `None`
    /// if the name holds no value.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// assert!(client.get_here("node7/numbers")?.is_none());
    /// client.put("numbers", &[1u8, 2])?;
    /// assert!(client.get_here("numbers")?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Leases`] and [`Error::Damaged`], like [`Client::get`].
    pub fn get_here(&self, name: &str) -> Result<Option<Value>> {
        check_name(name)?;
        match lease_key(self.session(), name.as_bytes(), name)? {
            Some(Leased::Tensor(lease)) => Ok(Some(Value::Tensor(lease))),
            Some(Leased::Other(parts)) => assemble::of_parts(self.session(), *parts, name).map(Some),
            None => Ok(None),
        }
    }

    /// Copies the tensor's elements, in C order, into a buffer of exactly the same length in bytes. Returns the
    /// version of the copied value.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.put("numbers", &[1u8, 2, 3])?;
    /// let mut buffer = [0; 3];
    /// let seen = client.get_into("numbers", &mut buffer)?;
    /// assert_eq!(buffer, [1, 2, 3]);
    /// assert_eq!(client.version("numbers")?, Some(seen));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Length`] if the buffer has another length; otherwise the errors of [`Client::get`].
    pub fn get_into(&self, name: &str, buffer: &mut [u8]) -> Result<Version> {
        let lease = self.get(name)?;
        if lease.nbytes() != buffer.len() {
            let (found, given) = (lease.nbytes() as u64, buffer.len() as u64);
            return Err(Error::Length { name: name.to_owned(), found, given });
        }
        lease.copy_to(buffer)?;
        Ok(lease.version())
    }

    /// Returns whether the name holds a value on this machine. Takes no lease and asks no other machine. Asks the daemon
    /// only to map another client's cells for the first time.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// assert!(!client.exists("numbers")?);
    /// client.put("numbers", &[1u8])?;
    /// assert!(client.exists("numbers")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Damaged`] if a faulty client owns the name.
    pub fn exists(&self, name: &str) -> Result<bool> {
        check_name(name)?;
        self.session().check()?;
        exists(self.session(), name.as_bytes())
    }

    /// Returns the version of the value that the name holds on this machine, or `None` if the name holds no value. Takes no
    /// lease and asks no other machine. Asks the daemon only to map another client's cells for the first time. This is the
    /// cheapest way to poll for a new value.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let seen = client.put("numbers", &[1u8])?;
    /// assert_eq!(client.version("numbers")?, Some(seen));
    /// client.put("numbers", &[1u8])?;
    /// assert_ne!(client.version("numbers")?, Some(seen));
    /// assert_eq!(client.version("nothing")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Damaged`] if a faulty client owns the name.
    pub fn version(&self, name: &str) -> Result<Option<Version>> {
        check_name(name)?;
        self.session().check()?;
        let now = peek(self.session(), name.as_bytes())?;
        Ok(now.seen.filter(|_| now.exists))
    }

    /// Blocks until the name holds a tensor, and leases it.
    ///
    /// The thread spins briefly and then sleeps on a futex. If the name already has a value, the method returns at
    /// once.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use std::time::Duration;
    ///
    /// let producer = client.clone();
    /// let thread = std::thread::spawn(move || producer.put("late", &[7u8]));
    /// let lease = client.wait_for("late", Duration::from_secs(10))?;
    /// assert_eq!(lease.as_slice::<u8>()?, [7]);
    /// # thread.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`] if the name held no value in time; otherwise the errors of [`Client::get`].
    pub fn wait_for(&self, name: &str, timeout: impl Into<Timeout>) -> Result<Lease> {
        self.wait_newer(name, Version::NONE, timeout)
    }

    /// Blocks until the name holds another value than `seen`, and leases this value.
    ///
    /// Skips values that were replaced in the meantime: use a stream to receive every value. [`Version::NONE`] as
    /// `seen` accepts any value.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use std::time::Duration;
    ///
    /// let seen = client.put("step", &[1u32])?;
    /// client.put("step", &[2u32])?;
    /// let lease = client.wait_newer("step", seen, Duration::from_secs(1))?;
    /// assert_eq!(lease.as_slice::<u32>()?, [2]);
    ///
    /// let none = client.wait_newer("step", lease.version(), Duration::from_millis(10));
    /// assert!(none.unwrap_err().is_timeout());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`] if no other value was published in time; otherwise the errors of [`Client::get`].
    pub fn wait_newer(&self, name: &str, seen: Version, timeout: impl Into<Timeout>) -> Result<Lease> {
        assemble::tensor_of(self.wait_value(name, seen, timeout)?, name, "wait_value")
    }

    /// Waits like [`Client::wait_newer`], for a tensor or a dataset.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use tensorlend::{DType, Version};
    ///
    /// client.dataset().add("depth", client.create(DType::F32, [4, 4])?)?.publish("frame")?;
    /// let frame = client.wait_value("frame", Version::NONE, None)?;
    /// assert_eq!(frame.dataset()?.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Client::wait_newer`], except [`Error::Kind`].
    pub fn wait_value(&self, name: &str, seen: Version, timeout: impl Into<Timeout>) -> Result<Value> {
        self.wait_value_until(name, seen, Deadline::new(timeout))
    }

    fn wait_value_until(&self, name: &str, seen: Version, deadline: Deadline) -> Result<Value> {
        check_name(name)?;
        loop {
            // After `None`, another client has just deleted the name, so continue to wait.
            if let Some(leased) = self.wait_anywhere(name, seen, deadline)?.lease(name)? {
                return assemble::value(self.session(), leased, name);
            }
        }
    }

    /// Deletes the value of a name. Returns false if the name held no value. Leases on the value stay valid. Any
    /// client with the right to write may delete any name.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.put("numbers", &[1u8])?;
    /// assert!(client.delete("numbers")?);
    /// assert!(!client.delete("numbers")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Refused`] if this client has no right to write.
    pub fn delete(&self, name: &str) -> Result<bool> {
        check_name(name)?;
        self.session().names().delete(name)
    }

    /// Removes the value of a name of this client without waiting for the daemon. The name ends at the end of its lifetime,
    /// and until then this client can publish under it by [`Draft::publish_within`](crate::Draft::publish_within). Returns false
    /// if the name held no value, or belongs to another client.
    ///
    /// # Errors
    /// [`Error::Name`]; [`Error::Forked`].
    #[doc(hidden)]
    pub fn empty(&self, name: &str) -> Result<bool> {
        check_name(name)?;
        self.session().names().empty(name)
    }

    /// Renames `from` to `to`, and replaces a former value of `to`. Readers may see both names for a moment, but never
    /// neither. If another live client owns `from`, the method copies its value. The value gets a version that `to` never had,
    /// also if `to` had this value before.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.put("draft", &[1u8])?;
    /// client.rename("draft", "final")?;
    /// assert!(client.exists("final")? && !client.exists("draft")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotFound`]; otherwise the errors of [`Draft::publish`].
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_name(from)?;
        check_name(to)?;
        rename::rename(self.session(), from, to)
    }

    /// Copies the value of `from` to `to`: bytes, metadata and timestamp. Returns the version of the copy.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.put("numbers", &[1u8])?;
    /// client.copy("numbers", "backup")?;
    /// client.put("numbers", &[2u8])?;
    /// assert_eq!(client.get("backup")?.as_slice::<u8>()?, [1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotFound`]; otherwise the errors of [`Client::put`].
    pub fn copy(&self, from: &str, to: &str) -> Result<Version> {
        check_name(from)?;
        check_name(to)?;
        rename::copy(self.session(), from, to)
    }
}
