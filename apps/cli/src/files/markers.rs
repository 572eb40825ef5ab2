//! Detection of truncated picture files. Decoders fill missing parts with grey and report success.
//! So this module follows the file's parts up to its end mark.

use super::error::Fault;

fn not_a(kind: &str) -> Fault {
    Fault::damaged(format!("it does not begin as a {kind} picture does"))
}

fn cut() -> Fault {
    Fault::damaged("it ends before the picture does: it was cut off")
}

/// Follows the chunks up to IEND, which must be the last chunk (PNG specification, sections 5.2 to
/// 5.6).
pub(super) fn check_png(file: &[u8]) -> Result<(), Fault> {
    let mut rest = file.strip_prefix(b"\x89PNG\r\n\x1a\n").ok_or_else(|| not_a("PNG"))?;
    loop {
        let (length, after) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        let (kind, after) = after.split_first_chunk::<4>().ok_or_else(cut)?;
        let length = u32::from_be_bytes(*length) as usize;
        // Skip the four bytes after the data. They are a checksum, which the decoder verifies.
        rest = after.get(length + 4..).ok_or_else(cut)?;
        if kind == b"IEND" {
            break;
        }
    }
    if rest.is_empty() {
        return Ok(());
    }
    Err(Fault::damaged(format!("{} bytes follow the picture's end", rest.len())))
}

/// Follows the segments and scans up to EOI (ITU T.81, annex B.1). Ignores bytes after EOI, because
/// cameras append previews and gain maps.
pub(super) fn check_jpeg(file: &[u8]) -> Result<(), Fault> {
    const START: u8 = 0xD8;
    const END: u8 = 0xD9;
    const SCAN: u8 = 0xDA;
    let mut rest = file.strip_prefix(&[0xFF, START]).ok_or_else(|| not_a("JPEG"))?;
    let mut scanned = false;
    loop {
        let marker;
        (marker, rest) = next_marker(rest, scanned)?;
        match marker {
            END if scanned => return Ok(()),
            START | END => {
                return Err(Fault::damaged("its parts are not in the order of a JPEG picture"));
            }
            0x01 | 0xD0..=0xD7 => continue,
            _ => scanned |= marker == SCAN,
        }
        let length = rest.first_chunk::<2>().ok_or_else(cut)?;
        let length = usize::from(u16::from_be_bytes(*length));
        if length < 2 {
            return Err(Fault::damaged("one of its parts claims a length below two"));
        }
        rest = rest.get(length..).ok_or_else(cut)?;
    }
}

/// Returns the next marker and the bytes after it. Within a scan, coded data may precede the
/// marker. Coded data contains 0xFF only as 0xFF00.
fn next_marker(mut rest: &[u8], scanned: bool) -> Result<(u8, &[u8]), Fault> {
    loop {
        let at = rest.iter().position(|&b| b == 0xFF).ok_or_else(cut)?;
        if at > 0 && !scanned {
            return Err(Fault::damaged("one of its parts has a wrong length"));
        }
        let after = rest[at..].iter().position(|&b| b != 0xFF).ok_or_else(cut)?;
        let marker = rest[at + after];
        rest = &rest[at + after + 1..];
        if marker != 0 {
            return Ok((marker, rest));
        }
        if !scanned {
            return Err(Fault::damaged("one of its parts has no name"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JPEG: &[u8] = b"\xFF\xD8\xFF\xE0\x00\x04\xFF\xD9\xFF\xDA\x00\x02ab\xFF\x00c\xFF\xD0d\xFF\xFF\xD9";

    #[test]
    fn a_jpeg_ends_at_its_own_end_mark() {
        check_jpeg(JPEG).unwrap();
        check_jpeg(&[JPEG, b"a gain map"].concat()).unwrap();
        for cut in 0..JPEG.len() {
            assert!(check_jpeg(&JPEG[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn a_png_ends_at_its_own_end_mark() {
        let png = b"\x89PNG\r\n\x1a\n\x00\x00\x00\x01tEXta....\x00\x00\x00\x00IEND....";
        check_png(png).unwrap();
        for cut in 0..png.len() {
            assert!(check_png(&png[..cut]).is_err(), "{cut}");
        }
        assert!(check_png(&[png.as_slice(), b"x"].concat()).is_err());
    }
}
