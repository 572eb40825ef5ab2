//! Summaries of samples.

/// The median, minimum and maximum of samples, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stat {
    /// Median. If the number of samples is even, the mean of the middle two.
    pub p50_ns: f64,
    pub min_ns: f64,
    pub max_ns: f64,
}

impl Stat {
    /// Summarizes samples in any order. Returns `None` without samples.
    ///
    /// ```
    /// use tensorlend_baselines::Stat;
    ///
    /// let stat = Stat::of(&[30.0, 10.0, 20.0]).unwrap();
    /// assert_eq!((stat.p50_ns, stat.min_ns, stat.max_ns), (20.0, 10.0, 30.0));
    /// ```
    pub fn of(samples_ns: &[f64]) -> Option<Self> {
        let mut sorted = samples_ns.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let (min_ns, max_ns) = (*sorted.first()?, *sorted.last()?);
        let upper = sorted.len() / 2;
        let lower = (sorted.len() - 1) / 2;
        Some(Self { p50_ns: f64::midpoint(sorted[lower], sorted[upper]), min_ns, max_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::Stat;

    #[test]
    fn of_nothing_there_is_nothing() {
        assert_eq!(Stat::of(&[]), None);
    }

    #[test]
    fn one_sample_is_all_three() {
        assert_eq!(Stat::of(&[7.5]), Some(Stat { p50_ns: 7.5, min_ns: 7.5, max_ns: 7.5 }));
    }

    #[test]
    fn the_order_does_not_matter() {
        for samples in [[1.0, 2.0, 9.0], [9.0, 1.0, 2.0], [2.0, 9.0, 1.0]] {
            assert_eq!(Stat::of(&samples), Some(Stat { p50_ns: 2.0, min_ns: 1.0, max_ns: 9.0 }));
        }
    }

    #[test]
    fn of_an_even_number_the_middle_two_are_averaged() {
        assert_eq!(Stat::of(&[4.0, 1.0, 100.0, 2.0]), Some(Stat { p50_ns: 3.0, min_ns: 1.0, max_ns: 100.0 }));
    }

    #[test]
    fn one_outlier_does_not_move_the_median() {
        let mut samples = vec![50.0; 99];
        samples.push(1e9);
        assert_eq!(Stat::of(&samples).unwrap().p50_ns.to_bits(), 50_f64.to_bits());
    }
}
