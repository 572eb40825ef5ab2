//! Tests of all formats.

mod hostile;
mod numpy;

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tensorlend::DType;

use super::*;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn tensor(name: &str, dtype: DType, shape: &[u64]) -> HostTensor {
    let bytes = size::tensor_bytes(dtype, shape).unwrap();
    let range = if dtype == DType::BOOL { 2 } else { 251 };
    HostTensor {
        name: Some(name.to_owned()),
        dtype,
        shape: shape.to_vec(),
        data: (0..bytes).map(|i| ((i * 7 + 3) % range) as u8).collect(),
    }
}

fn view(tensor: &HostTensor) -> TensorView<'_> {
    TensorView {
        name: tensor.name.as_deref().unwrap_or(""),
        dtype: tensor.dtype,
        shape: &tensor.shape,
        data: &tensor.data,
    }
}

fn spec(tensor: &HostTensor) -> RawSpec {
    RawSpec { dtype: tensor.dtype, shape: tensor.shape.clone() }
}

fn save(path: &Path, tensors: &[HostTensor]) -> Result<(), FileError> {
    write(path, &tensors.iter().map(view).collect::<Vec<_>>())
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/files/fixtures").join(name)
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/data").join(name)
}

/// Asserts that a message names the file, and has a remedy after a semicolon.
fn assert_helpful(error: &FileError, path: &Path) {
    let said = error.to_string();
    let name = path.file_name().unwrap().to_str().unwrap();
    assert!(said.contains(name) && said.contains("; "), "{said}");
}

const SHAPES: &[&[u64]] = &[&[], &[0], &[1], &[5], &[2, 3], &[3, 0, 2], &[1, 1], &[2, 1, 3, 2]];

#[test]
fn every_dtype_and_odd_shapes_survive_where_the_format_has_them() {
    let folder = folder();
    for format in ["npy", "npz", "safetensors", "raw"] {
        let path = folder.path().join(format!("x.{format}"));
        let mut held = 0;
        for &dtype in DType::ALL {
            for shape in SHAPES {
                let mut one = tensor("x", dtype, shape);
                match save(&path, std::slice::from_ref(&one)) {
                    Ok(()) => {}
                    Err(error) => {
                        assert!(matches!(error, FileError::Unsupported { .. }), "{error}");
                        assert_helpful(&error, &path);
                        continue;
                    }
                }
                held += 1;
                let raw = (format == "raw").then(|| spec(&one));
                if matches!(format, "npy" | "raw") {
                    one.name = None;
                }
                assert_eq!(read(&path, raw).unwrap(), [one]);
            }
        }
        let types = held / SHAPES.len();
        let known = match format {
            "raw" => DType::ALL.len(),
            "safetensors" => 19,
            _ => 14,
        };
        assert_eq!(types, known, "{format}");
    }
}

#[test]
fn bf16_in_npy_names_safetensors_as_the_remedy() {
    let folder = folder();
    let path = folder.path().join("x.npy");
    let error = save(&path, &[tensor("x", DType::BF16, &[2])]).unwrap_err();
    assert!(error.to_string().contains(".safetensors"), "{error}");
    assert!(!path.exists());
}

#[test]
fn archives_keep_names_and_refuse_what_would_be_lost() {
    let folder = folder();
    let many = [tensor("b/weight", DType::F32, &[2]), tensor("a ü", DType::U8, &[3]), tensor("", DType::I64, &[])];
    let twice = [tensor("a", DType::U8, &[1]), tensor("a", DType::U8, &[2])];
    for format in ["npz", "safetensors"] {
        let path = folder.path().join(format!("x.{format}"));
        save(&path, &many).unwrap();
        let mut back = read(&path, None).unwrap();
        assert_eq!(back.len(), 3);
        back.sort_by_key(|t| many.iter().position(|m| m.name == t.name));
        assert_eq!(back, many);
        save(&path, &[]).unwrap();
        assert_eq!(read(&path, None).unwrap(), []);
        assert_helpful(&save(&path, &twice).unwrap_err(), &path);
    }
    let odd = [tensor("a\0b", DType::U8, &[1])];
    assert!(save(&folder.path().join("x.npz"), &odd).is_err());
    let long = [tensor(&"n".repeat(65_532), DType::U8, &[1])];
    assert!(save(&folder.path().join("x.npz"), &long).is_err());
    let notes = [tensor("__metadata__", DType::U8, &[1])];
    assert!(save(&folder.path().join("x.safetensors"), &notes).is_err());
    for format in ["npy", "png", "raw"] {
        let path = folder.path().join(format!("x.{format}"));
        assert_helpful(&save(&path, &many).unwrap_err(), &path);
    }
}

#[test]
fn pictures_survive_as_png() {
    let folder = folder();
    let path = folder.path().join("x.PNG");
    for dtype in [DType::U8, DType::U16] {
        for shape in [&[5, 7][..], &[5, 7, 2], &[5, 7, 3], &[5, 7, 4], &[1, 1]] {
            let mut one = tensor("x", dtype, shape);
            save(&path, std::slice::from_ref(&one)).unwrap();
            one.name = None;
            assert_eq!(read(&path, None).unwrap(), [one]);
        }
        for shape in [&[][..], &[5], &[5, 7, 1], &[5, 7, 5], &[0, 7], &[5, 0, 3]] {
            let error = save(&path, &[tensor("x", dtype, shape)]).unwrap_err();
            assert_helpful(&error, &path);
        }
    }
    assert!(save(&path, &[tensor("x", DType::F32, &[5, 7])]).is_err());
}

