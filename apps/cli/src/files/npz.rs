//! .npz: a zip archive of .npy arrays, as `np.savez` and `np.savez_compressed` write it.

use std::collections::HashSet;
use std::io::{self, Read, Seek};

use tensorlend::DType;
use zip::read::ZipFile;
use zip::result::ZipError;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipArchive, ZipWriter};

use super::entry::{Entry, Source, TensorView};
use super::error::Fault;
use super::header::{Header, wrong_length};
use super::input::{Input, InputReader};
use super::layout::Layout;
use super::npy;
use super::output::Output;
use super::{FileError, directory};

/// Maximum number of bytes to which one compressed byte can expand. Deflate's longest match has 258
/// bytes and takes two bits (RFC 1951, section 3.2.5). An archive that states a larger size is
/// damaged.
const DEFLATE_FACTOR: u64 = 258 * 4;

/// Suffix of each member's name, as `np.savez` writes it.
const SUFFIX: &str = ".npy";

/// The location of one array in an archive. Clones share the parsed directory.
#[derive(Clone)]
pub(super) struct Member {
    archive: ZipArchive<InputReader>,
    index: usize,
    name: String,
    header_bytes: u64,
    layout: Layout,
}

impl Member {
    /// Inflates the array into `out` up to the end of the member, where the zip crate verifies the checksum.
    pub(super) fn read(&self, dtype: DType, shape: &[u64], out: &mut [u8]) -> Result<(), Fault> {
        let broken = |e: io::Error| Fault::damaged(format!("its bytes cannot be unpacked: {e}"));
        let mut archive = self.archive.clone();
        let mut file = member(&mut archive, self.index)?;
        let skipped = io::copy(&mut (&mut file).take(self.header_bytes), &mut io::sink());
        skipped
            .and_then(|_| self.layout.read(dtype, shape, &mut file, out))
            .and_then(|()| match file.read(&mut [0])? {
                0 => Ok(()),
                _ => Err(io::Error::other("it has more bytes than its header needs")),
            })
            .map_err(|e| broken(e).of_array(&self.name))
    }
}

pub(super) fn open(input: &Input) -> Result<Vec<Entry>, FileError> {
    arrays(input).map_err(|fault| input.fault(fault))
}

fn arrays(input: &Input) -> Result<Vec<Entry>, Fault> {
    let directory_at = directory::check(input)?;
    let mut archive = ZipArchive::new(input.reader(0)).map_err(zip_fault)?;
    let mut entries = Vec::new();
    let mut names = HashSet::new();
    let mut spans = Vec::new();
    for index in 0..archive.len() {
        let (name, span) = describe(&mut archive, index)?;
        if !names.insert(name.clone()) {
            return Err(Fault::damaged("it holds the array twice").of_array(&name));
        }
        spans.push((span, name.clone()));
        entries.push(array(input, &archive, index, &name).map_err(|fault| fault.of_array(&name))?);
    }
    check_apart(spans, directory_at)?;
    Ok(entries)
}

/// Returns a member's name, and the half-open byte range of the file that it occupies.
fn describe(archive: &mut ZipArchive<InputReader>, index: usize) -> Result<(String, (u64, u64)), Fault> {
    let file = archive.by_index_raw(index).map_err(zip_fault)?;
    let file_name = file.name().map_err(zip_fault)?;
    let name = match file_name.strip_suffix(SUFFIX) {
        Some(name) if !name.contains('\0') => name.to_owned(),
        _ => {
            return Err(Fault::unsupported(
                format!("its member {file_name:?} is not a .npy array"),
                "save the arrays alone with np.savez",
            ));
        }
    };
    if file.encrypted() {
        return Err(Fault::unsupported("it is encrypted", "decrypt it first").of_array(&name));
    }
    let (packed, whole) = (file.compressed_size(), file.size());
    let honest = match file.compression() {
        CompressionMethod::Stored => packed == whole,
        CompressionMethod::Deflated => whole <= packed.saturating_mul(DEFLATE_FACTOR),
        other => {
            return Err(Fault::unsupported(
                format!("it is compressed with {other}, which numpy never does"),
                "save it with np.savez or np.savez_compressed",
            )
            .of_array(&name));
        }
    };
    if !honest {
        let what = format!("it claims to unpack {packed} bytes to {whole}");
        return Err(Fault::damaged(what).of_array(&name));
    }
    let data_start =
        file.data_start().ok_or_else(|| Fault::damaged("its bytes are outside of the file").of_array(&name))?;
    let end = data_start.saturating_add(packed);
    Ok((name, (file.header_start(), end)))
}

