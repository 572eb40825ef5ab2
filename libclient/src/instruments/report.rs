//! What is outstanding, as a list and as text.

use std::backtrace::Backtrace;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Who keeps an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AllocationState {
    /// The program: a draft that is not published, or a part of one.
    Draft,
    /// A name, a stream or a list.
    Held,
    /// Nothing leads to it any more: it was replaced, deleted or overrun, and is freed once no lease is on it.
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

/// One allocation that is outstanding: a slot that is not free. A tensor takes one, and a second one where its metadata
/// is long; a dataset one for each tensor and one for its index.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Allocation {
    /// The slot's number.
    pub slot: u32,
    /// Which use of the slot this is.
    pub generation: u64,
    /// Its bytes: whole cache lines, whole pages from one page on.
    pub bytes: u64,
    /// Time since it was taken.
    pub age: Duration,
    /// Who keeps it.
    pub state: AllocationState,
    /// Where it was taken, if backtraces are on.
    pub backtrace: Option<Arc<Backtrace>>,
}

/// A client's outstanding allocations, the oldest first; prints as a report. See [`crate::Client::outstanding`].
#[derive(Clone, Debug, Default)]
pub struct Outstanding {
    allocations: Vec<Allocation>,
}

impl Outstanding {
    pub(crate) fn new(mut allocations: Vec<Allocation>) -> Self {
        allocations.sort_by_key(|it| std::cmp::Reverse(it.age));
        Self { allocations }
    }

    /// All of them.
    pub fn allocations(&self) -> &[Allocation] {
        &self.allocations
    }

    /// Those in one state.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// use tensorlend::{AllocationState, Client, DType};
    ///
    /// let client = Client::builder().socket(broker.socket()).tracking().connect()?;
    /// client.put("numbers", &[1u8, 2])?;
    /// let forgotten = client.create(DType::U8, &[4096])?;
    /// let outstanding = client.outstanding().unwrap();
    /// assert_eq!(outstanding.of(AllocationState::Held).count(), 1);
    /// let leaks: Vec<_> = outstanding.of(AllocationState::Draft).collect();
    /// assert_eq!((leaks.len(), leaks[0].bytes), (1, 4096));
    /// # drop(forgotten);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(&self, state: AllocationState) -> impl Iterator<Item = &Allocation> {
        self.allocations.iter().filter(move |it| it.state == state)
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.allocations.iter().map(|it| it.bytes).sum()
    }

    /// Whether there are none.
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
