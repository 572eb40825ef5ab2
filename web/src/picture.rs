//! Pictures of tensors that have the shape of an image: rows and columns of grey or coloured pixels.

use crate::elements::Elements;
use tensorlend::{DType, Tensor};

/// Maximum number of pixels along an edge; larger images are subsampled.
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
    /// Whether elements are floats, of which 0.0 to 1.0 are mapped to 0 to 255. Bytes are used unchanged.
    is_float: bool,
}

impl Kind {
    /// Accepts shapes (rows, columns) and (rows, columns, 3 or 4) of bytes or floats.
    pub fn of(tensor: &Tensor) -> Option<Self> {
        let is_float = match tensor.dtype() {
            DType::U8 => false,
            DType::F32 | DType::F16 => true,
            _ => return None,
        };
        let (height, width, channels) = match *tensor.shape() {
            [height, width] | [height, width, 1] => (height, width, 1),
            [height, width, channels @ (3 | 4)] => (height, width, channels),
            _ => return None,
        };
        let fits = EDGE.contains(&height) && EDGE.contains(&width);
        fits.then_some(Self { height, width, channels, is_float })
    }
}

/// Encodes the picture as PNG; `None` if the tensor is not an image.
pub fn png(tensor: &Tensor) -> Option<Vec<u8>> {
    let kind = Kind::of(tensor)?;
    let elements = Elements::of(tensor)?;
    let step = kind.height.max(kind.width).div_ceil(EDGE_MAX);
    let (rows, columns) = (kind.height.div_ceil(step), kind.width.div_ceil(step));
    let mut dots = Vec::with_capacity(rows * columns * kind.channels);
    for row in (0..kind.height).step_by(step) {
        for column in (0..kind.width).step_by(step) {
            for channel in 0..kind.channels {
                let index = [row, column, channel];
                let value = elements.at(&index[..tensor.shape().len()]).unwrap_or(0.0);
                // The cast saturates: NaN and negative values become 0, too large values become 255.
                dots.push(if kind.is_float { (value * 255.0).round() as u8 } else { value as u8 });
            }
        }
    }
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
    Some(file)
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
            png(&client.get("it").unwrap())
        };
        let decoded = |file: Option<Vec<u8>>| {
            let mut reader = png::Decoder::new(std::io::Cursor::new(file.unwrap())).read_info().unwrap();
            let mut dots = vec![0; reader.output_buffer_size().unwrap()];
            let head = reader.next_frame(&mut dots).unwrap();
            (head.width, head.height, head.color_type.samples(), dots)
        };
        assert_eq!(decoded(picture(DType::U8, &[20, 30, 3], 200)), (30, 20, 3, vec![200; 20 * 30 * 3]));
        assert_eq!(decoded(picture(DType::U8, &[1000, 2000], 7)), (500, 250, 1, vec![7; 500 * 250]));
        assert_eq!(decoded(picture(DType::F32, &[8, 8], 0)), (8, 8, 1, vec![0; 64]));
        for (dtype, shape) in
            [(DType::U8, &[8][..]), (DType::U8, &[8, 8, 2]), (DType::I64, &[8, 8]), (DType::U8, &[1, 8])]
        {
            assert_eq!(picture(dtype, shape, 0), None, "{dtype} {shape:?}");
        }
    }
}
