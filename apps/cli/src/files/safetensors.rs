//! .safetensors: a JSON header followed by named tensors.
//!
//! The source of the format is <https://github.com/huggingface/safetensors#format>. The safetensors
//! crate validates the header: offsets without gap or overlap, and lengths that agree with shapes.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ::safetensors::Dtype;
use ::safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserializer;
use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use tensorlend::DType;

use super::FileError;
use super::entry::{Entry, Source, TensorView, check_booleans};
use super::error::Fault;
use super::input::Input;
use super::layout::Layout;
use super::output::{Output, PIECE};
use super::size::{check_memory, tensor_bytes};
use crate::progress;

/// Maximum length of a header in bytes, as in the safetensors crate itself.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Bytes of the length field before the header.
const LENGTH_BYTES: usize = 8;
/// The key of the header's metadata, which is not a tensor.
const NOTES: &str = "__metadata__";

const PAIRS: &[(DType, Dtype)] = &[
    (DType::BOOL, Dtype::BOOL),
    (DType::I8, Dtype::I8),
    (DType::I16, Dtype::I16),
    (DType::I32, Dtype::I32),
    (DType::I64, Dtype::I64),
    (DType::U8, Dtype::U8),
    (DType::U16, Dtype::U16),
    (DType::U32, Dtype::U32),
    (DType::U64, Dtype::U64),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::F32, Dtype::F32),
    (DType::F64, Dtype::F64),
    (DType::C64, Dtype::C64),
    // The format's F8_E4M3 is PyTorch's float8_e4m3fn.
    (DType::F8_E4M3FN, Dtype::F8_E4M3),
    (DType::F8_E4M3FNUZ, Dtype::F8_E4M3FNUZ),
    (DType::F8_E5M2, Dtype::F8_E5M2),
    (DType::F8_E5M2FNUZ, Dtype::F8_E5M2FNUZ),
    (DType::F8_E8M0FNU, Dtype::F8_E8M0),
];

/// A tensor's key, type and shape, without its elements.
#[derive(Clone, Copy, Debug)]
pub struct Outline<'a> {
    /// The tensor's name in the file.
    pub key: &'a str,
    pub dtype: DType,
    /// Number of elements along each axis; empty for a scalar.
    pub shape: &'a [u64],
}

/// The metadata in a file's header: texts by key.
pub type Notes = HashMap<String, String>;

pub(super) fn open(input: &Input) -> Result<(Vec<Entry>, Notes), FileError> {
    let header = header(input).map_err(|fault| input.fault(fault))?;
    // Parsing allocates several small objects for a few bytes of JSON, in total at most about eight
    // times the header's length.
    check_memory(input.path(), header.len() as u64 * 8)?;
    entries(input, &header).map_err(|fault| input.fault(fault))
}

/// Reads the JSON text. Compares its claimed length with the file before allocating memory.
fn header(input: &Input) -> Result<Vec<u8>, Fault> {
    let cut = || Fault::damaged("it ends inside its header");
    let length = input.some(0, 8)?.try_into().map_err(|_| cut())?;
    let length = u64::from_le_bytes(length);
    if length > HEADER_BYTES_MAX {
        return Err(Fault::damaged(format!(
            "it claims a header of {length} bytes, and {HEADER_BYTES_MAX} are the limit"
        )));
    }
    if length > input.bytes() - 8 {
        return Err(cut());
    }
    Ok(input.some(8, length)?)
}

fn entries(input: &Input, header: &[u8]) -> Result<(Vec<Entry>, Notes), Fault> {
    let bad = |e| Fault::damaged(format!("its header cannot be understood: {e}"));
    let mut keys = serde_json::Deserializer::from_slice(header);
    let names = keys.deserialize_map(UniqueKeys).map_err(bad)?;
    let metadata: Metadata = serde_json::from_slice(header).map_err(bad)?;

    let data_at = 8 + header.len() as u64;
    let there = input.bytes() - data_at;
    if there != metadata.data_len() as u64 {
        return Err(Fault::damaged(format!(
            "its header needs {} bytes after it, and {there} follow",
            metadata.data_len()
        )));
    }
    let mut found: Vec<_> =
        names.iter().filter_map(|name| metadata.info(name).map(|info| (info.data_offsets, name, info))).collect();
    found.sort_by_key(|&(offsets, name, _)| (offsets, name));
    let entries =
        found.into_iter().map(|(_, name, info)| entry(input, data_at, name, info).map_err(|f| f.of_array(name)));
    Ok((entries.collect::<Result<_, _>>()?, metadata.metadata().clone().unwrap_or_default()))
}

