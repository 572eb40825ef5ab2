//! Timing of operations in batches.

use std::time::{Duration, Instant};

use crate::BaselineError;

/// An operation that can be timed in batches.
pub trait Meter {
    /// Runs the operation `operations` times, and adds times of one operation in nanoseconds. Adds
    /// one sample for the batch. If operations are long enough to be timed separately, adds one
    /// sample for each operation.
    ///
    /// # Errors
    ///
    /// The operation's error. After an error the meter is unusable.
    fn measure(&mut self, operations: u64, samples_ns: &mut Vec<f64>) -> Result<(), BaselineError>;

    /// Returns the total time of `operations`, for callers with statistics of their own.
    ///
    /// # Errors
    ///
    /// The errors of [`measure`](Self::measure).
    fn total(&mut self, operations: u64) -> Result<Duration, BaselineError> {
        let mut samples_ns = Vec::new();
        self.measure(operations, &mut samples_ns)?;
        let mean_ns = samples_ns.iter().sum::<f64>() / samples_ns.len().max(1) as f64;
        Ok(Duration::from_nanos((mean_ns * operations as f64).round() as u64))
    }
}

/// Returns a meter of an operation of this thread. A sample is the mean time of a batch.
///
/// ```
/// use tensorlend_baselines::{Meter, repeated};
///
/// let mut samples_ns = Vec::new();
/// repeated(|| { std::hint::black_box(7 * 6); Ok(()) }).measure(1000, &mut samples_ns)?;
/// assert_eq!(samples_ns.len(), 1);
/// # Ok::<(), tensorlend_baselines::BaselineError>(())
/// ```
pub fn repeated(operation: impl FnMut() -> Result<(), BaselineError>) -> impl Meter {
    Repeated(operation)
}

struct Repeated<F>(F);

impl<F: FnMut() -> Result<(), BaselineError>> Meter for Repeated<F> {
    fn measure(&mut self, operations: u64, samples_ns: &mut Vec<f64>) -> Result<(), BaselineError> {
        let start = Instant::now();
        for _ in 0..operations {
            (self.0)()?;
        }
        samples_ns.push(each(start.elapsed(), operations));
        Ok(())
    }
}

/// Returns a meter of an operation on inputs that are made before the clock starts. The operation's
/// results are cleared after the clock has stopped.
///
/// `prepare` makes the inputs of one batch. `operate` is timed with each input. `clear` gets the
/// results.
pub fn prepared<T, R>(
    prepare: impl FnMut(u64) -> Result<Vec<T>, BaselineError>,
    operate: impl FnMut(T) -> Result<R, BaselineError>,
    clear: impl FnMut(Vec<R>) -> Result<(), BaselineError>,
) -> impl Meter {
    Prepared { prepare, operate, clear }
}

struct Prepared<P, O, C> {
    prepare: P,
    operate: O,
    clear: C,
}

impl<T, R, P, O, C> Meter for Prepared<P, O, C>
where
    P: FnMut(u64) -> Result<Vec<T>, BaselineError>,
    O: FnMut(T) -> Result<R, BaselineError>,
    C: FnMut(Vec<R>) -> Result<(), BaselineError>,
{
    fn measure(&mut self, operations: u64, samples_ns: &mut Vec<f64>) -> Result<(), BaselineError> {
        let things = (self.prepare)(operations)?;
        let count = things.len() as u64;
        let mut results = Vec::with_capacity(things.len());
        let start = Instant::now();
        for thing in things {
            results.push((self.operate)(thing)?);
        }
        samples_ns.push(each(start.elapsed(), count));
        (self.clear)(results)
    }
}

/// Returns the mean time of one operation in nanoseconds.
pub(crate) fn each(all: Duration, operations: u64) -> f64 {
    all.as_nanos() as f64 / operations.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::{Meter, prepared, repeated};
    use crate::BaselineError;
    use std::cell::Cell;

    #[test]
    fn each_operation_is_done_and_the_batch_is_one_sample() {
        let count = Cell::new(0);
        let mut meter = repeated(|| {
            count.set(count.get() + 1);
            Ok(())
        });
        let mut samples_ns = Vec::new();
        meter.measure(50, &mut samples_ns).unwrap();
        meter.measure(7, &mut samples_ns).unwrap();
        assert_eq!((count.get(), samples_ns.len()), (57, 2));
    }

    #[test]
    fn what_was_prepared_is_operated_on_and_cleared() {
        let cleared = Cell::new(0);
        let clear = |results: Vec<u64>| {
            assert_eq!(results, [0, 2, 4]);
            cleared.set(cleared.get() + 1);
            Ok(())
        };
        let mut samples_ns = Vec::new();
        let mut meter = prepared(|count| Ok((0..count).collect()), |n: u64| Ok(2 * n), clear);
        meter.measure(3, &mut samples_ns).unwrap();
        meter.measure(3, &mut samples_ns).unwrap();
        assert_eq!((cleared.get(), samples_ns.len()), (2, 2));
    }

    #[test]
    fn an_error_ends_the_batch() {
        let mut samples_ns = Vec::new();
        let error = repeated(|| Err(BaselineError::Panicked)).measure(10, &mut samples_ns).unwrap_err();
        assert!(matches!(error, BaselineError::Panicked) && samples_ns.is_empty());
    }
}
