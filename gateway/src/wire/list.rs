//! Lists: how many items there are, and what they are.

use super::{Asker, BadFrame, Descriptor, Epoch, Head, Stamp, check_limit, check_words};
use serde::{Deserialize, Serialize};

/// Items that one answer describes, at most.
pub const ITEMS_MAX: u32 = 256;

/// A question about one list: what are its items from this one on?
///
/// The bytes of an item are read by the questions of names ([`super::NameQuestion::Read`]), under the list's key, by the [stamp](item) of the item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AboutList {
    /// Who asks.
    pub asker: Asker,
    /// The first item that is wanted.
    pub from: u64,
    /// Of so many, at most.
    pub items: u32,
}

/// What is answered about one list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListAnswer {
    /// What there is.
    Items {
        /// Which list of this name: another one after it was cleared.
        list: Epoch,
        /// Items in it.
        length: u64,
        /// What they are, from the one that was asked for; fewer than were asked for if there are no more, or if there is no room here.
        items: Vec<Descriptor>,
    },
    /// There is no such list.
    Nothing,
    /// Not for this asker; why, in words.
    Refused(String),
}

/// The stamp of an item: which list, which item.
pub fn item(list: Epoch, number: u64) -> Stamp {
    Stamp { epoch: list, counter: number.saturating_add(1) }
}

impl Head for AboutList {
    const KIND: u8 = 3;

    fn check(&self) -> Result<(), BadFrame> {
        check_limit("items", u64::from(self.items), u64::from(ITEMS_MAX))
    }
}

impl Head for ListAnswer {
    const KIND: u8 = 4;

    fn check(&self) -> Result<(), BadFrame> {
        match self {
            Self::Items { items, length, .. } => {
                check_limit("items", items.len() as u64, u64::from(ITEMS_MAX))?;
                check_limit("items", items.len() as u64, *length)?;
                items.iter().try_for_each(|item| Ok(item.check()?))
            }
            Self::Nothing => Ok(()),
            Self::Refused(words) => check_words(words),
        }
    }
}
