//! Key expressions, which consist of a node, a kind, a namespace and a name.
//!
//! ```text
//! tensorlend/1/NODE/alive/EPOCH                liveliness token: the node can be reached
//! tensorlend/1/NODE/name/SPACE/NAME            requests about a name of that node
//! tensorlend/1/NODE/list/SPACE/NAME            requests about a list of that node
//! tensorlend/1/NODE/stream/SPACE/NAME          requests about a stream of that node
//! tensorlend/1/NODE/names/SPACE                requests for the names of that node
//! tensorlend/1/NODE/to/OTHER/changed/SPACE     invalidation messages: from NODE, for OTHER
//! tensorlend/1/NODE/to/OTHER/message/LINK      messages of a stream: from NODE, for OTHER
//! ```
//!
//! The node comes first, so that zenoh's access control can restrict the requests that one node may
//! send to another. Keys have the canonical form of zenoh's key expressions. A tensor's name may
//! contain characters that a key expression may not contain: `*`, `$`, `?`, `#`, and `@` at the
//! start of a chunk. They are percent-encoded. An empty chunk becomes a single `%`.

use crate::wire::{BadNode, Epoch, NodeName};
use std::fmt::Write;

/// The prefix of all keys. Its number is the version of the wire protocol.
pub const ROOT: &str = "tensorlend/1";

/// The kind of object that a request concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A tensor or a dataset.
    Name,
    List,
    Stream,
}

impl Kind {
    fn chunk(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::List => "list",
            Self::Stream => "stream",
        }
    }
}

/// A key, or an expression that matches several keys. `None` is a wildcard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// The liveliness token of a node, in one epoch of its gateway.
    Alive(Option<NodeName>, Option<Epoch>),
    /// One name, list or stream of a node. With `name: None`, all objects of that kind in the
    /// namespace.
    About {
        node: NodeName,
        kind: Kind,
        /// The namespace, by its name between gateways.
        space: String,
        /// The object's name; `None` matches all names.
        name: Option<String>,
    },
    /// The names of a node's namespace.
    Names(NodeName, String),
    /// Invalidation messages from one node to another, in a namespace.
    Changed {
        /// The sender; `None` matches any node.
        from: Option<NodeName>,
        to: NodeName,
        /// The namespace; `None` matches any namespace.
        space: Option<String>,
    },
    /// Messages of one link, from one node to another.
    Message {
        /// The sender; `None` matches any node.
        from: Option<NodeName>,
        to: NodeName,
        /// The link's number, which the receiver drew; `None` matches any link.
        link: Option<u64>,
    },
}

/// The reason why a text is not a key of a gateway.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// The form is unknown or not canonical.
    #[error("no key of a gateway: {0:?}")]
    Unknown(String),
    #[error(transparent)]
    Node(#[from] BadNode),
}

impl Key {
    /// Returns the key in zenoh's form.
    pub fn expression(&self) -> String {
        let mut key = format!("{ROOT}/");
        match self {
            Self::Alive(node, epoch) => {
                any(&mut key, node.as_ref());
                key.push_str("/alive/");
                any(&mut key, epoch.as_ref());
            }
            Self::About { node, kind, space, name } => {
                let _ = write!(key, "{node}/{}/", kind.chunk());
                escape(&mut key, space, true);
                key.push('/');
                match name {
                    Some(name) => escape(&mut key, name, false),
                    None => key.push_str("**"),
                }
            }
            Self::Names(node, space) => {
                let _ = write!(key, "{node}/names/");
                escape(&mut key, space, true);
            }
            Self::Changed { from, to, space } => {
                any(&mut key, from.as_ref());
                let _ = write!(key, "/to/{to}/changed/");
                match space {
                    Some(space) => escape(&mut key, space, true),
                    None => key.push('*'),
                }
            }
            Self::Message { from, to, link } => {
                any(&mut key, from.as_ref());
                let _ = write!(key, "/to/{to}/message/");
                match link {
                    Some(link) => {
                        let _ = write!(key, "{link:016x}");
                    }
                    None => key.push('*'),
                }
            }
        }
        key
    }

