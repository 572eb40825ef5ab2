//! Element types, with `DLPack`'s codes (`DLDataTypeCode` in `dlpack.h`, version 1.3).

use core::fmt;
use core::str::FromStr;

/// An element type in `DLPack`'s form: a kind, a width in bits and a number of lanes.
///
/// ```
/// use tensorlend_layout::DType;
///
/// assert_eq!("f32".parse::<DType>().unwrap(), DType::F32);
/// assert_eq!("float32".parse::<DType>().unwrap(), DType::F32);
/// assert_eq!((DType::BF16.name(), DType::BF16.numpy_name()), ("bf16", "bfloat16"));
/// assert_eq!(DType::C128.item_bytes(), 16);
/// assert!(DType::ALL.iter().all(|dtype| dtype.lanes() == 1));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// The error for an element type that this version does not know.
///
/// ```
/// use tensorlend_layout::DType;
///
/// let error = "float33".parse::<DType>().unwrap_err();
/// assert!(error.to_string().starts_with("unknown dtype float33: use one of"));
/// ```
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown dtype {0}: use one of bool, i8 to i64, u8 to u64, f16, bf16, f32, f64, c64, c128 or an f8_* kind")]
pub struct UnknownDType(pub String);

/// Prints the same text as `Display`, because `unwrap` and a `main` that returns this error print
/// errors with `Debug`.
impl core::fmt::Debug for UnknownDType {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(self, f)
    }
}

macro_rules! dtypes {
    ($($name:ident $code:literal $bits:literal $text:literal $numpy:literal $what:literal;)*) => {
        #[allow(missing_docs)]
        impl DType {
            $(#[doc = $what] pub const $name: Self = Self { code: $code, bits: $bits, lanes: 1 };)*

            /// Every supported type, in the order of `DLPack`'s codes.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Returns the short name, as `Display` prints it and `FromStr` parses it.
            pub const fn name(self) -> &'static str {
                match (self.code, self.bits) {
                    $(($code, $bits) => $text,)*
                    _ => "unknown",
                }
            }

            /// Returns true if the codes are those of a type in [`DType::ALL`]. Every lease calls
            /// this.
            #[allow(clippy::unnested_or_patterns)]
            #[inline]
            const fn is_known(self) -> bool {
                self.lanes == 1 && matches!((self.code, self.bits), $(($code, $bits))|*)
            }

            /// Returns the name of this type in numpy (or `ml_dtypes`).
            pub const fn numpy_name(self) -> &'static str {
                match (self.code, self.bits) {
                    $(($code, $bits) => $numpy,)*
                    _ => "unknown",
                }
            }
        }
    };
}

dtypes! {
    I8 0 8 "i8" "int8" "Signed integer, 8 bits.";
    I16 0 16 "i16" "int16" "Signed integer, 16 bits.";
    I32 0 32 "i32" "int32" "Signed integer, 32 bits.";
    I64 0 64 "i64" "int64" "Signed integer, 64 bits.";
    U8 1 8 "u8" "uint8" "Unsigned integer, 8 bits.";
    U16 1 16 "u16" "uint16" "Unsigned integer, 16 bits.";
    U32 1 32 "u32" "uint32" "Unsigned integer, 32 bits.";
    U64 1 64 "u64" "uint64" "Unsigned integer, 64 bits.";
    F16 2 16 "f16" "float16" "IEEE 754 half precision.";
    F32 2 32 "f32" "float32" "IEEE 754 single precision.";
    F64 2 64 "f64" "float64" "IEEE 754 double precision.";
    BF16 4 16 "bf16" "bfloat16" "Brain floating point: 8 bits of exponent, 7 of mantissa.";
    C64 5 64 "c64" "complex64" "Complex of two f32.";
    C128 5 128 "c128" "complex128" "Complex of two f64.";
    BOOL 6 8 "bool" "bool" "Boolean, one byte, 0 or 1.";
    F8_E3M4 7 8 "f8_e3m4" "float8_e3m4" "8-bit float, 3 bits of exponent.";
    F8_E4M3 8 8 "f8_e4m3" "float8_e4m3" "8-bit float, 4 bits of exponent.";
    F8_E4M3B11FNUZ 9 8 "f8_e4m3b11fnuz" "float8_e4m3b11fnuz" "8-bit float, bias 11, no infinities, one NaN.";
    F8_E4M3FN 10 8 "f8_e4m3fn" "float8_e4m3fn" "8-bit float, no infinities.";
    F8_E4M3FNUZ 11 8 "f8_e4m3fnuz" "float8_e4m3fnuz" "8-bit float, no infinities, no negative zero.";
    F8_E5M2 12 8 "f8_e5m2" "float8_e5m2" "8-bit float, 5 bits of exponent.";
    F8_E5M2FNUZ 13 8 "f8_e5m2fnuz" "float8_e5m2fnuz" "8-bit float, 5 bits of exponent, no infinities, no negative zero.";
    F8_E8M0FNU 14 8 "f8_e8m0fnu" "float8_e8m0fnu" "8-bit power of two, for block scales.";
}

