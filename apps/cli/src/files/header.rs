//! The header of a .npy file: element type, shape and order.
//!
//! The source of the format is
//! <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>. The text of a header
//! is a Python dictionary, which the npyz crate parses. The crate's parser recurses, tries braces
//! twice at every depth, and multiplies the shape unchecked. So this module scans untrusted text
//! first, and passes only plain text to the parser.

use std::io::Read;

use npyz::{Endianness, NpyHeader, Order, TypeChar, TypeStr};
use tensorlend::DType;

use super::error::Fault;
use super::size::{bounded_product, tensor_bytes};

/// Maximum length of the header text in bytes, as in version 1 of the format.
const TEXT_BYTES_MAX: usize = 65_535;
/// Maximum length of a whole header in bytes: magic, version, length and text.
pub(super) const PREFIX_BYTES_MAX: u64 = 12 + TEXT_BYTES_MAX as u64;
/// Maximum depth of brackets. The header of a plain array has two levels, and the header of an
/// array of records has four.
const DEPTH_MAX: usize = 16;

/// A parsed header whose own fields are consistent. Its length is not compared with the file's
/// length.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) dtype: DType,
    pub(super) shape: Vec<u64>,
    /// Whether the first axis varies fastest. Otherwise the last axis does.
    pub(super) fortran: bool,
    pub(super) big_endian: bool,
    /// Number of bytes of all elements.
    pub(super) data_bytes: u64,
    /// Number of bytes before the elements.
    pub(super) bytes: u64,
}

impl Header {
    /// Parses the header at the start of `reader`.
    pub(super) fn read(reader: impl Read) -> Result<Self, Fault> {
        let mut prefix = Vec::new();
        reader.take(PREFIX_BYTES_MAX).read_to_end(&mut prefix)?;
        Self::parse(&prefix)
    }

    /// Parses the header at the start of `prefix`. `prefix` is the start of a file, or a whole
    /// file.
    pub(super) fn parse(prefix: &[u8]) -> Result<Self, Fault> {
        let header_bytes = header_length(prefix)?;
        let text =
            prefix.get(text_start(prefix)..header_bytes).ok_or_else(|| Fault::damaged("it ends inside its header"))?;
        let text = std::str::from_utf8(text).map_err(|_| Fault::damaged("its header is not UTF-8 text"))?;
        check_plain(text)?;
        let header = NpyHeader::from_reader(&prefix[..header_bytes])
            .map_err(|e| Fault::damaged(format!("its header cannot be understood: {e}")))?;
        let (dtype, big_endian) = element(&header.dtype())?;
        let shape = header.shape().to_vec();
        let data_bytes =
            tensor_bytes(dtype, &shape).ok_or_else(|| Fault::damaged(format!("its shape {shape:?} overflows")))?;
        Ok(Self {
            dtype,
            // With one axis, or none, both orders are the same.
            fortran: header.order() == Order::Fortran && shape.iter().filter(|&&d| d != 1).count() > 1,
            shape,
            big_endian,
            data_bytes,
            bytes: header_bytes as u64,
        })
    }
}

/// Returns the offset at which the text starts. Version 1 stores the text's length in two bytes,
/// and later versions in four.
fn text_start(prefix: &[u8]) -> usize {
    if prefix.get(6) == Some(&1) { 10 } else { 12 }
}

/// Returns the offset of the end of the text.
fn header_length(prefix: &[u8]) -> Result<usize, Fault> {
    if !prefix.starts_with(b"\x93NUMPY") {
        return Err(Fault::damaged("it does not begin as a .npy array does"));
    }
    let start = text_start(prefix);
    let Some(length) = prefix.get(8..start) else {
        return Err(Fault::damaged("it ends inside its header"));
    };
    let length = length.iter().rev().fold(0, |n, &b| n << 8 | usize::from(b));
    if length > TEXT_BYTES_MAX {
        return Err(Fault::damaged(format!(
            "its header claims {length} bytes of text, more than the {TEXT_BYTES_MAX} of any array"
        )));
    }
    Ok(start + length)
}

