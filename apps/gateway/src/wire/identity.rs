//! Identities of nodes, of runs of a gateway, and of values.

use serde::{Deserialize, Serialize};
use std::fmt;

pub const NODE_BYTES_MAX: usize = 63;

/// The name of a node, which has 1 to 63 of the characters `a`-`z`, `A`-`Z`, `0`-`9`, `.`, `-` and
/// `_`. A host name has the same characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

/// The error for an invalid node name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no name of a node: {0:?} (1 to {NODE_BYTES_MAX} letters, digits, '.', '-' and '_')")]
pub struct BadNode(String);

impl NodeName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`BadNode`].
    pub fn new(name: &str) -> Result<Self, BadNode> {
        let is_one = (1..=NODE_BYTES_MAX).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
        if is_one { Ok(Self(name.to_owned())) } else { Err(BadNode(name.chars().take(NODE_BYTES_MAX).collect())) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for NodeName {
    type Error = BadNode;

    fn try_from(name: String) -> Result<Self, BadNode> {
        Self::new(&name)
    }
}

impl From<NodeName> for String {
    fn from(node: NodeName) -> Self {
        node.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The identity of one run of a gateway, a random number that the gateway draws when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Draws a random epoch.
    ///
    /// # Errors
    /// The kernel's error, if it provides no random bytes.
    pub fn draw() -> std::io::Result<Self> {
        let mut bytes = [0; 8];
        match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())? {
            8 => Ok(Self(u64::from_le_bytes(bytes))),
            _ => Err(std::io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Parses the text form of 16 lowercase hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let is_one = text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        is_one.then(|| u64::from_str_radix(text, 16).ok()).flatten().map(Self)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The identity of a value: an epoch of its gateway, and the number of values that the gateway had
/// seen in this epoch. If two stamps have the same name and epoch, the larger counter belongs to
/// the later value. Stamps of two epochs cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// The epoch of the gateway that counted.
    pub epoch: Epoch,
    /// The count, which starts at 1.
    pub counter: u64,
}

impl Stamp {
    /// Returns true if this stamp's value is later than the value of `other`. Returns `None` if
    /// their epochs differ.
    pub fn is_after(self, other: Self) -> Option<bool> {
        (self.epoch == other.epoch).then_some(self.counter > other.counter)
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.counter)
    }
}
