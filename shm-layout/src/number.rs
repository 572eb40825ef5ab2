//! The numbers by which processes refer to clients, slots, cells, entries, streams and cursors. Each kind is a type of
//! its own, so that no number stands for another kind.
//!
//! A number that arrives from another process is an allegation: it has the range of its type, and nothing more is
//! known of it. The table that it indexes decides whether the object exists.

use core::fmt;
use core::num::TryFromIntError;
use core::ops::{Add, Sub};
use serde::{Deserialize, Serialize};

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident($raw:ty, $bits:literal);)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        #[repr(transparent)]
        pub struct $name($raw);

        impl $name {
            /// The largest number of this kind.
            pub const MAX: Self = Self(<$raw>::MAX);

            /// Returns the number with this value.
            #[inline]
            pub const fn new(value: $raw) -> Self {
                Self(value)
            }

            /// Returns the number of the object at an index of its table. Returns `None` if no number is so large.
            #[inline]
            pub fn at(index: usize) -> Option<Self> {
                <$raw>::try_from(index).ok().map(Self)
            }

            /// Returns the next larger number. Returns `None` after the largest.
            #[inline]
            pub fn next(self) -> Option<Self> {
                self.0.checked_add(1).map(Self)
            }

            /// Returns the number in the low bits of a word: as many bits as words have for this kind.
            #[inline]
            pub const fn low(word: u64) -> Self {
                Self((word & ((1 << $bits) - 1)) as $raw)
            }

            /// Returns the value.
            #[inline]
            pub const fn get(self) -> $raw {
                self.0
            }

            /// Returns the index of the object in its table.
            #[inline]
            pub const fn index(self) -> usize {
                // At most 32 bits, and the supported machines have 64.
                self.0 as usize
            }
        }

        impl Add<$raw> for $name {
            type Output = Self;

            #[inline]
            fn add(self, count: $raw) -> Self {
                Self(self.0 + count)
            }
        }

        impl From<$name> for u64 {
            #[inline]
            fn from(number: $name) -> Self {
                number.0.into()
            }
        }

        impl TryFrom<u64> for $name {
            type Error = TryFromIntError;

            fn try_from(value: u64) -> Result<Self, Self::Error> {
                value.try_into().map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

numbers! {
    /// A client of a namespace: the index of its line in the directory's table of members. The daemon gives it to no
    /// other client while a word names it.
    ClientNo(u16, 16);
    /// A cursor: its index in the lease table of its subscriber.
    CursorNo(u16, 16);
    /// A slot of a client. Its first 24 bits name it; a segment has an aligned range of them.
    SlotNo(u32, 24);
    /// A cell of a client's catalogue.
    CellNo(u32, 24);
    /// An entry of the directory's table of names.
    EntryNo(u32, 28);
    /// A line of the directory's table of segments.
    SegmentLine(u32, 32);
    /// A line of the directory's table of streams.
    StreamLine(u32, 24);
    /// A line of the directory's table of lists.
    ListLine(u32, 24);
}

impl SlotNo {
    /// Returns true if this is one of `count` slots from `first` on.
    #[inline]
    pub const fn is_of(self, first: Self, count: usize) -> bool {
        (self.0.wrapping_sub(first.0) as usize) < count
    }
}

/// The number of slots from another slot to this one.
impl Sub for SlotNo {
    type Output = u32;

    #[inline]
    fn sub(self, first: Self) -> u32 {
        self.0 - first.0
    }
}

impl EntryNo {
    /// No entry: the number in a place of the table that refers to none.
    pub const NONE: Self = Self(0);
}

impl ClientNo {
    /// The daemon, in words that name an owner: the names of lists are its own. No client has this number.
    pub const DAEMON: Self = Self(0);
}