impl DType {
    /// Returns the type with these codes. Returns `None` if this version does not support the type.
    /// Supported types have one lane and whole bytes.
    ///
    /// ```
    /// use tensorlend_layout::DType;
    ///
    /// let dtype = DType::F32;
    /// assert_eq!((dtype.code(), dtype.bits(), dtype.lanes()), (2, 32, 1)); // kDLFloat
    /// assert_eq!(DType::from_codes(2, 32, 1), Some(dtype));
    /// assert_eq!(DType::from_codes(2, 32, 4), None);
    /// ```
    #[inline]
    pub fn from_codes(code: u8, bits: u8, lanes: u16) -> Option<Self> {
        let it = Self { code, bits, lanes };
        it.is_known().then_some(it)
    }

    /// Returns `DLDataType.code`.
    pub const fn code(self) -> u8 {
        self.code
    }

    /// Returns `DLDataType.bits`: the width of one lane.
    pub const fn bits(self) -> u8 {
        self.bits
    }

    /// Returns `DLDataType.lanes`, which is 1 for every type in [`DType::ALL`].
    pub const fn lanes(self) -> u16 {
        self.lanes
    }

    /// Returns the number of bytes of one element.
    #[inline]
    pub const fn item_bytes(self) -> usize {
        (self.bits as usize * self.lanes as usize).div_ceil(8)
    }

    /// Returns the packed form in a slot record: code in bits 0 to 7, bits in 8 to 15, lanes in 16
    /// to 31.
    ///
    /// ```
    /// use tensorlend_layout::DType;
    ///
    /// assert_eq!(DType::F32.pack(), 0x0001_2002);
    /// assert_eq!(DType::unpack(0x0001_2002), Some(DType::F32));
    /// assert_eq!(DType::unpack(0), None);
    /// ```
    #[inline]
    pub const fn pack(self) -> u32 {
        self.code as u32 | (self.bits as u32) << 8 | (self.lanes as u32) << 16
    }

    /// Converts a packed form back to a type: the inverse of [`DType::pack`]. Returns `None` for a type that this version does
    /// not support.
    #[inline]
    pub fn unpack(word: u32) -> Option<Self> {
        let [code, bits, lanes @ ..] = word.to_le_bytes();
        Self::from_codes(code, bits, u16::from_le_bytes(lanes))
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = UnknownDType;

    /// Parses the short name (`f32`) or numpy's name (`float32`).
    ///
    /// # Errors
    /// [`UnknownDType`] for any other text.
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .iter()
            .copied()
            .find(|d| d.name() == s || d.numpy_name() == s)
            .ok_or_else(|| UnknownDType(s.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_survives_packing_and_its_names() {
        for &d in DType::ALL {
            assert_eq!(DType::unpack(d.pack()), Some(d));
            assert_eq!(d.name().parse::<DType>().unwrap(), d);
            assert_eq!(d.numpy_name().parse::<DType>().unwrap(), d);
            assert!(d.item_bytes() > 0);
        }
    }

    #[test]
    fn codes_of_nobody_are_refused() {
        assert_eq!(DType::from_codes(2, 32, 4), None);
        assert_eq!(DType::from_codes(3, 64, 1), None);
        assert!("float33".parse::<DType>().is_err());
    }
}
