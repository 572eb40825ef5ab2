//! The names under which a producer publishes samples.
//!
//! Each part of a set is a dataset of two tensors, `features` (f32, rows x width) and `labels` (i64, rows):
//!
//! | name | contents |
//! |---|---|
//! | `mnist/train` | all rows |
//! | `mnist/train/64/0`, `mnist/train/64/1`, ... | batches of 64 rows; the last may be shorter |
//!
//! The whole part is published last: a reader that finds it also finds its batches.

use crate::error::{Error, Result};
use crate::samples::Samples;
use tensorlend::{Client, DType, Dataset};

/// Publishes the samples as `name`, in batches of each of the sizes and whole. Returns the bytes of all tensors.
///
/// # Errors
/// The client's: not enough memory, or an invalid name.
pub fn publish(client: &Client, name: &str, samples: &Samples, sizes: &[usize]) -> Result<u64> {
    let mut bytes = 0;
    for &size in sizes {
        if size == 0 {
            return Err(Error::Use("a batch has at least one row".to_owned()));
        }
        for (batch, from) in (0..samples.len()).step_by(size).enumerate() {
            bytes += put(client, &batch_name(name, size, batch), samples, from, (from + size).min(samples.len()))?;
        }
    }
    Ok(bytes + put(client, name, samples, 0, samples.len())?)
}

pub fn batch_name(name: &str, size: usize, batch: usize) -> String {
    format!("{name}/{size}/{batch}")
}

fn put(client: &Client, name: &str, samples: &Samples, from: usize, to: usize) -> Result<u64> {
    let (rows, width) = (to - from, samples.width());
    let (from_features, from_labels) = samples.rows(from, to);
    let mut features = client.create(DType::F32, [rows, width])?;
    features.as_mut_slice::<f32>()?.copy_from_slice(from_features);
    let mut labels = client.create(DType::I64, rows)?;
    labels.as_mut_slice::<i64>()?.copy_from_slice(from_labels);
    client.dataset().add("features", features)?.add("labels", labels)?.publish(name)?;
    Ok((rows * (width * 4 + 8)) as u64)
}

/// Returns the features of a lent dataset as rows with their width, and its labels, in place.
///
/// # Errors
/// [`Error::Use`] if [`publish`] did not write the dataset: any writer of the namespace may have replaced it.
pub fn look(dataset: &Dataset) -> Result<(&[f32], &[i64], usize)> {
    let strange = |what: &str| Error::Use(format!("what is published as training data is something else: {what}"));
    let (Some(features), Some(labels)) = (dataset.get("features"), dataset.get("labels")) else {
        return Err(strange("no tensors named features and labels"));
    };
    let &[rows, width] = features.shape() else {
        return Err(strange("features have not two dimensions"));
    };
    if labels.shape() != [rows] || width == 0 {
        return Err(strange("there is not one label for each row"));
    }
    Ok((features.as_slice()?, labels.as_slice()?, width))
}