/// Checks that the text has only brackets, punctuation, unsigned decimal numbers, `True`, `False`
/// and strings without escapes. The text may have only one brace, and brackets of up to
/// [`DEPTH_MAX`] levels. The product of its numbers must not overflow.
fn check_plain(text: &str) -> Result<(), Fault> {
    let odd = |what: &str| Err(Fault::damaged(format!("its header has {what}")));
    if text.contains("'''") || text.contains("\"\"\"") {
        return odd("a triple quote");
    }
    let (mut depth, mut braces, mut numbers) = (0usize, 0, Vec::new());
    let mut rest = text.trim_end_matches('\n');
    while let Some(c) = rest.chars().next() {
        let token = match c {
            '\'' | '"' => {
                let Some(length) = rest[1..].find(c) else {
                    return odd("a string without end");
                };
                if rest[1..=length].contains('\\') {
                    return odd("an escape in a string");
                }
                length + 2
            }
            '0'..='9' => {
                let length = rest.bytes().take_while(u8::is_ascii_digit).count();
                match rest[..length].parse::<u64>() {
                    Ok(n) => numbers.push(n),
                    Err(_) => return odd("a number that overflows"),
                }
                length
            }
            'T' if rest.starts_with("True") => 4,
            'F' if rest.starts_with("False") => 5,
            '{' | '[' | '(' => {
                depth += 1;
                braces += usize::from(c == '{');
                1
            }
            '}' | ']' | ')' => {
                depth = depth.saturating_sub(1);
                1
            }
            ' ' | ',' | ':' => 1,
            _ => return odd(&format!("an unexpected {c:?}")),
        };
        if depth > DEPTH_MAX || braces > 1 {
            return odd("too many brackets in brackets");
        }
        rest = &rest[token..];
    }
    if bounded_product(numbers).is_none() {
        return odd("a shape that overflows");
    }
    Ok(())
}

/// Returns the element type, and whether its bytes are big-endian.
fn element(dtype: &npyz::DType) -> Result<(DType, bool), Fault> {
    let npyz::DType::Plain(text) = dtype else {
        return Err(Fault::unsupported(
            format!("it holds records {}", dtype.descr()),
            "save each field as an array of its own: np.savez(path, **{n: a[n] for n in a.dtype.names})",
        ));
    };
    let known = match (text.type_char(), text.size_field()) {
        (TypeChar::Bool, 1) => DType::BOOL,
        (TypeChar::Int, 1) => DType::I8,
        (TypeChar::Int, 2) => DType::I16,
        (TypeChar::Int, 4) => DType::I32,
        (TypeChar::Int, 8) => DType::I64,
        (TypeChar::Uint, 1) => DType::U8,
        (TypeChar::Uint, 2) => DType::U16,
        (TypeChar::Uint, 4) => DType::U32,
        (TypeChar::Uint, 8) => DType::U64,
        (TypeChar::Float, 2) => DType::F16,
        (TypeChar::Float, 4) => DType::F32,
        (TypeChar::Float, 8) => DType::F64,
        (TypeChar::Complex, 8) => DType::C64,
        (TypeChar::Complex, 16) => DType::C128,
        _ => return Err(unknown_element(text)),
    };
    Ok((known, text.endianness() == Endianness::Big))
}

fn unknown_element(text: &TypeStr) -> Fault {
    let (what, remedy) = match text.type_char() {
        TypeChar::Object => ("Python objects", "convert them with astype() to a numeric dtype"),
        TypeChar::ByteStr | TypeChar::UnicodeStr => ("strings", "save their bytes or codes as numbers"),
        TypeChar::DateTime | TypeChar::TimeDelta => ("times", "save a.view(np.int64) instead"),
        TypeChar::RawData => {
            ("opaque bytes, which is how numpy writes bfloat16 and 8-bit floats", "save such tensors as .safetensors")
        }
        _ => (
            "numbers of a width that tensorlend does not know",
            "convert them with astype(), for example to float64 or complex128",
        ),
    };
    Fault::unsupported(format!("it holds {what} (dtype '{text}')"), remedy)
}

