//! Tensor files: .npy, .npz, .safetensors, pictures and raw bytes.
//!
//! [`open`] lists the tensors of a file. [`Entry::read_into`] reads one of them, for example
//! directly into a draft. [`read`] does both, and [`write`] writes a file. Elements in memory are
//! always in C order (the last axis varies fastest) and little endian.
//!
//! Files are untrusted. So this module compares lengths, shapes and offsets with each other and
//! with the length of the file before it allocates memory for them. A file that is truncated, has
//! trailing bytes or contradicts itself is rejected as a whole. A read reports faults that only
//! decoding can find: a wrong checksum, a broken compressed stream, or a boolean that is neither 0
//! nor 1.

mod destination;
mod directory;
mod entry;
mod error;
mod header;
mod input;
mod layout;
pub mod manifest;
mod markers;
mod npy;
mod npz;
mod output;
mod picture;
mod safetensors;
mod size;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::Path;

pub use entry::{Entry, Format, RawSpec, TensorView};
use entry::{Source, check_booleans};
use error::Fault;
pub use error::FileError;
use input::Input;
use layout::Layout;
pub use safetensors::{Filler, Notes, Outline};
#[cfg(test)]
use tensorlend::DType;

/// A tensor in ordinary memory.
#[cfg(test)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTensor {
    /// The tensor's name; `None` in formats without names.
    pub name: Option<String>,
    pub dtype: DType,
    /// Number of elements along each axis; empty for a scalar.
    pub shape: Vec<u64>,
    /// The elements in C order, little endian.
    pub data: Vec<u8>,
}

/// Opens a file and returns its tensors, in the file's order, without reading their elements. Only
/// pictures are decoded, because a decoder cannot read a part of them.
///
/// `raw` gives the dtype and shape of a file without a header. If `raw` is given, any file whose
/// extension names no other format is read as raw bytes.
///
/// # Errors
/// All faults that can be found without decoding, as the module describes.
pub fn open(path: &Path, raw: Option<RawSpec>) -> Result<Vec<Entry>, FileError> {
    let usage = |what: &str, remedy| FileError::Usage { path: path.to_owned(), what: what.to_owned(), remedy };
    let format = match (Format::from_path(path), raw) {
        (Ok(Format::Raw) | Err(_), Some(spec)) => return open_raw(&Input::open(path)?, spec),
        (Ok(Format::Raw), None) => {
            return Err(usage("a raw file has no dtype and no shape", "give their dtype and shape"));
        }
        (Ok(_), Some(_)) => {
            return Err(usage("a file of this format has its own dtype and shape", "leave them out"));
        }
        (format, None) => format?,
    };
    let input = Input::open(path)?;
    match format {
        Format::Npy => npy::open(&input),
        Format::Npz => npz::open(&input),
        Format::Safetensors => Ok(safetensors::open(&input)?.0),
        Format::Png | Format::Jpeg | Format::Raw => picture::open(&input, format),
    }
}

/// Opens a .safetensors file as [`open`] does, and also returns the metadata of its header.
///
/// # Errors
/// The errors of [`open`], and [`FileError::Usage`] for a file with another extension.
pub fn open_noted(path: &Path) -> Result<(Vec<Entry>, Notes), FileError> {
    must_be_safetensors(path)?;
    safetensors::open(&Input::open(path)?)
}

