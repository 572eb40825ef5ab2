//! Pictures in .png and .jpg files. The module decodes only whole pictures.
//!
//! A picture has the shape `[height, width]` if grey and `[height, width, channels]` otherwise,
//! with 2 (grey and alpha), 3 (RGB) or 4 (RGBA) channels. Palettes and pixels of fewer than 8 bits
//! are expanded. Pixels are returned as stored, without EXIF rotation and color profiles.

use std::io::{Cursor, Write};

use jpeg_encoder::{Encoder as JpegEncoder, EncodingError as JpegEncodingError};
use tensorlend::DType;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::entry::{Entry, Format, Source, TensorView};
use super::error::Fault;
use super::input::Input;
use super::size::{check_memory, zeroed};
use super::{FileError, markers};

/// Maximum decoded bytes of a picture, which are about 358 million pixels of RGB.
const DECODED_BYTES_MAX: u64 = 1 << 30;
/// Additional memory of a decoder, as a multiple of the decoded picture's size. A decoder of progressive JPEG stores
/// two bytes per coefficient.
const WORKING_FACTOR: u64 = 3;
/// JPEG quality, of 100. At this quality the loss is small.
const JPEG_QUALITY: u8 = 95;

/// Size and pixel type of a picture.
struct Head {
    width: u64,
    height: u64,
    channels: u64,
    dtype: DType,
}

impl Head {
    fn bytes(&self) -> u64 {
        let pixels = self.width.saturating_mul(self.height);
        pixels.saturating_mul(self.channels * self.dtype.item_bytes() as u64)
    }
}

pub(super) fn open(input: &Input, format: Format) -> Result<Vec<Entry>, FileError> {
    let mut file = zeroed(input.path(), input.bytes())?;
    let read = std::io::Read::read_exact(&mut input.reader(0), &mut file);
    read.map_err(|e| input.fault(e))?;
    let is_png = format == Format::Png;
    let whole = if is_png { markers::check_png(&file) } else { markers::check_jpeg(&file) };
    whole.map_err(|fault| input.fault(fault))?;
    let (head, data) = if is_png { png(input, &file)? } else { jpeg(input, &file)? };
    let mut shape = vec![head.height, head.width];
    shape.extend((head.channels > 1).then_some(head.channels));
    let bytes = head.bytes();
    Ok(vec![Entry { name: None, dtype: head.dtype, shape, bytes, input: input.clone(), source: Source::Decoded(data) }])
}

fn undecodable(e: impl std::fmt::Display) -> Fault {
    Fault::damaged(format!("it cannot be decoded: {e}"))
}

/// Allocates memory for a picture by its header, if the picture is within the limits.
fn room(input: &Input, head: &Head) -> Result<Vec<u8>, FileError> {
    let bytes = head.bytes();
    if bytes > DECODED_BYTES_MAX {
        return Err(input.fault(Fault::unsupported(
            format!("a picture of {} x {} exceeds the limit of 1 GiB decoded", head.width, head.height),
            "make it smaller, or cut it into tiles",
        )));
    }
    check_memory(input.path(), bytes * WORKING_FACTOR)?;
    zeroed(input.path(), bytes)
}

fn png(input: &Input, file: &[u8]) -> Result<(Head, Vec<u8>), FileError> {
    let bad = |e: png::DecodingError| input.fault(undecodable(e));
    let limits = png::Limits { bytes: (DECODED_BYTES_MAX * WORKING_FACTOR) as usize };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(file), limits);
    decoder.set_transformations(png::Transformations::EXPAND);
    let mut reader = decoder.read_info().map_err(bad)?;
    let (colour, depth) = reader.output_color_type();
    let head = Head {
        width: reader.info().width.into(),
        height: reader.info().height.into(),
        channels: colour.samples() as u64,
        dtype: if depth == png::BitDepth::Sixteen { DType::U16 } else { DType::U8 },
    };
    let mut data = room(input, &head)?;
    reader.next_frame(&mut data).map_err(bad)?;
    if head.dtype == DType::U16 {
        // Reverse the bytes, because samples in a PNG are big-endian (PNG specification, section
        // 7.1).
        data.chunks_exact_mut(2).for_each(<[u8]>::reverse);
    }
    Ok((head, data))
}

