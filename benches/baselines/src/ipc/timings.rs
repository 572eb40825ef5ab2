//! The results of a session.

/// The times of one exchange, in nanoseconds. The crate's documentation defines the four instants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lap {
    /// The producer begins.
    pub t0_ns: u64,
    /// The producer's call has returned.
    pub t1_ns: u64,
    /// The consumer has read every byte of the tensor.
    pub t2_ns: u64,
    /// The producer has the acknowledgement.
    pub t3_ns: u64,
    /// Whether every byte that the consumer read was of this exchange.
    pub bytes_ok: bool,
}

/// The metrics of exchanges in their order, and whether all bytes were right.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timings {
    /// `t1 - t0`: time during which the producer was busy.
    pub put_ns: Vec<u64>,
    /// `t2 - t1`, at least 0: time from `t1` until the consumer had read the tensor.
    pub get_ns: Vec<u64>,
    /// `t3 - t0`: put + get + acknowledgement.
    pub round_trip_ns: Vec<u64>,
    /// Whether the checksum of the untimed exchange and the bytes of all others were right.
    pub checksum_ok: bool,
}

impl Timings {
    /// Makes an empty value with memory for `rounds` exchanges, so that nothing is allocated between two exchanges.
    pub fn with_capacity(rounds: usize, checksum_ok: bool) -> Self {
        Self {
            put_ns: Vec::with_capacity(rounds),
            get_ns: Vec::with_capacity(rounds),
            round_trip_ns: Vec::with_capacity(rounds),
            checksum_ok,
        }
    }

    /// Adds the metrics of one exchange.
    pub fn push(&mut self, lap: Lap) {
        self.put_ns.push(lap.t1_ns.saturating_sub(lap.t0_ns));
        self.get_ns.push(lap.t2_ns.saturating_sub(lap.t1_ns));
        self.round_trip_ns.push(lap.t3_ns.saturating_sub(lap.t0_ns));
        self.checksum_ok &= lap.bytes_ok;
    }

    /// Returns the median round trip in nanoseconds; 0 without rounds.
    pub fn round_trip_median_ns(&self) -> u64 {
        let mut sorted = self.round_trip_ns.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::{Lap, Timings};

    fn lap(t1_ns: u64, t2_ns: u64) -> Lap {
        Lap { t0_ns: 100, t1_ns, t2_ns, t3_ns: 200, bytes_ok: true }
    }

    #[test]
    fn the_parts_never_overlap() {
        let mut timings = Timings::with_capacity(2, true);
        timings.push(lap(130, 180));
        timings.push(lap(130, 120));
        assert_eq!(timings.put_ns, [30, 30]);
        assert_eq!(timings.get_ns, [50, 0]);
        assert_eq!(timings.round_trip_ns, [100, 100]);
        assert_eq!(timings.round_trip_median_ns(), 100);
        assert!(timings.checksum_ok);
    }

    #[test]
    fn one_stale_stamp_spoils_all() {
        let mut timings = Timings::with_capacity(2, true);
        timings.push(Lap { bytes_ok: false, ..lap(1, 2) });
        timings.push(lap(1, 2));
        assert!(!timings.checksum_ok);
    }
}
