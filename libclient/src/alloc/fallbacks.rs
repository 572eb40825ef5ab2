//! The ways to a slot when the heap has no free one: an ordered list of strategies.

use super::{Allocator, Outside, release};
use crate::alloc::heap::{Wanted, extent_bytes};
use crate::alloc::taken::Taken;
use crate::error::{Error, Result};
use crate::reused::boxed;
use tensorlend_layout::size::bytes_text;
use tensorlend_os::mutex::lock;

/// A way to a slot that the heap does not have at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strategy {
    /// Requests a segment while few bytes are retired, because a scan of all members would free little.
    GrowEarly,
    /// Reclaims retired slots. This also works at a limit, and after the daemon has ended.
    Reclaim,
    /// Retires the values that names and closed streams no longer need, and reclaims again.
    RetireUnneeded,
    /// Returns segments of other sizes, and requests a segment.
    ReplaceSegments,
    /// At a limit, places the slot among slots of another kind: this is better than exchanging segments with the daemon
    /// each time. Small slots are excepted, because they would soon use up the segment's few slot numbers and block it.
    Mix,
    /// At a limit, returns idle segments, and requests a segment.
    ReturnIdle,
    /// If the pool is full, releases all quiescent segments for spill, and requests a segment. This is the last request,
    /// because released segments serve no more drafts.
    Spill,
    /// At a limit, places a slot of any size wherever it fits.
    MixAny,
}

/// The order in which the client tries the strategies.
const STRATEGIES: [Strategy; 8] = [
    Strategy::GrowEarly,
    Strategy::Reclaim,
    Strategy::RetireUnneeded,
    Strategy::ReplaceSegments,
    Strategy::Mix,
    Strategy::ReturnIdle,
    Strategy::Spill,
    Strategy::MixAny,
];

/// The size of the wanted slot.
#[derive(Clone, Copy)]
struct Size {
    bytes: u64,
    /// Bytes of the slot's extent.
    length: u64,
}

/// The outcome of a strategy.
enum Outcome {
    Taken(Box<Taken>),
    /// The client has a new segment, from which any thread may take slots.
    Grown,
    /// The client got no memory from the daemon.
    Refused(Error),
    /// The strategy does not apply, or freed too little.
    Nothing,
}

impl From<Option<Taken>> for Outcome {
    fn from(taken: Option<Taken>) -> Self {
        taken.map_or(Self::Nothing, |taken| Self::Taken(boxed(taken)))
    }
}

impl From<Result<Option<Box<Taken>>>> for Outcome {
    fn from(grown: Result<Option<Box<Taken>>>) -> Self {
        match grown {
            Ok(Some(taken)) => Self::Taken(taken),
            Ok(None) => Self::Grown,
            Err(error) => Self::Refused(error),
        }
    }
}

impl Allocator {
    /// Takes a slot of `bytes` bytes by the first strategy that yields one.
    #[cold]
    pub(super) fn take_slowly(&self, outside: &impl Outside, bytes: u64) -> Result<Box<Taken>> {
        let Some((length, _)) = extent_bytes(bytes) else {
            let bytes = bytes_text(bytes);
            return Err(Error::Argument(format!("{bytes} are more than any machine has: check the shape")));
        };
        self.empty_magazines();
        let mut refusal = None;
        for strategy in STRATEGIES {
            match self.attempt(strategy, outside, Size { bytes, length }, refusal.as_ref()) {
                Outcome::Taken(taken) => return Ok(taken),
                // Another thread may have taken the new space. Then this thread begins again.
                Outcome::Grown => {
                    let taken = lock(&self.heap).take(bytes);
                    return taken.map_or_else(|| self.take_unwatched(outside, bytes), |taken| Ok(boxed(taken)));
                }
                Outcome::Refused(error) => refusal = Some(error),
                Outcome::Nothing => {}
            }
        }
        // `ReplaceSegments` always requests a segment, so the client was refused one.
        Err(refusal.unwrap_or(Error::Protocol { doing: "ask for memory" }))
    }

