//! Numbers of bytes in configurations and messages, and indices, offsets and lengths in memory.

use serde::{Deserialize, Deserializer};
use std::str::FromStr;

const _: () = assert!(usize::BITS == u64::BITS, "the supported machines have addresses of 64 bits");

/// Returns an index, an offset or a length as this process uses it. Every `u64` is a `usize`, so the value does not change.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "both types have 64 bits, as stated above")]
pub const fn index(value: u64) -> usize {
    value as usize
}

/// Returns a number of elements as messages and words have it. `u32::MAX` stands for more.
#[inline]
pub fn count(length: usize) -> u32 {
    length.try_into().unwrap_or(u32::MAX)
}

/// A number of bytes. In TOML, the value is an integer or a string such as `"64MiB"`.
///
/// ```
/// use tensorlend_layout::size::Bytes;
///
/// assert_eq!("64MiB".parse(), Ok(Bytes(64 << 20)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let shift = match unit.trim() {
            "" | "B" => 0,
            "KiB" => 10,
            "MiB" => 20,
            "GiB" => 30,
            "TiB" => 40,
            other => return Err(format!("unknown unit {other:?} in {text:?}: use B, KiB, MiB, GiB or TiB")),
        };
        let number: u64 = number.parse().map_err(|_| format!("{text:?} is no number of bytes, such as \"64MiB\""))?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(|| format!("{text:?} is too many bytes"))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a number of bytes, or a string such as \"64MiB\"")]
        enum Raw {
            Number(u64),
            Text(String),
        }
        match Raw::deserialize(from)? {
            Raw::Number(bytes) => Ok(Self(bytes)),
            Raw::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// Formats a number of bytes for people, in binary units: `700 bytes`, `4 GiB`, `1.5 MiB`.
///
/// ```
/// use tensorlend_layout::size::bytes_text;
///
/// assert_eq!((bytes_text(1), bytes_text(700), bytes_text(4 << 30)), ("1 byte".into(), "700 bytes".into(), "4 GiB".into()));
/// ```
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [(u32, &str); 5] = [(50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    for (shift, unit) in UNITS {
        let (whole, rest) = (bytes >> shift, bytes & ((1 << shift) - 1));
        if whole == 0 {
            continue;
        }
        // Rounds to tenths. More digits would suggest a precision that people do not need.
        let tenths = (u128::from(rest) * 10 + (1 << (shift - 1))) >> shift;
        let (whole, tenths) = if tenths == 10 { (whole + 1, 0) } else { (whole, tenths) };
        return if tenths == 0 { format!("{whole} {unit}") } else { format!("{whole}.{tenths} {unit}") };
    }
    format!("{bytes} byte{}", if bytes == 1 { "" } else { "s" })
}

/// Formats a number of bytes for people without rounding, in the largest binary unit that divides it: `64 MiB`, `1500 KiB`.
///
/// ```
/// use tensorlend_layout::size::bytes_exact;
///
/// assert_eq!((bytes_exact(64 << 20), bytes_exact((1 << 20) + 1)), ("64 MiB".into(), "1048577 bytes".into()));
/// ```
pub fn bytes_exact(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 && b.is_multiple_of(1 << 30) => format!("{} GiB", b >> 30),
        b if b >= 1 << 20 && b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_binary_units_or_none() {
        assert_eq!("64MiB".parse(), Ok(Bytes(64 << 20)));
        assert_eq!("3 GiB".parse(), Ok(Bytes(3 << 30)));
        assert_eq!("4096".parse(), Ok(Bytes(4096)));
        assert!("64MB".parse::<Bytes>().is_err() && "MiB".parse::<Bytes>().is_err());
        assert!("99999999TiB".parse::<Bytes>().is_err());
    }
}
