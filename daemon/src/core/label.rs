//! What is to outlive the daemon, and how it is labelled: a service manager keeps descriptors under names, and hands
//! both to the daemon that comes after this one.
//!
//! A label says what a descriptor is and where it belongs; all else stands in the directory. Labels are the daemon's and the
//! manager's words: no client can write one.

use super::MemId;
use super::account::NamespaceId;
use std::fmt;
use std::str::FromStr;
use tensorlend_layout::raw::View;

/// What a kept descriptor is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Label {
    /// A namespace's directory.
    Directory {
        /// The namespace's number.
        namespace: NamespaceId,
        /// Counts the copies: a daemon that cannot write its predecessor's goes on with a copy of it.
        life: u32,
        /// Whose, if it is a private one.
        uid: Option<u32>,
        /// The namespace's name.
        name: String,
    },
    /// A client's catalogue.
    Catalogue {
        /// In which namespace.
        namespace: NamespaceId,
        /// Whose.
        owner: u16,
        /// Whether the client may write in its namespace.
        writer: bool,
    },
    /// A client's lease table.
    Leases {
        /// In which namespace.
        namespace: NamespaceId,
        /// Whose.
        owner: u16,
    },
    /// A further part of a client's cells.
    Cells {
        /// In which namespace.
        namespace: NamespaceId,
        /// Whose.
        owner: u16,
        /// Which part.
        part: u8,
    },
    /// A segment.
    Segment {
        /// In which namespace.
        namespace: NamespaceId,
        /// Whose.
        owner: u16,
        /// Its first slot.
        base: u32,
    },
    /// The records of a segment's slots.
    Slots {
        /// In which namespace.
        namespace: NamespaceId,
        /// Whose.
        owner: u16,
        /// The first of them.
        base: u32,
    },
    /// A stream's ring.
    Ring {
        /// In which namespace.
        namespace: NamespaceId,
        /// The stream's place in the directory.
        place: u32,
        /// Its id there.
        id: u64,
    },
    /// A subscriber's wake descriptor.
    Wake {
        /// In which namespace.
        namespace: NamespaceId,
        /// The stream's place in the directory.
        place: u32,
        /// Its id there.
        id: u64,
        /// The subscriber.
        catalogue: u16,
        /// Its cursor.
        cursor: u16,
    },
    /// What was given up, and may still be written by who had it: it has to be paid for.
    Lingering {
        /// In which namespace.
        namespace: NamespaceId,
        /// Who had it.
        uid: u32,
        /// Whether it is a segment; else a sheet.
        segment: bool,
        /// Tells it from others.
        id: u64,
    },
}

/// What every label begins with: whatever else a manager hands over is not ours.
const MARK: &str = "tl";

impl Label {
    /// The namespace.
    pub fn namespace(&self) -> NamespaceId {
        match *self {
            Self::Directory { namespace, .. }
            | Self::Catalogue { namespace, .. }
            | Self::Leases { namespace, .. }
            | Self::Cells { namespace, .. }
            | Self::Segment { namespace, .. }
            | Self::Slots { namespace, .. }
            | Self::Ring { namespace, .. }
            | Self::Wake { namespace, .. }
            | Self::Lingering { namespace, .. } => namespace,
        }
    }
}

impl fmt::Display for Label {
    /// Printable ASCII without colons: what managers take, up to 255 bytes of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory { namespace, life, uid, name } => {
                write!(f, "{MARK}.directory.{namespace}.{life}.")?;
                if let Some(uid) = uid {
                    return write!(f, "uid.{uid}");
                }
                f.write_str("name.")?;
                name.bytes().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Self::Catalogue { namespace, owner, writer } => {
                write!(f, "{MARK}.catalogue.{namespace}.{owner}.{}", u8::from(*writer))
            }
            Self::Leases { namespace, owner } => write!(f, "{MARK}.leases.{namespace}.{owner}"),
            Self::Cells { namespace, owner, part } => write!(f, "{MARK}.cells.{namespace}.{owner}.{part}"),
            Self::Segment { namespace, owner, base } => write!(f, "{MARK}.segment.{namespace}.{owner}.{base}"),
            Self::Slots { namespace, owner, base } => write!(f, "{MARK}.slots.{namespace}.{owner}.{base}"),
            Self::Ring { namespace, place, id } => write!(f, "{MARK}.ring.{namespace}.{place}.{id}"),
            Self::Wake { namespace, place, id, catalogue, cursor } => {
                write!(f, "{MARK}.wake.{namespace}.{place}.{id}.{catalogue}.{cursor}")
            }
            Self::Lingering { namespace, uid, segment, id } => {
                write!(f, "{MARK}.lingering.{namespace}.{uid}.{}.{id}", u8::from(*segment))
            }
        }
    }
}

