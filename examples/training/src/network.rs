//! A network with one hidden layer: weights, rectifier, weights, softmax; trained by gradient descent.

use crate::source::Batch;
use clap::ValueEnum;
use ndarray::linalg::general_mat_mul;
use ndarray::{Array1, Array2, ArrayView2, Axis, s};

/// The initialization of weights: normal numbers with this standard deviation. Biases begin at 0.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Init {
    /// 1.
    Normal,
    /// sqrt(2 / inputs): He et al., *Delving Deep into Rectifiers*, 2015.
    Kaiming,
    /// sqrt(2 / (inputs + outputs)): Glorot and Bengio, *Understanding the difficulty of training deep feedforward neural networks*, 2010.
    Xavier,
}

impl Init {
    fn deviation(self, inputs: usize, outputs: usize) -> f32 {
        match self {
            Self::Normal => 1.0,
            Self::Kaiming => (2.0 / inputs as f32).sqrt(),
            Self::Xavier => (2.0 / (inputs + outputs) as f32).sqrt(),
        }
    }
}

/// The weights, and the buffers of a step, allocated once for the largest batch so far.
pub struct Network {
    first: Layer,
    second: Layer,
    /// Rows x hidden: the output of the first layer; then its gradient.
    hidden: Array2<f32>,
    /// Rows x classes: probabilities; then the gradient.
    scores: Array2<f32>,
    /// Rows x hidden.
    back: Array2<f32>,
}

struct Layer {
    /// Inputs x outputs.
    weights: Array2<f32>,
    bias: Array1<f32>,
    /// The gradient of the weights.
    gradient: Array2<f32>,
}

impl Layer {
    fn new(inputs: usize, outputs: usize, init: Init, random: &mut fastrand::Rng) -> Self {
        let deviation = init.deviation(inputs, outputs);
        Self {
            weights: Array2::from_shape_simple_fn((inputs, outputs), || normal(random) * deviation),
            bias: Array1::zeros(outputs),
            gradient: Array2::zeros((inputs, outputs)),
        }
    }

    fn forward(&self, input: ArrayView2<'_, f32>, out: &mut Array2<f32>) {
        let mut out = out.slice_mut(s![..input.nrows(), ..]);
        out.assign(&self.bias);
        general_mat_mul(1.0, &input, &self.weights, 1.0, &mut out);
    }

    /// One step of descent: `input` and `error` have the same rows.
    fn descend(&mut self, input: ArrayView2<'_, f32>, error: ArrayView2<'_, f32>, rate: f32) {
        general_mat_mul(1.0, &input.t(), &error, 0.0, &mut self.gradient);
        self.weights.scaled_add(-rate, &self.gradient);
        self.bias.scaled_add(-rate, &error.sum_axis(Axis(0)));
    }
}

/// Returns a normally distributed number (Box and Muller, 1958).
fn normal(random: &mut fastrand::Rng) -> f32 {
    // Greater than 0, whose logarithm is undefined.
    let radius = (-2.0 * (1.0 - random.f32()).ln()).sqrt();
    radius * (std::f32::consts::TAU * random.f32()).cos()
}

impl Network {
    /// Creates weights from the seed.
    pub fn new(inputs: usize, hidden: usize, classes: usize, init: Init, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        Self {
            first: Layer::new(inputs, hidden, init, &mut random),
            second: Layer::new(hidden, classes, init, &mut random),
            hidden: Array2::zeros((0, hidden)),
            scores: Array2::zeros((0, classes)),
            back: Array2::zeros((0, hidden)),
        }
    }

    /// One step of gradient descent; returns the batch's mean loss (cross entropy, in nats) before it.
    pub fn learn(&mut self, batch: Batch<'_>, rate: f32) -> f32 {
        let rows = batch.labels.len();
        if rows == 0 {
            return 0.0;
        }
        self.forward(batch.features);
        let mut error = self.scores.slice_mut(s![..rows, ..]);
        let mut loss = 0.0_f64;
        for (mut row, &label) in error.rows_mut().into_iter().zip(batch.labels) {
            softmax(row.as_slice_mut().expect("rows of a matrix of our own lie whole"));
            // A label that is not a class has no probability to raise: the step lowers all of them.
            let given = usize::try_from(label).ok().and_then(|label| row.get_mut(label));
            if let Some(given) = given {
                loss -= f64::from(given.max(f32::MIN_POSITIVE).ln());
                *given -= 1.0;
            }
        }
        error /= rows as f32;
        let error = self.scores.slice(s![..rows, ..]);
        let mut back = self.back.slice_mut(s![..rows, ..]);
        general_mat_mul(1.0, &error, &self.second.weights.t(), 0.0, &mut back);
        let hidden = self.hidden.slice(s![..rows, ..]);
        back.zip_mut_with(&hidden, |back, &hidden| {
            if hidden <= 0.0 {
                *back = 0.0;
            }
        });
        self.second.descend(hidden, error, rate);
        self.first.descend(batch.features, self.back.slice(s![..rows, ..]), rate);
        (loss / rows as f64) as f32
    }

