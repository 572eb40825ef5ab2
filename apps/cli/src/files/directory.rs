//! Validation of the end of a zip archive, before the zip crate trusts it.
//!
//! The crate reserves memory for the number of members that the archive claims. It also accepts
//! bytes before and after the archive. The records are those of sections 4.3.14 to 4.3.16 of
//! <https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT>.

use super::error::Fault;
use super::input::Input;

const END_BYTES: u64 = 22;
const END_MAGIC: &[u8] = b"PK\x05\x06";
const LOCATOR_BYTES: u64 = 20;
const LOCATOR_MAGIC: &[u8] = b"PK\x06\x07";
const END64_BYTES: u64 = 56;
const END64_MAGIC: &[u8] = b"PK\x06\x06";
/// Minimum length of a member's record in the directory.
const MEMBER_BYTES: u64 = 46;
/// Maximum number of members; numpy itself has no limit.
const MEMBERS_MAX: u64 = 65_536;

/// Checks the records at the end of the archive. Returns the start of the directory, where the
/// members' bytes must end.
pub(super) fn check(input: &Input) -> Result<u64, Fault> {
    let cut = || Fault::damaged("the directory at its end is missing: it was cut off");
    let tail_at = input.bytes().saturating_sub(END_BYTES + 0xFFFF);
    let tail = input.some(tail_at, END_BYTES + 0xFFFF)?;
    // Use the last occurrence of this mark, as the crate does.
    let place = tail
        .windows(END_MAGIC.len())
        .rposition(|w| w == END_MAGIC)
        .filter(|p| p + END_BYTES as usize <= tail.len())
        .ok_or_else(cut)?;
    let end = &tail[place..];
    let end_at = tail_at + place as u64;
    if end_at + END_BYTES + number(end, 20, 2) != input.bytes() {
        return Err(Fault::damaged("bytes follow the archive's end"));
    }

    let locator_at = end_at.saturating_sub(LOCATOR_BYTES);
    let locator = input.some(locator_at, LOCATOR_BYTES)?;
    let (members, size, start, directory_end) = if end_at >= LOCATOR_BYTES && locator.starts_with(LOCATOR_MAGIC) {
        let at = number(&locator, 8, 8);
        let end64 = input.some(at, END64_BYTES)?;
        if !end64.starts_with(END64_MAGIC) || end64.len() as u64 != END64_BYTES {
            return Err(cut());
        }
        (number(&end64, 32, 8), number(&end64, 40, 8), number(&end64, 48, 8), at)
    } else {
        (number(end, 8, 2), number(end, 12, 4), number(end, 16, 4), end_at)
    };
    if start.checked_add(size) != Some(directory_end) {
        return Err(Fault::damaged("its directory is not at the place that its end names"));
    }
    if members > MEMBERS_MAX {
        return Err(Fault::unsupported(
            format!("it claims {members} arrays, and {MEMBERS_MAX} are the limit"),
            "split it, or save it as .safetensors",
        ));
    }
    if members * MEMBER_BYTES > size {
        return Err(Fault::damaged(format!("it claims {members} arrays in a directory of {size} bytes")));
    }
    Ok(start)
}

/// Reads an unsigned little-endian number of `length` bytes.
fn number(record: &[u8], at: usize, length: usize) -> u64 {
    record[at..at + length].iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_bytes(bytes: &[u8]) -> Result<u64, Fault> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        check(&Input::open(file.path()).unwrap())
    }

    fn end(members: u16, size: u32, start: u32) -> Vec<u8> {
        let mut end = END_MAGIC.to_vec();
        end.extend([0; 4]);
        end.extend(members.to_le_bytes());
        end.extend(members.to_le_bytes());
        end.extend(size.to_le_bytes());
        end.extend(start.to_le_bytes());
        end.extend([0; 2]);
        end
    }

    #[test]
    fn an_empty_archive_is_one() {
        assert_eq!(check_bytes(&end(0, 0, 0)).unwrap(), 0);
    }

    #[test]
    fn a_directory_elsewhere_or_too_small_is_refused() {
        assert!(check_bytes(&end(0, 0, 5)).is_err());
        assert!(check_bytes(&end(0, u32::MAX, u32::MAX)).is_err());
        assert!(check_bytes(&[vec![0; 46], end(2, 46, 0)].concat()).is_err());
        assert!(check_bytes(&[vec![0; 46], end(1, 46, 0)].concat()).is_ok());
        assert!(check_bytes(&[end(0, 0, 0), vec![0]].concat()).is_err());
    }

    #[test]
    fn a_zip64_end_that_claims_billions_of_members_is_refused() {
        let mut file = END64_MAGIC.to_vec();
        file.extend([0; 28]);
        file.extend((1u64 << 40).to_le_bytes());
        file.extend([0; 16]);
        file.extend(LOCATOR_MAGIC);
        file.extend([0; 16]);
        file.extend(end(0xFFFF, 0, 0));
        let error = check_bytes(&file).unwrap_err();
        assert!(matches!(error, Fault::Unsupported { .. }), "{error:?}");
    }
}
