//! Host memory and device memory behind one interface, so that the same tests run on each.

use std::time::Duration;
use tensorlend::{
    Client, DType, Dataset, DatasetDraft, DeviceDraft, DeviceLease, Lifetime, Member, Result, Stream, TensorSpec,
    TrySendError, Uuid, Value, Version,
};

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    Host,
    Device(Uuid),
}

/// A draft in either kind of memory.
pub enum Draft {
    Host(tensorlend::Draft),
    Device(DeviceDraft),
}

/// A lease in either kind of memory.
#[derive(Debug)]
pub enum Lease {
    Host(tensorlend::Lease),
    Device(DeviceLease),
}

/// Returns bytes that encode a value and, at each position, that position.
pub fn pattern(value: u64, bytes: usize) -> Vec<u8> {
    let mut all = Vec::with_capacity(bytes + 8);
    for turn in 0..bytes.div_ceil(8) {
        all.extend_from_slice(&group(value, turn as u8));
    }
    all.truncate(bytes);
    all
}

/// Returns the eight bytes at index `turn`, modulo 256, of a value's pattern.
fn group(value: u64, turn: u8) -> [u8; 8] {
    (value.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from_le_bytes([turn; 8])).to_le_bytes()
}

/// Returns true if `bytes` contain a piece of a value's pattern.
pub fn tells(bytes: &[u8], value: u64) -> bool {
    let word = u64::from_le_bytes(group(value, 0));
    let turn = |group: &[u8]| {
        let turns = word ^ u64::from_le_bytes(group.try_into().expect("eight bytes"));
        (turns == u64::from_le_bytes([turns as u8; 8])).then_some(turns as u8)
    };
    bytes.chunks_exact(16).any(|pair| match (turn(&pair[..8]), turn(&pair[8..])) {
        (Some(one), Some(other)) => other == one.wrapping_add(1),
        _ => false,
    })
}

impl Location {
    /// Parses `host`, or `cuda`: the first device that the daemon lends.
    ///
    /// # Panics
    /// For another word, and if there is no device.
    pub fn named(name: &str, client: &Client) -> Self {
        match name {
            "host" => Self::Host,
            "cuda" => Self::Device(client.devices().first().expect("the daemon lends a device").uuid),
            other => panic!("no location is named {other}"),
        }
    }

    pub fn is_device(self) -> bool {
        self != Self::Host
    }

    pub fn create(self, client: &Client, spec: TensorSpec) -> Result<Draft> {
        match self {
            Self::Host => client.create_spec(spec).map(Draft::Host),
            Self::Device(uuid) => client.create_spec_on(uuid, spec).map(Draft::Device),
        }
    }

    /// Creates a draft of this many bytes that holds a value.
    pub fn filled(self, client: &Client, value: u64, bytes: u64) -> Result<Draft> {
        let mut draft = self.create(client, TensorSpec::new(DType::U8, &[bytes]))?;
        draft.write(&pattern(value, bytes as usize))?;
        Ok(draft)
    }

    pub fn put(self, client: &Client, name: &str, value: u64, bytes: u64) -> Result<Version> {
        self.filled(client, value, bytes)?.publish(name)
    }

    /// Creates a dataset that holds a value: a tensor of this many bytes here, between two short tensors in host memory.
    pub fn dataset(self, client: &Client, value: u64, bytes: u64) -> Result<DatasetDraft> {
        let mut dataset = client.dataset().timestamp(value);
        for (name, location, bytes) in [("first", Self::Host, 16), ("long", self, bytes), ("last", Self::Host, 24)] {
            match location.filled(client, value, bytes)? {
                Draft::Host(draft) => dataset.push(name, draft)?,
                Draft::Device(draft) => dataset.push(name, draft)?,
            }
        }
        Ok(dataset)
    }

    pub fn get(self, client: &Client, name: &str) -> Result<Lease> {
        match self {
            Self::Host => client.get(name).map(Lease::Host),
            Self::Device(_) => client.get_device(name).map(Lease::Device),
        }
    }

    pub fn wait_newer(self, client: &Client, name: &str, seen: Version, patience: Duration) -> Result<Lease> {
        match self {
            Self::Host => client.wait_newer(name, seen, Some(patience)).map(Lease::Host),
            Self::Device(_) => client.wait_newer_device(name, seen, Some(patience)).map(Lease::Device),
        }
    }

    /// Returns the bytes of this client's segments there.
    pub fn segment_bytes(self, client: &Client) -> Result<u64> {
        match self {
            Self::Host => Ok(client.memory().segment_bytes),
            Self::Device(uuid) => Ok(client.device_memory(uuid)?.segment_bytes),
        }
    }

    /// Returns the bytes that the daemon has lent there.
    pub fn lent_bytes(self, client: &Client) -> Result<u64> {
        let stat = client.stat()?;
        Ok(match self {
            Self::Host => stat.bytes_in_use,
            Self::Device(uuid) => {
                stat.devices.iter().find(|it| it.offer.uuid == uuid).map_or(0, |device| device.bytes_in_use)
            }
        })
    }
}

/// Returns the value of a dataset of [`Location::dataset`].
///
/// # Panics
/// If a member is torn, or holds another value than the others.
pub fn value_of(dataset: &Dataset) -> Result<u64> {
    let value = dataset.timestamp();
    let names: Vec<&str> = dataset.members().map(|(name, _)| name).collect();
    assert_eq!(names, ["first", "long", "last"]);
    for (name, member) in dataset.members() {
        let mut bytes = vec![0; member.nbytes()];
        match member {
            Member::Host(tensor) => tensor.copy_to(&mut bytes)?,
            Member::Device(member) => member.tensor()?.copy_to_bytes(&mut bytes)?,
        }
        assert!(bytes == pattern(value, bytes.len()), "{name} of {value} is torn");
    }
    Ok(value)
}

