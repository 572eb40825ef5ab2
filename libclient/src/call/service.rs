//! The names of a service, and the texts of its failures.

use crate::error::{Error, Result};
use std::fmt::Write;

/// Default number of outstanding requests of one caller.
pub const CAPACITY_DEFAULT: u32 = 8;
/// Maximum bytes that are added to a service's name: "/.line/", two numbers, "/", "/answers".
pub const ADDED_BYTES: usize = 7 + 16 + 1 + 16 + 8;

#[derive(Clone, Debug)]
pub struct Service {
    pub name: String,
}

impl Service {
    pub fn new(name: &str) -> Result<Self> {
        crate::error::check_name(name)?;
        // Also check the longest name that is derived from the service's name.
        crate::error::check_name(&format!("{name}{}", "-".repeat(ADDED_BYTES)))?;
        Ok(Self { name: name.to_owned() })
    }

    pub fn presence(&self, server: Id) -> String {
        format!("{}/.server/{server}", self.name)
    }

    pub fn connect_list(&self, server: Id) -> String {
        format!("{}/.door/{server}", self.name)
    }

    pub fn requests(&self, server: Id, channel: Id) -> String {
        format!("{}/.line/{server}/{channel}", self.name)
    }

    pub fn answers(&self, server: Id, channel: Id) -> String {
        format!("{}/.line/{server}/{channel}/answers", self.name)
    }

    /// Returns a glob of all names of one kind.
    pub fn pattern(&self, kind: &str) -> String {
        format!("{}{kind}*", globset::escape(&self.name))
    }

    /// Returns the server to which a name of this service belongs, and the rest of the name.
    pub fn parse<'n>(&self, name: &'n str, kind: &str) -> Option<(Id, &'n str)> {
        let rest = name.strip_prefix(&self.name)?.strip_prefix(kind)?;
        let (server, rest) = rest.split_at_checked(16)?;
        Some((Id::parse(server)?, rest))
    }
}

/// The number of a server or a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub u64);

impl Id {
    pub fn random() -> Result<Self> {
        let mut bytes = [0; 8];
        let given = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        match given {
            Ok(8) => Ok(Self(u64::from_le_bytes(bytes))),
            Ok(_) => Err(Error::system("make a number")(std::io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(Error::system("make a number")(error.into())),
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        let is_one = text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        is_one.then(|| u64::from_str_radix(text, 16).ok()).flatten().map(Self)
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Returns a failure's reason. Cuts it between characters to the maximum length of metadata.
pub fn reason(text: &str) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(tensorlend_layout::tensor::METADATA_MAX)]
}

/// Returns an error's text, with the texts of all its causes.
pub fn words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(because) = cause {
        let _ = write!(text, ": {because}");
        cause = because.source();
    }
    text
}

/// Returns the text for a wait that ended without a server, with the reason for the wait.
pub fn no_server(service: &str) -> String {
    format!("a server of {service:?}: no process serves it (see `tensorlend ls`)")
}

/// Returns the text for a wait that ended without a response, with the probable reason.
pub fn no_response(service: &str) -> String {
    format!("a response from {service:?}: its server is busy or hangs, and may still respond")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart_as_they_were_made() {
        let service = Service::new("vision/resize").unwrap();
        let (server, channel) = (Id(7), Id(u64::MAX));
        assert_eq!(service.parse(&service.presence(server), "/.server/"), Some((server, "")));
        assert_eq!(service.parse(&service.connect_list(server), "/.door/"), Some((server, "")));
        assert_eq!(
            service.parse(&service.answers(server, channel), "/.line/"),
            Some((server, "/ffffffffffffffff/answers"))
        );
        for other in ["vision/resize/.server/7", "vision/resize/.server/000000000000000G", "vision/.server/x", ""] {
            assert_eq!(service.parse(other, "/.server/"), None, "{other}");
        }
    }

    #[test]
    fn a_services_name_leaves_room_for_what_is_added() {
        let longest = "s".repeat(255 - ADDED_BYTES);
        let service = Service::new(&longest).unwrap();
        assert_eq!(service.answers(Id(1), Id(2)).len(), 255);
        assert!(Service::new(&format!("{longest}s")).is_err());
        assert!(Service::new("").is_err());
    }

    #[test]
    fn a_reason_ends_with_a_whole_character() {
        let long = "ü".repeat(tensorlend_layout::tensor::METADATA_MAX);
        assert!(std::str::from_utf8(reason(&long)).unwrap().len() <= tensorlend_layout::tensor::METADATA_MAX);
        assert_eq!(reason("short"), b"short");
    }
}
