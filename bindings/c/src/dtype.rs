//! Element types, with `DLPack`'s numbers.

use super::status::Fault;
use tensorlend::DType;

/// An element type. The lowest byte is the code of DLPack's `DLDataType`, the next byte the number
/// of bits. The upper two bytes are the number of lanes.
pub type tensorlend_dtype = u32;

/// Signed integer, 8 bits.
pub const TENSORLEND_I8: tensorlend_dtype = 0x10800;
/// Signed integer, 16 bits.
pub const TENSORLEND_I16: tensorlend_dtype = 0x11000;
/// Signed integer, 32 bits.
pub const TENSORLEND_I32: tensorlend_dtype = 0x12000;
/// Signed integer, 64 bits.
pub const TENSORLEND_I64: tensorlend_dtype = 0x14000;
/// Unsigned integer, 8 bits.
pub const TENSORLEND_U8: tensorlend_dtype = 0x10801;
/// Unsigned integer, 16 bits.
pub const TENSORLEND_U16: tensorlend_dtype = 0x11001;
/// Unsigned integer, 32 bits.
pub const TENSORLEND_U32: tensorlend_dtype = 0x12001;
/// Unsigned integer, 64 bits.
pub const TENSORLEND_U64: tensorlend_dtype = 0x14001;
/// IEEE 754 half precision.
pub const TENSORLEND_F16: tensorlend_dtype = 0x11002;
/// IEEE 754 single precision.
pub const TENSORLEND_F32: tensorlend_dtype = 0x12002;
/// IEEE 754 double precision.
pub const TENSORLEND_F64: tensorlend_dtype = 0x14002;
/// Brain floating point, with 8 bits of exponent and 7 bits of mantissa.
pub const TENSORLEND_BF16: tensorlend_dtype = 0x11004;
/// Complex number of two f32.
pub const TENSORLEND_C64: tensorlend_dtype = 0x14005;
/// Complex number of two f64.
pub const TENSORLEND_C128: tensorlend_dtype = 0x18005;
/// Boolean of one byte, 0 or 1. The library does not check the bytes that a producer wrote. Readers
/// may find other values, which mean true.
pub const TENSORLEND_BOOL: tensorlend_dtype = 0x10806;
/// 8-bit float, 3 bits of exponent.
pub const TENSORLEND_F8_E3M4: tensorlend_dtype = 0x10807;
/// 8-bit float, 4 bits of exponent.
pub const TENSORLEND_F8_E4M3: tensorlend_dtype = 0x10808;
/// 8-bit float, bias 11, no infinities, one NaN.
pub const TENSORLEND_F8_E4M3B11FNUZ: tensorlend_dtype = 0x10809;
/// 8-bit float, no infinities.
pub const TENSORLEND_F8_E4M3FN: tensorlend_dtype = 0x1080a;
/// 8-bit float, no infinities, no negative zero.
pub const TENSORLEND_F8_E4M3FNUZ: tensorlend_dtype = 0x1080b;
/// 8-bit float, 5 bits of exponent.
pub const TENSORLEND_F8_E5M2: tensorlend_dtype = 0x1080c;
/// 8-bit float, 5 bits of exponent, no infinities, no negative zero.
pub const TENSORLEND_F8_E5M2FNUZ: tensorlend_dtype = 0x1080d;
/// 8-bit power of two, for block scales.
pub const TENSORLEND_F8_E8M0FNU: tensorlend_dtype = 0x1080e;

/// Converts a C program's element type.
pub fn dtype(number: tensorlend_dtype) -> Result<DType, Fault> {
    DType::unpack(number).ok_or(Fault::DType(number))
}

/// Bytes of one element; 0 for a type that tensorlend does not support.
#[unsafe(no_mangle)]
pub extern "C" fn tensorlend_dtype_bytes(dtype: tensorlend_dtype) -> u64 {
    DType::unpack(dtype).map_or(0, |dtype| dtype.item_bytes() as u64)
}

/// Returns the name of the type, such as "f32". The text is valid until the process ends. Returns
/// "unknown" for a type that tensorlend does not support.
#[unsafe(no_mangle)]
pub extern "C" fn tensorlend_dtype_name(dtype: tensorlend_dtype) -> *const std::ffi::c_char {
    let name = match dtype {
        TENSORLEND_I8 => c"i8",
        TENSORLEND_I16 => c"i16",
        TENSORLEND_I32 => c"i32",
        TENSORLEND_I64 => c"i64",
        TENSORLEND_U8 => c"u8",
        TENSORLEND_U16 => c"u16",
        TENSORLEND_U32 => c"u32",
        TENSORLEND_U64 => c"u64",
        TENSORLEND_F16 => c"f16",
        TENSORLEND_F32 => c"f32",
        TENSORLEND_F64 => c"f64",
        TENSORLEND_BF16 => c"bf16",
        TENSORLEND_C64 => c"c64",
        TENSORLEND_C128 => c"c128",
        TENSORLEND_BOOL => c"bool",
        TENSORLEND_F8_E3M4 => c"f8_e3m4",
        TENSORLEND_F8_E4M3 => c"f8_e4m3",
        TENSORLEND_F8_E4M3B11FNUZ => c"f8_e4m3b11fnuz",
        TENSORLEND_F8_E4M3FN => c"f8_e4m3fn",
        TENSORLEND_F8_E4M3FNUZ => c"f8_e4m3fnuz",
        TENSORLEND_F8_E5M2 => c"f8_e5m2",
        TENSORLEND_F8_E5M2FNUZ => c"f8_e5m2fnuz",
        TENSORLEND_F8_E8M0FNU => c"f8_e8m0fnu",
        _ => c"unknown",
    };
    name.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn every_type_has_its_constant() {
        for &dtype in DType::ALL {
            let number = dtype.pack();
            // SAFETY: names are constants that end with a zero byte.
            let name = unsafe { CStr::from_ptr(tensorlend_dtype_name(number)) };
            assert_eq!(name.to_str(), Ok(dtype.name()));
            assert_eq!(tensorlend_dtype_bytes(number), dtype.item_bytes() as u64);
        }
        assert_eq!((TENSORLEND_F32, TENSORLEND_U8), (DType::F32.pack(), DType::U8.pack()));
        assert_eq!((tensorlend_dtype_bytes(0), dtype(0).is_err()), (0, true));
    }
}
