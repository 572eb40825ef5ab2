//! Preparation of images as a model's input, by steps such as resizing and normalizing.

mod resize;

use crate::engine::{Feed, OwnedBytes};
use tensorlend::DType;
use tensorlend_model::Step;

/// Maximum width and height in pixels.
const SIDE_MAX: u32 = 1 << 15;
/// Maximum bytes of a step's result.
const BYTES_MAX: u64 = 1 << 30;
const STEPS_MAX: usize = 16;

/// The input or the result of a preparation step.
#[derive(Debug)]
pub struct Image {
    pub dtype: DType,
    pub shape: Vec<u64>,
    pub data: OwnedBytes,
}

/// The dimensions of a batch of images that all have the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    images: usize,
    height: u32,
    width: u32,
    channels: usize,
}

impl Size {
    fn pixels(self) -> usize {
        self.images * self.height as usize * self.width as usize
    }

    fn elements(self) -> usize {
        self.pixels() * self.channels
    }
}

/// Applies all steps to an input, in order.
///
/// # Errors
/// A text that names the failed step and the reason.
pub fn apply(steps: &[Step], feed: Feed<'_>) -> Result<Image, String> {
    if steps.len() > STEPS_MAX {
        return Err(format!("{} steps, and {STEPS_MAX} are the most", steps.len()));
    }
    let mut image: Option<Image> = None;
    let mut turned = false;
    for (at, step) in steps.iter().enumerate() {
        let now = image.as_ref().map_or(feed, |image| Feed {
            dtype: image.dtype,
            shape: &image.shape,
            bytes: image.data.bytes(),
        });
        let made = match step {
            Step::Batch => Ok(batch(now)),
            _ if turned => Err("channels are first already: chw has to be the last step but batch".into()),
            Step::Chw => {
                turned = true;
                chw(now)
            }
            Step::Resize { width, height, antialias } => resize::resize(now, *width, *height, *antialias),
            Step::CenterCrop { width, height } => center_crop(now, *width, *height),
            Step::Scale(factor) => each(now, |value, _| value * factor),
            Step::Normalize { mean, std } => normalize(now, mean, std),
        };
        image = Some(made.map_err(|why| format!("step {} ({step:?}): {why}", at + 1))?);
    }
    image.ok_or_else(|| "no step is named".into())
}

/// Returns the dimensions of images from a shape (height, width, channels) or (images, height, width, channels).
fn size(feed: Feed<'_>) -> Result<Size, String> {
    if !matches!(feed.dtype, DType::U8 | DType::F32) {
        return Err(format!("an image has elements u8 or f32, not {}", feed.dtype));
    }
    let (images, [height, width, channels]) = match *feed.shape {
        [height, width, channels] => (1, [height, width, channels]),
        [images, height, width, channels] => (images, [height, width, channels]),
        _ => return Err(format!("{:?} is no image: it has to be (height, width, channels)", feed.shape)),
    };
    if images == 0 || channels == 0 || ![height, width].iter().all(|side| (1..=u64::from(SIDE_MAX)).contains(side)) {
        return Err(format!("{:?}: an image has 1 to {SIDE_MAX} rows and columns, and a channel", feed.shape));
    }
    Ok(Size { images: images as usize, height: height as u32, width: width as u32, channels: channels as usize })
}

/// Returns the shape of the images after a change of width and height.
fn reshaped(feed: Feed<'_>, width: u32, height: u32) -> Vec<u64> {
    let mut shape = feed.shape.to_vec();
    let at = shape.len() - 3;
    (shape[at], shape[at + 1]) = (height.into(), width.into());
    shape
}

/// Allocates memory for the result of a step.
fn room(elements: usize, dtype: DType) -> Result<OwnedBytes, String> {
    let bytes = (elements as u64).checked_mul(dtype.item_bytes() as u64).filter(|&bytes| bytes <= BYTES_MAX);
    Ok(OwnedBytes::new(bytes.ok_or_else(|| format!("it would take more than {BYTES_MAX} bytes"))? as usize))
}

fn batch(feed: Feed<'_>) -> Image {
    let mut shape = vec![1];
    shape.extend(feed.shape);
    Image { dtype: feed.dtype, shape, data: OwnedBytes::of(feed.bytes) }
}

fn chw(feed: Feed<'_>) -> Result<Image, String> {
    let Size { images, height, width, channels } = size(feed)?;
    let pixels = height as usize * width as usize;
    let mut data = room(images * pixels * channels, feed.dtype)?;
    match feed.dtype {
        DType::U8 => turn(feed.bytes, data.bytes_mut(), pixels, channels),
        _ => turn::<f32>(floats(feed.bytes)?, bytemuck::cast_slice_mut(data.bytes_mut()), pixels, channels),
    }
    let mut shape = feed.shape.to_vec();
    let at = shape.len() - 3;
    shape[at..].rotate_right(1);
    Ok(Image { dtype: feed.dtype, shape, data })
}

fn turn<T: Copy>(from: &[T], to: &mut [T], pixels: usize, channels: usize) {
    for (from, to) in from.chunks_exact(pixels * channels).zip(to.chunks_exact_mut(pixels * channels)) {
        for (channel, to) in to.chunks_exact_mut(pixels).enumerate() {
            for (to, from) in to.iter_mut().zip(from.iter().skip(channel).step_by(channels)) {
                *to = *from;
            }
        }
    }
}

