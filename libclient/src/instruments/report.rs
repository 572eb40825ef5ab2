//! Reports on outstanding allocations.

use std::backtrace::Backtrace;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The holder of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AllocationState {
    /// The program holds the slot: as an unpublished draft, or as a part of one.
    Draft,
    /// A name, a stream or a list holds the slot.
    Held,
    /// Nothing refers to the slot any more: its value was replaced, deleted or overrun. It is freed when no lease
    /// covers it.
    Retired,
}

impl fmt::Display for AllocationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Draft => "drafts",
            Self::Held => "held by names, streams and lists",
            Self::Retired => "retired, not reclaimed yet",
        })
    }
}

/// One outstanding allocation: a slot that is not free. A tensor needs one slot, and a second one for long metadata. A
/// dataset needs one slot for each tensor and one for its index.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Allocation {
    /// The slot's number.
    pub slot: u32,
    /// The slot's generation, which increases with each use of the slot.
    pub generation: u64,
    /// Bytes of the slot: whole cache lines, whole pages from one page up.
    pub bytes: u64,
    /// The time since the allocation.
    pub age: Duration,
    /// The holder of the slot.
    pub state: AllocationState,
    /// The backtrace of the allocation, if backtraces are on.
    pub backtrace: Option<Arc<Backtrace>>,
}

/// A client's outstanding allocations, the oldest first. `Display` prints a report with one line for each state and
/// one for each allocation. See [`crate::Instruments::outstanding`].
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// use tensorlend::{Client, DType};
///
/// let client = Client::builder().socket(daemon.socket()).tracking().connect()?;
/// let forgotten = client.create(DType::U8, [4096])?;
/// let outstanding = client.instruments().outstanding().unwrap();
/// assert_eq!((outstanding.allocations().len(), outstanding.bytes()), (1, 4096));
/// # drop(forgotten);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Outstanding {
    allocations: Vec<Allocation>,
}

impl Outstanding {
    pub(crate) fn new(mut allocations: Vec<Allocation>) -> Self {
        allocations.sort_by_key(|it| std::cmp::Reverse(it.age));
        Self { allocations }
    }

    /// Returns all outstanding allocations, the oldest first.
    pub fn allocations(&self) -> &[Allocation] {
        &self.allocations
    }

    /// Returns the allocations in one state.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// use tensorlend::{AllocationState, Client, DType};
    ///
    /// let client = Client::builder().socket(daemon.socket()).tracking().connect()?;
    /// client.put("numbers", &[1u8, 2])?;
    /// let forgotten = client.create(DType::U8, [4096])?;
    /// let outstanding = client.instruments().outstanding().unwrap();
    /// assert_eq!(outstanding.of(AllocationState::Held).count(), 1);
    /// let leaks: Vec<_> = outstanding.of(AllocationState::Draft).collect();
    /// assert_eq!((leaks.len(), leaks[0].bytes), (1, 4096));
    /// # drop(forgotten);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(&self, state: AllocationState) -> impl Iterator<Item = &Allocation> {
        self.allocations.iter().filter(move |it| it.state == state)
    }

    /// Returns the number of bytes of all outstanding allocations.
    pub fn bytes(&self) -> u64 {
        self.allocations.iter().map(|it| it.bytes).sum()
    }

    /// Returns true if there are no outstanding allocations.
    pub fn is_empty(&self) -> bool {
        self.allocations.is_empty()
    }
}

impl fmt::Display for Outstanding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} outstanding, {} bytes", count(self.allocations.len()), self.bytes())?;
        for state in [AllocationState::Draft, AllocationState::Held, AllocationState::Retired] {
            let bytes: u64 = self.of(state).map(|it| it.bytes).sum();
            let number = self.of(state).count();
            if number > 0 {
                write!(f, "\n{state}: {}, {bytes} bytes", count(number))?;
            }
            for it in self.of(state) {
                let age = it.age.as_secs_f64();
                write!(f, "\n  slot {} generation {}: {} bytes, {age:.3} s old", it.slot, it.generation, it.bytes)?;
                if let Some(backtrace) = &it.backtrace {
                    for line in backtrace.to_string().lines() {
                        write!(f, "\n    {line}")?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn count(number: usize) -> String {
    if number == 1 { "1 allocation".to_owned() } else { format!("{number} allocations") }
}
