//! Labels of the descriptors that outlive the daemon. A service manager stores descriptors under
//! names, and passes both to the next daemon.
//!
//! A label identifies a descriptor and its owner. The directory contains all other data. Only the
//! daemon and the service manager can write labels.

use super::account::NamespaceId;
use super::device;
use super::event::MemId;
use std::fmt;
use std::str::FromStr;
use tensorlend_layout::directory::DEVICES;
use tensorlend_layout::number::{ClientNo, CursorNo, SlotNo, StreamLine};
use tensorlend_layout::raw::View;
use tensorlend_layout::word::low8;

/// The kind and owner of a preserved descriptor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Label {
    Directory {
        namespace: NamespaceId,
        /// Number of the copy. A daemon that cannot write the previous daemon's directory continues
        /// with a copy of that directory.
        life: u32,
        /// The owner of a private namespace.
        uid: Option<u32>,
        name: String,
    },
    Catalogue {
        namespace: NamespaceId,
        owner: ClientNo,
        /// Whether the client may write in its namespace.
        writer: bool,
    },
    /// A client's lease table.
    Leases { namespace: NamespaceId, owner: ClientNo },
    /// A further part of a client's cells.
    Cells { namespace: NamespaceId, owner: ClientNo, part: u8 },
    Segment {
        namespace: NamespaceId,
        owner: ClientNo,
        /// The segment's first slot.
        base: SlotNo,
    },
    /// The records of a segment's slots.
    Slots {
        namespace: NamespaceId,
        owner: ClientNo,
        /// The segment's first slot.
        base: SlotNo,
    },
    Ring {
        namespace: NamespaceId,
        /// The stream's index in the directory's table of streams.
        line: StreamLine,
        /// The stream's id in the directory.
        id: u64,
    },
    /// A subscriber's wake descriptor.
    Wake {
        namespace: NamespaceId,
        /// The stream's id in the directory.
        id: u64,
        /// The subscriber's number.
        client: ClientNo,
        cursor: CursorNo,
    },
    DeviceSegment {
        namespace: NamespaceId,
        owner: ClientNo,
        /// The segment's first slot.
        base: SlotNo,
        /// The index of the device in the directory's list.
        device: u8,
        /// The segment's length in bytes, a multiple of 2 MiB. The descriptor does not contain the
        /// length.
        bytes: u64,
    },
    /// Orphaned device memory, which clients may still have mapped.
    DeviceOrphaned {
        namespace: NamespaceId,
        /// The user to whose client the daemon had lent the memory.
        uid: u32,
        /// The index of the device in the directory's list.
        device: u8,
        /// The length of the memory in bytes, a multiple of 2 MiB.
        bytes: u64,
        /// A unique id. Each daemon continues the count of the previous daemon.
        id: u64,
    },
    /// The file with a segment's bytes. No other copy exists: see `core/segment/spill.rs`.
    Spilled {
        namespace: NamespaceId,
        owner: ClientNo,
        /// The segment's first slot.
        base: SlotNo,
    },
    /// Orphaned memory. The memory stays charged, because its former owner may still write it.
    Orphaned {
        namespace: NamespaceId,
        /// The user to whose client the daemon had lent the memory.
        uid: u32,
        /// Whether the memory is a segment. Otherwise it is a sheet.
        segment: bool,
        /// A unique id. Each daemon continues the count of the previous daemon.
        id: u64,
    },
}

/// The beginning of every label. The daemon ignores other names from the service manager.
const MARK: &str = "tl";

impl Label {
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
            | Self::DeviceSegment { namespace, .. }
            | Self::DeviceOrphaned { namespace, .. }
            | Self::Spilled { namespace, .. }
            | Self::Orphaned { namespace, .. } => namespace,
        }
    }
}

impl Label {
    fn kind(&self) -> &'static str {
        match self {
            // A private namespace.
            Self::Directory { uid: Some(_), .. } => "own",
            Self::Directory { uid: None, .. } => "directory",
            Self::Catalogue { .. } => "catalogue",
            Self::Leases { .. } => "leases",
            Self::Cells { .. } => "cells",
            Self::Segment { .. } => "segment",
            Self::Slots { .. } => "slots",
            Self::Ring { .. } => "ring",
            Self::Wake { .. } => "w",
            Self::DeviceSegment { .. } => "d",
            Self::Spilled { .. } => "f",
            // Orphaned: a device's segment, a segment, or a sheet.
            Self::DeviceOrphaned { .. } => "gd",
            Self::Orphaned { segment: true, .. } => "gs",
            Self::Orphaned { segment: false, .. } => "gp",
        }
    }
}

