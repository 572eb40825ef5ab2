//! Reads the elements of a tensor as numbers.

use tensorlend::{DType, Tensor};

/// Reads elements as `f64`.
pub struct Elements<'t> {
    bytes: &'t [u8],
    tensor: &'t Tensor,
    read: fn(&[u8]) -> f64,
    item: usize,
}

impl<'t> Elements<'t> {
    /// Returns a reader of a tensor. Returns `None` if an element of its type is not a single
    /// number.
    pub fn of(tensor: &'t Tensor) -> Option<Self> {
        let read = reader(tensor.dtype())?;
        Some(Self { bytes: tensor.bytes(), tensor, read, item: tensor.dtype().item_bytes() })
    }

    pub fn at(&self, index: &[usize]) -> Option<f64> {
        let strides = self.tensor.strides();
        let steps: i64 = index.iter().zip(strides).map(|(&at, &stride)| (at as i64).wrapping_mul(stride)).sum();
        let first = i64::try_from(self.tensor.byte_offset()).ok()?;
        let place = usize::try_from(first + steps.wrapping_mul(self.item as i64)).ok()?;
        self.bytes.get(place..place.checked_add(self.item)?).map(self.read)
    }

    /// Returns the element with this number in C order.
    pub fn nth(&self, mut number: usize) -> Option<f64> {
        let shape = self.tensor.shape();
        let mut index = [0; 16];
        let index = index.get_mut(..shape.len())?;
        for (at, &size) in index.iter_mut().zip(shape).rev() {
            (*at, number) = (number % size.max(1), number / size.max(1));
        }
        self.at(index)
    }
}

/// Returns the function that converts an element's bytes to `f64`. Large 64-bit integers lose
/// precision.
fn reader(dtype: DType) -> Option<fn(&[u8]) -> f64> {
    macro_rules! number {
        ($type:ty) => {
            number!($type, f64::from)
        };
        ($type:ty, $into:expr) => {
            |bytes| bytes.try_into().map_or(f64::NAN, |b| $into(<$type>::from_le_bytes(b)))
        };
    }
    Some(match dtype {
        DType::BOOL => |bytes| f64::from(u8::from(bytes[0] != 0)),
        DType::U8 => |bytes| f64::from(bytes[0]),
        DType::I8 => |bytes| f64::from(bytes[0] as i8),
        DType::U16 => number!(u16),
        DType::I16 => number!(i16),
        DType::U32 => number!(u32),
        DType::I32 => number!(i32),
        DType::U64 => number!(u64, |n| n as f64),
        DType::I64 => number!(i64, |n| n as f64),
        DType::F32 => number!(f32),
        DType::F64 => number!(f64, std::convert::identity),
        DType::F16 => |bytes| bytes.try_into().map_or(f64::NAN, |b| half::f16::from_le_bytes(b).to_f64()),
        DType::BF16 => |bytes| bytes.try_into().map_or(f64::NAN, |b| half::bf16::from_le_bytes(b).to_f64()),
        _ => return None,
    })
}
