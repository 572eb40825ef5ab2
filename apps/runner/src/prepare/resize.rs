//! Bilinear resizing with the crate `fast_image_resize`. Its convolution gives the same results as
//! Pillow.

use super::{Image, SIDE_MAX, Size, reshaped, room, size};
use crate::engine::Feed;
use fast_image_resize::images::{Image as Target, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use tensorlend::DType;

pub fn resize(feed: Feed<'_>, width: u32, height: u32, antialias: bool) -> Result<Image, String> {
    let from = size(feed)?;
    if ![width, height].iter().all(|side| (1..=SIDE_MAX).contains(side)) {
        return Err(format!("{width}x{height}: give 1 to {SIDE_MAX} rows and columns"));
    }
    let pixel = match (feed.dtype, from.channels) {
        (DType::U8, 1) => PixelType::U8,
        (DType::U8, 2) => PixelType::U8x2,
        (DType::U8, 3) => PixelType::U8x3,
        (DType::U8, 4) => PixelType::U8x4,
        (_, 1) => PixelType::F32,
        (_, 2) => PixelType::F32x2,
        (_, 3) => PixelType::F32x3,
        (_, 4) => PixelType::F32x4,
        (_, many) => return Err(format!("{many} channels: images of 1 to 4 are resized")),
    };
    let algorithm = if antialias { ResizeAlg::Convolution } else { ResizeAlg::Interpolation };
    // The channels are resized separately. A fourth channel need not be alpha, by which the crate
    // would otherwise multiply the other channels.
    let options = ResizeOptions::new().resize_alg(algorithm(FilterType::Bilinear)).use_alpha(false);
    let to = Size { height, width, ..from };
    let mut data = room(to.elements(), feed.dtype)?;
    let mut resizer = Resizer::new();
    let sources = feed.bytes.chunks_exact(feed.bytes.len() / from.images);
    let targets = data.bytes_mut().chunks_exact_mut(to.elements() / to.images * feed.dtype.item_bytes());
    for (source, target) in sources.zip(targets) {
        let source = ImageRef::new(from.width, from.height, source, pixel).map_err(|e| e.to_string())?;
        let mut target = Target::from_slice_u8(width, height, target, pixel).map_err(|e| e.to_string())?;
        resizer.resize(&source, &mut target, &options).map_err(|e| e.to_string())?;
    }
    Ok(Image { dtype: feed.dtype, shape: reshaped(feed, width, height), data })
}
