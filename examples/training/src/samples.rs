//! Samples in this process's memory.

use crate::error::{Error, Result};

/// Rows of features, each with the number of its class.
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    /// The rows, one after the other, `width` numbers each.
    features: Vec<f32>,
    /// One label per row, from 0.
    labels: Vec<i64>,
    width: usize,
}

impl Samples {
    /// Checks that there is a row for each label.
    ///
    /// # Errors
    /// [`Error::Use`] if their numbers differ.
    pub fn new(features: Vec<f32>, labels: Vec<i64>, width: usize) -> Result<Self> {
        if width == 0 || features.len() != labels.len() * width {
            return Err(Error::Use(format!(
                "{} features are not {} rows of {width}: images and labels are of different data sets",
                features.len(),
                labels.len()
            )));
        }
        Ok(Self { features, labels, width })
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Returns the number of features of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the rows `from..to` in place: features and labels.
    pub fn rows(&self, from: usize, to: usize) -> (&[f32], &[i64]) {
        (&self.features[from * self.width..to * self.width], &self.labels[from..to])
    }

    /// Returns the same rows in an order that follows from the seed: files are often sorted by class.
    #[must_use]
    pub fn shuffled(&self, seed: u64) -> Self {
        let mut order: Vec<usize> = (0..self.len()).collect();
        fastrand::Rng::with_seed(seed).shuffle(&mut order);
        let features = order.iter().flat_map(|&row| self.rows(row, row + 1).0).copied().collect();
        let labels = order.iter().map(|&row| self.labels[row]).collect();
        Self { features, labels, width: self.width }
    }

    /// Returns the first `count` rows, and the rest.
    #[must_use]
    pub fn split(&self, count: usize) -> (Self, Self) {
        let part = |from: usize, to: usize| {
            let (features, labels) = self.rows(from, to);
            Self { features: features.to_vec(), labels: labels.to_vec(), width: self.width }
        };
        let count = count.min(self.len());
        (part(0, count), part(count, self.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::Samples;

    fn numbered() -> Samples {
        Samples::new((0..20).map(|at| at as f32).collect(), (0..10).collect(), 2).unwrap()
    }

    #[test]
    fn rows_stay_with_their_labels() {
        let shuffled = numbered().shuffled(7);
        assert_ne!(shuffled, numbered());
        assert_eq!(shuffled, numbered().shuffled(7));
        for row in 0..10 {
            let (features, labels) = shuffled.rows(row, row + 1);
            assert_eq!(features[..1], [labels[0] as f32 * 2.0]);
        }
    }

    #[test]
    fn parts_are_the_whole() {
        let (first, rest) = numbered().split(7);
        assert_eq!((first.len(), rest.len()), (7, 3));
        assert_eq!(rest.rows(0, 1), numbered().rows(7, 8));
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        assert!(Samples::new(vec![0.0; 5], vec![0, 1], 2).is_err());
        assert!(Samples::new(Vec::new(), Vec::new(), 0).is_err());
    }
}
