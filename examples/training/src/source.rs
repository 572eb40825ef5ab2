//! Sources of a trainer's batches.

use crate::error::{Error, Result};
use crate::samples::Samples;
use crate::shelf;
use ndarray::ArrayView2;
use tensorlend::Client;

/// One batch in place: a row of features for each label.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Rows x width.
    pub features: ArrayView2<'a, f32>,
    /// One label per row.
    pub labels: &'a [i64],
}

impl<'a> Batch<'a> {
    /// Creates a batch of contiguous rows.
    ///
    /// # Errors
    /// [`Error::Use`] if features and labels do not match.
    fn new(features: &'a [f32], labels: &'a [i64], width: usize) -> Result<Self> {
        let features = ArrayView2::from_shape((labels.len(), width), features)
            .map_err(|error| Error::Use(format!("a batch of {} rows of {width}: {error}", labels.len())))?;
        Ok(Self { features, labels })
    }
}

/// Batches by their numbers.
pub trait Source {
    /// Returns the number of batches.
    fn count(&self) -> usize;

    /// Returns the number of features of a row.
    fn width(&self) -> usize;

    /// Calls `learn` with a batch, which stays valid during the call.
    ///
    /// # Errors
    /// The client's, for a lent batch.
    fn show(&self, batch: usize, learn: &mut dyn FnMut(Batch<'_>)) -> Result<()>;
}

/// Batches by reference into samples in this process's memory: the minimum cost.
pub struct Owned {
    samples: Samples,
    size: usize,
}

impl Owned {
    /// Creates batches of `size`; a single one with all samples for None.
    pub fn new(samples: Samples, size: Option<usize>) -> Self {
        let size = size.unwrap_or(samples.len()).max(1);
        Self { samples, size }
    }
}

impl Source for Owned {
    fn count(&self) -> usize {
        self.samples.len().div_ceil(self.size)
    }

    fn width(&self) -> usize {
        self.samples.width()
    }

    fn show(&self, batch: usize, learn: &mut dyn FnMut(Batch<'_>)) -> Result<()> {
        let from = batch * self.size;
        let (features, labels) = self.samples.rows(from, (from + self.size).min(self.samples.len()));
        learn(Batch::new(features, labels, self.samples.width())?);
        Ok(())
    }
}

/// Lent batches: each is leased by its name, read in place, and released.
pub struct Lent {
    client: Client,
    /// Names of the batches, built once.
    names: Vec<String>,
    width: usize,
}

impl Lent {
    /// Creates batches of `size` of the samples published as `name`; a single one with all samples for None.
    ///
    /// # Errors
    /// The client's, mostly that the name does not exist.
    pub fn new(client: Client, name: &str, size: Option<usize>) -> Result<Self> {
        let whole = client.get_dataset(name)?;
        let (_, labels, width) = shelf::look(&whole)?;
        let names = match size {
            None => vec![name.to_owned()],
            Some(0) => return Err(Error::Use("a batch has at least one row".to_owned())),
            Some(size) => (0..labels.len().div_ceil(size)).map(|batch| shelf::batch_name(name, size, batch)).collect(),
        };
        Ok(Self { client, names, width })
    }
}

impl Source for Lent {
    fn count(&self) -> usize {
        self.names.len()
    }

    fn width(&self) -> usize {
        self.width
    }

    fn show(&self, batch: usize, learn: &mut dyn FnMut(Batch<'_>)) -> Result<()> {
        let dataset = self.client.get_dataset(&self.names[batch])?;
        let (features, labels, width) = shelf::look(&dataset)?;
        if width != self.width {
            return Err(Error::Use(format!(
                "{} has rows of {width}, and the whole of {}",
                self.names[batch], self.width
            )));
        }
        learn(Batch::new(features, labels, width)?);
        Ok(())
    }
}