fn entry(input: &Input, data_at: u64, name: &str, info: &TensorInfo) -> Result<Entry, Fault> {
    let Some(&(dtype, _)) = PAIRS.iter().find(|(_, theirs)| *theirs == info.dtype) else {
        return Err(Fault::unsupported(
            format!("tensorlend does not know the dtype {}", info.dtype),
            "convert it to a type of whole bytes",
        ));
    };
    let shape: Vec<u64> = info.shape.iter().map(|&d| d as u64).collect();
    let (start, end) = info.data_offsets;
    let bytes = tensor_bytes(dtype, &shape)
        .filter(|&bytes| bytes == (end - start) as u64)
        .ok_or_else(|| Fault::damaged(format!("its shape {shape:?} overflows")))?;
    Ok(Entry {
        name: Some(name.to_owned()),
        dtype,
        shape,
        bytes,
        input: input.clone(),
        source: Source::Span { at: data_at + start as u64, layout: Layout::PLAIN },
    })
}

/// Visitor that reads the keys of the header and rejects a repeated key. The crate itself would
/// keep the last value of such a key.
struct UniqueKeys;

impl<'de> Visitor<'de> for UniqueKeys {
    type Value = BTreeSet<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a dictionary of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut keys = BTreeSet::new();
        while let Some((key, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
            if let Some(twice) = keys.replace(key) {
                return Err(A::Error::custom(format!("it has the key {twice:?} twice")));
            }
        }
        Ok(keys)
    }
}

/// Writes tensors in the order that the format recommends: first by width of the type, the widest
/// first, and then by name.
pub(super) fn write(out: &mut Output<'_>, tensors: &[TensorView<'_>]) -> Result<(), Fault> {
    let outlines: Vec<_> = tensors.iter().map(|t| Outline { key: t.name, dtype: t.dtype, shape: t.shape }).collect();
    let plan = Plan::new(&outlines)?;
    let header = plan.header(None, 0)?;
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for &at in &plan.order {
        check_elements(&outlines[at], tensors[at].data)?;
        out.write_all(tensors[at].data)?;
    }
    Ok(())
}

/// The locations of a file's tensors, relative to the end of its header.
struct Plan {
    /// The tensors in the order that the format recommends: first by width of the type, the widest
    /// first, and then by name.
    order: Vec<usize>,
    /// The tensors' entries in the header, in the order of `order`.
    infos: Vec<(String, TensorInfo)>,
}

impl Plan {
    fn new(outlines: &[Outline<'_>]) -> Result<Self, Fault> {
        let mut typed = outlines
            .iter()
            .enumerate()
            .map(|(at, outline)| Ok((their_dtype(outline)?, outline, at)))
            .collect::<Result<Vec<_>, Fault>>()?;
        typed.sort_by(|(a, one, _), (b, two, _)| b.cmp(a).then(one.key.cmp(two.key)));
        let mut end = 0usize;
        let infos = typed.iter().map(|(dtype, outline, _)| {
            let start = end;
            end = end.checked_add(outline.bytes()?).ok_or_else(|| Fault::damaged("its length overflows"))?;
            let info = TensorInfo {
                dtype: *dtype,
                shape: outline.shape.iter().map(|&d| d as usize).collect(),
                data_offsets: (start, end),
            };
            Ok((outline.key.to_owned(), info))
        });
        let infos = infos.collect::<Result<Vec<_>, Fault>>()?;
        Ok(Self { order: typed.into_iter().map(|(.., at)| at).collect(), infos })
    }

    /// Returns the header's text with a note. Spaces pad the text to at least `least` bytes and to
    /// a multiple of eight bytes, which aligns the first tensor.
    fn header(&self, note: Option<(&str, &str)>, least: usize) -> Result<Vec<u8>, Fault> {
        let notes = note.map(|(key, text)| HashMap::from([(key.to_owned(), text.to_owned())]));
        let metadata = Metadata::new(notes, self.infos.clone()).map_err(std::io::Error::other)?;
        let mut header = serde_json::to_vec(&metadata).map_err(std::io::Error::other)?;
        header.resize(header.len().max(least).next_multiple_of(8), b' ');
        if header.len() as u64 > HEADER_BYTES_MAX {
            return Err(Fault::unsupported(
                "the names, shapes and metadata exceed the format's header",
                "split the tensors over several files",
            ));
        }
        Ok(header)
    }
}

/// A writer of a file: it writes the tensors in any order, and the header last.
pub struct Filler<'f> {
    path: &'f Path,
    file: &'f File,
    outlines: &'f [Outline<'f>],
    plan: Plan,
    /// Offset of each tensor's elements from the start of the file.
    places: Vec<u64>,
    key: &'f str,
    header_bytes: usize,
}