fn center_crop(feed: Feed<'_>, width: u32, height: u32) -> Result<Image, String> {
    let from = size(feed)?;
    if width == 0 || height == 0 || width > from.width || height > from.height {
        return Err(format!("{width}x{height} of an image of {}x{}", from.width, from.height));
    }
    // Half a pixel is rounded to the even number, as in torchvision.
    let edge = |outer: u32, inner: u32| (f64::from(outer - inner) / 2.0).round_ties_even() as usize;
    let (left, top) = (edge(from.width, width), edge(from.height, height));
    let pixel = from.channels * feed.dtype.item_bytes();
    let (row, kept) = (from.width as usize * pixel, width as usize * pixel);
    let to = Size { height, width, ..from };
    let mut data = room(to.elements(), feed.dtype)?;
    let images = feed.bytes.chunks_exact(from.height as usize * row);
    for (image, out) in images.zip(data.bytes_mut().chunks_exact_mut(height as usize * kept)) {
        for (from, to) in image.chunks_exact(row).skip(top).zip(out.chunks_exact_mut(kept)) {
            to.copy_from_slice(&from[left * pixel..left * pixel + kept]);
        }
    }
    Ok(Image { dtype: feed.dtype, shape: reshaped(feed, width, height), data })
}

fn normalize(feed: Feed<'_>, mean: &[f32], std: &[f32]) -> Result<Image, String> {
    let channels = size(feed)?.channels;
    if mean.len() != channels || std.len() != channels || std.contains(&0.0) {
        return Err(format!("mean and std need a number for each of the {channels} channels, and no deviation of 0"));
    }
    each(feed, |value, channel| (value - mean[channel]) / std[channel])
}

/// Applies a function to each element, converted to f32. The function also gets the element's channel.
fn each(feed: Feed<'_>, change: impl Fn(f32, usize) -> f32) -> Result<Image, String> {
    let size = size(feed)?;
    let mut data = room(size.elements(), DType::F32)?;
    let to = bytemuck::cast_slice_mut::<u8, f32>(data.bytes_mut()).chunks_exact_mut(size.channels);
    let write = |to: &mut [f32], from: &mut dyn Iterator<Item = f32>| {
        for (channel, (to, value)) in to.iter_mut().zip(from).enumerate() {
            *to = change(value, channel);
        }
    };
    match feed.dtype {
        DType::U8 => {
            for (to, from) in to.zip(feed.bytes.chunks_exact(size.channels)) {
                write(to, &mut from.iter().map(|&value| f32::from(value)));
            }
        }
        _ => {
            for (to, from) in to.zip(floats(feed.bytes)?.chunks_exact(size.channels)) {
                write(to, &mut from.iter().copied());
            }
        }
    }
    Ok(Image { dtype: DType::F32, shape: feed.shape.to_vec(), data })
}

fn floats(bytes: &[u8]) -> Result<&[f32], String> {
    bytemuck::try_cast_slice(bytes).map_err(|e| format!("its bytes are not aligned: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(steps: &[Step], shape: &[u64], bytes: &[u8]) -> Result<(DType, Vec<u64>, Vec<f32>), String> {
        let image = apply(steps, Feed { dtype: DType::U8, shape, bytes })?;
        let values = match image.dtype {
            DType::U8 => image.data.bytes().iter().map(|&value| f32::from(value)).collect(),
            _ => floats(image.data.bytes())?.to_vec(),
        };
        Ok((image.dtype, image.shape, values))
    }

    #[test]
    fn steps_follow_each_other() {
        let steps = [
            Step::CenterCrop { width: 1, height: 2 },
            Step::Scale(0.5),
            Step::Normalize { mean: vec![1.0, 0.0], std: vec![2.0, 1.0] },
            Step::Chw,
            Step::Batch,
        ];
        // Two rows of three pixels with two channels.
        let bytes = [0, 0, 10, 20, 0, 0, 0, 0, 30, 40, 0, 0];
        let (dtype, shape, values) = taken(&steps, &[2, 3, 2], &bytes).unwrap();
        assert_eq!((dtype, shape), (DType::F32, vec![1, 2, 2, 1]));
        assert_eq!(values, [2.0, 7.0, 10.0, 20.0]);
    }

    #[test]
    fn several_images_are_taken_one_by_one() {
        let (_, shape, values) = taken(&[Step::Chw], &[2, 1, 2, 2], &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        assert_eq!((shape, values), (vec![2, 2, 1, 2], vec![1.0, 3.0, 2.0, 4.0, 5.0, 7.0, 6.0, 8.0]));
    }

    #[test]
    fn what_cannot_be_says_which_step_and_why() {
        let bytes = [0; 12];
        let image: &[u64] = &[2, 2, 3];
        for (steps, shape, word) in [
            (vec![Step::CenterCrop { width: 3, height: 1 }], image, "3x1"),
            (vec![Step::Resize { width: 0, height: 1, antialias: false }], image, "0x1"),
            (vec![Step::Resize { width: u32::MAX, height: u32::MAX, antialias: true }], image, "step 1"),
            (vec![Step::Resize { width: 30_000, height: 30_000, antialias: true }], image, "bytes"),
            (vec![Step::Normalize { mean: vec![0.0], std: vec![1.0] }], image, "3 channels"),
            (vec![Step::Chw, Step::Scale(1.0)], image, "step 2"),
            (vec![Step::Scale(1.0)], &[12], "no image"),
            (vec![Step::Batch; 17], image, "16"),
            (vec![], image, "no step"),
        ] {
            let why = taken(&steps, shape, &bytes).unwrap_err();
            assert!(why.contains(word), "{steps:?}: {why}");
        }
    }
}
