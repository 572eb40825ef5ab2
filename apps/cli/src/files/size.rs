//! Sizes of tensors in bytes, and checks whether tensors fit into memory.

use std::path::Path;

use super::FileError;
use tensorlend::DType;

/// Returns the bytes of a tensor; `None` if the count overflows.
///
/// The check counts a dimension of 0 as 1, as numpy does. So it rejects a shape like `(2^40, 2^40, 0)` although the
/// tensor is empty, and no product over a part of an accepted shape can overflow.
pub(super) fn tensor_bytes(dtype: DType, shape: &[u64]) -> Option<u64> {
    let spread = bounded_product(shape.iter().copied())?.checked_mul(dtype.item_bytes() as u64)?;
    if spread > i64::MAX as u64 {
        return None;
    }
    Some(if shape.contains(&0) { 0 } else { spread })
}

/// Returns the product of the non-zero numbers, if it is at most `i64::MAX`.
pub(super) fn bounded_product(numbers: impl IntoIterator<Item = u64>) -> Option<u64> {
    numbers
        .into_iter()
        .try_fold(1u64, |product, n| product.checked_mul(n.max(1)))
        .filter(|&product| i64::try_from(product).is_ok())
}

/// Returns an error if less memory is available than needed. Linux overcommits, so the allocation
/// itself would succeed, and the OOM killer would end the process later.
pub(super) fn check_memory(path: &Path, needed_bytes: u64) -> Result<(), FileError> {
    match crate::meminfo::available_bytes() {
        Some(available_bytes) if needed_bytes > available_bytes => {
            Err(FileError::Memory { path: path.to_owned(), needed_bytes, available_bytes })
        }
        _ => Ok(()),
    }
}

/// Returns a buffer of zeros. Returns an error where `vec![0; n]` would abort.
pub(super) fn zeroed(path: &Path, bytes: u64) -> Result<Vec<u8>, FileError> {
    check_memory(path, bytes)?;
    let refused = |_| FileError::Memory {
        path: path.to_owned(),
        needed_bytes: bytes,
        available_bytes: crate::meminfo::available_bytes().unwrap_or(0),
    };
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut data = Vec::new();
    data.try_reserve_exact(length).map_err(refused)?;
    data.resize(length, 0);
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_shape() {
        assert_eq!(tensor_bytes(DType::F32, &[]), Some(4));
        assert_eq!(tensor_bytes(DType::F32, &[2, 3]), Some(24));
        assert_eq!(tensor_bytes(DType::F32, &[2, 0, 3]), Some(0));
        assert_eq!(tensor_bytes(DType::U8, &[i64::MAX as u64]), Some(i64::MAX as u64));
    }

    #[test]
    fn a_shape_that_overflows_has_no_size() {
        assert_eq!(tensor_bytes(DType::U8, &[1 << 63]), None);
        assert_eq!(tensor_bytes(DType::F64, &[1 << 60]), None);
        assert_eq!(tensor_bytes(DType::U8, &[1 << 32, 1 << 32]), None);
        assert_eq!(tensor_bytes(DType::U8, &[1 << 40, 1 << 40, 0]), None);
    }

    #[test]
    fn more_than_the_machine_has_is_an_error() {
        let error = zeroed(Path::new("huge.raw"), 1 << 60).unwrap_err();
        assert!(matches!(error, FileError::Memory { .. }), "{error}");
    }
}