#[test]
fn jpeg_keeps_shape_and_nearly_the_values() {
    let folder = folder();
    let path = folder.path().join("x.jpeg");
    for shape in [&[16, 24][..], &[16, 24, 3]] {
        let mut one = tensor("x", DType::U8, shape);
        one.data.fill(100);
        save(&path, std::slice::from_ref(&one)).unwrap();
        let back = &read(&path, None).unwrap()[0];
        assert_eq!((back.dtype, &back.shape), (DType::U8, &one.shape));
        assert!(back.data.iter().all(|&b| b.abs_diff(100) < 4));
    }
    assert!(save(&path, &[tensor("x", DType::U16, &[4, 4])]).is_err());
}

#[test]
fn the_extension_and_the_raw_spec_must_agree() {
    let folder = folder();
    let any = RawSpec { dtype: DType::U8, shape: vec![4] };
    for (name, raw, fine) in [
        ("x.dat", Some(any.clone()), true),
        ("noextension", Some(any.clone()), true),
        ("x.bin", Some(any.clone()), true),
        ("x.bin", None, false),
        ("x.dat", None, false),
        ("x.npy", Some(any), false),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, [1, 2, 3, 4]).unwrap();
        match open(&path, raw) {
            Ok(_) => assert!(fine, "{name}"),
            Err(error) => {
                assert!(!fine, "{error}");
                assert!(matches!(error, FileError::Usage { .. }), "{error}");
                assert_helpful(&error, &path);
            }
        }
    }
}

#[test]
fn a_buffer_of_another_length_is_refused() {
    let path = fixture("f4.npy");
    let entry = &open(&path, None).unwrap()[0];
    assert_eq!(entry.bytes, 24);
    let error = entry.read_into(&mut [0; 23]).unwrap_err();
    assert!(matches!(error, FileError::Buffer { .. }), "{error}");
}

#[test]
fn booleans_are_zero_or_one() {
    let folder = folder();
    let mut one = tensor("x", DType::BOOL, &[3]);
    one.data[1] = 2;
    for format in ["npy", "npz", "safetensors", "raw"] {
        assert!(save(&folder.path().join(format!("x.{format}")), &[one.clone()]).is_err());
    }
    let path = folder.path().join("y.raw");
    fs::write(&path, &one.data).unwrap();
    let error = read(&path, Some(spec(&one))).unwrap_err();
    assert!(error.to_string().contains("element 1 is 2"), "{error}");
}

#[test]
fn a_file_larger_than_memory_is_an_error() {
    let folder = folder();
    let path = folder.path().join("huge.raw");
    let bytes = 1u64 << 43;
    if fs::File::create(&path).unwrap().set_len(bytes).is_err() {
        return tensorlend_os::skip::skip("this file system has no sparse files of 8 TiB");
    }
    let spec = RawSpec { dtype: DType::U8, shape: vec![bytes] };
    let error = read(&path, Some(spec)).unwrap_err();
    assert!(matches!(error, FileError::Memory { .. }), "{error}");
    let picture = folder.path().join("huge.png");
    fs::rename(&path, &picture).unwrap();
    assert!(matches!(open(&picture, None), Err(FileError::Memory { .. })));
}

fn any_tensor(name: String) -> impl Strategy<Value = HostTensor> {
    let numpys: Vec<_> = DType::ALL
        .iter()
        .copied()
        .filter(|&d| header::type_string(d).is_some() && d != DType::C128 && d != DType::BOOL)
        .collect();
    (prop::sample::select(numpys), prop::collection::vec(0u64..5, 0..5)).prop_flat_map(move |(dtype, shape)| {
        let bytes = size::tensor_bytes(dtype, &shape).unwrap() as usize;
        let name = name.clone();
        prop::collection::vec(any::<u8>(), bytes).prop_map(move |data| HostTensor {
            name: Some(name.clone()),
            dtype,
            shape: shape.clone(),
            data,
        })
    })
}

fn any_tensors() -> impl Strategy<Value = Vec<HostTensor>> {
    prop::collection::btree_set("[^\\x00]{0,12}", 0..4)
        .prop_flat_map(|names| names.into_iter().map(any_tensor).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_tensors_survive(tensors in any_tensors()) {
        let folder = folder();
        for format in ["npz", "safetensors"] {
            let path = folder.path().join(format!("x.{format}"));
            save(&path, &tensors).unwrap();
            let mut back = read(&path, None).unwrap();
            back.sort_by(|a, b| a.name.cmp(&b.name));
            prop_assert_eq!(&back, &tensors);
        }
    }

    #[test]
    fn any_array_survives(mut one in any_tensor("x".to_owned())) {
        let folder = folder();
        let path = folder.path().join("x.npy");
        save(&path, std::slice::from_ref(&one)).unwrap();
        one.name = None;
        prop_assert_eq!(read(&path, None).unwrap(), [one]);
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let folder = folder();
        for name in ["x.npy", "x.npz", "x.safetensors", "x.png", "x.jpg"] {
            let path = folder.path().join(name);
            fs::write(&path, &bytes).unwrap();
            prop_assert!(read(&path, None).is_err());
        }
    }
}
