//! What there is: pages of a namespace's names.

use super::{Asker, BadFrame, Head, check_limit, check_name, check_words};
use serde::{Deserialize, Serialize};

/// Names on one page, at most.
pub const PAGE_MAX: u32 = 4096;
/// Bytes of a glob, at most.
const GLOB_BYTES_MAX: u64 = 1024;

/// A question about a namespace: what is there?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AboutNames {
    /// Who asks.
    pub asker: Asker,
    /// Which names, without their node.
    pub glob: String,
    /// Only those behind this one, in the order of (kind, name).
    pub after: Option<(ListedKind, String)>,
    /// So many, at most.
    pub names: u32,
}

/// What is answered about a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamesAnswer {
    /// A page, in order.
    Names {
        /// What there is.
        names: Vec<Listed>,
        /// Whether there is more behind the last of them.
        more: bool,
    },
    /// Not for this asker, or not so; why, in words.
    Refused(String),
}

/// What something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ListedKind {
    /// A name that holds a tensor.
    Tensor,
    /// A name that holds a dataset.
    Dataset,
    /// A list.
    List,
    /// A stream.
    Stream,
}

impl ListedKind {
    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tensor => "tensor",
            Self::Dataset => "dataset",
            Self::List => "list",
            Self::Stream => "stream",
        }
    }
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// What it is.
    pub kind: ListedKind,
    /// Its name, without its node.
    pub name: String,
    /// A tensor's element type, in a word; else empty.
    pub dtype: String,
    /// A tensor's sizes, in elements.
    pub shape: Vec<u64>,
    /// Bytes of its elements; items of a list, subscribers of a stream.
    pub size: u64,
}

impl Head for AboutNames {
    const KIND: u8 = 7;

    fn check(&self) -> Result<(), BadFrame> {
        check_limit("names on a page", u64::from(self.names), u64::from(PAGE_MAX))?;
        check_limit("bytes of a glob", self.glob.len() as u64, GLOB_BYTES_MAX)?;
        self.after.as_ref().map_or(Ok(()), |(_, name)| check_name(name))
    }
}

impl Head for NamesAnswer {
    const KIND: u8 = 8;

    fn check(&self) -> Result<(), BadFrame> {
        match self {
            Self::Names { names, .. } => {
                check_limit("names on a page", names.len() as u64, u64::from(PAGE_MAX))?;
                names.iter().try_for_each(|listed| {
                    check_name(&listed.name)?;
                    check_limit("dimensions", listed.shape.len() as u64, 16)?;
                    let is_word = listed.dtype.len() <= 16 && listed.dtype.bytes().all(|b| b.is_ascii_graphic());
                    if is_word { Ok(()) } else { Err(BadFrame::Contradiction("an element type that is no word")) }
                })
            }
            Self::Refused(words) => check_words(words),
        }
    }
}
