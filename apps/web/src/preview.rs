//! Previews, which are statistics of a tensor's elements.
//!
//! The server takes leases only for previews. It holds a lease while this module reads at most
//! [`SAMPLES`] elements of a tensor.

use crate::elements::Elements;
use crate::picture;
use serde_json::{Value, json};
use tensorlend::Tensor;

/// Maximum number of elements read.
pub const SAMPLES: usize = 1 << 16;
/// Number of bars in a histogram.
const BINS: usize = 32;

/// Returns the tensor's type, shape and statistics.
pub fn describe(tensor: &Tensor) -> Value {
    json!({
        "dtype": tensor.dtype().to_string(),
        "shape": tensor.shape(),
        "strides": tensor.strides(),
        "nbytes": tensor.nbytes(),
        "metadata_bytes": tensor.metadata().len(),
        "timestamp_ns": tensor.timestamp().to_string(),
        "is_picture": picture::Kind::of(tensor).is_some(),
        // The numbers that the picture shows as black and white.
        "picture_range": picture::draw(tensor).and_then(|it| it.range).map(|(min, max)| [min, max]),
        "statistics": Elements::of(tensor).map(|elements| statistics(&elements, tensor.elements())),
    })
}

fn statistics(elements: &Elements<'_>, count: usize) -> Value {
    // Make the step odd. An even step could sample the same columns in every row.
    let step = if count > SAMPLES { count.div_ceil(SAMPLES) | 1 } else { 1 };
    // Read each element once, because its publisher may change the bytes at any time.
    let values: Vec<f64> = (0..count).step_by(step).filter_map(|number| elements.nth(number)).collect();
    let nans = values.iter().filter(|value| value.is_nan()).count();
    let infinite = values.iter().filter(|value| value.is_infinite()).count();
    let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    let (min, max) = finite.iter().fold((f64::MAX, f64::MIN), |(min, max), &v| (min.min(v), max.max(v)));
    let mean = finite.iter().map(|value| value / finite.len() as f64).sum::<f64>();
    json!({
        "elements": count,
        "sampled": values.len(),
        "nan": nans,
        "infinite": infinite,
        "min": (!finite.is_empty()).then_some(min),
        "max": (!finite.is_empty()).then_some(max),
        "mean": (!finite.is_empty()).then_some(mean),
        "histogram": histogram(&finite, min, max),
    })
}

fn histogram(values: &[f64], min: f64, max: f64) -> Vec<u64> {
    let mut bins = vec![0; if values.is_empty() { 0 } else { BINS }];
    // Divide before the subtraction, so that the difference is finite for any values.
    let span = max / 2.0 - min / 2.0;
    for value in values {
        let part = if span > 0.0 { (value / 2.0 - min / 2.0) / span } else { 0.0 };
        bins[((part * BINS as f64) as usize).min(BINS - 1)] += 1;
    }
    bins
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlend::{AsTensor, Client, DType, TensorSpec};

    fn described(array: &(impl AsTensor + ?Sized)) -> Value {
        let broker = tensorlend_daemon::embedded().unwrap();
        let client = Client::builder().socket(broker.socket()).connect().unwrap();
        client.put("it", array).unwrap();
        describe(&client.get("it").unwrap())
    }

    #[test]
    fn numbers_and_what_is_none() {
        let seen = described(&[1.0f32, f32::NAN, -3.0, f32::INFINITY, 5.0]);
        let statistics = &seen["statistics"];
        assert_eq!((statistics["nan"].as_u64(), statistics["infinite"].as_u64()), (Some(1), Some(1)));
        let numbers = ["min", "max", "mean"].map(|key| statistics[key].clone());
        assert_eq!(numbers, [json!(-3.0), json!(5.0), json!(1.0)]);
        let bins: u64 = statistics["histogram"].as_array().unwrap().iter().map(|bin| bin.as_u64().unwrap()).sum();
        assert_eq!(bins, 3);
        assert_eq!(described(&[f64::MAX, f64::MIN])["statistics"]["mean"].as_f64(), Some(0.0));
        assert!(described(&[] as &[u8; 0])["statistics"]["min"].is_null());
    }

    #[test]
    fn of_many_elements_some_are_read() {
        let seen = described(&vec![7u16; 1_000_000][..]);
        let sampled = seen["statistics"]["sampled"].as_u64().unwrap() as usize;
        assert!(sampled <= SAMPLES && sampled > SAMPLES / 3, "{sampled}");
        assert_eq!(seen["statistics"]["mean"].as_f64().map(f64::round), Some(7.0));
    }

    #[test]
    fn elements_that_do_not_lie_in_order() {
        let broker = tensorlend_daemon::embedded().unwrap();
        let client = Client::builder().socket(broker.socket()).connect().unwrap();
        let spec = TensorSpec { strides: Some(vec![4, 1]), ..TensorSpec::new(DType::U8, &[2, 3]) };
        let mut draft = client.create_spec(spec).unwrap();
        draft.bytes_mut().copy_from_slice(&[1, 2, 3, 200, 4, 5, 6]);
        draft.publish("padded").unwrap();
        let statistics = &describe(&client.get("padded").unwrap())["statistics"];
        assert_eq!((statistics["max"].as_f64(), statistics["elements"].as_u64()), (Some(6.0), Some(6)));
    }
}