    /// Returns true if this expression matches `key`.
    pub fn includes(&self, key: &Self) -> bool {
        fn any<T: PartialEq>(all: Option<&T>, one: Option<&T>) -> bool {
            all.is_none() || all == one
        }
        match (self, key) {
            (Self::Alive(node, epoch), Self::Alive(of, in_life)) => {
                any(node.as_ref(), of.as_ref()) && any(epoch.as_ref(), in_life.as_ref())
            }
            (
                Self::About { node, kind, space, name },
                Self::About { node: of, kind: what, space: within, name: called },
            ) => (node, kind, space) == (of, what, within) && any(name.as_ref(), called.as_ref()),
            (Self::Changed { from, to, space }, Self::Changed { from: by, to: whom, space: within }) => {
                to == whom && any(from.as_ref(), by.as_ref()) && any(space.as_ref(), within.as_ref())
            }
            (Self::Message { from, to, link }, Self::Message { from: by, to: whom, link: on }) => {
                to == whom && any(from.as_ref(), by.as_ref()) && any(link.as_ref(), on.as_ref())
            }
            (one, other) => one == other,
        }
    }

    /// Parses a key.
    ///
    /// # Errors
    /// [`BadKey`] for a key that this version does not support, or that is not in the canonical
    /// form.
    pub fn parse(text: &str) -> Result<Self, BadKey> {
        let unknown = || BadKey::Unknown(text.chars().take(200).collect());
        let rest = text.strip_prefix(ROOT).and_then(|rest| rest.strip_prefix('/')).ok_or_else(unknown)?;
        let (node, rest) = rest.split_once('/').ok_or_else(unknown)?;
        let node = NodeName::new(node)?;
        let (what, rest) = rest.split_once('/').ok_or_else(unknown)?;
        let about = |kind| {
            let (space, name) = rest.split_once('/').ok_or_else(unknown)?;
            let space = unescape(space, true).ok_or_else(unknown)?;
            let name = Some(unescape(name, false).ok_or_else(unknown)?);
            Ok::<Self, BadKey>(Self::About { node: node.clone(), kind, space, name })
        };
        let key = match what {
            "alive" => Self::Alive(Some(node), Some(Epoch::parse(rest).ok_or_else(unknown)?)),
            "name" => about(Kind::Name)?,
            "list" => about(Kind::List)?,
            "stream" => about(Kind::Stream)?,
            "names" => Self::Names(node, unescape(rest, true).ok_or_else(unknown)?),
            "to" => {
                let (to, rest) = rest.split_once('/').ok_or_else(unknown)?;
                let (to, from) = (NodeName::new(to)?, Some(node));
                match rest.split_once('/').ok_or_else(unknown)? {
                    ("changed", space) => {
                        Self::Changed { from, to, space: Some(unescape(space, true).ok_or_else(unknown)?) }
                    }
                    ("message", link) if link.len() == 16 => {
                        let link = u64::from_str_radix(link, 16).map_err(|_| unknown())?;
                        Self::Message { from, to, link: Some(link) }
                    }
                    _ => return Err(unknown()),
                }
            }
            _ => return Err(unknown()),
        };
        // Each name has exactly one accepted form. So no other spelling of a name can evade an
        // access rule for that name.
        if key.expression() == text { Ok(key) } else { Err(unknown()) }
    }
}

fn any(key: &mut String, what: Option<&impl std::fmt::Display>) {
    match what {
        Some(what) => {
            let _ = write!(key, "{what}");
        }
        None => key.push('*'),
    }
}

