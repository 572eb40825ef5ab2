//! Values at both ends of a transfer. The sender reads a value from a lease, and the receiver
//! writes it into drafts.

use crate::wire::{BadChunk, BadDescriptor, Body, Chunk, Codec, Descriptor, NodeName, Shape, TensorShape};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use tensorlend::{Client, Draft, Tensor, TensorSpec, Value, ValueDraft};
use xxhash_rust::xxh3::Xxh3;

/// A leased value to be sent without a copy of its bytes. The object holds the lease while any of
/// the bytes are in flight.
#[derive(Clone)]
pub struct Outgoing {
    parts: Vec<Part>,
    descriptor: Arc<Descriptor>,
}

/// The bytes of one tensor, in row-major order.
#[derive(Clone)]
struct Part {
    bytes: Bytes,
    /// Size of one element in bytes.
    element: usize,
}

/// The bytes of a tensor in a leased value. The object holds the lease.
struct LeasedBytes {
    value: Arc<Value>,
    member: usize,
}

impl LeasedBytes {
    fn tensor(&self) -> Option<&Tensor> {
        match &*self.value {
            Value::Tensor(lease) => Some(lease),
            Value::Dataset(dataset) => dataset.iter().nth(self.member).map(|(_, tensor)| tensor),
            _ => None,
        }
    }
}

impl AsRef<[u8]> for LeasedBytes {
    fn as_ref(&self) -> &[u8] {
        self.tensor().and_then(Tensor::row_major_bytes).unwrap_or_default()
    }
}

impl Outgoing {
    /// Makes a value to send from a leased value. `origin` is the node that first published the
    /// value.
    ///
    /// # Errors
    /// [`BadDescriptor`] for a value that cannot be sent.
    pub fn new(value: Value, origin: NodeName) -> Result<Self, BadDescriptor> {
        let descriptor = Arc::new(Descriptor::of(&value, origin)?);
        let value = Arc::new(value);
        let parts = descriptor.shape.tensors().enumerate().map(|(member, (_, shape))| {
            let leased = LeasedBytes { value: value.clone(), member };
            let element = shape.dtype().map_or(1, tensorlend::DType::item_bytes);
            let bytes = match leased.tensor() {
                // The bytes of a strided tensor are not in row-major order, so copy them into this
                // order once.
                Some(tensor) if !tensor.is_row_major() => {
                    let mut bytes = vec![0; tensor.nbytes()];
                    tensor.copy_to(&mut bytes).expect("as long as the tensor");
                    Bytes::from(bytes)
                }
                _ => Bytes::from_owner(leased),
            };
            Part { bytes, element }
        });
        let parts = parts.collect();
        Ok(Self { parts, descriptor })
    }

    /// Makes a value to send from copied bytes. `parts` has the bytes of each tensor, with the size of an element in
    /// bytes.
    pub fn of_bytes(descriptor: Descriptor, parts: Vec<(Bytes, usize)>) -> Self {
        let parts = parts.into_iter().map(|(bytes, element)| Part { bytes, element }).collect();
        Self { parts, descriptor: Arc::new(descriptor) }
    }

    pub fn descriptor(&self) -> &Arc<Descriptor> {
        &self.descriptor
    }

    /// Returns the length of the value in bytes.
    pub fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes.len() as u64).sum()
    }

    /// Returns true if the value has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a range of the value's bytes without a copy, truncated at the value's end. Also
    /// returns the element size in bytes of the tensor in which the range begins.
    pub fn range(&self, offset: u64, bytes: u64) -> (Body, usize) {
        let wanted = offset..offset.saturating_add(bytes);
        let mut element = None;
        let mut pieces = Vec::new();
        let mut begin = 0;
        for part in &self.parts {
            let here = overlap(begin..begin + part.bytes.len() as u64, &wanted);
            if !here.is_empty() {
                element.get_or_insert(part.element);
                pieces.push(part.bytes.slice((here.start - begin) as usize..(here.end - begin) as usize));
            }
            begin += part.bytes.len() as u64;
        }
        (Body::pieces(pieces), element.unwrap_or(1))
    }
}

/// A chunk of a value, and its bytes.
pub struct Piece {
    /// The chunk's range in the value, and its codec.
    pub chunk: Chunk,
    /// The encoded bytes of the chunk.
    pub body: Body,
}

/// A value that is being received. Its bytes are written directly into the drafts that readers will lease.
pub struct Incoming {
    /// One draft for each tensor of the descriptor, in the same order.
    drafts: Vec<Draft>,
    descriptor: Arc<Descriptor>,
    bytes: u64,
}

