//! Every version of the layout's range has its record in `layouts`, and a newer version only adds fields.
#![cfg(not(loom))]

use std::fmt::Write;
use std::path::PathBuf;
use tensorlend_layout::describe::{Field, Structure, hash};
use tensorlend_layout::versions::{LAYOUTS, Layout};
use tensorlend_layout::{LAYOUT_VERSION, STRUCTURES};

fn path(version: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("layouts/{version}.txt"))
}

/// Writes one line per structure, with its length in bytes, followed by its indented fields: offset, name, type.
fn text(structures: &[Structure]) -> String {
    let mut text = String::new();
    for structure in structures {
        writeln!(text, "{} {}", structure.name, structure.bytes).unwrap();
        for Field { offset, name, kind, .. } in structure.fields {
            writeln!(text, "    {offset} {name} {kind}").unwrap();
        }
    }
    text
}

/// Reads a record. The text lives as long as the process, like the code's own tables.
fn structures(text: &str) -> Vec<Structure> {
    let text: &'static str = String::leak(text.to_owned());
    let mut lines = text.lines().peekable();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        let (name, bytes) = line.split_once(' ').expect("a name and a length");
        let mut fields = Vec::new();
        while let Some(field) = lines.next_if(|line| line.starts_with(' ')) {
            let mut parts = field.trim_start().splitn(3, ' ');
            let mut part = || parts.next().expect("offset, name and type");
            fields.push(Field { offset: part().parse().unwrap(), name: part(), kind: part(), doc: "" });
        }
        found.push(Structure { name, bytes: bytes.parse().unwrap(), doc: "", fields: Vec::leak(fields) });
    }
    found
}

fn recorded(version: u32) -> Vec<Structure> {
    structures(&std::fs::read_to_string(path(version)).unwrap_or_else(|error| panic!("layouts/{version}.txt: {error}")))
}

/// Returns the fields, each with the offset of its end.
fn extents(structure: &Structure) -> impl Iterator<Item = (&'static Field, usize)> + use<> {
    let bytes = structure.bytes;
    let ends = structure.fields.iter().skip(1).map(|field| field.offset).chain([bytes]);
    structure.fields.iter().zip(ends)
}

/// Fields of earlier versions that no version of the range reads. A later version may use their words. Then another word, which
/// is 0 in earlier versions, tells readers that these words are in use.
const UNREAD: &[(&str, &str)] = &[("CellRecord", "granted"), ("CellRecord", "hash")];

fn is_free(structure: &Structure, field: &Field) -> bool {
    field.name.starts_with("reserved") || UNREAD.contains(&(structure.name, field.name))
}

/// Returns the reason why programs of `newer` cannot share memory with programs of `older`.
fn break_of(older: &[Structure], newer: &[Structure]) -> Option<String> {
    for (at, old) in older.iter().enumerate() {
        let Some(new) = newer.get(at).filter(|new| new.name == old.name) else {
            return Some(format!("{} is missing or has another place", old.name));
        };
        if new.bytes != old.bytes {
            return Some(format!("{} has another length", old.name));
        }
        for (field, end) in extents(old).filter(|(field, _)| !is_free(old, field)) {
            let same = |(other, other_end): (&Field, usize)| {
                (other.offset, other.name, other.kind, other_end) == (field.offset, field.name, field.kind, end)
            };
            if !extents(new).any(same) {
                return Some(format!("{}.{} differs", old.name, field.name));
            }
        }
    }
    (newer.len() != older.len()).then(|| "a structure is new".to_owned())
}

#[test]
fn every_version_has_its_record() {
    let current = text(STRUCTURES);
    if std::env::var_os("TENSORLEND_UPDATE_DOCS").is_some() {
        std::fs::write(path(LAYOUT_VERSION), &current).expect("the record is written");
    }
    for layout in LAYOUTS.iter().filter(|layout| **layout != Layout::CURRENT) {
        assert_eq!(hash(&recorded(layout.version), layout.version), layout.hash, "layouts/{}.txt", layout.version);
    }
    // The next layout of the tests has no record.
    if cfg!(not(feature = "next-layout-for-tests")) {
        let found = std::fs::read_to_string(path(LAYOUT_VERSION)).unwrap_or_default();
        assert!(
            found == current,
            "layouts/{LAYOUT_VERSION}.txt differs from the code. If a release has this version, raise LAYOUT_VERSION, and add \
            the former version to LAYOUTS. Then run `just layout`"
        );
    }
    let versions: Vec<u32> = LAYOUTS.iter().map(|layout| layout.version).collect();
    assert!(versions.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{versions:?}");
}

#[test]
fn a_newer_version_only_adds_fields() {
    let mut older: Option<Vec<Structure>> = None;
    for layout in LAYOUTS {
        let newer = if *layout == Layout::CURRENT { STRUCTURES.to_vec() } else { recorded(layout.version) };
        if let Some(older) = older {
            assert_eq!(break_of(&older, &newer), None, "version {}", layout.version);
        }
        older = Some(newer);
    }
}

#[test]
fn other_changes_are_found() {
    const OLD: &str = "Head 32\n    0 a Word\n    8 reserved [Word; pad(3)]\nTail 8\n    0 b Word\n";
    let found = |new: &str| break_of(&structures(OLD), &structures(new));
    assert_eq!(found(OLD), None);
    assert_eq!(
        found(&OLD.replace("    8 reserved [Word; pad(3)]", "    8 new Word\n    16 reserved [Word; pad(2)]")),
        None
    );
    for (from, to, fault) in [
        ("0 a Word", "0 c Word", "Head.a differs"),
        ("0 a Word", "0 a Bell", "Head.a differs"),
        ("    8 reserved", "    16 reserved", "Head.a differs"),
        ("Head 32", "Head 40", "Head has another length"),
        ("Tail 8", "Foot 8", "Tail is missing or has another place"),
        ("Tail", "New 8\n    0 c Word\nTail", "Tail is missing or has another place"),
    ] {
        assert_eq!(found(&OLD.replace(from, to)).as_deref(), Some(fault), "{from} -> {to}");
    }
    assert_eq!(found(&format!("{OLD}New 8\n    0 c Word\n")).as_deref(), Some("a structure is new"));
}