    /// Returns the number of samples of the batch that it classifies correctly.
    pub fn known(&mut self, batch: Batch<'_>) -> usize {
        self.forward(batch.features);
        let rows = self.scores.rows();
        let right = |&(ref row, &label): &(ndarray::ArrayView1<'_, f32>, &i64)| {
            let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(class, _)| class as i64);
            best == Some(label)
        };
        rows.into_iter().zip(batch.labels).filter(right).count()
    }

    fn forward(&mut self, features: ArrayView2<'_, f32>) {
        let rows = features.nrows();
        if self.hidden.nrows() < rows {
            self.hidden = Array2::zeros((rows, self.hidden.ncols()));
            self.scores = Array2::zeros((rows, self.scores.ncols()));
            self.back = Array2::zeros((rows, self.back.ncols()));
        }
        self.first.forward(features, &mut self.hidden);
        self.hidden.slice_mut(s![..rows, ..]).mapv_inplace(|value| value.max(0.0));
        self.second.forward(self.hidden.slice(s![..rows, ..]), &mut self.scores);
    }
}

/// Converts scores to probabilities; subtracts the maximum first, so that none overflows.
fn softmax(row: &mut [f32]) {
    let greatest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for value in row.iter_mut() {
        *value = (*value - greatest).exp();
        sum += *value;
    }
    for value in row.iter_mut() {
        *value /= sum;
    }
}

#[cfg(test)]
mod tests {
    use super::{Init, Network, normal};
    use crate::source::Batch;
    use ndarray::array;

    #[test]
    fn a_gradient_is_the_slope_of_the_loss() {
        let features = array![[0.5_f32, -1.0, 2.0], [1.5, 0.25, -0.5], [0.1, 0.7, 0.3]];
        let batch = Batch { features: features.view(), labels: &[1, 0, 1] };
        let fresh = || Network::new(3, 4, 2, Init::Kaiming, 5);
        let base = fresh().learn(batch, 0.0);
        for (row, column) in [(0, 0), (1, 2), (2, 3)] {
            let step = 1e-3;
            let mut moved = fresh();
            moved.first.weights[(row, column)] += step;
            let slope = (moved.learn(batch, 0.0) - base) / step;
            let mut taught = fresh();
            taught.learn(batch, 0.0);
            let gradient = taught.first.gradient[(row, column)];
            assert!((slope - gradient).abs() < 2e-2, "{slope} beside {gradient}");
        }
    }

    #[test]
    fn it_learns_what_can_be_learned() {
        let features = array![[0.0_f32, 1.0], [1.0, 0.0], [0.0, 0.9], [0.8, 0.1]];
        let batch = Batch { features: features.view(), labels: &[0, 1, 0, 1] };
        let mut network = Network::new(2, 8, 2, Init::Xavier, 1);
        let first = network.learn(batch, 0.5);
        let last = (0..200).map(|_| network.learn(batch, 0.5)).last().unwrap();
        assert!(last < first / 5.0, "{first} to {last}");
        assert_eq!(network.known(batch), 4);
    }

    #[test]
    fn a_label_that_is_no_class_does_no_harm() {
        let features = array![[0.0_f32, 1.0]];
        let mut network = Network::new(2, 3, 2, Init::Normal, 1);
        for label in [-1, 2, i64::MAX, i64::MIN] {
            assert!(network.learn(Batch { features: features.view(), labels: &[label] }, 0.1).is_finite());
        }
        assert_eq!(network.known(Batch { features: features.view(), labels: &[7] }), 0);
    }

    #[test]
    fn normal_numbers_are_normal() {
        let mut random = fastrand::Rng::with_seed(3);
        let numbers: Vec<f64> = (0..20_000).map(|_| f64::from(normal(&mut random))).collect();
        let mean = numbers.iter().sum::<f64>() / 20_000.0;
        let variance = numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.05, "{mean}, {variance}");
    }
}
