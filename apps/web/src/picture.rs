//! Pictures of tensors that have the shape of an image, with rows and columns of grey or colored
//! pixels.

use crate::elements::Elements;
use tensorlend::{DType, Tensor};

/// Maximum number of pixels along an edge. Larger images are subsampled.
const EDGE_MAX: usize = 512;
/// Range of edge lengths at which a tensor counts as an image.
const EDGE: std::ops::RangeInclusive<usize> = 2..=1 << 16;

/// The layout of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    height: usize,
    width: usize,
    /// Channels: 1, 3 or 4.
    channels: usize,
    /// Whether bytes are used unchanged. Other elements are scaled from their minimum to their
    /// maximum.
    is_bytes: bool,
}

impl Kind {
    /// Accepts shapes (rows, columns) and (rows, columns, 3 or 4) of real numbers.
    pub fn of(tensor: &Tensor) -> Option<Self> {
        let is_bytes = tensor.dtype() == DType::U8;
        if !is_bytes && Elements::of(tensor).is_none() {
            return None;
        }
        let (height, width, channels) = match *tensor.shape() {
            [height, width] | [height, width, 1] => (height, width, 1),
            [height, width, channels @ (3 | 4)] => (height, width, channels),
            _ => return None,
        };
        let fits = EDGE.contains(&height) && EDGE.contains(&width);
        fits.then_some(Self { height, width, channels, is_bytes })
    }
}

pub struct Picture {
    pub png: Vec<u8>,
    /// The numbers shown as black and as white. `None` for bytes, which are unchanged.
    pub range: Option<(f64, f64)>,
}

/// Encodes the picture as PNG. Returns `None` if the tensor is not an image.
pub fn draw(tensor: &Tensor) -> Option<Picture> {
    let kind = Kind::of(tensor)?;
    let elements = Elements::of(tensor)?;
    let step = kind.height.max(kind.width).div_ceil(EDGE_MAX);
    let (rows, columns) = (kind.height.div_ceil(step), kind.width.div_ceil(step));
    let mut values = Vec::with_capacity(rows * columns * kind.channels);
    for row in (0..kind.height).step_by(step) {
        for column in (0..kind.width).step_by(step) {
            for channel in 0..kind.channels {
                let index = [row, column, channel];
                values.push(elements.at(&index[..tensor.shape().len()]).unwrap_or(0.0));
            }
        }
    }
    let range = (!kind.is_bytes).then(|| range(&values)).flatten();
    let dots: Vec<u8> = match range {
        // The casts saturate, and NaN becomes 0.
        Some((min, max)) if max > min => {
            values.iter().map(|value| ((value - min) / (max - min) * 255.0).round() as u8).collect()
        }
        Some(_) => vec![127; values.len()],
        None => values.iter().map(|&value| value as u8).collect(),
    };
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, columns as u32, rows as u32);
    encoder.set_color(match kind.channels {
        1 => png::ColorType::Grayscale,
        3 => png::ColorType::Rgb,
        _ => png::ColorType::Rgba,
    });
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().ok()?;
    writer.write_image_data(&dots).ok()?;
    writer.finish().ok()?;
    Some(Picture { png: file, range })
}

/// Returns the smallest and the largest finite number. Returns `None` if there is no finite number.
fn range(values: &[f64]) -> Option<(f64, f64)> {
    let finite = values.iter().copied().filter(|value| value.is_finite());
    finite.fold(None, |range, value| {
        Some(range.map_or((value, value), |(min, max): (f64, f64)| (min.min(value), max.max(value))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlend::Client;

    #[test]
    fn pictures_and_what_is_none() {
        let broker = tensorlend_daemon::embedded().unwrap();
        let client = Client::builder().socket(broker.socket()).connect().unwrap();
        let picture = |dtype, shape: &[usize], fill: u8| {
            let mut draft = client.create(dtype, shape).unwrap();
            draft.bytes_mut().fill(fill);
            draft.publish("it").unwrap();
            draw(&client.get("it").unwrap()).map(|picture| picture.png)
        };
        let decoded = |file: Option<Vec<u8>>| {
            let mut reader = png::Decoder::new(std::io::Cursor::new(file.unwrap())).read_info().unwrap();
            let mut dots = vec![0; reader.output_buffer_size().unwrap()];
            let head = reader.next_frame(&mut dots).unwrap();
            (head.width, head.height, head.color_type.samples(), dots)
        };
        assert_eq!(decoded(picture(DType::U8, &[20, 30, 3], 200)), (30, 20, 3, vec![200; 20 * 30 * 3]));
        assert_eq!(decoded(picture(DType::U8, &[1000, 2000], 7)), (500, 250, 1, vec![7; 500 * 250]));
        assert_eq!(decoded(picture(DType::F32, &[8, 8], 0)), (8, 8, 1, vec![127; 64]), "all are equal");
        for (dtype, shape) in
            [(DType::U8, &[8][..]), (DType::U8, &[8, 8, 2]), (DType::C64, &[8, 8]), (DType::U8, &[1, 8])]
        {
            assert_eq!(picture(dtype, shape, 0), None, "{dtype} {shape:?}");
        }
    }

    #[test]
    fn numbers_are_scaled_from_the_least_to_the_greatest() {
        let broker = tensorlend_daemon::embedded().unwrap();
        let client = Client::builder().socket(broker.socket()).connect().unwrap();
        let mut draft = client.create(DType::F32, [2, 3]).unwrap();
        draft.as_mut_slice::<f32>().unwrap().copy_from_slice(&[-2.0, 0.0, f32::NAN, 2.0, f32::INFINITY, 1.0]);
        draft.publish("it").unwrap();
        let picture = draw(&client.get("it").unwrap()).unwrap();
        assert_eq!(picture.range, Some((-2.0, 2.0)));
        let mut reader = png::Decoder::new(std::io::Cursor::new(picture.png)).read_info().unwrap();
        let mut dots = vec![0; 6];
        reader.next_frame(&mut dots).unwrap();
        assert_eq!(dots, [0, 128, 0, 255, 255, 191]);
    }
}
