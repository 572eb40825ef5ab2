//! .npy: one array in numpy's own format.

use std::io::{self, Write};

use super::FileError;
use super::entry::{Entry, Source, TensorView};
use super::error::Fault;
use super::header::{Header, type_string, wrong_length};
use super::input::Input;
use super::layout::Layout;
use npyz::WriterBuilder;

pub(super) fn open(input: &Input) -> Result<Vec<Entry>, FileError> {
    let header = Header::read(input.reader(0)).map_err(|e| input.fault(e))?;
    let there = input.bytes() - header.bytes;
    if there != header.data_bytes {
        return Err(input.fault(wrong_length(&header, there)));
    }
    Ok(vec![Entry {
        name: None,
        dtype: header.dtype,
        bytes: header.data_bytes,
        input: input.clone(),
        source: Source::Span { at: header.bytes, layout: Layout::of(&header) },
        shape: header.shape,
    }])
}

/// Writes header and elements. Rejects types that numpy lacks before it writes the first byte.
pub(super) fn write(out: &mut impl Write, tensor: &TensorView<'_>) -> Result<(), Fault> {
    let text = type_string(tensor.dtype).ok_or_else(|| {
        Fault::unsupported(format!("numpy's format has no dtype {}", tensor.dtype), "save it as .safetensors or .raw")
    })?;
    let dtype = text.parse().map_err(io::Error::other)?;
    npyz::WriteOptions::new_header_only()
        .dtype(npyz::DType::Plain(dtype))
        .shape(tensor.shape)
        .writer(&mut *out)
        .write_header_only()?;
    Ok(out.write_all(tensor.data)?)
}