/// Reads a member's header and compares it with the size in the directory.
fn array(input: &Input, archive: &ZipArchive<InputReader>, index: usize, name: &str) -> Result<Entry, Fault> {
    let mut own = archive.clone();
    let mut file = member(&mut own, index)?;
    let size = file.size();
    let header = Header::read(&mut file).map_err(|fault| match fault {
        Fault::Io(e) => Fault::damaged(format!("its bytes cannot be unpacked: {e}")),
        other => other,
    })?;
    let there = size.saturating_sub(header.bytes);
    if size < header.bytes || there != header.data_bytes {
        return Err(wrong_length(&header, there));
    }
    Ok(Entry {
        name: Some(name.to_owned()),
        dtype: header.dtype,
        bytes: header.data_bytes,
        input: input.clone(),
        source: Source::Member(Box::new(Member {
            archive: archive.clone(),
            index,
            name: name.to_owned(),
            header_bytes: header.bytes,
            layout: Layout::of(&header),
        })),
        shape: header.shape,
    })
}

/// Rejects overlapping members, because with them a small file could unpack to any size.
fn check_apart(mut spans: Vec<((u64, u64), String)>, directory_at: u64) -> Result<(), Fault> {
    spans.sort();
    let mut free_from = 0;
    for ((start, end), name) in spans {
        if start < free_from || end > directory_at {
            let what = "its bytes overlap another member, or end after the file";
            return Err(Fault::damaged(what).of_array(&name));
        }
        free_from = end;
    }
    Ok(())
}

fn member(archive: &mut ZipArchive<InputReader>, index: usize) -> Result<ZipFile<'_, InputReader>, Fault> {
    archive.by_index(index).map_err(zip_fault)
}

fn zip_fault(e: ZipError) -> Fault {
    match e {
        ZipError::UnsupportedArchive(what) => Fault::unsupported(what, "save it with np.savez or np.savez_compressed"),
        other => Fault::damaged(format!("it is no whole zip archive: {other}")),
    }
}

/// Writes an archive without compression and without times. Equal tensors give equal bytes.
pub(super) fn write(out: &mut Output<'_>, tensors: &[TensorView<'_>]) -> Result<(), Fault> {
    // Fails for a pipe, before anything is written to it.
    out.stream_position()?;
    let mut archive = ZipWriter::new(out);
    for tensor in tensors {
        let name = format!("{}{SUFFIX}", tensor.name);
        if name.contains('\0') || name.len() > usize::from(u16::MAX) {
            return Err(Fault::unsupported(
                format!("a zip archive cannot hold the name {:?}", tensor.name),
                "choose a name without a null byte and below 65,532 bytes",
            ));
        }
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(DateTime::default())
            .large_file(tensor.data.len() as u64 + (1 << 20) > u64::from(u32::MAX));
        archive.start_file(name, options).map_err(write_fault)?;
        npy::write(&mut archive, tensor).map_err(|fault| fault.of_array(tensor.name))?;
    }
    archive.finish().map_err(write_fault)?;
    Ok(())
}

fn write_fault(e: ZipError) -> Fault {
    match e {
        ZipError::Io(e) => Fault::Io(e),
        other => Fault::Io(io::Error::other(other)),
    }
}
