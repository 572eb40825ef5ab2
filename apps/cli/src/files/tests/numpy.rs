//! Files written by numpy: fixtures/make.py.

use super::*;
use tensorlend_os::skip::skip;

fn values<const N: usize, T>(name: &str, from: impl Fn([u8; N]) -> T) -> (Vec<u64>, Vec<T>) {
    let one = &read(&fixture(name), None).unwrap()[0];
    let (items, rest) = one.data.as_chunks::<N>();
    assert!(rest.is_empty());
    (one.shape.clone(), items.iter().map(|&i| from(i)).collect())
}

#[test]
fn plain_arrays() {
    let (shape, data) = values("f4.npy", f32::from_le_bytes);
    assert_eq!((shape, data), (vec![2, 3], vec![0., 1., 2., 3., 4., 5.]));
    let (shape, data) = values("i4_big_fortran.npy", i32::from_le_bytes);
    assert_eq!((shape, data), (vec![2, 3], vec![0, 1, 2, 3, 4, 5]));
    let (shape, data) = values("c16_scalar.npy", f64::from_le_bytes);
    assert_eq!((shape, data), (vec![], vec![1.5, -2.5]));
    let (shape, data) = values("version2.npy", u8::from_le_bytes);
    assert_eq!((shape, data), (vec![2, 3], vec![0, 1, 2, 3, 4, 5]));
    let (shape, data) = values("f2_cube_fortran.npy", half::f16::from_le_bytes);
    assert_eq!(shape, [2, 3, 4]);
    let wanted: Vec<_> = (0..24u8).map(half::f16::from).collect();
    assert_eq!(data, wanted);
    let empty = &read(&fixture("bool_empty.npy"), None).unwrap()[0];
    assert_eq!((empty.dtype, &empty.shape[..]), (DType::BOOL, &[2, 0][..]));
}

#[test]
fn archives() {
    let stored = read(&fixture("stored.npz"), None).unwrap();
    assert_eq!(stored[0].name.as_deref(), Some("a"));
    assert_eq!(stored[1].name.as_deref(), Some("ü"));
    assert_eq!(stored[1].data, [7]);
    let deflated = read(&fixture("deflated.npz"), None).unwrap();
    assert_eq!(deflated[0].data, vec![0; 80_000]);
    assert_eq!((deflated[1].dtype, &deflated[1].data[..]), (DType::BOOL, &[1, 0][..]));
}

#[test]
fn objects_and_records_are_refused_with_a_remedy() {
    for (name, word) in [("objects.npy", "astype"), ("records.npy", "field")] {
        let error = read(&fixture(name), None).unwrap_err();
        assert!(matches!(error, FileError::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn the_example_data_is_what_its_readme_says() {
    for (name, dtype, shape) in [
        ("iris.npy", DType::F64, &[150, 4][..]),
        ("iris_labels.npy", DType::I64, &[150]),
        ("digits.npy", DType::U8, &[1797, 8, 8]),
        ("digits_labels.npy", DType::I64, &[1797]),
        ("china.jpg", DType::U8, &[427, 640, 3]),
    ] {
        let one = &read(&example(name), None).unwrap()[0];
        assert_eq!((one.dtype, &one.shape[..]), (dtype, shape), "{name}");
    }
}

#[test]
fn numpy_reads_what_is_written() {
    let numpy =
        std::process::Command::new("python3").args(["-c", "import numpy"]).stderr(std::process::Stdio::null()).status();
    if !numpy.is_ok_and(|status| status.success()) {
        skip("python3 has no numpy (apt-get install python3-numpy, or python3 -m pip install numpy)");
        return;
    }
    let folder = folder();
    let numpys: Vec<_> = DType::ALL
        .iter()
        .filter(|&&d| header::type_string(d).is_some())
        .map(|&d| tensor(d.numpy_name(), d, &[2, 3]))
        .collect();
    save(&folder.path().join("all.npz"), &numpys).unwrap();
    save(&folder.path().join("cube.npy"), &[tensor("x", DType::U8, &[2, 3, 4])]).unwrap();
    let script = "
import numpy as np, zipfile
assert zipfile.ZipFile('all.npz').testzip() is None
for name, a in np.load('all.npz').items():
    assert a.shape == (2, 3) and a.dtype == name, (name, a.dtype)
    wanted = [(i * 7 + 3) % (2 if name == 'bool' else 251) for i in range(a.nbytes)]
    assert a.tobytes() == bytes(wanted), name
assert len(np.load('all.npz').files) == 14
assert np.load('cube.npy')[1, 2, 3] == (23 * 7 + 3) % 251
";
    let done = std::process::Command::new("python3").args(["-c", script]).current_dir(folder.path()).status();
    assert!(done.unwrap().success());
}
