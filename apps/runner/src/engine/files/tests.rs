//! Models with external data at each place of the schema, in each encoding.

use super::*;

fn bytes(number: u32, contents: &[u8]) -> Vec<u8> {
    let mut field = varint(u64::from(number << 3 | 2));
    field.extend(varint(contents.len() as u64));
    field.extend(contents);
    field
}

fn number(number: u32, value: u64) -> Vec<u8> {
    [varint(u64::from(number << 3)), varint(value)].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Each path of fields from the model to a tensor on which no message type occurs more than twice, with the type at each
/// step.
fn paths_to(target: Kind) -> Vec<Vec<u32>> {
    fn extend(kind: Kind, path: &mut Vec<u32>, seen: &mut Vec<Kind>, target: Kind, found: &mut Vec<Vec<u32>>) {
        if kind == target {
            found.push(path.clone());
        }
        for field in 1..64 {
            let Some(inner) = kind.inner(field) else { continue };
            if seen.iter().filter(|&&kind| kind == inner).count() < 2 {
                path.push(field);
                seen.push(inner);
                extend(inner, path, seen, target, found);
                path.pop();
                seen.pop();
            }
        }
    }
    let mut found = Vec::new();
    extend(Kind::Model, &mut Vec::new(), &mut vec![Kind::Model], target, &mut found);
    found
}

fn wrapped(path: &[u32], contents: &[u8]) -> Vec<u8> {
    path.iter().rev().fold(contents.to_vec(), |inner, &field| bytes(field, &inner))
}

fn location(path: &str) -> Vec<u8> {
    bytes(13, &[bytes(1, b"location"), bytes(2, path.as_bytes())].concat())
}

#[test]
fn external_data_is_refused_at_each_place_of_the_schema() {
    let paths = paths_to(Kind::Tensor);
    // The places by their numbers in onnx.proto: initializers, sparse ones (values and indices), attributes (t, tensors,
    // sparse ones) of nodes, inner graphs (g, graphs), functions (nodes and defaults) and graphs of training.
    for place in [
        &[7, 5][..],
        &[7, 15, 1],
        &[7, 15, 2],
        &[7, 1, 5, 5],
        &[7, 1, 5, 10],
        &[7, 1, 5, 22, 1],
        &[7, 1, 5, 23, 2],
        &[7, 1, 5, 6, 5],
        &[7, 1, 5, 11, 5],
        &[7, 1, 5, 6, 1, 5, 5],
        &[25, 7, 5, 5],
        &[25, 7, 5, 6, 5],
        &[25, 11, 5],
        &[25, 11, 6, 5],
        &[20, 1, 5],
        &[20, 2, 1, 5, 5],
    ] {
        assert!(paths.iter().any(|path| path == place), "{place:?}");
    }
    let inline = [bytes(8, b"w"), number(14, 0), bytes(9, &[0; 4])].concat();
    for path in &paths {
        assert_eq!(refuse(&wrapped(path, &inline)), Ok(()), "{path:?}");
        for tensor in [number(14, 1), location("etc/passwd"), [location("etc/passwd"), number(14, 1)].concat()] {
            let model = wrapped(path, &[bytes(8, b"w"), tensor].concat());
            let why = refuse(&model).unwrap_err();
            assert!(why.contains("tensor \"w\" has external data"), "{path:?}: {why}");
        }
    }
}

#[test]
fn every_occurrence_of_a_repeated_message_is_checked() {
    let (clean, stolen) = (bytes(5, &bytes(8, b"w")), bytes(5, &location("/etc/shadow")));
    for graphs in [[&clean, &stolen], [&stolen, &clean]] {
        let twice: Vec<u8> = graphs.iter().flat_map(|tensor| bytes(7, tensor)).collect();
        let within = bytes(7, &graphs.map(Vec::as_slice).concat());
        for model in [twice, within] {
            let why = refuse(&model).unwrap_err();
            assert!(why.contains("in the file \"/etc/shadow\""), "{why}");
        }
    }
    // The last occurrence of a field counts in a decoder. Each of them counts here.
    for places in [[0, 1], [1, 0]] {
        let tensor: Vec<u8> = places.iter().flat_map(|&place| number(14, place)).collect();
        assert!(refuse(&wrapped(&[7, 5], &tensor)).is_err());
    }
}

#[test]
fn unusual_encodings_are_refused_or_read() {
    let tensor = |tensor: &[u8]| refuse(&wrapped(&[7, 5], tensor));
    // The number 1 in ten bytes; a number whose lower half is 1; a packed number; no entry at all.
    let long = [&[14 << 3, 0x81][..], &[0x80; 8], &[0]].concat();
    for odd in [long, number(14, 1 << 32 | 1), bytes(14, &[1]), bytes(13, &[]), number(13, 0), number(14, 2)] {
        let why = tensor(&odd).unwrap_err();
        assert!(why.contains("external data"), "{odd:?}: {why}");
    }
    // A key of five bytes that is longer than needed is still field 13.
    let padded = [&[13 << 3 | 2 | 0x80, 0x80, 0x80, 0x80, 0][..], &[0]].concat();
    assert!(tensor(&padded).unwrap_err().contains("external data"));
    // Keys that decoders truncate to 32 bits: field 7 of a model, and field 13 of a tensor.
    let graph = bytes(5, &location("x"));
    let wide = [&[7 << 3 | 2 | 0x80, 0x80, 0x80, 0x80, 0x10][..], &varint(graph.len() as u64), &graph].concat();
    assert!(refuse(&wide).unwrap_err().contains("key"));
    let longest = [&[7 << 3 | 2 | 0x80][..], &[0x80; 8], &[0], &varint(graph.len() as u64), &graph].concat();
    assert!(refuse(&longest).unwrap_err().contains("key"));
    // A group, and a graph that is no message.
    assert!(refuse(&[7 << 3 | 3, 7 << 3 | 4]).unwrap_err().contains("wire type 3"));
    assert!(refuse(&number(7, 1)).unwrap_err().contains("wire type"));
    // Lengths beyond the end.
    assert!(refuse(&[7 << 3 | 2, 5, 0]).unwrap_err().contains("cut off"));
    assert!(refuse(&[7 << 3 | 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]).is_err());
}

#[test]
fn graphs_may_be_nested_to_the_limit() {
    let nested = |times: usize| wrapped(&[&[7][..], &[1, 5, 6].repeat(times)].concat(), &[]);
    assert_eq!(refuse(&nested(33)), Ok(()));
    assert!(refuse(&nested(34)).unwrap_err().contains("deeper"));
    // However deep: the stack holds.
    assert!(refuse(&nested(2_000)).unwrap_err().contains("deeper"));
}

#[test]
fn compiled_graphs_and_other_formats_are_refused() {
    for path in paths_to(Kind::Node) {
        let why = refuse(&wrapped(&path, &bytes(4, b"EPContext"))).unwrap_err();
        assert!(why.contains("EPContext"), "{path:?}: {why}");
        assert_eq!(refuse(&wrapped(&path, &bytes(4, b"Add"))), Ok(()));
    }
    // Also a file that is both: a flatbuffer with the identifier, and a message with a text of 24 bytes.
    let mut both = bytes(2, &[0; 24]);
    both[4..8].copy_from_slice(b"ORTM");
    assert!(refuse(&both).unwrap_err().contains("own format"));
}

#[test]
fn no_bytes_make_it_panic() {
    let model = wrapped(&[7, 1, 5, 6, 5], &[bytes(8, b"w"), location("etc/passwd")].concat());
    for at in 0..model.len() {
        let _ = refuse(&model[..at]);
        for bit in 0..8 {
            let mut damaged = model.clone();
            damaged[at] ^= 1 << bit;
            let _ = refuse(&damaged);
        }
    }
    let long = "a".repeat(1000);
    assert!(refuse(&wrapped(&[7, 5], &location(&long))).unwrap_err().len() < 600);
}
