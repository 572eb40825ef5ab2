//! Writing of leased values to files.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use tensorlend::{DType, Dataset, DatasetIter, Tensor, Value, ValueKind};

use crate::failure::Failure;
use crate::files::{self, FileError, Format, TensorView};

/// Returns the elements in C order. Borrows them from shared memory, or copies them if the tensor
/// is strided.
pub fn elements(tensor: &Tensor) -> Result<Cow<'_, [u8]>, Failure> {
    if let Some(bytes) = tensor.row_major_bytes() {
        return Ok(Cow::Borrowed(bytes));
    }
    let mut copy = Vec::new();
    let length = tensor.nbytes();
    // Check the available memory. With strides of 0, a small tensor can have very many elements.
    // Linux overcommits, so the allocation alone would succeed.
    let refused = crate::meminfo::available_bytes().is_some_and(|available| length as u64 > available);
    if refused || copy.try_reserve_exact(length).is_err() {
        return Err(Failure::Limit(format!(
            "the tensor is strided, and a copy of it needs {length} bytes of memory, more than there is: free some"
        )));
    }
    copy.resize(length, 0);
    tensor.copy_to(&mut copy)?;
    Ok(Cow::Owned(copy))
}

/// Returns the shape as `u64`, the type that file formats use.
pub fn sizes(tensor: &Tensor) -> Vec<u64> {
    tensor.shape().iter().map(|&size| size as u64).collect()
}

/// Returns the error for a value in a device's memory, because this program does not read such
/// memory.
#[cold]
pub fn on_device(name: &str) -> Failure {
    let (found, wanted) = (ValueKind::DeviceTensor, ValueKind::HostValue);
    Failure::Client(tensorlend::Error::Kind { name: name.to_owned(), found, wanted, remedy: "a program" })
}

/// Returns the tensors of a dataset, which must be in host memory.
pub fn in_host_memory<'d>(name: &str, dataset: &'d Dataset) -> Result<DatasetIter<'d>, Failure> {
    match dataset.members().find(|(_, member)| member.uuid().is_some()) {
        Some((member, _)) => Err(on_device(&format!("{name}/{member}"))),
        None => Ok(dataset.iter()),
    }
}

/// Writes a tensor or a dataset in the format that the path's extension selects. Formats with named tensors store a
/// single tensor under `name`.
pub fn save(value: &Value, name: &str, path: &Path) -> Result<(), Failure> {
    save_as(Format::from_path(path)?, value, name, path)
}

/// Writes only the elements of a tensor, for any extension of the path.
pub fn save_raw(value: &Value, name: &str, path: &Path) -> Result<(), Failure> {
    save_as(Format::Raw, value, name, path)
}

fn save_as(format: Format, value: &Value, name: &str, path: &Path) -> Result<(), Failure> {
    let tensors: Vec<(&str, &Tensor)> = match value {
        Value::Tensor(lease) => vec![(name, lease)],
        Value::Dataset(dataset) => in_host_memory(name, dataset)?.collect(),
        _ => return Err(on_device(name)),
    };
    let bytes = tensors.iter().map(|(_, tensor)| elements(tensor)).collect::<Result<Vec<_>, _>>()?;
    let shapes: Vec<Vec<u64>> = tensors.iter().map(|(_, tensor)| sizes(tensor)).collect();
    let views: Vec<TensorView<'_>> = tensors
        .iter()
        .zip(&shapes)
        .zip(&bytes)
        .map(|(((name, tensor), shape), data)| TensorView { name, dtype: tensor.dtype(), shape, data })
        .collect();
    Ok(files::write_as(format, path, &views)?)
}

/// Returns true if numpy supports every element type of the value.
fn numpy_knows(value: &Value) -> bool {
    let known = |dtype: DType| dtype != DType::BF16 && !dtype.name().starts_with("f8_");
    match value {
        Value::Tensor(lease) => known(lease.dtype()),
        Value::Dataset(dataset) => dataset.iter().all(|(_, tensor)| known(tensor.dtype())),
        _ => false,
    }
}

/// Returns the default extension for a value. Its format can store the value.
pub fn natural_extension(value: &Value) -> &'static str {
    match value {
        _ if !numpy_knows(value) => "safetensors",
        Value::Tensor(_) => "npy",
        Value::Dataset(_) => "npz",
        _ => "safetensors",
    }
}

/// A directory for numbered files.
pub struct Folder {
    path: PathBuf,
    extension: Option<String>,
}

impl Folder {
    /// Creates the directory if needed. Without `extension`, each file gets a suitable extension.
    pub fn open(path: &Path, extension: Option<&str>) -> Result<Self, Failure> {
        let extension = extension.map(str::to_owned);
        if let Some(extension) = &extension {
            Format::from_path(&Path::new("x").with_extension(extension)).map_err(|_| {
                Failure::Usage(format!(
                    "--format {extension:?} is no format: use npy, npz, safetensors, png, jpg or raw"
                ))
            })?;
        }
        std::fs::create_dir_all(path).map_err(|source| FileError::Io {
            path: path.to_owned(),
            doing: "make the folder",
            source,
            remedy: "choose another place",
        })?;
        Ok(Self { path: path.to_owned(), extension })
    }

    /// Writes the file with this number, and returns its path.
    pub fn save(&self, number: u64, value: &Value, name: &str) -> Result<PathBuf, Failure> {
        let extension = self.extension.as_deref().unwrap_or_else(|| natural_extension(value));
        let path = self.path.join(format!("{number:06}.{extension}"));
        save(value, name, &path)?;
        Ok(path)
    }
}