/// Returns the name of a type in a .npy header; `None` if numpy has no such type.
pub(super) fn type_string(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::BOOL => "|b1",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::U8 => "|u1",
        DType::U16 => "<u2",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::C64 => "<c8",
        DType::C128 => "<c16",
        _ => return None,
    })
}

/// Returns the fault of a file with `there` bytes of data instead of the length that its header
/// states.
pub(super) fn wrong_length(header: &Header, there: u64) -> Fault {
    Fault::damaged(format!(
        "its header has {} of shape {:?}, which needs {} bytes, and {there} bytes follow",
        header.dtype, header.shape, header.data_bytes
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_text(text: &str) -> Vec<u8> {
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((text.len() as u16).to_le_bytes());
        file.extend(text.as_bytes());
        file
    }

    fn parse(descr: &str, shape: &str) -> Result<Header, Fault> {
        Header::parse(&with_text(&format!("{{'descr': {descr}, 'fortran_order': True, 'shape': {shape}, }}  \n")))
    }

    fn words(result: Result<Header, Fault>) -> String {
        result.unwrap_err().at("x.npy".as_ref(), "read").to_string()
    }

    #[test]
    fn a_plain_header() {
        let header = parse("'>f4'", "(2, 3)").unwrap();
        assert_eq!((header.dtype, header.shape), (DType::F32, vec![2, 3]));
        assert!(header.fortran && header.big_endian);
        assert_eq!(header.data_bytes, 24);
        assert!(!parse("'<f4'", "(7,)").unwrap().fortran);
        assert_eq!(parse("'|u1'", "()").unwrap().data_bytes, 1);
    }

    #[test]
    fn what_numpy_can_hold_and_we_cannot_is_told_apart() {
        for (descr, word) in [
            ("'|O'", "objects"),
            ("'<U3'", "strings"),
            ("'|S3'", "strings"),
            ("'<M8[us]'", "times"),
            ("'|V2'", "safetensors"),
            ("'<f16'", "float64"),
            ("[('a', '<f4'), ('b', '<i8', (2, 3))]", "records"),
        ] {
            let said = words(parse(descr, "(1,)"));
            assert!(said.contains(word), "{descr}: {said}");
        }
    }

    #[test]
    fn shapes_that_overflow_are_refused_before_they_are_multiplied() {
        for shape in [
            "(4294967296, 4294967296)",
            "(18446744073709551616,)",
            "(9223372036854775808,)",
            "(1152921504606846976,)",
            "(1099511627776, 1099511627776, 0)",
        ] {
            let said = words(parse("'<f8'", shape));
            assert!(said.contains("overflows"), "{said}");
        }
    }

    #[test]
    fn hostile_text_is_refused_quickly() {
        for shape in [
            "(-1,)".to_owned(),
            "(0x10,)".to_owned(),
            "(1e3,)".to_owned(),
            "(1_0,)".to_owned(),
            "(2+2,)".to_owned(),
            "{".repeat(60_000),
            "(".repeat(60_000),
            "[".repeat(60_000),
            "9".repeat(60_000),
            "{{{{{{{{{{{{{{{{{{{{{{{{{{1".to_owned(),
            "'''','''".to_owned(),
            "'\\x41'".to_owned(),
            "'".to_owned(),
            "b'1'".to_owned(),
            "None".to_owned(),
        ] {
            words(parse("'<f4'", &shape));
        }
    }

    #[test]
    fn a_header_that_claims_more_than_there_is() {
        let whole = with_text("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n");
        for cut in 0..whole.len() {
            words(Header::parse(&whole[..cut]));
        }
        let mut lying = b"\x93NUMPY\x02\x00".to_vec();
        lying.extend(u32::MAX.to_le_bytes());
        assert!(words(Header::parse(&lying)).contains("claims"));
        let version_four = [b"\x93NUMPY\x04\x00".as_slice(), &[0; 8]].concat();
        assert!(words(Header::parse(&version_four)).contains("version"));
    }

    #[test]
    fn every_type_string_is_read_back() {
        for &dtype in DType::ALL {
            if let Some(text) = type_string(dtype) {
                assert_eq!(parse(&format!("'{text}'"), "(2, 2)").unwrap().dtype, dtype);
            }
        }
    }
}
