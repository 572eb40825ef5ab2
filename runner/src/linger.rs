//! Looking for the next request for a while after an answer, before going to sleep.
//!
//! Who has an answer often has the next request at once, but after a long run everything that it needs for that has left the
//! caches, so that it comes later than the client library looks for one. A worker that is asleep then is woken, which costs both
//! sides some ten microseconds. To look for a hundredth of the time that the run took costs a hundredth of a processor at most.

use std::time::{Duration, Instant};

/// The part of a run for which is looked after it.
const PART: u32 = 100;
/// The longest look: later requests wait long enough not to notice.
const LONGEST: Duration = Duration::from_millis(1);
/// After so many looks in vain, in a row, most are left out.
const IN_VAIN_MAX: u32 = 4;
/// Of those, one of so many is not: callers change.
const TRIED_AGAIN: u32 = 16;

/// How long to look.
#[derive(Debug, Default)]
pub struct Linger {
    /// For so long it may be looked now.
    budget: Duration,
    /// When the last run ended.
    since: Option<Instant>,
    /// Looks in a row that found nothing.
    in_vain: u32,
}

impl Linger {
    /// A run took so long, and its answer was given just now.
    pub fn worked(&mut self, took: Duration) {
        self.budget = (took / PART).min(LONGEST);
        self.since = Some(Instant::now());
    }

    /// Looks for what `look` finds: once, or for as long as the last run has earned.
    ///
    /// # Errors
    /// What `look` returns.
    pub fn look<T, E>(&mut self, mut look: impl FnMut() -> Result<Option<T>, E>) -> Result<Option<T>, E> {
        // A run earns one look, of which a later wait has no part.
        let Some(since) = self.since.take() else { return Ok(None) };
        if self.in_vain >= IN_VAIN_MAX {
            self.in_vain = self.in_vain.wrapping_add(1);
            if !self.in_vain.is_multiple_of(TRIED_AGAIN) {
                return Ok(None);
            }
        }
        loop {
            if let Some(found) = look()? {
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
            .look(|| {
                looks += 1;
                Ok::<_, ()>(None::<()>)
            })
            .unwrap();
        looks
    }

    #[test]
    fn without_a_run_nothing_is_earned() {
        let mut linger = Linger::default();
        assert_eq!(linger.look(|| Ok::<_, ()>(Some(7))), Ok(None));
        linger.worked(Duration::from_millis(50));
        assert_eq!(linger.look(|| Ok::<_, ()>(Some(7))), Ok(Some(7)));
        assert_eq!(linger.look(|| Ok::<_, ()>(Some(7))), Ok(None));
    }

    #[test]
    fn what_comes_in_time_is_found_and_errors_are_told() {
        let mut linger = Linger::default();
        linger.worked(Duration::from_secs(10));
        let mut looks = 0;
        let found = linger.look(|| {
            looks += 1;
            Ok::<_, ()>((looks == 3).then_some(looks))
        });
        // On a machine that stands still for a millisecond it may have given up.
        assert!(matches!(found, Ok(Some(3) | None)));
        linger.worked(Duration::from_secs(10));
        assert_eq!(linger.look(|| Err::<Option<()>, _>("ended")), Err("ended"));
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