/// Appends an encoded name to a key. If `whole` is true, the name becomes one chunk, so its slashes
/// are encoded, too.
fn escape(key: &mut String, name: &str, whole: bool) {
    let chunks = if whole { vec![name] } else { name.split('/').collect() };
    for (at, chunk) in chunks.iter().enumerate() {
        if at > 0 {
            key.push('/');
        }
        if chunk.is_empty() {
            key.push('%');
        }
        for (at, c) in chunk.char_indices() {
            match c {
                '%' | '*' | '$' | '?' | '#' | '/' => {
                    let _ = write!(key, "%{:02X}", c as u32);
                }
                '@' if at == 0 => key.push_str("%40"),
                c => key.push(c),
            }
        }
    }
}

fn unescape(text: &str, whole: bool) -> Option<String> {
    let mut name = String::with_capacity(text.len());
    for (at, chunk) in text.split('/').enumerate() {
        if at > 0 {
            if whole {
                return None;
            }
            name.push('/');
        }
        if chunk == "%" {
            continue;
        }
        let mut rest = chunk;
        while let Some((plain, encoded)) = rest.split_once('%') {
            name.push_str(plain);
            let digits = encoded.get(..2).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))?;
            name.push(char::from(u8::from_str_radix(digits, 16).ok().filter(u8::is_ascii)?));
            rest = &encoded[2..];
        }
        name.push_str(rest);
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn node() -> NodeName {
        NodeName::new("node7").unwrap()
    }

    #[test]
    fn keys_are_read_as_they_are_written() {
        let about = |kind, name: &str| Key::About { node: node(), kind, space: "lab".into(), name: Some(name.into()) };
        let other = NodeName::new("a.b-c").unwrap();
        for (key, text) in [
            (Key::Alive(Some(node()), Some(Epoch(7))), "tensorlend/1/node7/alive/0000000000000007"),
            (about(Kind::Name, "sim/pressure"), "tensorlend/1/node7/name/lab/sim/pressure"),
            (about(Kind::List, "a//b"), "tensorlend/1/node7/list/lab/a/%/b"),
            (about(Kind::Stream, "/@x*?"), "tensorlend/1/node7/stream/lab/%/%40x%2A%3F"),
            (Key::Names(node(), "u/1000".into()), "tensorlend/1/node7/names/u%2F1000"),
            (
                Key::Changed { from: Some(node()), to: other.clone(), space: Some("lab".into()) },
                "tensorlend/1/node7/to/a.b-c/changed/lab",
            ),
            (
                Key::Message { from: Some(node()), to: other, link: Some(255) },
                "tensorlend/1/node7/to/a.b-c/message/00000000000000ff",
            ),
        ] {
            assert_eq!(key.expression(), text);
            assert_eq!(Key::parse(text), Ok(key));
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for text in [
            "",
            "tensorlend/2/node7/name/lab/x",
            "tensorlend/1/node7/name/lab",
            "tensorlend/1/node7/name/lab/%2a",
            "tensorlend/1/node7/name/lab/%61",
            "tensorlend/1/node7/name/lab/%zz",
            "tensorlend/1/node7/name/lab/%\u{e9}",
            "tensorlend/1/NODE*/name/lab/x",
            "tensorlend/1/node7/to/node8/message/7",
        ] {
            assert!(Key::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_name_comes_back(name in "[^\\p{Cc}]{1,60}", space in "[^\\p{Cc}]{1,20}") {
            let key = Key::About { node: node(), kind: Kind::Name, space, name: Some(name) };
            prop_assert_eq!(Key::parse(&key.expression()), Ok(key.clone()));
            #[cfg(feature = "zenoh")]
            prop_assert!(zenoh::key_expr::KeyExpr::new(key.expression()).is_ok());
        }

        #[test]
        fn no_text_is_too_much(text in "tensorlend/1/[a-z%/*0-9]{0,40}") {
            if let Ok(key) = Key::parse(&text) {
                prop_assert_eq!(key.expression(), text);
            }
        }
    }
}
