//! Data sets in files: MNIST's IDX, and the `.npy` files of `examples/data`.

use crate::error::{Error, Result};
use crate::samples::Samples;
use std::path::Path;

/// Samples for training, and samples for testing.
pub struct Set {
    pub name: &'static str,
    pub train: Samples,
    /// The test samples, which are never used for training.
    pub test: Samples,
}

/// Reads irises from the folder `examples/data`: 120 for training and 30 for testing; 4 lengths in cm each.
///
/// # Errors
/// If files are missing or invalid.
pub fn iris(folder: &Path) -> Result<Set> {
    let all = npy(&folder.join("iris.npy"), &folder.join("iris_labels.npy"), 1.0)?;
    // The file is sorted by species.
    let (train, test) = all.shuffled(0).split(120);
    Ok(Set { name: "iris", train, test })
}

/// Reads digits of 8 x 8 pixels from the folder `examples/data`: 1500 and 297.
///
/// # Errors
/// If files are missing or invalid.
pub fn digits(folder: &Path) -> Result<Set> {
    let all = npy(&folder.join("digits.npy"), &folder.join("digits_labels.npy"), 1.0 / 16.0)?;
    let (train, test) = all.split(1500);
    Ok(Set { name: "digits", train, test })
}

/// Reads digits of 28 x 28 pixels from a folder with MNIST's four files: 60,000 and 10,000. Pixels are from 0 to 1.
///
/// # Errors
/// If files are missing or invalid.
pub fn mnist(folder: &Path) -> Result<Set> {
    let part = |prefix: &str| {
        let (pictures, shape) = idx(&folder.join(format!("{prefix}-images-idx3-ubyte")))?;
        let (labels, _) = idx(&folder.join(format!("{prefix}-labels-idx1-ubyte")))?;
        let features = pictures.iter().map(|&ink| f32::from(ink) / 255.0).collect();
        Samples::new(features, labels.into_iter().map(i64::from).collect(), shape[1..].iter().product())
    };
    Ok(Set { name: "mnist", train: part("train")?, test: part("t10k")? })
}

/// Reads an IDX file of bytes: two zeros, 8 for unsigned bytes, the number of dimensions, each of them as a big-endian
/// u32, then the bytes. The format is that of the MNIST database.
fn idx(path: &Path) -> Result<(Vec<u8>, Vec<usize>)> {
    let format = |what: &str| Error::Format { path: path.to_owned(), what: what.to_owned() };
    let bytes = std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let (head, rest) = bytes.split_first_chunk::<4>().ok_or_else(|| format("is shorter than an IDX head"))?;
    let [0, 0, 8, dimensions] = *head else {
        return Err(format("is no IDX file of unsigned bytes"));
    };
    let at = usize::from(dimensions) * 4;
    let (sizes, data) = rest.split_at_checked(at).ok_or_else(|| format("ends within its dimensions"))?;
    let shape: Vec<usize> =
        sizes.chunks_exact(4).map(|size| u32::from_be_bytes([size[0], size[1], size[2], size[3]]) as usize).collect();
    let length = shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size));
    if shape.is_empty() || length != Some(data.len()) {
        return Err(format(&format!("has {} bytes of data for the shape {shape:?}", data.len())));
    }
    Ok((data.to_vec(), shape))
}

/// Reads features, times `scale`, and their labels.
fn npy(features: &Path, labels: &Path, scale: f32) -> Result<Samples> {
    let (values, shape) = numbers(features)?;
    let (classes, _) = numbers(labels)?;
    let width = shape.iter().skip(1).product::<u64>() as usize;
    Samples::new(
        values.into_iter().map(|value| value as f32 * scale).collect(),
        classes.into_iter().map(|class| class as i64).collect(),
        width,
    )
}

/// Reads the values of a `.npy` file in C order, of any type that the example data have.
fn numbers(path: &Path) -> Result<(Vec<f64>, Vec<u64>)> {
    let read = |source| Error::Read { path: path.to_owned(), source };
    let bytes = std::fs::read(path).map_err(read)?;
    let open = || npyz::NpyFile::new(&bytes[..]).map_err(read);
    let shape = open()?.shape().to_vec();
    let values = if let Ok(values) = open()?.data::<f64>() {
        values.collect::<std::io::Result<Vec<_>>>()
    } else if let Ok(values) = open()?.data::<i64>() {
        values.map(|value| value.map(|value| value as f64)).collect()
    } else if let Ok(values) = open()?.data::<u8>() {
        values.map(|value| value.map(f64::from)).collect()
    } else {
        return Err(Error::Format { path: path.to_owned(), what: "holds neither f64 nor i64 nor u8".to_owned() });
    };
    Ok((values.map_err(read)?, shape))
}

#[cfg(test)]
mod tests {
    use super::{digits, idx, iris, mnist};
    use std::path::{Path, PathBuf};

    fn data() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../data")
    }

    fn idx_of(shape: &[u32], bytes: &[u8]) -> Vec<u8> {
        let sizes = shape.iter().flat_map(|size| size.to_be_bytes());
        [0, 0, 8, shape.len() as u8].into_iter().chain(sizes).chain(bytes.iter().copied()).collect()
    }

    #[test]
    fn irises_and_digits_are_read() {
        let set = iris(&data()).unwrap();
        assert_eq!((set.train.len(), set.test.len(), set.train.width()), (120, 30, 4));
        // Shuffled, so that both parts contain all species.
        for part in [&set.train, &set.test] {
            let mut known = part.rows(0, part.len()).1.to_vec();
            known.sort_unstable();
            known.dedup();
            assert_eq!(known, [0, 1, 2]);
        }
        let set = digits(&data()).unwrap();
        assert_eq!((set.train.len(), set.test.len(), set.train.width()), (1500, 297, 64));
        assert!(set.train.rows(0, 1500).0.iter().all(|ink| (0.0..=1.0).contains(ink)));
    }

    #[test]
    fn files_of_mnist_are_read() {
        let folder = tempfile::tempdir().unwrap();
        for (prefix, count) in [("train", 3_u32), ("t10k", 1)] {
            let pictures: Vec<u8> = (0..count * 4).map(|at| (at * 17) as u8).collect();
            let labels: Vec<u8> = (0..count).map(|at| at as u8).collect();
            let write = |kind: &str, bytes: Vec<u8>| {
                std::fs::write(folder.path().join(format!("{prefix}-{kind}-ubyte")), bytes).unwrap();
            };
            write("images-idx3", idx_of(&[count, 2, 2], &pictures));
            write("labels-idx1", idx_of(&[count], &labels));
        }
        let set = mnist(folder.path()).unwrap();
        assert_eq!((set.train.len(), set.test.len(), set.train.width()), (3, 1, 4));
        assert_eq!(set.train.rows(1, 2), (&[68.0 / 255.0, 85.0 / 255.0, 102.0 / 255.0, 119.0 / 255.0][..], &[1][..]));
    }

    #[test]
    fn what_is_no_idx_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let huge = idx_of(&[u32::MAX, u32::MAX, u32::MAX], &[]);
        for wrong in
            [&b"\0\0"[..], b"\0\0\x0d\x01\0\0\0\0", b"\0\0\x08\x02\0\0\0\x01", b"\0\0\x08\x01\0\0\0\x02a", &huge]
        {
            std::fs::write(&file, wrong).unwrap();
            let said = idx(&file).unwrap_err().to_string();
            assert!(said.contains("file"), "{said}");
        }
        assert!(mnist(folder.path()).is_err());
    }
}
