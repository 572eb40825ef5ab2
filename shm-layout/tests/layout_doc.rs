//! docs/layout.md is generated from the structures in this crate, and this test compares both.
#![cfg(not(loom))]

use std::fmt::Write;
use std::path::Path;
use tensorlend_layout::describe::Structure;
use tensorlend_layout::directory::PlaceWord;
use tensorlend_layout::versions::LAYOUT_OLDEST;
use tensorlend_layout::word::{Absorbed, Cell, LeaseWord, Member, OwnerWord, RangeWord, TableWord};
use tensorlend_layout::{LAYOUT_HASH, LAYOUT_VERSION, STRUCTURES};

/// The processes that may touch a structure: its name, the sheet it lies in, its one writer, its readers.
const RIGHTS: &[(&str, &str, &str, &str)] = &[
    ("SheetHeader", "every sheet", "the daemon, before it lends the sheet", "all processes that map the sheet"),
    ("DirectoryHead", "the directory", "the daemon", "the namespace's clients"),
    ("MemberEntry", "the directory", "the daemon", "the namespace's clients"),
    ("NameEntry", "the directory", "the daemon", "the namespace's clients"),
    ("LongName", "the directory", "the daemon", "the namespace's clients"),
    ("ListEntry", "the directory", "the daemon", "the namespace's clients"),
    ("StreamEntry", "the directory", "the daemon", "the namespace's clients"),
    ("SegmentEntry", "the directory", "the daemon", "the namespace's clients"),
    ("Catalogue", "the catalogue", "the client that owns the sheet", "the daemon and the namespace's clients"),
    ("CellRecord", "the catalogue", "the client that owns the sheet", "the daemon and the namespace's clients"),
    (
        "CellsPart",
        "each further part of cells",
        "the client that owns the sheet",
        "the daemon and the namespace's clients",
    ),
    (
        "SlotRecord",
        "the slot records of a segment",
        "the client that owns the sheet",
        "the daemon and the namespace's clients",
    ),
    (
        "SlotsPart",
        "the slot records of a segment",
        "the client that owns the sheet",
        "the daemon and the namespace's clients",
    ),
    ("LeaseTable", "the lease table", "the client that owns the sheet", "the daemon and the namespace's producers"),
    ("Cursor", "the lease table", "the subscriber", "the daemon and the producer of the stream"),
    ("StreamRing", "the ring of a stream", "the producer", "the daemon and the subscribers"),
    ("RingEntry", "the ring of a stream", "the producer", "the daemon and the subscribers"),
];