impl Incoming {
    /// Allocates drafts for a checked descriptor.
    ///
    /// # Errors
    /// The client's error, if it cannot allocate memory.
    pub fn new(client: &Client, descriptor: Arc<Descriptor>) -> tensorlend::Result<Self> {
        let draft = |tensor: &TensorShape| {
            let dtype = tensor.dtype().map_err(|bad| tensorlend::Error::Argument(bad.to_string()))?;
            let mut draft = client.create_spec(TensorSpec::new(dtype, &tensor.shape))?;
            draft.set_metadata(&tensor.metadata)?.set_timestamp(tensor.timestamp_ns);
            Ok(draft)
        };
        let drafts = descriptor.shape.tensors().map(|(_, tensor)| draft(tensor)).collect::<tensorlend::Result<_>>()?;
        Ok(Self { drafts, bytes: descriptor.bytes(), descriptor })
    }

    pub fn descriptor(&self) -> &Arc<Descriptor> {
        &self.descriptor
    }

    /// Returns the length of the value in bytes.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Writes a chunk to its range. An uncompressed chunk is copied once, from the engine's
    /// buffers. A compressed chunk that spans several tensors is decompressed into a buffer first.
    ///
    /// # Errors
    /// [`BadChunk`]. Then the contents of the range are unspecified.
    pub fn receive(&mut self, chunk: &Chunk, body: &Body) -> Result<(), BadChunk> {
        let to = chunk.offset.saturating_add(u64::from(chunk.bytes));
        if to > self.bytes {
            return Err(BadChunk::Range { from: chunk.offset, to, of: self.bytes });
        }
        if chunk.codec == Codec::Plain {
            if body.len() as u64 != u64::from(chunk.bytes) {
                return Err(BadChunk::Length { found: body.len() as u64, wanted: u64::from(chunk.bytes) });
            }
            // Hash each piece immediately after its copy, while the bytes are in the cache.
            let mut hash = chunk.checksum.map(|sum| (Xxh3::new(), sum));
            let mut at = chunk.offset;
            body.for_each(|piece| {
                self.write(at, piece);
                at += piece.len() as u64;
                if let Some((hash, _)) = &mut hash {
                    hash.update(piece);
                }
            });
            return match hash {
                Some((hash, sum)) if hash.digest() != sum => Err(BadChunk::Checksum),
                _ => Ok(()),
            };
        }
        let mut begin = 0;
        for draft in &mut self.drafts {
            let bytes = draft.bytes_mut();
            if begin <= chunk.offset && to <= begin + bytes.len() as u64 {
                return chunk.unpack(body, &mut bytes[(chunk.offset - begin) as usize..(to - begin) as usize]);
            }
            begin += bytes.len() as u64;
        }
        let mut all = vec![0; chunk.bytes as usize];
        chunk.unpack(body, &mut all)?;
        self.write(chunk.offset, &all);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let wanted = offset..offset + bytes.len() as u64;
        let mut begin = 0;
        for draft in &mut self.drafts {
            let out = draft.bytes_mut();
            let end = begin + out.len() as u64;
            let here = overlap(begin..end, &wanted);
            if !here.is_empty() {
                let from = &bytes[(here.start - offset) as usize..(here.end - offset) as usize];
                out[(here.start - begin) as usize..(here.end - begin) as usize].copy_from_slice(from);
            }
            begin = end;
            if begin >= wanted.end {
                return;
            }
        }
    }

    /// Finishes a complete value, and returns a draft to publish or send.
    ///
    /// # Errors
    /// The client's error, if the dataset cannot be made.
    pub fn finish(self, client: &Client) -> tensorlend::Result<ValueDraft> {
        match &self.descriptor.shape {
            Shape::Tensor(_) => {
                let draft = self.drafts.into_iter().next().expect("a tensor's descriptor has one");
                Ok(draft.into())
            }
            Shape::Dataset { members, metadata, timestamp_ns } => {
                let mut dataset = client.dataset().metadata(metadata)?.timestamp(*timestamp_ns);
                for ((name, _), draft) in members.iter().zip(self.drafts) {
                    dataset = dataset.add(name, draft)?;
                }
                Ok(dataset.into())
            }
        }
    }
}