fn jpeg(input: &Input, file: &[u8]) -> Result<(Head, Vec<u8>), FileError> {
    let bad = |e: zune_jpeg::errors::DecodeErrors| input.fault(undecodable(e));
    // Disable the crate's own limits of width and height. A JPEG has at most 65,535 pixels along an edge, and `room`
    // bounds the total.
    let options = DecoderOptions::default().set_strict_mode(false).set_max_width(usize::MAX).set_max_height(usize::MAX);
    let mut decoder = JpegDecoder::new_with_options(Cursor::new(file), options);
    decoder.decode_headers().map_err(bad)?;
    let grey = matches!(decoder.input_colorspace(), Some(ColorSpace::Luma));
    let colours = if grey { ColorSpace::Luma } else { ColorSpace::RGB };
    decoder.set_options(options.jpeg_set_out_colorspace(colours));
    let (width, height) = decoder.dimensions().ok_or_else(|| input.fault(undecodable("it has no size")))?;
    let head =
        Head { width: width as u64, height: height as u64, channels: if grey { 1 } else { 3 }, dtype: DType::U8 };
    let mut data = room(input, &head)?;
    decoder.decode_into(&mut data).map_err(bad)?;
    Ok((head, data))
}

/// Writes a picture. PNG stores u8 and u16 without loss, and JPEG stores u8 with loss.
pub(super) fn write(out: &mut impl Write, tensor: &TensorView<'_>, format: Format) -> Result<(), Fault> {
    let head = picture(tensor, format)?;
    if format == Format::Png { write_png(out, tensor.data, &head) } else { write_jpeg(out, tensor.data, &head) }
}

fn write_png(out: &mut impl Write, data: &[u8], head: &Head) -> Result<(), Fault> {
    let fault = |e: png::EncodingError| match e {
        png::EncodingError::IoError(e) => Fault::Io(e),
        other => Fault::unsupported(other.to_string(), "save it as .npy"),
    };
    // The casts lose nothing, because `picture` has rejected sides that do not fit.
    let mut encoder = png::Encoder::new(out, head.width as u32, head.height as u32);
    encoder.set_color(match head.channels {
        1 => png::ColorType::Grayscale,
        2 => png::ColorType::GrayscaleAlpha,
        3 => png::ColorType::Rgb,
        _ => png::ColorType::Rgba,
    });
    encoder.set_depth(if head.dtype == DType::U16 { png::BitDepth::Sixteen } else { png::BitDepth::Eight });
    let mut writer = encoder.write_header().map_err(fault)?;
    let mut pixels = writer.stream_writer().map_err(fault)?;
    if head.dtype == DType::U16 {
        let mut turned = Vec::with_capacity(1 << 16);
        for part in data.chunks(1 << 16) {
            turned.clear();
            turned.extend(part.chunks_exact(2).flat_map(|number| [number[1], number[0]]));
            pixels.write_all(&turned)?;
        }
    } else {
        pixels.write_all(data)?;
    }
    pixels.finish().map_err(fault)?;
    writer.finish().map_err(fault)
}

fn write_jpeg(out: &mut impl Write, data: &[u8], head: &Head) -> Result<(), Fault> {
    let colour = if head.channels == 1 { jpeg_encoder::ColorType::Luma } else { jpeg_encoder::ColorType::Rgb };
    // The casts lose nothing, because `picture` has rejected sides that do not fit.
    let written = JpegEncoder::new(out, JPEG_QUALITY).encode(data, head.width as u16, head.height as u16, colour);
    written.map_err(|e| match e {
        JpegEncodingError::IoError(e) => Fault::Io(e),
        other => Fault::unsupported(other.to_string(), "save it as .npy"),
    })
}

/// Returns the tensor's picture header, if the format can hold it.
fn picture(tensor: &TensorView<'_>, format: Format) -> Result<Head, Fault> {
    let (side_max, holds, remedy) = match format {
        Format::Png => (
            i32::MAX as u64,
            "a PNG holds u8 or u16 of shape [height, width] or [height, width, 2 to 4]",
            "save it as .npy",
        ),
        _ => (
            u64::from(u16::MAX),
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
    let held = match (tensor.dtype, format) {
        (DType::U8 | DType::U16, Format::Png) => true,
        (DType::U8, _) => channels == 1 || channels == 3,
        _ => false,
    };
    let sides = 1..=side_max;
    if !held || !sides.contains(&height) || !sides.contains(&width) {
        return Err(refused());
    }
    Ok(Head { width, height, channels, dtype: tensor.dtype })
}
