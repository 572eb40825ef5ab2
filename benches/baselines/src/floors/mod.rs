//! The hardware floor of each part of an exchange. No exchange that consists of these parts can be
//! faster.
//!
//! Each floor is a real exchange between two threads on two cores, or work on memory of the kind that tensors use.

pub(crate) mod descriptor;
mod fence;
mod futex;
mod line;
mod memory;
mod pages;
mod parcel;
mod socket;

pub use descriptor::eventfd_epoll;
pub use fence::store_fence_look;
pub use futex::futex_wake;
pub use line::cacheline;
pub use memory::memcpy;
pub use pages::{Pages, page_faults};
pub use parcel::written_read;
pub use socket::{unix_connect, unix_socket};

use crate::{BaselineError, Cores, Stat};

/// Maximum one-way time in nanoseconds of a cache line between two cores that count as sharing a cache.
const NEAR_NS: f64 = 80.0;

/// The distance of two cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// The two cores share a cache.
    Near,
    /// Writes of one core reach the other through memory or another socket, or both parties share one core.
    Far,
}

impl Placement {
    /// Classifies two cores by the one-way time of a cache line.
    pub fn of(cacheline_one_way_ns: f64) -> Self {
        if cacheline_one_way_ns < NEAR_NS { Self::Near } else { Self::Far }
    }

    /// Returns "near" or "far".
    pub fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Far => "far",
        }
    }
}

/// Measures the distance of the cores. Uses the fastest of a few batches, because other work on the
/// cores can only make a batch slower.
///
/// # Errors
///
/// The errors of [`cacheline`].
pub fn calibrate(cores: Cores) -> Result<(Placement, Stat), BaselineError> {
    let mut meter = cacheline(cores)?;
    let mut samples_ns = Vec::new();
    for _ in 0..15 {
        meter.measure(10_000, &mut samples_ns)?;
    }
    let stat = Stat::of(&samples_ns).ok_or(BaselineError::Panicked)?;
    Ok((Placement::of(stat.min_ns), stat))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Meter;

    #[test]
    fn the_limit_between_near_and_far() {
        assert_eq!(Placement::of(79.9), Placement::Near);
        assert_eq!(Placement::of(80.0), Placement::Far);
        assert_eq!((Placement::Near.name(), Placement::Far.name()), ("near", "far"));
    }

    #[test]
    fn each_floor_gives_samples() {
        let cores = Cores::find().unwrap();
        type Made = Result<Box<dyn Meter>, BaselineError>;
        let meters: Vec<(&str, Made)> = vec![
            ("line", cacheline(cores)),
            ("parcel", written_read(cores, 5000)),
            ("futex", futex_wake(cores)),
            ("eventfd", eventfd_epoll(cores)),
            ("socket", unix_socket(cores)),
            ("connect", unix_connect(cores)),
            ("memcpy", Ok(memcpy(5000))),
            ("fence", Ok(store_fence_look())),
            ("fresh", Ok(page_faults(Pages::Fresh))),
            ("existing", Ok(page_faults(Pages::Existing))),
            ("populated", Ok(page_faults(Pages::Populated))),
        ];
        for (name, meter) in meters {
            let mut meter = meter.unwrap();
            let mut samples_ns = Vec::new();
            for _ in 0..2 {
                meter.measure(3, &mut samples_ns).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
            assert!(samples_ns.len() >= 2 && samples_ns.iter().all(|&ns| ns > 0.0), "{name}: {samples_ns:?}");
        }
    }
}
