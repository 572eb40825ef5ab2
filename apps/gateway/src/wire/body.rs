//! The body of a frame, which consists of bytes of tensors.

use bytes::Bytes;

/// Bytes of tensors, in one or more pieces that are not copied. The pieces of a sent body are in a
/// lease. Those of a received body are in the engine's buffers.
#[derive(Clone, Default)]
pub struct Body {
    inner: Inner,
}

#[derive(Clone)]
enum Inner {
    Pieces(Vec<Bytes>),
    #[cfg(feature = "zenoh")]
    Zenoh(zenoh::bytes::ZBytes),
}

impl Default for Inner {
    fn default() -> Self {
        Self::Pieces(Vec::new())
    }
}

impl Body {
    pub fn of(piece: Bytes) -> Self {
        Self { inner: Inner::Pieces(vec![piece]) }
    }

    pub fn pieces(pieces: Vec<Bytes>) -> Self {
        Self { inner: Inner::Pieces(pieces) }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        match &self.inner {
            Inner::Pieces(pieces) => pieces.iter().map(Bytes::len).sum(),
            #[cfg(feature = "zenoh")]
            Inner::Zenoh(bytes) => bytes.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `each` with every piece, in order.
    pub fn for_each(&self, mut each: impl FnMut(&[u8])) {
        match &self.inner {
            Inner::Pieces(pieces) => pieces.iter().for_each(|piece| each(piece)),
            #[cfg(feature = "zenoh")]
            Inner::Zenoh(bytes) => bytes.slices().for_each(each),
        }
    }

    /// Returns the bytes if they are contiguous, and otherwise `None`.
    pub fn as_one(&self) -> Option<&[u8]> {
        match &self.inner {
            Inner::Pieces(pieces) => match pieces.as_slice() {
                [] => Some(&[]),
                [one] => Some(one),
                _ => None,
            },
            #[cfg(feature = "zenoh")]
            Inner::Zenoh(bytes) => {
                let mut slices = bytes.slices();
                let first = slices.next().unwrap_or_default();
                slices.next().is_none().then_some(first)
            }
        }
    }

    /// Copies all bytes into `out`. Returns false and copies nothing if the lengths differ.
    pub fn copy_to(&self, out: &mut [u8]) -> bool {
        if self.len() != out.len() {
            return false;
        }
        let mut rest = out;
        self.for_each(|piece| {
            let (here, after) = std::mem::take(&mut rest).split_at_mut(piece.len());
            here.copy_from_slice(piece);
            rest = after;
        });
        true
    }

    /// Converts the body to zenoh's type without a copy.
    #[cfg(feature = "zenoh")]
    pub(crate) fn into_zenoh(self) -> zenoh::bytes::ZBytes {
        match self.inner {
            Inner::Zenoh(bytes) => bytes,
            Inner::Pieces(mut pieces) if pieces.len() == 1 => pieces.remove(0).into(),
            Inner::Pieces(pieces) => {
                let mut writer = zenoh::bytes::ZBytes::writer();
                for piece in pieces {
                    writer.append(piece.into());
                }
                writer.finish()
            }
        }
    }
}

#[cfg(feature = "zenoh")]
impl From<zenoh::bytes::ZBytes> for Body {
    fn from(bytes: zenoh::bytes::ZBytes) -> Self {
        Self { inner: Inner::Zenoh(bytes) }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Body({} bytes)", self.len())
    }
}