/// It is no label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoLabel;

impl FromStr for Label {
    type Err = NoLabel;

    fn from_str(text: &str) -> Result<Self, NoLabel> {
        fn number<T: FromStr>(word: &str) -> Result<T, NoLabel> {
            word.parse().map_err(|_| NoLabel)
        }
        let words: Vec<&str> = text.split('.').collect();
        let [MARK, kind, namespace, rest @ ..] = &words[..] else { return Err(NoLabel) };
        let namespace = number(namespace)?;
        Ok(match (*kind, rest) {
            ("directory", [life, "uid", uid]) => {
                let uid: u32 = number(uid)?;
                Self::Directory { namespace, life: number(life)?, uid: Some(uid), name: format!("uid:{uid}") }
            }
            ("directory", [life, "name", hex]) => {
                let byte = |at: usize| hex.get(at..at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
                let name: Option<Vec<u8>> = (0..hex.len()).step_by(2).map(byte).collect();
                let name = String::from_utf8(name.ok_or(NoLabel)?).map_err(|_| NoLabel)?;
                Self::Directory { namespace, life: number(life)?, uid: None, name }
            }
            ("catalogue", [owner, writer]) => {
                Self::Catalogue { namespace, owner: number(owner)?, writer: number::<u8>(writer)? == 1 }
            }
            ("leases", [owner]) => Self::Leases { namespace, owner: number(owner)? },
            ("cells", [owner, part]) => Self::Cells { namespace, owner: number(owner)?, part: number(part)? },
            ("segment", [owner, base]) => Self::Segment { namespace, owner: number(owner)?, base: number(base)? },
            ("slots", [owner, base]) => Self::Slots { namespace, owner: number(owner)?, base: number(base)? },
            ("ring", [place, id]) => Self::Ring { namespace, place: number(place)?, id: number(id)? },
            ("wake", [place, id, catalogue, cursor]) => Self::Wake {
                namespace,
                place: number(place)?,
                id: number(id)?,
                catalogue: number(catalogue)?,
                cursor: number(cursor)?,
            },
            ("lingering", [uid, segment, id]) => {
                Self::Lingering { namespace, uid: number(uid)?, segment: number::<u8>(segment)? == 1, id: number(id)? }
            }
            _ => return Err(NoLabel),
        })
    }
}

/// A descriptor that outlived the daemon that made it.
#[derive(Debug)]
pub struct Kept {
    /// What it is.
    pub label: Label,
    /// Its name from now on.
    pub mem: MemId,
    /// Its words if it is a sheet: writable for a directory, else read-only.
    pub view: Option<View>,
    /// Its length.
    pub bytes: u64,
    /// Whether its writer had mapped it.
    pub acked: bool,
    /// Whether it is a copy, and clients still read what it is a copy of.
    pub copied: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_come_back_from_their_text() {
        let labels = [
            Label::Directory { namespace: 3, life: 0, uid: Some(1000), name: "uid:1000".into() },
            Label::Directory { namespace: 4, life: 7, uid: None, name: "lab: 1.ä".into() },
            Label::Catalogue { namespace: 3, owner: 65535, writer: true },
            Label::Catalogue { namespace: 3, owner: 1, writer: false },
            Label::Leases { namespace: 3, owner: 2 },
            Label::Cells { namespace: 3, owner: 2, part: 4 },
            Label::Segment { namespace: 3, owner: 2, base: 1 << 23 },
            Label::Slots { namespace: 3, owner: 2, base: 0 },
            Label::Ring { namespace: 3, place: 5, id: u64::MAX },
            Label::Wake { namespace: 3, place: 5, id: 6, catalogue: 7, cursor: 255 },
            Label::Lingering { namespace: 3, uid: u32::MAX, segment: true, id: u64::MAX },
        ];
        for label in labels {
            let text = label.to_string();
            assert!(text.len() < 256 && text.bytes().all(|b| (b' '..127).contains(&b) && b != b':'), "{text}");
            assert_eq!(text.parse(), Ok(label));
        }
        for text in
            ["", "stored", "tl", "tl.ring.1.2", "tl.leases.1.99999", "tl.directory.1.0.name.4", "tl.leases.1.1.1"]
        {
            assert_eq!(text.parse::<Label>(), Err(NoLabel), "{text}");
        }
    }
}