impl Draft {
    /// Writes all bytes of the tensor, gaps included.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Host(draft) => {
                draft.bytes_mut().copy_from_slice(bytes);
                Ok(())
            }
            Self::Device(draft) => draft.copy_from_bytes(bytes),
        }
    }

    /// Returns the number of bytes, gaps included.
    pub fn span(&mut self) -> usize {
        match self {
            Self::Host(draft) => draft.bytes_mut().len(),
            Self::Device(draft) => draft.nbytes(),
        }
    }

    /// Sets metadata and a timestamp.
    pub fn label(&mut self, metadata: &[u8], timestamp: u64) -> Result<()> {
        match self {
            Self::Host(draft) => {
                draft.set_metadata(metadata)?.set_timestamp(timestamp);
            }
            Self::Device(draft) => {
                draft.set_metadata(metadata)?.set_timestamp(timestamp);
            }
        }
        Ok(())
    }

    pub fn publish(self, name: &str) -> Result<Version> {
        match self {
            Self::Host(draft) => draft.publish(name),
            Self::Device(draft) => draft.publish(name),
        }
    }

    /// Publishes the draft under a name with a lifetime.
    pub fn publish_for(self, name: &str, lifetime: Lifetime) -> Result<Version> {
        match self {
            Self::Host(draft) => draft.publish_for(name, lifetime),
            Self::Device(draft) => draft.publish_for(name, lifetime),
        }
    }

    pub fn append(self, client: &Client, list: &str) -> Result<u64> {
        match self {
            Self::Host(draft) => client.append(list, draft),
            Self::Device(draft) => client.append(list, draft),
        }
    }

    /// Sends the draft, waiting for room.
    pub fn send(self, stream: &Stream, patience: Duration) -> Result<u64> {
        match self {
            Self::Host(draft) => stream.send_timeout(draft, patience),
            Self::Device(draft) => stream.send_timeout(draft, patience),
        }
    }

    /// Sends the draft if there is room; otherwise returns it.
    pub fn try_send(self, stream: &Stream) -> Result<Option<Self>> {
        fn of<M>(sent: std::result::Result<u64, TrySendError<M>>, back: fn(M) -> Draft) -> Result<Option<Draft>> {
            match sent {
                Ok(_) => Ok(None),
                Err(TrySendError::Full(draft)) => Ok(Some(back(draft))),
                Err(TrySendError::Failed(error)) => Err(error),
            }
        }
        match self {
            Self::Host(draft) => of(stream.try_send(draft), Self::Host),
            Self::Device(draft) => of(stream.try_send(draft), Self::Device),
        }
    }
}

impl Lease {
    /// Returns the lease of a value from a stream or a list.
    ///
    /// # Panics
    /// For a dataset.
    pub fn of(value: Value) -> Self {
        match value {
            Value::Tensor(lease) => Self::Host(lease),
            Value::Device(lease) => Self::Device(lease),
            other => panic!("nobody made such a value: {other:?}"),
        }
    }

    /// Returns the bytes of the tensor's elements, in C order.
    pub fn read(&self) -> Result<Vec<u8>> {
        match self {
            Self::Host(lease) => {
                let mut bytes = vec![0; lease.nbytes()];
                lease.copy_to(&mut bytes)?;
                Ok(bytes)
            }
            Self::Device(lease) => {
                let mut bytes = vec![0; lease.nbytes()];
                lease.copy_to_bytes(&mut bytes)?;
                Ok(bytes)
            }
        }
    }

    /// Returns true if it holds this value, untorn.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn is(&self, value: u64) -> bool {
        let bytes = self.read().expect("what is leased can be read");
        bytes == pattern(value, bytes.len())
    }

    /// Returns its value.
    ///
    /// # Panics
    /// If it is torn, or too short to contain the value.
    pub fn value(&self) -> Result<u64> {
        let bytes = self.read()?;
        let word = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
        // The inverse of the pattern's factor.
        let value = word.wrapping_mul(0xF1DE_83E1_9937_733D);
        let right = pattern(value, bytes.len());
        if let Some(at) = bytes.chunks(8).zip(right.chunks(8)).position(|(is, should)| is != should) {
            let (at, layout) = (at * 8, self.layout());
            panic!(
                "torn: value {value:#x}, but from {at} of {} on {:x?}: {layout:?}",
                bytes.len(),
                &bytes[at..][..8.min(bytes.len() - at)]
            );
        }
        Ok(value)
    }

    /// Returns dtype, sizes, strides.
    pub fn layout(&self) -> (DType, Vec<usize>, Vec<i64>) {
        match self {
            Self::Host(it) => (it.dtype(), it.shape().to_vec(), it.strides().to_vec()),
            Self::Device(it) => (it.dtype(), it.shape().to_vec(), it.strides().to_vec()),
        }
    }

    /// Returns metadata and timestamp.
    pub fn label(&self) -> (&[u8], u64) {
        match self {
            Self::Host(it) => (it.metadata(), it.timestamp()),
            Self::Device(it) => (it.metadata(), it.timestamp()),
        }
    }

    pub fn version(&self) -> Version {
        match self {
            Self::Host(it) => it.version(),
            Self::Device(it) => it.version(),
        }
    }

    /// Returns true if the lease is still valid.
    pub fn validate(&self) -> bool {
        match self {
            Self::Host(it) => it.validate(),
            Self::Device(it) => it.validate(),
        }
    }
}
