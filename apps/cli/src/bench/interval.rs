//! The interval of a ratio between two groups of runs, by ranks.
//!
//! The interval contains the ratios that a Mann-Whitney test does not reject. It assumes nothing about the distribution
//! of the runs except that both groups have the same shape on a logarithmic scale. It is exact for few runs, and one
//! disturbed run moves it little. The bounds are two of the sorted quotients of each run now and each run of the base.

pub const CONFIDENCE_PERCENT: u8 = 99;
/// One order in this many lies beyond each bound, if the groups do not differ.
const BEYOND: i128 = 2 * 100 / (100 - CONFIDENCE_PERCENT as i128);
/// Minimum number of runs of each group for an interval, if both groups have as many.
pub const RUNS_MIN: u8 = 5;
/// Maximum number of runs of each group: the number of orders of twice as many runs fits into 128 bits, [`BEYOND`] times.
pub const RUNS_MAX: u8 = 60;

/// A ratio: the median of all quotients, and the bounds of its interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    pub ratio: f64,
    /// `None` if there are too few runs.
    pub bounds: Option<(f64, f64)>,
}

impl Ratio {
    /// Returns the ratio of `now` to `base`; `None` if one of them has no run. Each has at most [`RUNS_MAX`] runs, which are
    /// positive.
    pub fn of(base: &[f64], now: &[f64]) -> Option<Self> {
        let mut quotients: Vec<f64> = now.iter().flat_map(|now| base.iter().map(move |base| now / base)).collect();
        quotients.sort_unstable_by(f64::total_cmp);
        let (lower, upper) = (quotients.len().checked_sub(1)? / 2, quotients.len() / 2);
        let outside = outside(base.len(), now.len());
        let bounds = outside.checked_sub(1).map(|low| (quotients[low], quotients[quotients.len() - outside]));
        Some(Self { ratio: f64::midpoint(quotients[lower], quotients[upper]), bounds })
    }
}

/// Returns the number of the lower bound in the sorted quotients, counted from 1, which is also the number of the upper bound
/// from the end. Returns 0 if there are too few runs for a bound.
fn outside(base: usize, now: usize) -> usize {
    let orders = orders(base, now);
    let all: i128 = orders.iter().sum();
    let sums = orders.iter().scan(0, |sum, count| {
        *sum += count;
        Some(*sum)
    });
    sums.take_while(|sum| *sum * BEYOND <= all).count()
}

/// Returns, for each u, the number of orders of two groups in which exactly u pairs are inverted: the coefficients of the
/// Gaussian binomial. Mann and Whitney's U has this distribution if the groups do not differ.
fn orders(base: usize, now: usize) -> Vec<i128> {
    let mut counts = vec![0; base * now + 1];
    counts[0] = 1;
    for at in 1..=base {
        for u in (now + at..counts.len()).rev() {
            counts[u] -= counts[u - now - at];
        }
        for u in at..counts.len() {
            counts[u] += counts[u - at];
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::{BEYOND, RUNS_MAX, RUNS_MIN, Ratio, orders, outside};

    fn runs(count: usize, of: impl Fn(f64) -> f64) -> Vec<f64> {
        (0..count).map(|at| of(at as f64)).collect()
    }

    #[test]
    fn orders_are_counted_as_by_enumeration() {
        for (base, now) in [(1, 1), (2, 3), (3, 2), (4, 4), (5, 1)] {
            let mut counts = vec![0; base * now + 1];
            for order in 0..1_u32 << (base + now) {
                if order.count_ones() as usize != now {
                    continue;
                }
                let is_now = |at: usize| order >> at & 1 == 1;
                let inverted = (0..base + now)
                    .filter(|at| is_now(*at))
                    .flat_map(|at| (at + 1..base + now).filter(|b| !is_now(*b)));
                counts[inverted.count()] += 1;
            }
            assert_eq!(orders(base, now), counts, "{base} and {now}");
        }
    }

    #[test]
    fn the_bounds_are_those_of_published_tables() {
        // Critical values of U, two-sided, 1 %: reject up to this value. The bound's number is one more.
        for (base, now, critical) in
            [(5, 5, 0), (6, 6, 2), (8, 8, 7), (10, 10, 16), (12, 12, 27), (20, 20, 105), (5, 10, 4)]
        {
            assert_eq!((outside(base, now), outside(now, base)), (critical + 1, critical + 1), "{base} and {now}");
        }
        let few = usize::from(RUNS_MIN) - 1;
        assert_eq!((outside(few, few), outside(few, few + 1), outside(1, 100)), (0, 0, 0));
        let most = orders(RUNS_MAX.into(), RUNS_MAX.into());
        assert!(most.iter().all(|count| *count >= 1) && most.iter().sum::<i128>() < i128::MAX / BEYOND);
    }

    #[test]
    fn a_ratio_is_between_its_bounds_and_one_wild_run_moves_none_of_them_far() {
        let base = runs(12, |at| 100.0 + at);
        let mut now = runs(12, |at| 120.0 + at);
        let before = Ratio::of(&base, &now).unwrap();
        let (low, high) = before.bounds.unwrap();
        assert!(1.1 < low && low < before.ratio && before.ratio < high && high < 1.3, "{before:?}");
        now[0] = 1e6;
        let after = Ratio::of(&base, &now).unwrap();
        assert!((after.ratio - before.ratio).abs() < 0.02 && after.bounds.unwrap().1 < 1.3, "{after:?}");
    }

    #[test]
    fn the_inverse_comparison_has_the_inverse_bounds() {
        let (base, now) = (runs(6, |at| 64.0 + at), runs(7, |at| 50.0 + 3.0 * at));
        let (forth, back) = (Ratio::of(&base, &now).unwrap(), Ratio::of(&now, &base).unwrap());
        let ((low, high), (other_low, other_high)) = (forth.bounds.unwrap(), back.bounds.unwrap());
        assert!((low * other_high - 1.0).abs() < 1e-12 && (high * other_low - 1.0).abs() < 1e-12);
    }

    #[test]
    fn few_runs_have_a_ratio_without_bounds() {
        assert_eq!(Ratio::of(&[2.0], &[3.0]), Some(Ratio { ratio: 1.5, bounds: None }));
        assert_eq!(Ratio::of(&[2.0], &[]), None);
        assert_eq!(Ratio::of(&[], &[2.0]), None);
    }

    /// Two groups of runs of one program differ by chance. Of the 252 orders of five and five runs, two have no run of
    /// one group between runs of the other.
    #[test]
    fn among_all_orders_of_equal_runs_one_percent_differ() {
        let mut differ = 0;
        for order in 0..1_u32 << 10 {
            if order.count_ones() != 5 {
                continue;
            }
            let group =
                |bit| (0..10).filter(|at| order >> at & 1 == bit).map(|at| 100.0 + f64::from(at)).collect::<Vec<_>>();
            let (low, high) = Ratio::of(&group(0), &group(1)).unwrap().bounds.unwrap();
            differ += u32::from(low > 1.0 || high < 1.0);
        }
        assert_eq!(differ, 2);
    }
}
