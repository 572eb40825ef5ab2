//! Datasets of four tensors, which producers append to a list, and a consumer collects: at a client, or in Redis as hashes
//! whose keys are in a list.

use crate::resp::Connection;
use std::io::{self, Read, Write};
use tensorlend::{Client, DType};

/// Names of a dataset's tensors.
pub const TENSORS: [&str; 4] = ["t0", "t1", "t2", "t3"];

/// Returns the sum of all bits, which requires reading the whole tensor.
pub fn sum(array: &[f32]) -> u64 {
    let sum = |part: &[f32]| part.iter().fold(0_u32, |sum, value| sum.wrapping_add(value.to_bits()));
    array.chunks(1024).map(|part| u64::from(sum(part))).fold(0, u64::wrapping_add)
}

pub fn append(client: &Client, list: &str, arrays: &[Vec<f32>]) -> tensorlend::Result<()> {
    let mut dataset = client.dataset();
    for (name, array) in TENSORS.into_iter().zip(arrays) {
        let mut draft = client.create(DType::F32, &[array.len() as u64])?;
        draft.as_mut_slice::<f32>()?.copy_from_slice(array);
        dataset = dataset.add(name, draft)?;
    }
    client.append(list, dataset)?;
    Ok(())
}

impl<S: Read + Write> Connection<S> {
    /// Appends a dataset, whose hash gets this key, to a list.
    pub fn append(&mut self, list: &str, key: &str, arrays: &[Vec<f32>]) -> io::Result<()> {
        let mut parts: Vec<&[u8]> = vec![b"HSET", key.as_bytes()];
        for (name, array) in TENSORS.into_iter().zip(arrays) {
            parts.extend([name.as_bytes(), bytemuck::cast_slice(array)]);
        }
        // Sends both before the first reply: one round trip.
        self.send(&parts)?;
        self.send(&[b"RPUSH", list.as_bytes(), key.as_bytes()])?;
        self.number().and_then(|_| self.number())?;
        Ok(())
    }

    pub fn length(&mut self, list: &str) -> io::Result<u64> {
        self.send(&[b"LLEN", list.as_bytes()])?;
        self.number()
    }

    /// Fetches all tensors of a list into `memory`: the keys, then the datasets of `batch` keys at a time. Each tensor has
    /// this number of elements. Returns the keys.
    pub fn collect(
        &mut self,
        list: &str,
        memory: &mut [f32],
        elements: usize,
        batch: usize,
    ) -> io::Result<Vec<Vec<u8>>> {
        self.send(&[b"LRANGE", list.as_bytes(), b"0", b"-1"])?;
        let mut keys = Vec::new();
        for _ in 0..self.number()? {
            let length = self.number()?;
            let key = self.line()?.into_bytes();
            assert_eq!(key.len() as u64, length);
            keys.push(key);
        }
        for (keys, memory) in keys.chunks(batch).zip(memory.chunks_mut(batch * 4 * elements)) {
            for key in keys {
                let mut parts: Vec<&[u8]> = vec![b"HMGET", key];
                parts.extend(TENSORS.map(str::as_bytes));
                self.send(&parts)?;
            }
            for dataset in memory.chunks_mut(4 * elements) {
                assert_eq!(self.number()?, 4);
                for tensor in dataset.chunks_mut(elements) {
                    self.bulk(bytemuck::cast_slice_mut(tensor))?;
                }
            }
        }
        Ok(keys)
    }
}