/// A part of a packed word: its highest and lowest bit, its meaning, and the function that extracts it (`None` if the
/// crate has no such function).
type Part = (u32, u32, &'static str, Option<fn(u64) -> u64>);

/// The packed words: their names, locations, and parts from the highest bit down.
const WORDS: &[(&str, &str, &[Part])] = &[
    (
        "OwnerWord",
        "`NameEntry.owner_word`",
        &[
            (63, 62, "kind: 0 no name, 1 live, 2 reserved", Some(|w| w >> 62)),
            (61, 40, "version; each store adds 1", Some(|w| OwnerWord(w).version().into())),
            (39, 24, "catalogue of the owner", Some(|w| OwnerWord(w).owner().into())),
            (23, 0, "cell", Some(|w| OwnerWord(w).cell().into())),
        ],
    ),
    (
        "Cell",
        "`CellRecord.cell`, `RingEntry.cell`",
        &[
            (63, 24, "generation of the slot", Some(|w| Cell(w).generation())),
            (23, 0, "slot; 0xFFFFFF deleted", Some(|w| Cell(w).slot().into())),
        ],
    ),
    (
        "LeaseWord",
        "`LeaseTable.entries`; 0: no lease",
        &[
            (63, 48, "catalogue", Some(|w| LeaseWord(w).owner().into())),
            (47, 24, "slot", Some(|w| LeaseWord(w).slot().into())),
            (23, 0, "low bits of the generation", Some(|w| LeaseWord(w).generation_low().into())),
        ],
    ),
    (
        "Member",
        "`MemberEntry.member`",
        &[
            (63, 62, "state: 0 vacant, 1 open, 2 ending, 3 closed", Some(|w| Member(w).state() as u64)),
            (61, 32, "epoch of this client number", Some(|w| Member(w).epoch().into())),
            (31, 0, "sheet", Some(|w| Member(w).sheet().into())),
        ],
    ),
    (
        "Absorbed",
        "`MemberEntry.absorbed`",
        &[
            (63, 62, "state, as in Member", Some(|w| Absorbed(w).state() as u64)),
            (61, 0, "index of the next announcement to absorb", Some(|w| Absorbed(w).index())),
        ],
    ),
    (
        "TableWord",
        "`DirectoryHead.table`",
        &[
            (63, 56, "log2 of the places", Some(|w| TableWord(w).log2().into())),
            (55, 40, "number of rebuilt tables", Some(|w| TableWord(w).rebuilds().into())),
            (39, 0, "index of the first place", Some(|w| TableWord(w).first())),
        ],
    ),
    (
        "PlaceWord",
        "the directory's places, from `DirectoryHead.places_at` on; 0: free",
        &[
            (
                63,
                28,
                "high bits of the name's hash; with the table's seed they determine the path of a search",
                Some(|w| w >> 28),
            ),
            (
                27,
                0,
                "entry; 0: the place no longer leads to an entry, and a search continues behind it",
                Some(|w| PlaceWord(w).entry().into()),
            ),
        ],
    ),
    (
        "RangeWord",
        "`SegmentEntry.range`",
        &[
            (63, 56, "state: 0 free, 1 lent", None),
            (
                55,
                48,
                "log2 of the slot numbers",
                Some(|w| {
                    let log2 = w >> 48 & 0xFF;
                    if log2 < 32 { RangeWord(w).slots().ilog2().into() } else { log2 }
                }),
            ),
            (47, 32, "catalogue", Some(|w| RangeWord(w).owner().into())),
            (31, 8, "first slot", Some(|w| RangeWord(w).base().into())),
            (7, 0, "always 0", None),
        ],
    ),
    (
        "IndexMember",
        "The index of a dataset begins with the number of its members. Each member has eight words. The table shows the first \
        word. The second word is the generation of the member's slot. The other six words are a summary, as in a stream's \
        entry, or zeros. The names follow after the last member.",
        &[
            (63, 48, "order: in member n, the number of the member whose name is the n-th in sorted order", None),
            (47, 24, "end of the member's name: its offset among the names", None),
            (23, 0, "slot", None),
        ],
    ),
    ("Announcement", "`Catalogue.ring`", &[(63, 24, "tag: bits of the name's hash", None), (23, 0, "cell", None)]),
    (
        "Parked",
        "`LeaseTable.parked`; 0: no thread sleeps",
        &[
            (63, 63, "waits for any new name", None),
            (62, 0, "one bit for each catalogue on which the client waits, by hash", None),
        ],
    ),
];

fn cell(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn structure(text: &mut String, structure: &Structure) {
    let (_, sheet, writer, readers) =
        RIGHTS.iter().find(|(name, ..)| *name == structure.name).expect("RIGHTS tells of every structure");
    let Structure { name, bytes, doc, fields } = structure;
    write!(text, "\n## {name}\n\n{}\n\n", cell(doc)).unwrap();
    write!(
        text,
        "The structure has {bytes} bytes, and is in {sheet}. Its writer is {writer}. Its readers are {readers}.\n\n"
    )
    .unwrap();
    text.push_str("| offset | bytes | field | type | meaning |\n|---:|---:|---|---|---|\n");
    let ends = fields.iter().skip(1).map(|f| f.offset).chain([*bytes]);
    for (field, end) in fields.iter().zip(ends) {
        let (offset, name, kind) = (field.offset, field.name, field.kind);
        let kind = if name.starts_with("reserved") { "words" } else { kind };
        let length = end - offset;
        writeln!(text, "| {offset} | {length} | {name} | {kind} | {} |", cell(field.doc)).unwrap();
    }
}

fn layout_md() -> String {
    let mut text = format!(
        "# The layout of shared memory\n\n\
        `just layout` generates this page from the structures in shm-layout/src. A test fails if the page is out of date. \
        [protocol.md](protocol.md) explains the purpose of the words.\n\n\
        This page describes layout version {LAYOUT_VERSION} with the hash `{LAYOUT_HASH:016x}`. The hash is FNV-1a over the names, \
        types and offsets below. Programs of the versions {LAYOUT_OLDEST} to {LAYOUT_VERSION} share memory: see \
        [Versions](protocol.md#control-protocol). A *sheet* is a memfd of such words with one writer. Its header contains the \
        oldest of these versions, {LAYOUT_OLDEST}, and the hash of that version, so that programs of all these versions accept the \
        sheet.\n\n\
        All numbers are little endian. A `Word` is an atomic of 64 bits. A `Bell` is an atomic of 32 bits (the futex) and 32 \
        unused bits. Offsets and lengths are in bytes. Reserved words stay 0. A meaning such as `state 2 . index 62` \
        lists the parts of a word from high to low, each with its number of bits.\n\n\
        # Structures\n"
    );
    for s in STRUCTURES {
        structure(&mut text, s);
    }
    text.push_str(
        "\n# Packed words\n\nThe tables list the bits of each word from high to low. Bit 63 is the highest.\n",
    );
    for (name, place, parts) in WORDS {
        write!(text, "\n## {name}\n\n{place}\n\n|").unwrap();
        for &(high, low, ..) in *parts {
            if high == low { write!(text, " {high} |") } else { write!(text, " {high}..{low} |") }.unwrap();
        }
        write!(text, "\n|{}\n|", ":---:|".repeat(parts.len())).unwrap();
        for (_, _, what, _) in *parts {
            write!(text, " {what} |").unwrap();
        }
        text.push('\n');
    }
    text
}

#[test]
fn layout_md_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/layout.md");
    let expected = layout_md();
    if std::env::var_os("TENSORLEND_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &expected).expect("docs/layout.md is writable");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "docs/layout.md is out of date: run `just layout`");
}

#[test]
fn bit_tables_say_what_the_code_does() {
    for (name, _, parts) in WORDS {
        let mut next = 64;
        for &(high, low, what, take) in *parts {
            assert_eq!(high + 1, next, "{name}: a gap above {what}");
            next = low;
            let ones = u64::MAX >> (63 - (high - low));
            if let Some(take) = take {
                assert_eq!(take(ones << low), ones, "{name}: {what}");
                assert_eq!(take(!(ones << low)), 0, "{name}: {what}");
            }
        }
        assert_eq!(next, 0, "{name}: a gap at the end");
    }
}
