//! The common style of all plots: colors, font and width.

use plotters::style::RGBColor;

/// The generic font name that every SVG viewer supports.
pub const FONT: &str = "sans-serif";
/// Width of a picture in pixels.
pub const WIDTH_PX: u32 = 960;

/// Color of text and axes.
pub const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
/// Color of grid lines with a label.
pub const GRID: RGBColor = RGBColor(0xC8, 0xC8, 0xC8);
/// Color of grid lines without a label.
pub const GRID_FINE: RGBColor = RGBColor(0xEC, 0xEC, 0xEC);

/// Green. This color and the next five are from Okabe and Ito's palette, which is safe for
/// color-blind readers.
pub const GREEN: RGBColor = RGBColor(0x00, 0x9E, 0x73);
/// Vermilion.
pub const VERMILION: RGBColor = RGBColor(0xD5, 0x5E, 0x00);
/// Blue.
pub const BLUE: RGBColor = RGBColor(0x00, 0x72, 0xB2);
/// Reddish purple.
pub const PURPLE: RGBColor = RGBColor(0xCC, 0x79, 0xA7);
/// Orange.
pub const ORANGE: RGBColor = RGBColor(0xE6, 0x9F, 0x00);
/// Sky blue.
pub const SKY: RGBColor = RGBColor(0x56, 0xB4, 0xE9);