impl fmt::Display for Label {
    /// Writes printable ASCII without colons. Service managers accept up to 255 bytes of such text.
    /// The next daemon receives all labels in one environment variable, whose length is also
    /// limited. So numbers are in base 36, and kinds with long numbers have short names.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MARK}.{}.{}", self.kind(), Digits(self.namespace()))?;
        let mut add = |number: u64| write!(f, ".{}", Digits(number));
        match *self {
            Self::Directory { life, uid: Some(uid), .. } => {
                add(life.into())?;
                add(uid.into())
            }
            Self::Directory { life, uid: None, ref name, .. } => {
                add(life.into())?;
                f.write_str(".")?;
                name.bytes().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Self::Catalogue { owner, writer, .. } => {
                add(owner.into())?;
                add(writer.into())
            }
            Self::Leases { owner, .. } => add(owner.into()),
            Self::Cells { owner, part, .. } => {
                add(owner.into())?;
                add(part.into())
            }
            Self::Segment { owner, base, .. } | Self::Slots { owner, base, .. } | Self::Spilled { owner, base, .. } => {
                add(owner.into())?;
                add(base.into())
            }
            Self::Ring { line, id, .. } => {
                add(line.into())?;
                add(id)
            }
            Self::Wake { id, client, cursor, .. } => {
                add(id)?;
                add(client.into())?;
                add(cursor.into())
            }
            Self::DeviceSegment { owner, base, device, bytes, .. } => {
                add(owner.into())?;
                add(base.into())?;
                add(extent(device, bytes))
            }
            Self::DeviceOrphaned { uid, device, bytes, id, .. } => {
                add(uid.into())?;
                add(extent(device, bytes))?;
                add(id)
            }
            Self::Orphaned { uid, id, .. } => {
                add(uid.into())?;
                add(id)
            }
        }
    }
}

/// Encodes the device and the length of device memory in one number.
fn extent(device: u8, bytes: u64) -> u64 {
    bytes / device::UNIT * DEVICES as u64 + u64::from(device)
}

/// Decodes a number from [`extent`].
fn extent_of(number: u64) -> Result<(u8, u64), NoLabel> {
    let bytes = (number / DEVICES as u64).checked_mul(device::UNIT).ok_or(NoLabel)?;
    Ok((low8(number % DEVICES as u64), bytes))
}

/// A number in base 36.
struct Digits(u64);

impl fmt::Display for Digits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The largest number has 13 digits.
        let mut text = [b'0'; 13];
        let (mut at, mut rest) = (text.len(), self.0);
        while rest != 0 || at == text.len() {
            at -= 1;
            text[at] = b"0123456789abcdefghijklmnopqrstuvwxyz"[(rest % 36) as usize];
            rest /= 36;
        }
        f.write_str(std::str::from_utf8(&text[at..]).expect("digits are text"))
    }
}

/// The error for a name that is not a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoLabel;

impl FromStr for Label {
    type Err = NoLabel;

