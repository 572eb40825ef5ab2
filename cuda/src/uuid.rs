//! The identity of a device, which stays when ordinals are rearranged.

use std::fmt;
use std::str::FromStr;

/// A device's UUID: 16 bytes, in the order in which they are printed.
///
/// Ordinals differ between processes (`CUDA_VISIBLE_DEVICES`), UUIDs do not: two processes that talk about a device
/// name it so. Source: CUDA Driver API 13.0, section "Device Management", `cuDeviceGetUuid_v2`.
///
/// ```
/// let uuid: tensorlend_cuda::Uuid = "GPU-5ea1c0de-0000-4000-8000-00000000000a".parse().unwrap();
/// assert_eq!(uuid.to_string(), "GPU-5ea1c0de-0000-4000-8000-00000000000a");
/// assert_eq!(uuid, "5ea1c0de-0000-4000-8000-00000000000a".parse().unwrap());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

/// Why a text is no UUID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no device's UUID: it reads GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, as nvidia-smi -L prints it")]
pub struct NoUuid(String);

/// How many bytes lie between the hyphens.
const GROUPS: [usize; 5] = [4, 2, 2, 2, 6];

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::with_capacity(40);
        text.push_str("GPU");
        let mut bytes = self.0.iter();
        for group in GROUPS {
            text.push('-');
            for byte in bytes.by_ref().take(group) {
                text.extend([byte >> 4, byte & 15].map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])));
            }
        }
        f.pad(&text)
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Uuid {
    type Err = NoUuid;

    /// Takes what `nvidia-smi -L` prints: `GPU-` or `MIG-` and five groups of hexadecimal digits, or the groups alone.
    fn from_str(text: &str) -> Result<Self, NoUuid> {
        let bare = ["GPU-", "MIG-"].iter().find_map(|prefix| text.strip_prefix(prefix)).unwrap_or(text);
        parse(bare).map(Self).ok_or_else(|| NoUuid(text.to_owned()))
    }
}

fn parse(bare: &str) -> Option<[u8; 16]> {
    let (mut bytes, mut at, mut groups) = ([0; 16], 0, bare.split('-'));
    for length in GROUPS {
        let group = groups.next()?.as_bytes();
        if group.len() != 2 * length {
            return None;
        }
        for pair in group.chunks_exact(2) {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            bytes[at] = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
            at += 1;
        }
    }
    groups.next().is_none().then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "GPU-00112233-4455-6677-8899-aabbccddeeff";

    #[test]
    fn as_nvidia_smi_prints_it() {
        let uuid =
            Uuid([0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff]);
        assert_eq!(uuid.to_string(), TEXT);
        assert_eq!(format!("{uuid:?}"), TEXT);
        assert_eq!(format!("{uuid:>42}"), format!("  {TEXT}"));
        for text in [TEXT, &TEXT[4..], &TEXT.replace("GPU", "MIG"), &TEXT[4..].to_uppercase()] {
            assert_eq!(text.parse(), Ok(uuid), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_in_its_own_words() {
        let long = format!("{TEXT}-00");
        let glued = TEXT.replace("2233-4455", "223344-55");
        let signed = TEXT.replace("00112233", "+0112233");
        for text in [
            "",
            "GPU-",
            "GPU",
            "0",
            &TEXT[..39],
            &long,
            &glued,
            &signed,
            "CPU-00112233-4455-6677-8899-aabbccddeeff",
            "GPU-0011223ä-4455-6677-8899-aabbccddeef",
        ] {
            let error = text.parse::<Uuid>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("nvidia-smi"), "{error}");
        }
    }

    #[test]
    fn order_is_that_of_the_bytes() {
        let [a, b]: [Uuid; 2] = ["00000000-0000-0000-0000-0000000000ff", "00000001-0000-0000-0000-000000000000"]
            .map(|text| text.parse().unwrap());
        assert!(a < b && a.to_string() < b.to_string());
    }
}
