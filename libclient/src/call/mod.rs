//! Call and serve: a request for one server of a service, and its answer.
//!
//! A *line* is what leads from one [`Caller`] to one [`Server`]: a stream of requests that the caller owns, and a stream of
//! answers that the server owns, of the same capacity. Both are streams as everybody's ([`crate::Client::stream`]), so that
//! requests and answers are written where they are read, and nobody writes what is another's:
//!
//! | name | kind | owner | what it says |
//! |---|---|---|---|
//! | `SERVICE/.server/S` | name, ephemeral | server | that server S is there |
//! | `SERVICE/.door/S` | list, of ephemeral items | callers append | the line that a caller has opened |
//! | `SERVICE/.line/S/C` | stream, blocks | caller | requests |
//! | `SERVICE/.line/S/C/answers` | stream | server | answers: number n answers request n |
//!
//! The first one's value is u32 of (pid, catalogue, cursor): where the server's load stands (`load.rs`), a word of its own by which callers
//! see which of several servers is idle (`servers.rs`).
//!
//! S and C are random numbers of 64 bits, in hexadecimal digits, of a server's and a line's one life. Since answers come in the
//! order of their requests, nothing has to be added to either of them; a server that is done with a later request first keeps
//! the answer until its turn. An answer that is an empty dataset is a failure, and its metadata the reason.
//!
//! | who is gone | what is left | who removes it |
//! |---|---|---|
//! | the caller | its requests, on each of its lines | the server, once it has seen that they ended |
//! | the server | its answers, its door | the caller, when it calls next or ends; the next server of the service |
//! | both | a line | the daemon, which ends streams that nobody uses (`streams.grace_ms`); the next server of the service |
//!
//! What a caller says at a door ends with the caller's session, and the door with the last of them.
//!
//! Whoever may write in a namespace may knock, and serve: members trust each other that far. What they write is checked as in all streams
//! and lists, and a crowd at the door keeps nobody from being answered who is inside.
//!
//! A caller that finds no answer to its opening of a line knocks again: so a knock that comes while a door is emptied, or at the
//! door of a server that is gone, costs time and nothing else.

mod answers;
mod caller;
mod line;
mod load;
mod server;
mod servers;

pub use caller::{Caller, CallerBuilder};
pub use server::{Call, Reply, Server, ServerBuilder};

use crate::error::{Error, Result};
use std::fmt::Write;

/// Requests of one caller that a line holds, unless told otherwise.
const CAPACITY_DEFAULT: u32 = 8;
/// What is added to a service's name, at most: "/.line/", two numbers, "/", "/answers".
const ADDED_BYTES: usize = 7 + 16 + 1 + 16 + 8;

/// The names of one service.
#[derive(Clone, Debug)]
struct Service {
    name: String,
}

impl Service {
    fn new(name: &str) -> Result<Self> {
        crate::error::check_name(name)?;
        // The longest name that is made of it.
        crate::error::check_name(&format!("{name}{}", "-".repeat(ADDED_BYTES)))?;
        Ok(Self { name: name.to_owned() })
    }

    fn presence(&self, server: Id) -> String {
        format!("{}/.server/{server}", self.name)
    }

    fn door(&self, server: Id) -> String {
        format!("{}/.door/{server}", self.name)
    }

    fn requests(&self, server: Id, line: Id) -> String {
        format!("{}/.line/{server}/{line}", self.name)
    }

    fn answers(&self, server: Id, line: Id) -> String {
        format!("{}/.line/{server}/{line}/answers", self.name)
    }

    /// A glob of all names of one kind.
    fn pattern(&self, kind: &str) -> String {
        format!("{}{kind}*", globset::escape(&self.name))
    }

    /// The server of which a name of this service tells, and what follows it.
    fn parse<'n>(&self, name: &'n str, kind: &str) -> Option<(Id, &'n str)> {
        let rest = name.strip_prefix(&self.name)?.strip_prefix(kind)?;
        let (server, rest) = rest.split_at_checked(16)?;
        Some((Id::parse(server)?, rest))
    }
}

/// Of a server or a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Id(u64);

impl Id {
    fn random() -> Result<Self> {
        let mut bytes = [0; 8];
        let given = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        match given {
            Ok(8) => Ok(Self(u64::from_le_bytes(bytes))),
            Ok(_) => Err(Error::system("make a number")(std::io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(Error::system("make a number")(error.into())),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let is_one = text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        is_one.then(|| u64::from_str_radix(text, 16).ok()).flatten().map(Self)
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A reason, no longer than metadata can be, and cut where a character ends.
fn reason(text: &str) -> &[u8] {
    &text.as_bytes()[..text.floor_char_boundary(crate::METADATA_MAX)]
}

/// An error's words with all that caused it.
fn words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(because) = cause {
        let _ = write!(text, ": {because}");
        cause = because.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart_as_they_were_made() {
        let service = Service::new("vision/resize").unwrap();
        let (server, line) = (Id(7), Id(u64::MAX));
        assert_eq!(service.parse(&service.presence(server), "/.server/"), Some((server, "")));
        assert_eq!(service.parse(&service.door(server), "/.door/"), Some((server, "")));
        assert_eq!(
            service.parse(&service.answers(server, line), "/.line/"),
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
        let long = "ü".repeat(crate::METADATA_MAX);
        assert!(std::str::from_utf8(reason(&long)).unwrap().len() <= crate::METADATA_MAX);
        assert_eq!(reason("short"), b"short");
    }
}
