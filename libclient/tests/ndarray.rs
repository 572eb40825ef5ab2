//! The optional feature `ndarray`: arrays as input, views as output.
#![cfg(feature = "ndarray")]

use ndarray::{Array, Array2, Array3, ArrayD, ArrayView2, Axis, Ix2, IxDyn, ShapeBuilder, s};
use tensorlend::{Client, Complex, DType, Error, TensorSpec};
use tensorlend_daemon::Embedded;

fn connected() -> (Embedded, Client) {
    let broker = tensorlend_daemon::embedded().expect("an embedded broker starts");
    let client = Client::builder().socket(broker.socket()).connect().expect("a client connects");
    (broker, client)
}

/// Returns an array whose values encode their positions.
fn numbered(shape: (usize, usize, usize)) -> Array3<i32> {
    Array3::from_shape_fn(shape, |(i, j, k)| (100 * i + 10 * j + k) as i32)
}

#[test]
fn any_memory_order_is_put_in_c_order() {
    let (_broker, client) = connected();
    let c = numbered((2, 3, 4));
    let mut f = Array3::zeros((2, 3, 4).f());
    f.assign(&c);
    assert!(f.as_slice().is_none(), "it lies in F order");
    let reversed = c.slice(s![..;-1, .., ..;2]);
    client.put("c", &c).unwrap();
    client.put("f", &f).unwrap();
    client.put("view", &c.view()).unwrap();
    client.put("reversed", &reversed).unwrap();
    client.put("transposed", &c.t()).unwrap();
    for name in ["c", "f", "view"] {
        let lease = client.get(name).unwrap();
        assert_eq!((lease.dtype(), lease.shape()), (DType::I32, &[2, 3, 4][..]));
        assert!(lease.is_row_major());
        assert_eq!(lease.as_slice::<i32>().unwrap(), c.as_slice().unwrap(), "{name}");
        assert_eq!(lease.ndarray::<i32>().unwrap(), c.view().into_dyn(), "{name}");
    }
    assert_eq!(client.get("reversed").unwrap().ndarray::<i32>().unwrap(), reversed.into_dyn());
    assert_eq!(client.get("transposed").unwrap().ndarray::<i32>().unwrap(), c.t().into_dyn());
}

#[test]
fn odd_shapes() {
    let (_broker, client) = connected();
    client.put("scalar", &ndarray::arr0(-5i64)).unwrap();
    client.put("empty", &Array2::<u8>::zeros((3, 0))).unwrap();
    let deep = ArrayD::from_shape_fn(IxDyn(&[1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 3]), |i| i[15] as u16);
    client.put("deep", &deep).unwrap();
    client.put("complex", &Array::from_elem(3, Complex::new(1.0f32, -1.0))).unwrap();

    let scalar = client.get("scalar").unwrap();
    assert_eq!(scalar.ndarray::<i64>().unwrap()[IxDyn(&[])], -5);
    let empty = client.get("empty").unwrap();
    assert_eq!(empty.ndarray::<u8>().unwrap().shape(), [3, 0]);
    assert_eq!(client.get("deep").unwrap().ndarray::<u16>().unwrap(), deep);
    let complex = client.get("complex").unwrap();
    assert_eq!(complex.ndarray::<Complex<f32>>().unwrap()[[2]], Complex::new(1.0, -1.0));
}

#[test]
fn a_draft_is_written_as_an_array() {
    let (_broker, client) = connected();
    let mut draft = client.create(DType::F32, &[2, 3]).unwrap();
    let at = draft.bytes_mut().as_ptr();
    let mut array = draft.ndarray_mut::<f32>().unwrap().into_dimensionality::<Ix2>().unwrap();
    assert_eq!(array.as_ptr().cast(), at, "it is a view, no copy");
    array.fill(0.0);
    array[[1, 2]] = 5.0;
    array.index_axis_mut(Axis(0), 0).assign(&ndarray::arr1(&[1.0, 2.0, 3.0]));
    draft.publish("x").unwrap();
    assert_eq!(client.get("x").unwrap().as_slice::<f32>().unwrap(), [1.0, 2.0, 3.0, 0.0, 0.0, 5.0]);

    let mut scalar = client.create(DType::I64, ()).unwrap();
    scalar.ndarray_mut::<i64>().unwrap()[IxDyn(&[])] = -1;
    scalar.publish("scalar").unwrap();
    assert_eq!(client.get("scalar").unwrap().as_slice::<i64>().unwrap(), [-1]);
}

