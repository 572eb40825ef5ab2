//! Messages about lists.

use super::{Asker, BadFrame, CHUNK_BYTES_MAX, Chunk, Codec, Descriptor, Epoch, Head, Stamp, check_limit, check_words};
use serde::{Deserialize, Serialize};

/// Maximum items that one response describes.
pub const ITEMS_MAX: u32 = 256;

/// A request for consecutive items of one list.
///
/// To read the bytes of a larger item, a node sends [`super::NameQuestion::Read`] requests with the list's key and the
/// item's [stamp](item).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AboutList {
    /// The requesting gateway.
    pub asker: Asker,
    /// The list that the requester copies. If the node has another list of this name, it responds with that one's first
    /// items.
    pub list: Option<Epoch>,
    /// Number of the first requested item of this list.
    pub from: u64,
    /// Maximum number of items in the response.
    pub items: u32,
    /// Maximum bytes of items in the response, so that small items need no requests of their own.
    pub bytes: u32,
    /// Whether the response must contain checksums of these bytes.
    pub checksum: bool,
}

/// A response about one list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListAnswer {
    /// Consecutive items of the list.
    Items {
        /// The identity of the list. If a client clears the list, a new list with another identity
        /// begins.
        list: Epoch,
        /// Number of items in the list.
        length: u64,
        /// Descriptors of the items, from the first requested item on. There are fewer than
        /// requested at the end of the list, or if the response is full.
        items: Vec<Descriptor>,
        /// The chunks of the first of these items. Each chunk is a whole, uncompressed item. The
        /// body is the concatenation of their bytes.
        whole: Vec<Chunk>,
    },
    /// The node has no list of this name.
    Nothing,
    /// A refusal, with its reason as text.
    Refused(String),
}

/// Returns the stamp of an item: the list's epoch and the item's number.
pub fn item(list: Epoch, number: u64) -> Stamp {
    Stamp { epoch: list, counter: number.saturating_add(1) }
}

impl Head for AboutList {
    const KIND: u8 = 3;

    fn check(&self) -> Result<(), BadFrame> {
        check_limit("items", u64::from(self.items), u64::from(ITEMS_MAX))?;
        check_limit("bytes of items", u64::from(self.bytes), u64::from(CHUNK_BYTES_MAX))
    }
}

impl Head for ListAnswer {
    const KIND: u8 = 4;

    fn check(&self) -> Result<(), BadFrame> {
        match self {
            Self::Items { items, length, whole, .. } => {
                check_limit("items", items.len() as u64, u64::from(ITEMS_MAX))?;
                check_limit("items", items.len() as u64, *length)?;
                items.iter().try_for_each(Descriptor::check)?;
                check_limit("whole items", whole.len() as u64, items.len() as u64)?;
                items.iter().zip(whole).try_for_each(|(item, chunk)| {
                    chunk.check(Some(item.bytes()))?;
                    let is_whole = chunk.offset == 0 && u64::from(chunk.bytes) == item.bytes();
                    let is_plain = is_whole && chunk.codec == Codec::Plain;
                    if is_plain { Ok(()) } else { Err(BadFrame::Contradiction("a whole item that is not whole")) }
                })
            }
            Self::Nothing => Ok(()),
            Self::Refused(words) => check_words(words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{NodeName, Shape, TensorShape};

    fn answer(bytes: u64, whole: Vec<Chunk>) -> ListAnswer {
        let tensor = TensorShape { dtype: (1, 8, 1), shape: vec![bytes], metadata: vec![], timestamp_ns: 0 };
        let origin = NodeName::new("node7").unwrap();
        let items = vec![Descriptor { origin, shape: Shape::Tensor(tensor) }];
        ListAnswer::Items { list: Epoch(1), length: 1, items, whole }
    }

    #[test]
    fn items_that_come_along_are_whole() {
        let chunk = |offset, bytes, codec| Chunk { offset, bytes, codec, checksum: None };
        let good =
            [answer(10, vec![]), answer(10, vec![chunk(0, 10, Codec::Plain)]), answer(0, vec![Chunk::default()])];
        assert!(good.iter().all(|answer| answer.check().is_ok()));
        for bad in [
            vec![chunk(0, 9, Codec::Plain)],
            vec![chunk(0, 11, Codec::Plain)],
            vec![chunk(1, 9, Codec::Plain)],
            vec![chunk(0, 10, Codec::Zstd)],
            vec![chunk(0, 10, Codec::Plain); 2],
        ] {
            assert!(answer(10, bad.clone()).check().is_err(), "{bad:?}");
        }
    }
}
