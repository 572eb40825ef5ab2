//! Where a trainer gets its batches.

use crate::error::{Error, Result};
use crate::samples::Samples;
use crate::shelf;
use ndarray::ArrayView2;
use tensorlend::Client;

/// One batch, as it lies: a row of features for each label.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Rows x width.
    pub features: ArrayView2<'a, f32>,
    /// One for each row.
    pub labels: &'a [i64],
}

impl<'a> Batch<'a> {
    /// Rows that lie one after another.
    ///
    /// # Errors
    /// [`Error::Use`] if features and labels do not go together.
    fn new(features: &'a [f32], labels: &'a [i64], width: usize) -> Result<Self> {
        let features = ArrayView2::from_shape((labels.len(), width), features)
            .map_err(|error| Error::Use(format!("a batch of {} rows of {width}: {error}", labels.len())))?;
        Ok(Self { features, labels })
    }
}

/// Batches by their numbers.
pub trait Source {
    /// How many there are.
    fn count(&self) -> usize;

    /// Features of a row.
    fn width(&self) -> usize;

    /// Shows a batch to `learn` for as long as that takes.
    ///
    /// # Errors
    /// What the client says, for a batch that is lent.
    fn show(&self, batch: usize, learn: &mut dyn FnMut(Batch<'_>)) -> Result<()>;
}

/// By reference: the samples lie in this process, and a batch is a part of them. Nothing can be cheaper.
pub struct Owned {
    samples: Samples,
    size: usize,
}

impl Owned {
    /// Batches of `size`; all samples in one for None.
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

/// Lent: each batch is leased by its name, read where the producer put it, and given back.
pub struct Lent {
    client: Client,
    /// Names of the batches, made once.
    names: Vec<String>,
    width: usize,
}

impl Lent {
    /// Batches of `size` of what is published as `name`; all samples in one for None.
    ///
    /// # Errors
    /// What the client says: mostly that the name is not there.
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