impl<'f> Filler<'f> {
    /// Plans the layout of a file whose header stores `note` under `key`. The final note may be up to `room` bytes
    /// longer.
    pub(super) fn new(
        path: &'f Path,
        file: &'f File,
        outlines: &'f [Outline<'f>],
        (key, note): (&'f str, &str),
        room: usize,
    ) -> Result<Self, Fault> {
        let plan = Plan::new(outlines)?;
        let header_bytes = (plan.header(Some((key, note)), 0)?.len() + room).next_multiple_of(8);
        let mut places = vec![0; outlines.len()];
        for (&at, (_, info)) in plan.order.iter().zip(&plan.infos) {
            places[at] = (LENGTH_BYTES + header_bytes + info.data_offsets.0) as u64;
        }
        Ok(Self { path, file, outlines, plan, places, key, header_bytes })
    }

    /// Writes the elements of the tensor with this number.
    ///
    /// # Errors
    /// The errors of [`super::write()`].
    pub fn put(&self, at: usize, data: &[u8]) -> Result<(), FileError> {
        let put = || {
            check_elements(&self.outlines[at], data)?;
            for (number, piece) in data.chunks(PIECE).enumerate() {
                self.file.write_all_at(piece, self.places[at] + (number * PIECE) as u64)?;
                progress::count(piece.len());
            }
            Ok(())
        };
        put().map_err(|fault: Fault| fault.at(self.path, "write"))
    }

    /// Writes the header with the final note. Returns false if the header has no room for the note.
    pub(super) fn finish(&self, note: &str) -> Result<bool, Fault> {
        let header = self.plan.header(Some((self.key, note)), self.header_bytes)?;
        if header.len() != self.header_bytes {
            return Ok(false);
        }
        self.file.write_all_at(&(header.len() as u64).to_le_bytes(), 0)?;
        self.file.write_all_at(&header, LENGTH_BYTES as u64)?;
        Ok(true)
    }
}

/// Rejects elements that contradict the header.
fn check_elements(outline: &Outline<'_>, data: &[u8]) -> Result<(), Fault> {
    if data.len() != outline.bytes()? {
        return Err(Fault::damaged("its elements and its shape disagree").of_array(outline.key));
    }
    check_booleans(outline.dtype, data).map_err(|fault| fault.of_array(outline.key))
}

impl Outline<'_> {
    fn bytes(&self) -> Result<usize, Fault> {
        let bytes = tensor_bytes(self.dtype, self.shape).and_then(|bytes| usize::try_from(bytes).ok());
        bytes.ok_or_else(|| Fault::damaged(format!("its shape {:?} overflows", self.shape)).of_array(self.key))
    }
}

fn their_dtype(tensor: &Outline<'_>) -> Result<Dtype, Fault> {
    if tensor.key == NOTES {
        return Err(Fault::unsupported(format!("the format keeps the name {NOTES} for itself"), "choose another name"));
    }
    let pair = PAIRS.iter().find(|(ours, _)| *ours == tensor.dtype);
    pair.map(|&(_, theirs)| theirs).ok_or_else(|| {
        let remedy = match tensor.dtype {
            DType::C128 => "save it as .npy or .npz",
            _ => "save it as .raw",
        };
        let what = format!("safetensors has no dtype {}", tensor.dtype);
        Fault::unsupported(what, remedy).of_array(tensor.key)
    })
}
