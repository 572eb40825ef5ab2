//! Names of other machines' tensors, and names that stay on this machine.

use crate::wire::NodeName;
use tensorlend::remote::{SERVICE, split};

/// A name of another node, in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RemoteName {
    /// Index of the namespace in the settings.
    pub space: usize,
    /// The node that publishes the name.
    pub node: NodeName,
    /// The name on that node.
    pub name: String,
}

impl RemoteName {
    /// Parses a name as clients of this machine write it: `NODE/NAME`.
    ///
    /// # Errors
    /// The reason, in words for the client.
    pub fn parse(space: usize, name: &str) -> Result<Self, String> {
        let (node, rest) = split(name).ok_or_else(|| format!("{name:?} is no name of another machine: NODE/NAME"))?;
        let node = NodeName::new(node).map_err(|bad| bad.to_string())?;
        Ok(Self { space, node, name: rest.to_owned() })
    }

    /// Returns the name of the local copy.
    pub fn local(&self) -> String {
        format!("{}/{}", self.node, self.name)
    }
}

/// Returns true for names of the gateway's own documents and of request-response services. Other
/// machines neither read nor write these names.
pub fn is_internal(name: &str) -> bool {
    first_part(name) == SERVICE || ["/.server/", "/.door/", "/.line/"].iter().any(|part| name.contains(part))
}

/// Returns the part of a name before the first slash.
pub fn first_part(name: &str) -> &str {
    name.split('/').next().unwrap_or_default()
}
