//! Statistics of allocations: current, peak and total, of a client or within a scope.

/// Counts of one client's allocations since counting began, or within one [`crate::StatisticsScope`]. Bytes are those of
/// slots: whole cache lines, whole pages from one page up. On devices, they are whole units of the allocator, usually of
/// 512 bytes. A device draft may reuse the slot of a draft dropped in the same stream. It then continues that draft's
/// allocation.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// let client = tensorlend::Client::builder().socket(daemon.socket()).statistics().connect()?;
/// let first = client.create(tensorlend::DType::U8, [4096])?;
/// drop(client.create(tensorlend::DType::U8, [8192])?);
/// let seen = client.instruments().statistics().unwrap();
/// assert_eq!((seen.current_bytes, seen.current_count), (4096, 1));
/// assert_eq!((seen.peak_bytes, seen.peak_count), (12288, 2));
/// assert_eq!((seen.total_bytes, seen.total_count), (12288, 2));
/// # drop(first);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes allocated minus bytes freed. Negative if the client freed more than it allocated since counting began. A
    /// published value is included until it is freed.
    pub current_bytes: i64,
    /// Allocations minus frees.
    pub current_count: i64,
    /// The maximum of `current_bytes` so far, and at least 0. The client needed this much memory at the same time.
    pub peak_bytes: u64,
    /// The maximum of `current_count` so far, and at least 0.
    pub peak_count: u64,
    /// Bytes of all allocations, including freed ones. Grows with each allocation.
    pub total_bytes: u64,
    /// The number of all allocations, including freed ones.
    pub total_count: u64,
}

impl Statistics {
    fn allocated(&mut self, bytes: u64) {
        self.current_bytes += bytes.cast_signed();
        self.current_count += 1;
        self.peak_bytes = self.peak_bytes.max(self.current_bytes.max(0).cast_unsigned());
        self.peak_count = self.peak_count.max(self.current_count.max(0).cast_unsigned());
        self.total_bytes += bytes;
        self.total_count += 1;
    }

    fn freed(&mut self, bytes: u64) {
        self.current_bytes -= bytes.cast_signed();
        self.current_count -= 1;
    }

    /// Combines two counts. The result covers the time from the beginning of `self` to the end of `next`, which began
    /// where `self` ended.
    fn then(&self, next: &Self) -> Self {
        let peak =
            |before: u64, current: i64, next: u64| before.max((current + next.cast_signed()).max(0).cast_unsigned());
        Self {
            current_bytes: self.current_bytes + next.current_bytes,
            current_count: self.current_count + next.current_count,
            peak_bytes: peak(self.peak_bytes, self.current_bytes, next.peak_bytes),
            peak_count: peak(self.peak_count, self.current_count, next.peak_count),
            total_bytes: self.total_bytes + next.total_bytes,
            total_count: self.total_count + next.total_count,
        }
    }
}

/// Open scopes, the oldest first. Each scope only counts until the next one is opened, so that an allocation costs
/// the same at any depth of nesting. The sum from one scope on is that scope's count.
#[derive(Default)]
pub struct Frames {
    pub open: Vec<(u64, Statistics)>,
    ids: u64,
    /// The scope of the client as a whole, if the client counts its allocations.
    pub whole: Option<u64>,
}

impl Frames {
    pub fn allocated(&mut self, bytes: u64) {
        if let Some((_, last)) = self.open.last_mut() {
            last.allocated(bytes);
        }
    }

    pub fn freed(&mut self, bytes: u64) {
        if let Some((_, last)) = self.open.last_mut() {
            last.freed(bytes);
        }
    }

    /// Starts counting for the client as a whole, unless it already counts.
    pub fn enable(&mut self) {
        if self.whole.is_none() {
            self.whole = Some(self.push());
        }
    }

    pub fn disable(&mut self) {
        if let Some(id) = self.whole.take() {
            self.pop(id);
        }
    }

    pub fn push(&mut self) -> u64 {
        self.ids += 1;
        self.open.push((self.ids, Statistics::default()));
        self.ids
    }

    pub fn sum(&self, id: u64) -> Option<Statistics> {
        let first = self.open.iter().position(|(i, _)| *i == id)?;
        Some(self.open[first..].iter().fold(Statistics::default(), |sum, (_, next)| sum.then(next)))
    }

    /// Closes a scope, even if later scopes are still open. Its counts go to the enclosing scope.
    pub fn pop(&mut self, id: u64) {
        let Some(at) = self.open.iter().position(|(i, _)| *i == id) else { return };
        let (_, ended) = self.open.remove(at);
        if let Some((_, around)) = at.checked_sub(1).map(|before| &mut self.open[before]) {
            *around = around.then(&ended);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_may_end_in_any_order() {
        let mut frames = Frames::default();
        frames.enable();
        frames.allocated(10);
        let outer = frames.push();
        frames.allocated(5);
        let inner = frames.push();
        frames.allocated(20);
        frames.freed(20);
        frames.freed(10);
        assert_eq!(frames.sum(inner).map(|s| (s.current_bytes, s.peak_bytes)), Some((-10, 20)));
        assert_eq!(frames.sum(outer).map(|s| (s.current_bytes, s.peak_bytes, s.total_count)), Some((-5, 25, 2)));
        frames.pop(outer);
        frames.allocated(1);
        assert_eq!(frames.sum(inner).map(|s| (s.current_bytes, s.peak_bytes, s.total_count)), Some((-9, 20, 2)));
        frames.pop(inner);
        frames.pop(inner);
        let whole = frames.sum(frames.whole.unwrap()).unwrap();
        assert_eq!((whole.current_bytes, whole.peak_bytes, whole.total_bytes), (6, 35, 36));
        assert_eq!((whole.current_count, whole.peak_count, whole.total_count), (2, 3, 4));
    }
}