/// Publishes the numbers from 0 on, in memory order, with these strides and this offset.
fn strided(client: &Client, name: &str, shape: &[u64], strides: &[i64], byte_offset: usize) {
    let mut spec = TensorSpec::new(DType::U16, shape);
    (spec.strides, spec.byte_offset) = (Some(strides.to_vec()), byte_offset);
    let mut draft = client.create_spec(spec).unwrap();
    for (number, place) in draft.bytes_mut().chunks_exact_mut(2).enumerate() {
        place.copy_from_slice(&(number as u16).to_le_bytes());
    }
    draft.publish(name).unwrap();
}

#[test]
fn strides_are_kept() {
    let (_broker, client) = connected();
    // Two rows of three, in F order.
    strided(&client, "f", &[2, 3], &[1, 2], 0);
    let lease = client.get("f").unwrap();
    let array = lease.ndarray::<u16>().unwrap();
    assert_eq!(array, ndarray::arr2(&[[0u16, 2, 4], [1, 3, 5]]).into_dyn());
    assert_eq!(array.strides(), [1, 2]);
    assert_eq!(array.as_ptr().cast(), lease.bytes().as_ptr(), "it is a view, no copy");
    // A window of an image with rows of four.
    strided(&client, "window", &[2, 2], &[4, 1], 2);
    let window = client.get("window").unwrap();
    let numbers: Vec<u16> = (0..8).collect();
    let image = ArrayView2::from_shape((2, 4), &numbers).unwrap();
    assert_eq!(window.ndarray::<u16>().unwrap(), image.slice(s![.., 1..3]).into_dyn());
    // One number as a vector.
    strided(&client, "repeated", &[3], &[0], 0);
    let repeated = client.get("repeated").unwrap();
    assert_eq!(repeated.ndarray::<u16>().unwrap(), ndarray::arr1(&[0u16; 3]).into_dyn());
    // A tensor with strides can be put again, and is then in C order.
    client.put("copy", &window.ndarray::<u16>().unwrap()).unwrap();
    assert_eq!(client.get("copy").unwrap().as_slice::<u16>().unwrap(), [1, 2, 5, 6]);
}

#[test]
fn what_no_view_can_show_is_an_error() {
    let (_broker, client) = connected();
    client.put("x", &[1.0f32; 6]).unwrap();
    let lease = client.get("x").unwrap();
    assert!(matches!(lease.ndarray::<i32>(), Err(Error::DType { found: DType::F32, wanted: DType::I32 })));
    let mut draft = client.create(DType::F32, &[6]).unwrap();
    assert!(matches!(draft.ndarray_mut::<f64>(), Err(Error::DType { found: DType::F32, wanted: DType::F64 })));

    let mut spec = TensorSpec::new(DType::F32, &[2, 3]);
    spec.strides = Some(vec![1, 2]);
    assert!(matches!(client.create_spec(spec).unwrap().ndarray_mut::<f32>(), Err(Error::Strided)));

    // An array with reversed strides, which only a copy can represent.
    strided(&client, "backwards", &[3], &[-1], 4);
    let backwards = client.get("backwards").unwrap();
    assert!(matches!(backwards.ndarray::<u16>(), Err(Error::Strided)));
    let mut copy = [0; 6];
    backwards.copy_to(&mut copy).unwrap();
    assert_eq!(copy, [2, 0, 1, 0, 0, 0]);
}
