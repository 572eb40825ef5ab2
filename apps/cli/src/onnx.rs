//! A quick check before a model is published. It rejects files that are not ONNX, or that are
//! truncated.
//!
//! An ONNX file is a message of Protocol Buffers, `ModelProto`. The check reads the message's
//! fields without decoding weights, and needs no runner. Only a runner detects whether its engine
//! supports the operators.

/// Number of the field of a model that contains its graph.
const GRAPH: u64 = 7;
/// Number of the field of a graph that contains an output.
const OUTPUT: u64 = 12;

struct Field<'b> {
    number: u64,
    /// Contents of a text, bytes or message field; `None` for other fields.
    bytes: Option<&'b [u8]>,
}

/// Checks the bytes of a file.
///
/// # Errors
/// The reason why no engine can read the file.
pub fn check(bytes: &[u8]) -> Result<(), String> {
    let mut graph = None;
    each(bytes, |field| {
        if field.number == GRAPH {
            graph = field.bytes.or(graph);
        }
    })
    .map_err(|why| format!("it is no ONNX file, or is cut off: {why}"))?;
    let graph = graph.ok_or("it is no ONNX file: it has no graph")?;
    let mut outputs = 0;
    each(graph, |field| outputs += usize::from(field.number == OUTPUT))
        .map_err(|why| format!("it is no ONNX file, or is damaged: its graph has {why}"))?;
    if outputs == 0 { Err("its graph has no output".into()) } else { Ok(()) }
}

/// Calls `see` with each field of a message.
fn each<'b>(message: &'b [u8], mut see: impl FnMut(&Field<'b>)) -> Result<(), String> {
    let mut rest = message;
    while !rest.is_empty() {
        let at = message.len() - rest.len();
        let field = next(&mut rest).ok_or_else(|| format!("no field of such a message at byte {at}"))?;
        see(&field);
    }
    Ok(())
}

fn next<'b>(rest: &mut &'b [u8]) -> Option<Field<'b>> {
    let key = varint(rest)?;
    let number = key >> 3;
    if number == 0 {
        return None;
    }
    let bytes = match key & 7 {
        0 => {
            varint(rest)?;
            None
        }
        1 => {
            take(rest, 8)?;
            None
        }
        2 => {
            let length = varint(rest)?;
            Some(take(rest, length)?)
        }
        5 => {
            take(rest, 4)?;
            None
        }
        _ => return None,
    };
    Some(Field { number, bytes })
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for at in 0..10 {
        let (&byte, more) = rest.split_first()?;
        *rest = more;
        value |= u64::from(byte & 0x7f).checked_shl(7 * at)?;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn take<'b>(rest: &mut &'b [u8], length: u64) -> Option<&'b [u8]> {
    let (taken, more) = rest.split_at_checked(usize::try_from(length).ok()?)?;
    *rest = more;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model of version 8 with a graph of one output.
    const MODEL: &[u8] = b"\x08\x08\x3a\x05\x62\x03\x0a\x01y";

    #[test]
    fn a_model_is_one_and_other_files_are_none() {
        assert_eq!(check(MODEL), Ok(()));
        for cut in 1..MODEL.len() {
            assert!(check(&MODEL[..cut]).is_err(), "{cut} bytes");
        }
        let others: [(&[u8], &str); 5] = [
            (b"this is a text file\n", "no ONNX file"),
            (b"", "no graph"),
            (&[8; 100], "no graph"),
            (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "no ONNX file"),
            (b"\x3a\x00", "no output"),
        ];
        for (bytes, why) in others {
            let said = check(bytes).unwrap_err();
            assert!(said.contains(why), "{bytes:?}: {said}");
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        for first in 0..=u8::MAX {
            for second in 0..=u8::MAX {
                let _ = check(&[first, second, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
                let _ = check(&[0x3a, 2, first, second]);
            }
        }
    }
}
