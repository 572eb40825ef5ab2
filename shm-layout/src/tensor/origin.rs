//! The origin of a message that a gateway has received from another machine.

use crate::stream::HeaderSummary;

/// Flag in the first word of an entry without a summary: the words after it are an [`Origin`]. No record and no
/// summary has this flag.
const ORIGIN: u64 = 1 << 12;

/// The position of a message in the stream of another machine from which a gateway has received it. It takes the place
/// of the summary in the entry of the local stream, so that it is valid under the same conditions as a summary.
///
/// Builds without this type see an entry without a summary, and read the slot's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The identity of the epoch of that stream. A stream that is opened again has another identity.
    pub stream: u64,
    /// The number of the message in that stream.
    pub number: u64,
}

impl Origin {
    /// Returns the words for a stream's entry: the flag, the identity, the number.
    pub fn pack(self) -> HeaderSummary {
        [ORIGIN, self.stream, self.number, 0, 0, 0]
    }

    /// Returns the origin in the words of an entry; `None` if they are a summary, or zeros.
    #[inline]
    pub fn unpack(words: &HeaderSummary) -> Option<Self> {
        (words[0] == ORIGIN).then_some(Self { stream: words[1], number: words[2] })
    }
}
