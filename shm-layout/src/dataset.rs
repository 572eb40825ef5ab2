//! The index of a dataset: the bytes of its first slot, which names the slots of its members.
//!
//! The members live and die with the index: one publication, one lease.

use crate::name;

/// Members of a dataset at most.
pub const MEMBERS_MAX: usize = 4096;

/// Bytes of an index at most.
pub const BYTES_MAX: usize = 4 + MEMBERS_MAX * (16 + name::NAME_BYTES_MAX);

/// One tensor of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetMember {
    /// Its name in the dataset.
    pub name: String,
    /// Its slot, in the same catalogue as the index.
    pub slot: u32,
    /// Its slot's generation.
    pub generation: u64,
}

/// The index as bytes: count u32; per member slot u32, generation u64, length of the name u32, name. Little endian.
pub fn encode(members: &[DatasetMember]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend((members.len() as u32).to_le_bytes());
    for member in members {
        bytes.extend(member.slot.to_le_bytes());
        bytes.extend(member.generation.to_le_bytes());
        bytes.extend((member.name.len() as u32).to_le_bytes());
        bytes.extend(member.name.as_bytes());
    }
    bytes
}

/// Reads an index; `None` if it is damaged or names a member twice. Bytes behind it are ignored.
pub fn decode(bytes: &[u8]) -> Option<Vec<DatasetMember>> {
    let mut rest = bytes;
    let mut take = |count: usize| -> Option<&[u8]> {
        let (head, tail) = rest.split_at_checked(count)?;
        rest = tail;
        Some(head)
    };
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
    let count = number(take(4)?) as usize;
    if count > MEMBERS_MAX {
        return None;
    }
    let mut members: Vec<DatasetMember> = Vec::with_capacity(count);
    let mut seen = std::collections::HashSet::new();
    for _ in 0..count {
        let slot = number(take(4)?) as u32;
        let generation = number(take(8)?);
        let length = number(take(4)?) as usize;
        let name = core::str::from_utf8(take(length)?).ok()?;
        name::check(name).ok()?;
        if !seen.insert(name.to_owned()) {
            return None;
        }
        members.push(DatasetMember { name: name.to_owned(), slot, generation });
    }
    Some(members)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_index_comes_back() {
        let members: Vec<_> = ["image", "depth"]
            .iter()
            .enumerate()
            .map(|(i, n)| DatasetMember { name: (*n).into(), slot: i as u32, generation: 5 + i as u64 })
            .collect();
        let bytes = encode(&members);
        assert_eq!(decode(&bytes), Some(members.clone()));
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), None);
        }
        assert_eq!(decode(&encode(&[members[0].clone(), members[0].clone()])), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }
}