    fn from_str(text: &str) -> Result<Self, NoLabel> {
        fn number<T: TryFrom<u64>>(word: &str) -> Result<T, NoLabel> {
            let number = u64::from_str_radix(word, 36).map_err(|_| NoLabel)?;
            T::try_from(number).map_err(|_| NoLabel)
        }
        let words: Vec<&str> = text.split('.').collect();
        let [MARK, kind, namespace, rest @ ..] = &words[..] else { return Err(NoLabel) };
        let namespace = number(namespace)?;
        Ok(match (*kind, rest) {
            ("own", [life, uid]) => {
                let uid: u32 = number(uid)?;
                Self::Directory { namespace, life: number(life)?, uid: Some(uid), name: format!("uid:{uid}") }
            }
            ("directory", [life, hex]) => {
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
            ("ring", [line, id]) => Self::Ring { namespace, line: number(line)?, id: number(id)? },
            ("w", [id, client, cursor]) => {
                Self::Wake { namespace, id: number(id)?, client: number(client)?, cursor: number(cursor)? }
            }
            ("d", [owner, base, it]) => {
                let (device, bytes) = extent_of(number(it)?)?;
                Self::DeviceSegment { namespace, owner: number(owner)?, base: number(base)?, device, bytes }
            }
            ("f", [owner, base]) => Self::Spilled { namespace, owner: number(owner)?, base: number(base)? },
            ("gd", [uid, it, id]) => {
                let (device, bytes) = extent_of(number(it)?)?;
                Self::DeviceOrphaned { namespace, uid: number(uid)?, device, bytes, id: number(id)? }
            }
            ("gs", [uid, id]) => Self::Orphaned { namespace, uid: number(uid)?, segment: true, id: number(id)? },
            ("gp", [uid, id]) => Self::Orphaned { namespace, uid: number(uid)?, segment: false, id: number(id)? },
            _ => return Err(NoLabel),
        })
    }
}

/// A descriptor that outlived the daemon that created it.
#[derive(Debug)]
pub struct Preserved {
    pub label: Label,
    /// The descriptor's id in this daemon.
    pub mem: MemId,
    /// The words of a sheet: writable for a directory, read-only otherwise.
    pub view: Option<View>,
    pub bytes: u64,
    /// Whether the writer had mapped the memory.
    pub acked: bool,
    /// Whether the memory is a copy, while clients still read the original.
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
            Label::Catalogue { namespace: 3, owner: ClientNo::new(65535), writer: true },
            Label::Catalogue { namespace: 3, owner: ClientNo::new(1), writer: false },
            Label::Leases { namespace: 3, owner: ClientNo::new(2) },
            Label::Cells { namespace: 3, owner: ClientNo::new(2), part: 4 },
            Label::Segment { namespace: 3, owner: ClientNo::new(2), base: SlotNo::new(1 << 23) },
            Label::Slots { namespace: 3, owner: ClientNo::new(2), base: SlotNo::new(0) },
            Label::Ring { namespace: 3, line: StreamLine::new(5), id: u64::MAX },
            Label::Wake { namespace: 3, id: 6, client: ClientNo::new(7), cursor: CursorNo::new(255) },
            Label::Orphaned { namespace: 3, uid: u32::MAX, segment: true, id: u64::MAX },
            Label::DeviceSegment {
                namespace: 3,
                owner: ClientNo::new(2),
                base: SlotNo::new(1 << 23),
                device: 15,
                bytes: 256 << 20,
            },
            Label::DeviceOrphaned { namespace: 3, uid: 7, device: 0, bytes: 2 << 40, id: u64::MAX },
            Label::Spilled { namespace: 3, owner: ClientNo::new(65535), base: SlotNo::new(1 << 23) },
        ];
        for label in labels {
            let text = label.to_string();
            assert!(text.len() < 256 && text.bytes().all(|b| (b' '..127).contains(&b) && b != b':'), "{text}");
            assert_eq!(text.parse(), Ok(label));
        }
        for text in [
            "",
            "stored",
            "tl",
            "tl.ring.1.2",
            "tl.leases.1.1ekg",
            "tl.leases.1.-1",
            "tl.directory.1.0.4",
            "tl.leases.1.1.1",
        ] {
            assert_eq!(text.parse::<Label>(), Err(NoLabel), "{text}");
        }
    }

    /// The labels of all descriptors that a unit preserves must fit into one environment variable: see docs/service.md. Labels
    /// of the directories of shared namespaces are longer, but there are only as many as the configuration names.
    #[test]
    fn labels_are_short() {
        const NAME_BYTES: usize = 30;
        // Assumed maxima: the namespaces that a machine opens between two boots, the microseconds of a hundred years, and the
        // streams of a configuration. The last maximum is a million orphaned memories per second for a year.
        let (namespace, id, line, given_up) = (36_u64.pow(6) - 1, 3 << 50, 1 << 20, 36_u64.pow(9) - 1);
        let (owner, client) = (u16::MAX, u16::MAX);
        let labels = [
            Label::Directory { namespace, life: u32::MAX, uid: Some(u32::MAX), name: format!("uid:{}", u32::MAX) },
            Label::Catalogue { namespace, owner: ClientNo::new(owner), writer: true },
            Label::Leases { namespace, owner: ClientNo::new(owner) },
            Label::Cells { namespace, owner: ClientNo::new(owner), part: u8::MAX },
            Label::Segment { namespace, owner: ClientNo::new(owner), base: SlotNo::MAX },
            Label::Slots { namespace, owner: ClientNo::new(owner), base: SlotNo::MAX },
            Label::Spilled { namespace, owner: ClientNo::new(owner), base: SlotNo::MAX },
            Label::Ring { namespace, line: StreamLine::new(line), id },
            Label::Wake { namespace, id, client: ClientNo::new(client), cursor: CursorNo::new(255) },
            Label::Orphaned { namespace, uid: u32::MAX, segment: true, id: given_up },
            Label::Orphaned { namespace, uid: u32::MAX, segment: false, id: given_up },
        ];
        // A device larger than any existing one. Labels of device memory may be longer than those of host memory.
        let (device, bytes) = (15, 1 << 40);
        let of_devices = [
            Label::DeviceSegment {
                namespace,
                owner: ClientNo::new(owner),
                base: SlotNo::new((1 << 24) - 1),
                device,
                bytes,
            },
            Label::DeviceOrphaned { namespace, uid: u32::MAX, device, bytes, id: given_up },
        ];
        for (label, most) in labels.map(|it| (it, NAME_BYTES)).into_iter().chain(of_devices.map(|it| (it, 36))) {
            let text = label.to_string();
            assert!(text.len() <= most, "{text} has {} bytes", text.len());
            assert_eq!(text.parse(), Ok(label));
        }
    }
}
