//! Messages that list a namespace's names, in pages.

use super::{Asker, BadFrame, Head, check_limit, check_name, check_words};
use serde::{Deserialize, Serialize};

/// Maximum names on one page.
pub const PAGE_MAX: u32 = 4096;
const GLOB_BYTES_MAX: u64 = 1024;

/// A request for the names in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AboutNames {
    /// The requesting gateway.
    pub asker: Asker,
    /// The glob that the names must match. The names are written without their node.
    pub glob: String,
    /// The last entry of the previous page, in the order of (kind, name). The requested page starts
    /// after it.
    pub after: Option<(ListedKind, String)>,
    /// Maximum names in the response.
    pub names: u32,
}

/// A response about a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamesAnswer {
    /// One page of entries, in the order of (kind, name).
    Names {
        /// The entries of the page.
        names: Vec<Listed>,
        /// Whether more pages follow.
        more: bool,
    },
    /// A refusal, with its reason as text.
    Refused(String),
}

/// The kind of object to which an entry belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ListedKind {
    /// A name that holds a tensor.
    Tensor,
    /// A name that holds a dataset.
    Dataset,
    List,
    Stream,
}

impl ListedKind {
    pub fn word(self) -> &'static str {
        match self {
            Self::Tensor => "tensor",
            Self::Dataset => "dataset",
            Self::List => "list",
            Self::Stream => "stream",
        }
    }
}

/// One entry of a listing.
///
/// A listing does not read spilled values back into memory. If the shape of a spilled tensor is only in its file,
/// `dtype` and `shape` are empty. If the size of a spilled dataset is only in its file, `size` is 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    pub kind: ListedKind,
    /// Name of the object, without its node.
    pub name: String,
    /// Element type of a tensor, as a word; empty for other objects.
    pub dtype: String,
    /// Size of each dimension of a tensor, in elements; empty for other objects.
    pub shape: Vec<u64>,
    /// Size of the object. For a tensor or a dataset, the bytes of its elements. For a list, its
    /// number of items. For a stream, its number of subscribers.
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
