//! .png and .jpg: pictures, decoded whole by the image crate.
//!
//! A picture is `[height, width]` if grey and `[height, width, channels]` otherwise, with 2 (grey and
//! alpha), 3 (RGB) or 4 (RGBA) channels; palettes and fewer than 8 bits are expanded. It is given as
//! stored: no rotation by EXIF, no colour profile applied.

use std::io::{Cursor, Write};

use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::PngEncoder;
use image::{ColorType, ExtendedColorType, ImageDecoder, ImageEncoder, ImageError, ImageFormat};
use image::{ImageReader, Limits};
use tensorlend::DType;

use super::error::Fault;
use super::input::Input;
use super::size::{check_memory, zeroed};
use super::{Entry, FileError, Format, Source, TensorView, markers};

/// Decoded bytes of the largest picture: some 358 million pixels of RGB.
const DECODED_BYTES_MAX: u64 = 1 << 30;
/// What a decoder may need beside the decoded picture, in multiples of it: a progressive JPEG keeps
/// two bytes per coefficient.
const WORKING_FACTOR: u64 = 3;
/// Saving as JPEG loses little at this quality (of 100).
const JPEG_QUALITY: u8 = 95;

pub(super) fn open(input: &Input, format: Format) -> Result<Vec<Entry>, FileError> {
    let mut file = zeroed(input.path(), input.bytes())?;
    let read = std::io::Read::read_exact(&mut input.reader(0), &mut file);
    read.map_err(|e| input.fault(e))?;

    let bad = |e: ImageError| input.fault(Fault::damaged(format!("it cannot be decoded: {e}")));
    let format = match format {
        Format::Png => markers::check_png(&file).map(|()| ImageFormat::Png),
        _ => markers::check_jpeg(&file).map(|()| ImageFormat::Jpeg),
    }
    .map_err(|fault| input.fault(fault))?;
    let mut reader = ImageReader::with_format(Cursor::new(file.as_slice()), format);
    let mut limits = Limits::default();
    limits.max_alloc = Some(DECODED_BYTES_MAX * WORKING_FACTOR);
    reader.limits(limits);
    let decoder = reader.into_decoder().map_err(bad)?;

    let bytes = decoder.total_bytes();
    let (width, height) = decoder.dimensions();
    if bytes > DECODED_BYTES_MAX {
        return Err(input.fault(Fault::unsupported(
            format!("a picture of {width} x {height} exceeds the limit of 1 GiB decoded"),
            "make it smaller, or cut it into tiles",
        )));
    }
    check_memory(input.path(), bytes * WORKING_FACTOR)?;
    let (dtype, channels) = numbers(decoder.color_type()).map_err(|fault| input.fault(fault))?;
    let mut data = zeroed(input.path(), bytes)?;
    decoder.read_image(&mut data).map_err(bad)?;
    let mut shape = vec![u64::from(height), u64::from(width)];
    shape.extend((channels > 1).then_some(channels));
    Ok(vec![Entry { name: None, dtype, shape, bytes, input: input.clone(), source: Source::Decoded(data) }])
}

fn numbers(colour: ColorType) -> Result<(DType, u64), Fault> {
    let channels = u64::from(colour.channel_count());
    match colour {
        ColorType::L8 | ColorType::La8 | ColorType::Rgb8 | ColorType::Rgba8 => Ok((DType::U8, channels)),
        ColorType::L16 | ColorType::La16 | ColorType::Rgb16 | ColorType::Rgba16 => Ok((DType::U16, channels)),
        other => Err(Fault::unsupported(format!("its pixels are {other:?}"), "save it with 8 or 16 bits per channel")),
    }
}

/// Writes a picture: PNG holds u8 and u16 without loss, JPEG u8 with some.
pub(super) fn write(out: &mut impl Write, tensor: &TensorView<'_>, format: Format) -> Result<(), Fault> {
    let (height, width, colour) = picture(tensor, format)?;
    let written = if format == Format::Png {
        PngEncoder::new(out).write_image(tensor.data, width, height, colour)
    } else {
        JpegEncoder::new_with_quality(out, JPEG_QUALITY).write_image(tensor.data, width, height, colour)
    };
    written.map_err(|e| match e {
        ImageError::IoError(e) => Fault::Io(e),
        other => Fault::unsupported(other.to_string(), "save it as .npy"),
    })
}

/// Height, width and pixel type of a tensor that the format can hold.
fn picture(tensor: &TensorView<'_>, format: Format) -> Result<(u32, u32, ExtendedColorType), Fault> {
    let (side_max, holds, remedy) = match format {
        Format::Png => (
            i32::MAX as u32,
            "a PNG holds u8 or u16 of shape [height, width] or [height, width, 2 to 4]",
            "save it as .npy",
        ),
        _ => (
            u32::from(u16::MAX),
            "a JPEG holds u8 of shape [height, width] or [height, width, 3]",
            "save it as .png or .npy",
        ),
    };
    let refused = || {
        let what = format!("{holds}, not {} of {:?}", tensor.dtype, tensor.shape);
        Fault::unsupported(what, remedy)
    };
    let (height, width, channels) = match *tensor.shape {
        [height, width] => (height, width, 1),
        [height, width, channels @ 2..=4] => (height, width, channels),
        _ => return Err(refused()),
    };
    let side = |pixels: u64| {
        let fits = |&p: &u32| (1..=side_max).contains(&p);
        u32::try_from(pixels).ok().filter(fits).ok_or_else(refused)
    };
    let colour = match (tensor.dtype, channels, format) {
        (DType::U8, 1, _) => ExtendedColorType::L8,
        (DType::U8, 3, _) => ExtendedColorType::Rgb8,
        (DType::U8, 2, Format::Png) => ExtendedColorType::La8,
        (DType::U8, 4, Format::Png) => ExtendedColorType::Rgba8,
        (DType::U16, 1, Format::Png) => ExtendedColorType::L16,
        (DType::U16, 2, Format::Png) => ExtendedColorType::La16,
        (DType::U16, 3, Format::Png) => ExtendedColorType::Rgb16,
        (DType::U16, 4, Format::Png) => ExtendedColorType::Rgba16,
        _ => return Err(refused()),
    };
    Ok((side(height)?, side(width)?, colour))
}
