//! Files that are truncated, have flipped bits or contradict themselves.

use super::*;

/// Returns a small file of each format, with the spec to read it.
fn samples() -> Vec<(&'static str, Vec<u8>, Option<RawSpec>)> {
    let folder = folder();
    let two = [tensor("a", DType::F32, &[2, 3]), tensor("b", DType::U8, &[5])];
    let grey = tensor("x", DType::U8, &[9, 9]);
    let mut samples = Vec::new();
    for (name, tensors) in [
        ("x.npy", &two[..1]),
        ("x.npz", &two[..]),
        ("x.safetensors", &two[..]),
        ("x.png", std::slice::from_ref(&grey)),
        ("x.jpg", std::slice::from_ref(&grey)),
        ("x.raw", &two[..1]),
    ] {
        let path = folder.path().join(name);
        save(&path, tensors).unwrap();
        let raw = name.ends_with("raw").then(|| spec(&two[0]));
        samples.push((name, fs::read(&path).unwrap(), raw));
    }
    for name in ["i4_big_fortran.npy", "deflated.npz"] {
        samples.push((name, fs::read(fixture(name)).unwrap(), None));
    }
    samples
}

#[test]
fn a_file_cut_at_any_byte_is_refused() {
    let folder = folder();
    for (name, whole, raw) in samples() {
        let path = folder.path().join(name);
        fs::write(&path, &whole).unwrap();
        read(&path, raw.clone()).unwrap();
        for cut in 0..whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            match read(&path, raw.clone()) {
                Ok(_) => panic!("{name} cut at {cut} of {} was read", whole.len()),
                Err(error) => assert_helpful(&error, &path),
            }
        }
    }
}

#[test]
fn trailing_bytes_are_refused_except_behind_a_jpeg() {
    let folder = folder();
    for (name, mut whole, raw) in samples() {
        let path = folder.path().join(name);
        whole.push(0);
        fs::write(&path, &whole).unwrap();
        assert_eq!(read(&path, raw).is_ok(), name == "x.jpg", "{name}");
    }
}

#[test]
fn flipped_bits_never_panic() {
    let folder = folder();
    // Every fifth bit is of each place in a byte in turn.
    let step = if std::env::var("TENSORLEND_TEST").is_ok_and(|value| value == "full") { 1 } else { 5 };
    for (name, whole, raw) in samples() {
        let path = folder.path().join(name);
        for bit in (0..whole.len() * 8).step_by(step) {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &flipped).unwrap();
            if let Err(error) = read(&path, raw.clone()) {
                assert_helpful(&error, &path);
            }
        }
    }
}

fn lying_safetensors(header: &str, data: usize) -> FileError {
    let folder = folder();
    let path = folder.path().join("x.safetensors");
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data, 0);
    fs::write(&path, file).unwrap();
    let error = open(&path, None).err().unwrap_or_else(|| panic!("{header}"));
    assert_helpful(&error, &path);
    error
}

