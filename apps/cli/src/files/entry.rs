//! Types that all formats share: a tensor to write, and a tensor of an opened file.

use std::path::Path;

use tensorlend::DType;

use super::error::Fault;
use super::input::Input;
use super::layout::Layout;
use super::{FileError, npz};

/// A tensor to write.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// The tensor's name. Formats with a single tensor ignore it.
    pub name: &'a str,
    pub dtype: DType,
    /// Number of elements along each axis; empty for a scalar.
    pub shape: &'a [u64],
    /// The elements in C order, little endian. The length is the product of `shape` times the bytes
    /// of one element.
    pub data: &'a [u8],
}

/// Element type and shape of a raw file, which has no header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawSpec {
    pub dtype: DType,
    /// Number of elements along each axis, in C order.
    pub shape: Vec<u64>,
}

/// A file format, selected by the extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `.npy`: one array.
    Npy,
    /// `.npz`: named arrays.
    Npz,
    /// `.safetensors`: named tensors. It supports types that numpy lacks.
    Safetensors,
    /// `.png`: a picture of u8 or u16.
    Png,
    /// `.jpg`, `.jpeg`: a picture of u8; lossy.
    Jpeg,
    /// `.raw`, `.bin`: elements without a header.
    Raw,
}

impl Format {
    /// Returns the format that the extension of `path` names, in any case.
    ///
    /// # Errors
    /// [`FileError::Usage`] lists the known extensions.
    pub fn from_path(path: &Path) -> Result<Self, FileError> {
        let extension = path.extension().unwrap_or_default().to_string_lossy();
        Ok(match extension.to_ascii_lowercase().as_str() {
            "npy" => Self::Npy,
            "npz" => Self::Npz,
            "safetensors" => Self::Safetensors,
            "png" => Self::Png,
            "jpg" | "jpeg" => Self::Jpeg,
            "raw" | "bin" => Self::Raw,
            _ => {
                return Err(FileError::Usage {
                    path: path.to_owned(),
                    what: format!("the extension {extension:?} names no format"),
                    remedy: "use .npy, .npz, .safetensors, .png, .jpg, .jpeg, .raw or .bin; \
                             any other file can be read as raw bytes by giving dtype and shape",
                });
            }
        })
    }
}

/// One unread tensor of an opened file. The object keeps the file open.
pub struct Entry {
    /// The tensor's name; `None` in formats without names.
    pub name: Option<String>,
    pub dtype: DType,
    /// Number of elements along each axis; empty for a scalar.
    pub shape: Vec<u64>,
    /// Bytes of all elements, which is the length of the buffer for [`Entry::read_into`].
    pub bytes: u64,
    pub(super) input: Input,
    pub(super) source: Source,
}

/// The source of the elements.
pub(super) enum Source {
    /// The elements begin at this byte.
    Span {
        at: u64,
        layout: Layout,
    },
    Member(Box<npz::Member>),
    Decoded(Vec<u8>),
}

impl Entry {
    /// Fills `out` with the elements, in C order and little endian.
    ///
    /// # Errors
    /// An error if `out` is not exactly [`Entry::bytes`] long, the file has changed, or decoding
    /// finds damage. Then the contents of `out` are undefined.
    pub fn read_into(&self, out: &mut [u8]) -> Result<(), FileError> {
        if out.len() as u64 != self.bytes {
            return Err(FileError::Buffer {
                path: self.input.path().to_owned(),
                given_bytes: out.len() as u64,
                tensor_bytes: self.bytes,
            });
        }
        self.fetch(out).and_then(|()| check_booleans(self.dtype, out)).map_err(|fault| self.input.fault(fault))
    }

    fn fetch(&self, out: &mut [u8]) -> Result<(), Fault> {
        match &self.source {
            Source::Span { at, layout } => {
                let mut reader = self.input.reader(*at);
                Ok(layout.read(self.dtype, &self.shape, &mut reader, out)?)
            }
            Source::Member(member) => member.read(self.dtype, &self.shape, out),
            Source::Decoded(data) => {
                out.copy_from_slice(data);
                Ok(())
            }
        }
    }
}

/// Rejects booleans other than 0 and 1. In most languages, a program that maps other bytes as
/// booleans has undefined behavior.
pub(super) fn check_booleans(dtype: DType, data: &[u8]) -> Result<(), Fault> {
    // The compiler vectorizes the fold, but not a search with an early exit.
    if dtype != DType::BOOL || data.iter().fold(0, |all, &b| all | b) <= 1 {
        return Ok(());
    }
    let at = data.iter().position(|&b| b > 1).unwrap_or(0);
    Err(Fault::unsupported(format!("element {at} is {}, and a boolean is 0 or 1", data[at]), "use u8, or save a != 0"))
}