/// Writes tensors to a .safetensors file, with a note under its own key in the header. `fill`
/// passes the tensors' elements one by one to [`Filler::put`], in any order. It returns the final
/// note, which is `note` or a note that is at most `room` bytes longer. This function returns false
/// if the final note did not fit. In that case, and after an error, no file has changed.
///
/// # Errors
/// The errors of [`write()`], and the errors of `fill`.
pub fn write_noted<E: From<FileError>>(
    path: &Path,
    outlines: &[Outline<'_>],
    note: (&str, &str),
    room: usize,
    fill: impl FnOnce(&Filler<'_>) -> Result<String, E>,
) -> Result<bool, E> {
    must_be_safetensors(path)?;
    let (mut failed, mut fits) = (None, true);
    // This error only makes `replace` remove the temporary file. It is not reported.
    let stop = || Fault::from(io::Error::other("given up"));
    let written = output::replace(path, |out| {
        let filler = Filler::new(path, out.get_ref().file(), outlines, note, room)?;
        let note = fill(&filler).map_err(|error| {
            failed = Some(error);
            stop()
        })?;
        fits = filler.finish(&note)?;
        if fits { Ok(()) } else { Err(stop()) }
    });
    match failed {
        Some(error) => Err(error),
        None if !fits => Ok(false),
        None => Ok(written.map(|()| true)?),
    }
}

/// Rejects a path whose extension is not `.safetensors`, the only format with names and metadata.
///
/// # Errors
/// [`FileError::Usage`].
pub fn must_be_safetensors(path: &Path) -> Result<(), FileError> {
    if Format::from_path(path).ok() == Some(Format::Safetensors) {
        return Ok(());
    }
    let (path, what) = (path.to_owned(), "only a .safetensors file keeps names and metadata".to_owned());
    Err(FileError::Usage { path, what, remedy: "give it the extension .safetensors" })
}

fn open_raw(input: &Input, spec: RawSpec) -> Result<Vec<Entry>, FileError> {
    let RawSpec { dtype, shape } = spec;
    let bytes = size::tensor_bytes(dtype, &shape);
    if bytes != Some(input.bytes()) {
        let needed = bytes.map_or("too many".to_owned(), |b| b.to_string());
        return Err(FileError::Usage {
            path: input.path().to_owned(),
            what: format!("it has {} bytes, and {dtype} of shape {shape:?} has {needed}", input.bytes()),
            remedy: "give the dtype and shape that the file was written with",
        });
    }
    Ok(vec![Entry {
        name: None,
        dtype,
        shape,
        bytes: input.bytes(),
        input: input.clone(),
        source: Source::Span { at: 0, layout: Layout::PLAIN },
    }])
}

/// Reads all tensors of a file. `raw` has the meaning that it has for [`open`].
///
/// # Errors
/// The errors of [`open`] and [`Entry::read_into`], and [`FileError::Memory`] if the tensors do not
/// fit into memory together.
#[cfg(test)]
pub fn read(path: &Path, raw: Option<RawSpec>) -> Result<Vec<HostTensor>, FileError> {
    let entries = open(path, raw)?;
    let total = entries.iter().fold(0u64, |sum, e| sum.saturating_add(e.bytes));
    size::check_memory(path, total)?;
    entries
        .into_iter()
        .map(|entry| {
            let mut data = size::zeroed(path, entry.bytes)?;
            entry.read_into(&mut data)?;
            Ok(HostTensor { name: entry.name, dtype: entry.dtype, shape: entry.shape, data })
        })
        .collect()
}

/// Writes tensors to `path` in the format of its extension.
///
/// Writes a temporary file in the same directory, flushes it to the disk and renames it. So the
/// file appears whole or not at all. A symbolic link of this name is replaced. A device or a pipe
/// gets the bytes directly. Equal tensors give equal bytes.
///
/// # Errors
/// An error if the format cannot hold a dtype, a shape, a name or this number of tensors. Also if
/// `data` and `shape` disagree, a boolean is neither 0 nor 1, or the disk returns an error.
pub fn write(path: &Path, tensors: &[TensorView<'_>]) -> Result<(), FileError> {
    write_as(Format::from_path(path)?, path, tensors)
}

/// Writes tensors like [`write`], in this format and for any extension of the path.
///
/// # Errors
/// The errors of [`write`].
pub fn write_as(format: Format, path: &Path, tensors: &[TensorView<'_>]) -> Result<(), FileError> {
    check_tensors(tensors).map_err(|fault| fault.at(path, "write"))?;
    let one = match (format, tensors) {
        (Format::Npz, _) => return output::replace(path, |out| npz::write(out, tensors)),
        (Format::Safetensors, _) => {
            return output::replace(path, |out| safetensors::write(out, tensors));
        }
        (_, [one]) => one,
        (_, several) => {
            let what = format!("it holds one tensor, not {}", several.len());
            let remedy = "save them as .npz or .safetensors, or one by one";
            return Err(Fault::unsupported(what, remedy).at(path, "write"));
        }
    };
    output::replace(path, |out| match format {
        Format::Png | Format::Jpeg => picture::write(out, one, format),
        Format::Raw => Ok(out.write_all(one.data)?),
        _ => npy::write(out, one),
    })
}

/// Writes bytes to `path`, as [`write`] writes tensors.
///
/// # Errors
/// An error if the disk returns an error.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    output::replace(path, |out| Ok(out.write_all(bytes)?))
}

/// Rejects tensors that contradict themselves, and duplicate names.
fn check_tensors(tensors: &[TensorView<'_>]) -> Result<(), Fault> {
    let mut names = HashSet::new();
    for tensor in tensors {
        if !names.insert(tensor.name) {
            let what = format!("there are two tensors of the name {:?}", tensor.name);
            return Err(Fault::unsupported(what, "rename one of them"));
        }
        let bytes = size::tensor_bytes(tensor.dtype, tensor.shape);
        if bytes != Some(tensor.data.len() as u64) {
            let what = format!("{} of shape {:?} cannot have {} bytes", tensor.dtype, tensor.shape, tensor.data.len());
            return Err(Fault::unsupported(what, "give bytes that fit the shape").of_array(tensor.name));
        }
        check_booleans(tensor.dtype, tensor.data).map_err(|fault| fault.of_array(tensor.name))?;
    }
    Ok(())
}