    /// Tries one strategy. `refusal` is the error of the last request for a segment.
    fn attempt(&self, strategy: Strategy, outside: &impl Outside, size: Size, refusal: Option<&Error>) -> Outcome {
        let is_at_limit = refusal.is_some_and(Error::is_limit);
        match strategy {
            Strategy::GrowEarly => self.grow_early(size),
            Strategy::Reclaim => {
                self.reclaim(true);
                lock(&self.heap).take(size.bytes).into()
            }
            Strategy::RetireUnneeded => self.retire_unneeded(outside, size),
            Strategy::ReplaceSegments => {
                let gone = lock(&self.heap).make_way(size.length);
                self.return_segments(gone);
                self.grow(size.bytes, size.length).into()
            }
            Strategy::Mix if is_at_limit => {
                let mut heap = lock(&self.heap);
                if heap.is_small(size.length) { Outcome::Nothing } else { heap.take(size.bytes).into() }
            }
            Strategy::ReturnIdle if is_at_limit => {
                let idle = lock(&self.heap).flush();
                if idle.is_empty() {
                    return Outcome::Nothing;
                }
                self.return_segments(idle);
                self.grow(size.bytes, size.length).into()
            }
            Strategy::Spill if refusal.is_some_and(release::is_full) && self.release_for_spill(Wanted::All) => {
                self.grow(size.bytes, size.length).into()
            }
            Strategy::MixAny if is_at_limit => lock(&self.heap).take(size.bytes).into(),
            Strategy::Mix | Strategy::ReturnIdle | Strategy::Spill | Strategy::MixAny => Outcome::Nothing,
        }
    }

    fn grow_early(&self, size: Size) -> Outcome {
        // Release the heap's lock before the request.
        let may_grow = lock(&self.heap).may_grow(size.length);
        match may_grow.then(|| self.grow(size.bytes, size.length)) {
            Some(Ok(Some(taken))) => Outcome::Taken(taken),
            Some(Ok(None)) => lock(&self.heap).take(size.bytes).into(),
            Some(Err(error)) => Outcome::Refused(error),
            None => Outcome::Nothing,
        }
    }

    fn retire_unneeded(&self, outside: &impl Outside, size: Size) -> Outcome {
        // Ignore an error: without the daemon's notices, the client can still retire the messages of closed streams.
        let _ = outside.notices();
        outside.retire_closed();
        self.reclaim(true);
        let mut heap = lock(&self.heap);
        heap.flush();
        heap.take(size.bytes).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Client, DType};
    use tensorlend_daemon::{Bytes, Config};

    /// Longer than three quarters of a segment, so that the client requests a whole one.
    const LARGE_BYTES: u64 = 7 << 19;
    const LARGE: Size = Size { bytes: LARGE_BYTES, length: LARGE_BYTES };
    const SMALL: Size = Size { bytes: 2048, length: 2048 };
    const AT_LIMIT: [Strategy; 4] = [Strategy::Mix, Strategy::ReturnIdle, Strategy::Spill, Strategy::MixAny];

    #[test]
    fn each_strategy_does_its_own_part() {
        // Room for one segment, and for one large slot in it.
        let mut config = Config::default();
        (config.pool.bytes_max, config.pool.segment_bytes) = (Some(Bytes(4 << 20)), Bytes(4 << 20));
        config.pool.spare_segments = 0;
        let daemon = tensorlend_daemon::embedded_with(&config).unwrap();
        let client = Client::builder().socket(daemon.socket()).connect().unwrap();
        let (session, alloc) = (client.session(), client.session().alloc());
        let attempt = |strategy, size, refusal| alloc.attempt(strategy, &**session, size, refusal);

        for strategy in [Strategy::GrowEarly, Strategy::Reclaim, Strategy::RetireUnneeded] {
            assert!(matches!(attempt(strategy, LARGE, None), Outcome::Nothing), "{strategy:?} without any memory");
        }
        assert!(matches!(attempt(Strategy::ReplaceSegments, LARGE, None), Outcome::Grown));
        let large = client.create(DType::U8, &[LARGE.bytes]).unwrap();

        for strategy in AT_LIMIT {
            assert!(matches!(attempt(strategy, SMALL, None), Outcome::Nothing), "{strategy:?} below the limit");
        }
        let Outcome::Refused(limit) = attempt(Strategy::ReplaceSegments, SMALL, None) else {
            panic!("the pool is full")
        };
        assert!(limit.is_limit(), "{limit}");
        assert!(matches!(attempt(Strategy::Mix, SMALL, Some(&limit)), Outcome::Nothing));
        assert!(matches!(attempt(Strategy::ReturnIdle, SMALL, Some(&limit)), Outcome::Nothing));
        let Outcome::Taken(small) = attempt(Strategy::MixAny, SMALL, Some(&limit)) else {
            panic!("half a megabyte is free")
        };

        alloc.drop_taken(small);
        large.publish("large").unwrap();
        client.delete("large").unwrap();
        let Outcome::Taken(taken) = attempt(Strategy::Reclaim, LARGE, None) else { panic!("the value was retired") };
        alloc.drop_taken(taken);
        alloc.empty_magazines();
        assert!(matches!(attempt(Strategy::ReturnIdle, LARGE, Some(&limit)), Outcome::Grown));
    }
}
