//! Names, and their keys in the directory.

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

/// The kind of a key. Names contain no control characters, so the first byte distinguishes the other kinds.
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

/// Checks a name: 1 to 255 bytes of UTF-8 without control characters.
///
/// # Errors
/// [`BadName`] otherwise.
#[inline]
pub fn check(name: &str) -> Result<(), BadName> {
    if name.is_empty() {
        return Err(BadName::Empty);
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(BadName::Long(name.len()));
    }
    // Fast path for printable ASCII, as almost every name is.
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
    prefixed(2, name.as_bytes())
}

/// Returns the key of a stream: byte 3, then its name.
pub fn stream_key(name: &str) -> Vec<u8> {
    prefixed(3, name.as_bytes())
}

/// Returns the key of a list's item: byte 1, the list's id and the item's number, little endian.
pub fn item_key(list: u64, number: u64) -> [u8; 17] {
    let mut key = [1; 17];
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

/// Splits a key into its kind and its name (empty for an item); `None` if it is invalid.
pub fn parse(key: &[u8]) -> Option<(KeyKind, &str)> {
    let (kind, name) = match key {
        [1, item @ ..] => return (item.len() == 16).then_some((KeyKind::Item, "")),
        [2, name @ ..] => (KeyKind::List, name),
        [3, name @ ..] => (KeyKind::Stream, name),
        name => (KeyKind::Name, name),
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
        assert!(list_key(&"x".repeat(255)).len() <= crate::directory::KEY_BYTES_MAX);
    }
}