fn overlap(one: Range<u64>, other: &Range<u64>) -> Range<u64> {
    one.start.max(other.start)..one.end.min(other.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Codecs, Packing};
    use tensorlend::DType;

    fn node() -> NodeName {
        NodeName::new("node7").unwrap()
    }

    /// Values of both kinds, sent in chunks of every length to another client, arrive unchanged.
    #[test]
    fn values_get_there_in_chunks() {
        let broker = tensorlend_daemon::embedded().unwrap();
        let here = Client::builder().socket(broker.socket()).connect().unwrap();
        let mut draft = here.create(DType::F32, &[30, 10]).unwrap();
        let numbers: Vec<f32> = (0_u16..300).map(f32::from).collect();
        draft.as_mut_slice::<f32>().unwrap().copy_from_slice(&numbers);
        draft.set_metadata(b"of the tensor").unwrap().set_timestamp(5);
        draft.publish("one").unwrap();
        let mut image = here.create(DType::U8, &[3000]).unwrap();
        image.bytes_mut().fill(9);
        let empty = here.create(DType::F64, &[0, 3]).unwrap();
        let mut depth = here
            .create_spec(TensorSpec { dtype: DType::U16, shape: vec![2, 3], strides: Some(vec![1, 2]), byte_offset: 0 })
            .unwrap();
        depth.as_mut_slice::<u16>().unwrap().copy_from_slice(&[1, 2, 3, 4, 5, 6]);
        let frame = here.dataset().add("image", image).unwrap().add("empty", empty).unwrap();
        frame.add("depth", depth).unwrap().metadata(b"of all").unwrap().timestamp(6).publish("several").unwrap();

        for name in ["one", "several"] {
            for (chunk_bytes, packing) in [(7, Packing::None), (1000, Packing::Zstd), (1 << 20, Packing::Lz4)] {
                let out = Outgoing::new(here.get_value(name).unwrap(), node()).unwrap();
                assert_eq!(out.len(), out.descriptor().bytes());
                let mut incoming = Incoming::new(&here, out.descriptor().clone()).unwrap();
                for offset in (0..out.len()).step_by(chunk_bytes) {
                    let (body, element) = out.range(offset, chunk_bytes as u64);
                    let (chunk, body) = Chunk::pack(offset, body, element, packing, Codecs::ALL, true);
                    incoming.receive(&chunk, &body).unwrap();
                }
                incoming.finish(&here).unwrap().publish("copy").unwrap();
                let (was, is) = (here.get_value(name).unwrap(), here.get_value("copy").unwrap());
                assert_eq!(Descriptor::of(&was, node()).unwrap(), Descriptor::of(&is, node()).unwrap());
            }
        }
        let copy = here.get_dataset("copy").unwrap();
        assert_eq!(copy.get("depth").unwrap().as_slice::<u16>().unwrap(), [1, 3, 5, 2, 4, 6]);
        assert!(copy.get("image").unwrap().bytes().iter().all(|&b| b == 9));
        assert_eq!((copy.metadata(), copy.timestamp()), (&b"of all"[..], 6));
    }

    #[test]
    fn bytes_on_their_way_keep_the_lease_and_are_not_copied() {
        let broker = tensorlend_daemon::embedded().unwrap();
        let here = Client::builder().socket(broker.socket()).connect().unwrap();
        here.put("one", &[7u8; 4096]).unwrap();
        let value = here.get_value("one").unwrap();
        let lies_at = value.as_tensor().unwrap().bytes().as_ptr();
        let (body, _) = Outgoing::new(value, node()).unwrap().range(100, 50);
        assert_eq!(body.as_one().unwrap().as_ptr(), lies_at.wrapping_add(100));
        for round in 0..50 {
            here.put("one", &[round; 4096]).unwrap();
        }
        assert_eq!(body.as_one().unwrap(), [7; 50]);
    }

    #[test]
    fn chunks_that_belong_nowhere_are_refused() {
        let broker = tensorlend_daemon::embedded().unwrap();
        let here = Client::builder().socket(broker.socket()).connect().unwrap();
        here.put("one", &[7u8; 100]).unwrap();
        let out = Outgoing::new(here.get_value("one").unwrap(), node()).unwrap();
        let mut incoming = Incoming::new(&here, out.descriptor().clone()).unwrap();
        let (body, _) = out.range(0, 100);
        let chunk = Chunk { offset: 1, bytes: 100, ..Chunk::default() };
        assert!(matches!(incoming.receive(&chunk, &body), Err(BadChunk::Range { .. })));
        let chunk = Chunk { offset: u64::MAX, bytes: 100, ..Chunk::default() };
        assert!(matches!(incoming.receive(&chunk, &body), Err(BadChunk::Range { .. })));
        let chunk = Chunk { offset: 0, bytes: 99, ..Chunk::default() };
        assert!(matches!(incoming.receive(&chunk, &body), Err(BadChunk::Length { .. })));
        let chunk = Chunk { offset: 0, bytes: 100, codec: Codec::Plain, checksum: Some(1) };
        assert_eq!(incoming.receive(&chunk, &body), Err(BadChunk::Checksum));
    }
}
