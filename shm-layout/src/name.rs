//! Names, and their keys in the directory.

use crate::directory::{KEY_BYTES_MAX, NameEntry};

/// Maximum length of a name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// The reason why a name was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// No bytes at all.
    #[error("a name needs at least one byte")]
    Empty,
    /// More than 255 bytes.
    #[error("the name has {0} bytes; the longest has {NAME_BYTES_MAX}")]
    Long(usize),
    /// A control character.
    #[error("the name contains the control character {0:?}; use printable characters")]
    Control(char),
}

#[cfg(not(loom))]
impl From<BadName> for crate::wire::Refusal {
    fn from(bad: BadName) -> Self {
        Self::Bad(bad.to_string())
    }
}

/// The kind of a key. A key of a kind other than `Name` begins with a control character, which
/// names do not contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// A tensor or a dataset.
    Name,
    /// One item of a list.
    Item,
    /// A list.
    List,
    /// A stream.
    Stream,
}

/// First bytes of keys that are not names.
const ITEM: u8 = 1;
const LIST: u8 = 2;
const STREAM: u8 = 3;

impl KeyKind {
    /// Returns the kind of an entry's key. The caller then checks that the owner word did not
    /// change during the read.
    #[inline]
    pub fn of(entry: &NameEntry) -> Self {
        Self::of_byte(entry.name[0].peek().to_le_bytes()[0])
    }

    const fn of_byte(first: u8) -> Self {
        match first {
            ITEM => Self::Item,
            LIST => Self::List,
            STREAM => Self::Stream,
            _ => Self::Name,
        }
    }

    /// Returns true if the owner word of a key of this kind leads to a cell. The owner words of
    /// names and items do. The owner word of a list or stream leads to an entry in the table of
    /// lists or streams.
    #[inline]
    pub const fn leads_to_cell(self) -> bool {
        matches!(self, Self::Name | Self::Item)
    }
}

/// Returns true if the entry's key is the key of an item of this list.
#[cfg(not(loom))]
pub fn is_item_of(entry: &NameEntry, list: u64) -> bool {
    // The first nine bytes of `item_key`, as words.
    let words = [entry.name[0].peek(), entry.name[1].peek() & 0xFF];
    entry.key_bytes() == ITEM_KEY_BYTES && words == [u64::from(ITEM) | list << 8, list >> 56]
}

/// Checks a name: 1 to 255 bytes of UTF-8 without control characters.
///
/// # Errors
/// [`BadName`] for any other name.
#[inline]
pub fn check(name: &str) -> Result<(), BadName> {
    if name.is_empty() {
        return Err(BadName::Empty);
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(BadName::Long(name.len()));
    }
    // Fast path for printable ASCII: almost every name is printable ASCII.
    if name.bytes().fold(true, |plain, b| plain & matches!(b, b' '..=b'~')) {
        return Ok(());
    }
    match name.chars().find(|c| c.is_control()) {
        Some(c) => Err(BadName::Control(c)),
        None => Ok(()),
    }
}

/// Returns the key of a list: byte 2, then its name.
pub fn list_key(name: &str) -> Vec<u8> {
    prefixed(LIST, name.as_bytes())
}

/// Returns the same key as [`list_key`], without an allocation. The key is the beginning of
/// `buffer`. Returns `None` if the name is too long for a list.
#[inline]
pub fn list_key_in<'b>(buffer: &'b mut [u8; KEY_BYTES_MAX], name: &str) -> Option<&'b [u8]> {
    let key = buffer.get_mut(..=name.len())?;
    let (kind, rest) = key.split_first_mut()?;
    *kind = LIST;
    rest.copy_from_slice(name.as_bytes());
    Some(key)
}

/// Returns the key of a stream: byte 3, then its name.
pub fn stream_key(name: &str) -> Vec<u8> {
    prefixed(STREAM, name.as_bytes())
}

const ITEM_KEY_BYTES: usize = 17;

/// Returns the key of a list's item: byte 1, then the list's id and the item's number, both little
/// endian.
pub fn item_key(list: u64, number: u64) -> [u8; ITEM_KEY_BYTES] {
    let mut key = [ITEM; ITEM_KEY_BYTES];
    key[1..9].copy_from_slice(&list.to_le_bytes());
    key[9..].copy_from_slice(&number.to_le_bytes());
    key
}

fn prefixed(kind: u8, name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(name.len() + 1);
    key.push(kind);
    key.extend_from_slice(name);
    key
}

/// Splits a key into its kind and its name (empty for an item). Returns `None` if the key is
/// invalid.
pub fn parse(key: &[u8]) -> Option<(KeyKind, &str)> {
    let kind = KeyKind::of_byte(*key.first()?);
    let name = match kind {
        KeyKind::Item => return (key.len() == ITEM_KEY_BYTES).then_some((kind, "")),
        KeyKind::List | KeyKind::Stream => &key[1..],
        KeyKind::Name => key,
    };
    let name = core::str::from_utf8(name).ok()?;
    check(name).ok().map(|()| (kind, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_at_their_limits() {
        assert_eq!(check(""), Err(BadName::Empty));
        assert!(check("a").is_ok());
        assert!(check(&"x".repeat(255)).is_ok());
        assert_eq!(check(&"x".repeat(256)), Err(BadName::Long(256)));
        assert_eq!(check("a\nb"), Err(BadName::Control('\n')));
        assert_eq!(check("a\u{85}b"), Err(BadName::Control('\u{85}')));
        assert!(check("温度/センサ 1").is_ok());
    }

    #[test]
    fn keys_tell_their_kind() {
        assert_eq!(parse(b"pressure"), Some((KeyKind::Name, "pressure")));
        assert_eq!(parse(&list_key("l")), Some((KeyKind::List, "l")));
        assert_eq!(parse(&stream_key("s")), Some((KeyKind::Stream, "s")));
        assert_eq!(parse(&item_key(7, 9)), Some((KeyKind::Item, "")));
        assert_eq!(parse(&[1, 2]), None);
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"\xff"), None);
        let mut buffer = [0xFF; KEY_BYTES_MAX];
        for name in ["l", "", &"x".repeat(NAME_BYTES_MAX)] {
            assert_eq!(list_key_in(&mut buffer, name), Some(&*list_key(name)));
        }
        assert_eq!(list_key_in(&mut buffer, &"x".repeat(NAME_BYTES_MAX + 1)), None);
    }
}
