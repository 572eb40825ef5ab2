//! Spinning for the next request after a response, before the worker sleeps.
//!
//! A caller often sends the next request right after a response. After a long run the caller's
//! memory has left the caches, so the request comes after the end of the client library's own spin.
//! The wakeup of a sleeping worker costs both sides about ten microseconds. Spinning for 1% of the
//! run's duration costs at most 1% of a core.

use std::time::{Duration, Instant};

/// Divisor for the duration of a spin. After a run, the worker spins for 1/PART of the run's
/// duration.
const PART: u32 = 100;
/// Maximum duration of a spin. If the request comes later, the cost of a wakeup hardly matters.
const LONGEST: Duration = Duration::from_millis(1);
/// Number of successive spins without a request after which the worker omits most spins.
const IN_VAIN_MAX: u32 = 4;
/// Number of possible spins of which the worker still does one, after it has begun to omit spins.
/// Callers may change their behaviour.
const TRIED_AGAIN: u32 = 16;

/// The decision how long the worker spins.
#[derive(Debug, Default)]
pub struct Linger {
    /// Maximum duration of the next spin.
    budget: Duration,
    /// Time of the end of the last run.
    since: Option<Instant>,
    /// Number of successive spins without a request.
    in_vain: u32,
}

impl Linger {
    /// Records the duration of a run whose response was just sent.
    pub fn worked(&mut self, took: Duration) {
        self.budget = (took / PART).min(LONGEST);
        self.since = Some(Instant::now());
    }

    /// Calls `poll` until it returns a request. Stops when the spin that the last run allows is
    /// over.
    ///
    /// # Errors
    /// The errors of `poll`.
    pub fn poll<T, E>(&mut self, mut poll: impl FnMut() -> Result<Option<T>, E>) -> Result<Option<T>, E> {
        // Each run allows only one spin. Later waits sleep at once.
        let Some(since) = self.since.take() else { return Ok(None) };
        if self.in_vain >= IN_VAIN_MAX {
            self.in_vain = self.in_vain.wrapping_add(1);
            if !self.in_vain.is_multiple_of(TRIED_AGAIN) {
                return Ok(None);
            }
        }
        loop {
            if let Some(found) = poll()? {
                self.in_vain = 0;
                return Ok(Some(found));
            }
            if since.elapsed() >= self.budget {
                self.in_vain = self.in_vain.wrapping_add(1);
                return Ok(None);
            }
            for _ in 0..16 {
                std::hint::spin_loop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_vain(linger: &mut Linger, took: Duration) -> u32 {
        let mut looks = 0;
        linger.worked(took);
        linger
            .poll(|| {
                looks += 1;
                Ok::<_, ()>(None::<()>)
            })
            .unwrap();
        looks
    }

    #[test]
    fn without_a_run_nothing_is_earned() {
        let mut linger = Linger::default();
        assert_eq!(linger.poll(|| Ok::<_, ()>(Some(7))), Ok(None));
        linger.worked(Duration::from_millis(50));
        assert_eq!(linger.poll(|| Ok::<_, ()>(Some(7))), Ok(Some(7)));
        assert_eq!(linger.poll(|| Ok::<_, ()>(Some(7))), Ok(None));
    }

    #[test]
    fn what_comes_in_time_is_found_and_errors_are_told() {
        let mut linger = Linger::default();
        linger.worked(Duration::from_secs(10));
        let mut looks = 0;
        let found = linger.poll(|| {
            looks += 1;
            Ok::<_, ()>((looks == 3).then_some(looks))
        });
        // If the machine paused for a millisecond, the spin may have ended before the third call.
        assert!(matches!(found, Ok(Some(3) | None)));
        linger.worked(Duration::from_secs(10));
        assert_eq!(linger.poll(|| Err::<Option<()>, _>("ended")), Err("ended"));
    }

    #[test]
    fn looking_in_vain_ends_and_is_tried_again() {
        let mut linger = Linger::default();
        let looked: Vec<bool> = (0..64).map(|_| in_vain(&mut linger, Duration::from_micros(100)) > 0).collect();
        assert!(looked[..IN_VAIN_MAX as usize].iter().all(|&looked| looked));
        let later = looked[IN_VAIN_MAX as usize..].iter().filter(|&&looked| looked).count();
        assert!((1..=8).contains(&later), "{later}");
    }
}