#[test]
fn safetensors_that_lie() {
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
    };
    let u8s = |shape: &str, offsets: &str| one("U8", shape, offsets);
    let pair = |a: &str, b: &str| format!(r#"{{"a":{},"b":{}}}"#, u8s("[4]", a), u8s("[4]", b));
    for (header, data) in [
        (pair("[0,4]", "[2,6]"), 6),
        (pair("[0,4]", "[0,4]"), 4),
        (pair("[0,4]", "[5,9]"), 9),
        (pair("[0,4]", "[4,8]"), 7),
        (pair("[0,4]", "[4,8]"), 9),
        (format!(r#"{{"a":{}}}"#, u8s("[5]", "[0,4]")), 4),
        (format!(r#"{{"a":{}}}"#, u8s("[4]", "[4,0]")), 4),
        (format!(r#"{{"a":{}}}"#, u8s("[4294967296,4294967296]", "[0,0]")), 0),
        (format!(r#"{{"a":{}}}"#, u8s("[0,4294967296,4294967296]", "[0,0]")), 0),
        (format!(r#"{{"a":{}}}"#, u8s("[-1]", "[0,1]")), 1),
        (format!(r#"{{"a":{}}}"#, u8s("[1]", "[0,18446744073709551615]")), 1),
        (format!(r#"{{"a":{},"a":{}}}"#, u8s("[4]", "[0,4]"), u8s("[4]", "[0,4]")), 4),
        ("[".repeat(100_000), 0),
        ("{}x".to_owned(), 0),
        ("[]".to_owned(), 0),
        (String::new(), 0),
    ] {
        let error = lying_safetensors(&header, data);
        assert!(matches!(error, FileError::Damaged { .. }), "{error}");
    }
    let error = lying_safetensors(&format!(r#"{{"a":{}}}"#, one("F4", "[2]", "[0,1]")), 1);
    assert!(matches!(error, FileError::Unsupported { .. }), "{error}");
}

#[test]
fn a_header_length_beyond_the_file_takes_no_memory() {
    let folder = folder();
    let path = folder.path().join("x.safetensors");
    for claim in [u64::MAX, 1 << 40, 99_999_999, 1] {
        fs::write(&path, claim.to_le_bytes()).unwrap();
        assert!(matches!(open(&path, None), Err(FileError::Damaged { .. })));
    }
}

/// Edits a deflated archive and returns the error of opening it. `edit` gets the file's bytes and the offset of the
/// first directory record.
fn patched(edit: impl Fn(&mut Vec<u8>, usize)) -> Option<FileError> {
    let folder = folder();
    let path = folder.path().join("x.npz");
    let mut file = fs::read(fixture("deflated.npz")).unwrap();
    let record = file.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    edit(&mut file, record);
    fs::write(&path, file).unwrap();
    open(&path, None).err()
}

#[test]
fn archives_that_lie() {
    assert!(patched(|_, _| ()).is_none());
    let put = |at: usize, bytes: &'static [u8], says: &str| {
        let error = patched(move |file, record| {
            file[record + at..record + at + bytes.len()].copy_from_slice(bytes);
        });
        let error = error.unwrap_or_else(|| panic!("byte {at} of the record is not looked at")).to_string();
        assert!(error.contains(says), "byte {at}: {error}");
    };
    put(24, &[0xFF, 0xFF, 0xFF, 0x7F], "claims to unpack");
    put(24, &[0x00, 0x00, 0x01, 0x00], "larger than its declared");
    put(20, &[0xFF, 0xFF, 0x00, 0x00], "overlap another member");
    put(10, &[12, 0], "numpy never does");
    put(8, &[1, 0], "encrypted");
    put(42, &[0xFF, 0xFF, 0xFF, 0x0F], "zip archive");
}

#[test]
fn a_member_that_claims_aes_and_is_not_encrypted_is_read() {
    let error = patched(|file, record| {
        let name = usize::from(file[record + 28]);
        let extra = [0x01, 0x99, 7, 0, 2, 0, 0x41, 0x45, 3, 8, 0];
        file[record + 30] = extra.len() as u8;
        let at = record + 46 + name;
        file.splice(at..at, extra);
        let end = file.len() - 22;
        file[end + 12] += extra.len() as u8;
    });
    assert!(error.is_none(), "{error:?}");
}

#[test]
fn a_wrong_checksum_is_found_by_the_read() {
    let folder = folder();
    let path = folder.path().join("x.npz");
    let mut file = fs::read(fixture("stored.npz")).unwrap();
    let data = file.windows(4).position(|w| w == 1f32.to_le_bytes()).unwrap();
    file[data] ^= 1;
    fs::write(&path, file).unwrap();
    let error = read(&path, None).unwrap_err();
    assert!(error.to_string().contains("checksum"), "{error}");
}

#[test]
fn a_picture_that_claims_to_be_enormous_takes_no_memory() {
    let folder = folder();
    let path = folder.path().join("x.jpg");
    save(&path, &[tensor("x", DType::U8, &[9, 9, 3])]).unwrap();
    let mut file = fs::read(&path).unwrap();
    let frame = file.windows(2).position(|w| w == [0xFF, 0xC0]).unwrap();
    file[frame + 5..frame + 9].fill(0xFF);
    fs::write(&path, file).unwrap();
    let error = open(&path, None).err().unwrap();
    assert!(error.to_string().contains("65535 x 65535"), "{error}");
}
