//! The demo's round trips as an SVG plot.

use std::error::Error;
use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, ValueFormatter};
use plotters::prelude::*;
use tensorlend_layout::size::bytes_text;

use super::table::{Method, Row, nanos_text};
use crate::files::{self, FileError};

const SIZE_PX: (u32, u32) = (960, 600);
const MARKER_PX: i32 = 5;
const WHISKER_PX: i32 = 4;

/// The generic font name that every SVG viewer supports.
const FONT: &str = "sans-serif";
/// Color of text and axes.
const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
/// Color of grid lines with a label.
const GRID: RGBColor = RGBColor(0xC8, 0xC8, 0xC8);
/// Color of grid lines without a label.
const GRID_FINE: RGBColor = RGBColor(0xEC, 0xEC, 0xEC);
// Colors from Okabe and Ito's palette, which is safe for color-blind readers.
const GREEN: RGBColor = RGBColor(0x00, 0x9E, 0x73);
const VERMILION: RGBColor = RGBColor(0xD5, 0x5E, 0x00);
const BLUE: RGBColor = RGBColor(0x00, 0x72, 0xB2);
const PURPLE: RGBColor = RGBColor(0xCC, 0x79, 0xA7);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error>>;

/// The reason why a plot cannot be drawn.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// The caller passed no row.
    #[error("nothing to plot: no row was measured")]
    NoRows,
    /// The crate plotters could not draw.
    #[error("the plot cannot be drawn: {0}")]
    Draw(String),
    /// The file could not be written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Draws the round trips over the sizes on logarithmic axes, and writes the plot to `path`.
///
/// # Errors
///
/// [`PlotError::NoRows`] if `rows` is empty; [`PlotError::File`] if the file cannot be written.
pub fn plot(rows: &[Row], path: &Path) -> Result<(), PlotError> {
    Ok(files::write_bytes(path, picture(rows)?.as_bytes())?)
}

fn picture(rows: &[Row]) -> Result<String, PlotError> {
    let (Some(sizes), Some(times)) = (Axis::of_sizes(rows), Axis::of_times(rows)) else {
        return Err(PlotError::NoRows);
    };
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, SIZE_PX).into_drawing_area();
    let drawn = area.fill(&WHITE).map_err(Into::into).and_then(|()| draw(rows, sizes, times, &area));
    drawn.and_then(|()| area.present().map_err(Into::into)).map_err(|error| PlotError::Draw(error.to_string()))?;
    drop(area);
    Ok(svg)
}

/// The appearance of a method: its color and its marker.
#[derive(Clone, Copy)]
struct Style {
    color: RGBColor,
    marker: Marker,
}

#[derive(Clone, Copy)]
enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
}

fn style(method: Method) -> Style {
    match method {
        Method::Serialize => Style { color: VERMILION, marker: Marker::Triangle },
        Method::Copy => Style { color: BLUE, marker: Marker::Square },
        Method::LendCopied => Style { color: PURPLE, marker: Marker::Diamond },
        Method::Lend => Style { color: GREEN, marker: Marker::Circle },
    }
}

/// A logarithmic axis with its own marks, because plotters places marks only at powers of ten, even
/// for bytes. The coordinates of the axis are logarithms.
struct Axis {
    range: Range<f64>,
    /// Marks with a label.
    marks: Vec<f64>,
    /// Marks without a label.
    fine: Vec<f64>,
    text: fn(f64) -> String,
}

impl Axis {
    /// Returns an axis of sizes, with log2 of bytes as coordinate and a label at every other power of two.
    fn of_sizes(rows: &[Row]) -> Option<Self> {
        let first = x(rows.iter().map(|row| row.bytes).min()?);
        let last = x(rows.iter().map(|row| row.bytes).max()?);
        Some(Self {
            range: first - 0.6..last + 0.6,
            marks: (first.ceil() as i32..=last.floor() as i32).step_by(2).map(f64::from).collect(),
            fine: Vec::new(),
            text: |log2| bytes_text(log2.exp2().round() as u64),
        })
    }

    /// Returns an axis of times, with log10 of nanoseconds as coordinate. The axis covers whole
    /// decades.
    fn of_times(rows: &[Row]) -> Option<Self> {
        let low = y(rows.iter().map(|row| row.round_trip.min_ns).min()?).floor() as i32;
        let high = y(rows.iter().map(|row| row.round_trip.max_ns).max()?).ceil() as i32;
        // If all values are the same power of ten, the axis would have length 0.
        let high = high.max(low + 1);
        let digits = |decade| (2..10).map(move |digit| f64::from(decade) + f64::from(digit).log10());
        Some(Self {
            range: f64::from(low)..f64::from(high),
            marks: (low..=high).map(f64::from).collect(),
            fine: (low..high).flat_map(digits).collect(),
            text: |log10| nanos_text(10_f64.powf(log10).round() as u64).replace(".00 ", " ").replace(".0 ", " "),
        })
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (begin, end): (i32, i32)) -> i32 {
        let part = (value - self.range.start) / (self.range.end - self.range.start);
        begin + (f64::from(end - begin) * part).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { self.fine.clone() } else { self.marks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        (self.text)(*value)
    }
}

fn x(bytes: u64) -> f64 {
    (bytes.max(1) as f64).log2()
}

fn y(nanos: u64) -> f64 {
    (nanos.max(1) as f64).log10()
}

fn draw(rows: &[Row], sizes: Axis, times: Axis, area: &Area) -> Drawn {
    let mut chart = ChartBuilder::on(area)
        .caption("Handing a tensor to another process", (FONT, 24).into_font().color(&INK))
        .margin(16)
        .margin_right(28)
        .x_label_area_size(52)
        .y_label_area_size(76)
        .build_cartesian_2d(sizes, times)?;

    chart
        .configure_mesh()
        .axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(GRID_FINE)
        .label_style((FONT, 15).into_font().color(&INK))
        .axis_desc_style((FONT, 16).into_font().color(&INK))
        .x_desc("size of the tensor")
        .y_desc("round trip: median, and fastest to slowest")
        .draw()?;

    for method in Method::ALL {
        let Style { color, marker } = style(method);
        let mut line: Vec<&Row> = rows.iter().filter(|row| row.method == method).collect();
        if line.is_empty() {
            continue;
        }
        line.sort_by_key(|row| row.bytes);

        for row in &line {
            for end in [row.round_trip.min_ns, row.round_trip.max_ns] {
                let stem = [(x(row.bytes), y(row.round_trip.p50_ns)), (x(row.bytes), y(end))];
                chart.draw_series([PathElement::new(stem, color.mix(0.6).stroke_width(1))])?;
                let bar = PathElement::new([(-WHISKER_PX, 0), (WHISKER_PX, 0)], color.mix(0.6).stroke_width(1));
                chart.draw_series([EmptyElement::at((x(row.bytes), y(end))) + bar])?;
            }
        }
        let points = || line.iter().map(|row| (x(row.bytes), y(row.round_trip.p50_ns)));
        chart.draw_series(LineSeries::new(points(), color.stroke_width(2)))?.label(method.label()).legend(
            move |(x, y)| {
                let stroke = PathElement::new([(0, 0), (26, 0)], color.stroke_width(2));
                EmptyElement::at((x, y)) + stroke + marked((13, 0), color, marker)
            },
        );
        chart.draw_series(points().map(|at| EmptyElement::at(at) + marked((0, 0), color, marker)))?;
    }

    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .margin(14)
        .legend_area_size(34)
        .background_style(WHITE.mix(0.9))
        .border_style(GRID)
        .label_font((FONT, 15).into_font().color(&INK))
        .draw()?;
    Ok(())
}

/// Returns a filled marker around `center`, in pixels.
fn marked(center: (i32, i32), color: RGBColor, marker: Marker) -> Polygon<(i32, i32)> {
    let r = MARKER_PX;
    let corners: Vec<(i32, i32)> = match marker {
        Marker::Square => vec![(-r, -r), (r, -r), (r, r), (-r, r)],
        Marker::Triangle => vec![(0, -r - 1), (r + 1, r), (-r - 1, r)],
        Marker::Diamond => vec![(0, -r - 1), (r + 1, 0), (0, r + 1), (-r - 1, 0)],
        Marker::Circle => vec![(-2, -r), (2, -r), (r, -2), (r, 2), (2, r), (-2, r), (-r, 2), (-r, -2)],
    };
    Polygon::new(corners.into_iter().map(|(x, y)| (x + center.0, y + center.1)).collect::<Vec<_>>(), color.filled())
}

#[cfg(test)]
mod tests {
    use super::super::table::Stat;
    use super::{Axis, Method, PlotError, Row, ValueFormatter, picture, plot};

    fn row(bytes: u64, method: Method, p50_ns: u64) -> Row {
        let stat = Stat { min_ns: p50_ns * 3 / 4, p50_ns, max_ns: p50_ns * 4 };
        Row { bytes, method, put: stat, get: stat, round_trip: stat }
    }

    fn rows() -> Vec<Row> {
        let sizes = (10..=28).step_by(2).map(|log2| 1_u64 << log2);
        sizes
            .flat_map(|bytes| {
                [
                    row(bytes, Method::Serialize, 8000 + bytes * 3 / 2),
                    row(bytes, Method::Copy, 120 + bytes / 10),
                    row(bytes, Method::LendCopied, 900 + bytes / 20),
                    row(bytes, Method::Lend, 300),
                ]
            })
            .collect()
    }

    #[test]
    fn it_names_what_it_shows() {
        let svg = picture(&rows()).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for text in ["Handing a tensor", "size of the tensor", "round trip", "256 MiB", "1 KiB", "100 us", "1 s"] {
            assert!(svg.contains(text), "{text}");
        }
        for method in Method::ALL {
            assert!(svg.contains(method.label()));
        }
        if let Ok(path) = std::env::var("TENSORLEND_KEEP_PLOT") {
            std::fs::write(path, svg).unwrap();
        }
    }

    #[test]
    fn one_row_is_enough_and_none_is_not() {
        let one = picture(&[row(1000, Method::Copy, 1000)]).unwrap();
        assert!(!one.contains(Method::Lend.label()));
        picture(&[Row { round_trip: Stat { min_ns: 0, p50_ns: 0, max_ns: 0 }, ..row(0, Method::Lend, 1) }]).unwrap();
        assert!(matches!(picture(&[]), Err(PlotError::NoRows)));
    }

    #[test]
    fn the_file_is_written_or_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("demo.svg");
        plot(&rows(), &path).unwrap();
        assert!(path.metadata().unwrap().len() > 1000);
        let error = plot(&rows(), &folder.path().join("none/demo.svg")).unwrap_err();
        assert!(error.to_string().contains("none/demo.svg"));
    }

    #[test]
    fn marks_are_whole() {
        let times = Axis::of_times(&rows()).unwrap();
        let texts: Vec<String> = times.marks.iter().map(|mark| times.format_ext(mark)).collect();
        assert_eq!(texts, ["100 ns", "1 us", "10 us", "100 us", "1 ms", "10 ms", "100 ms", "1 s", "10 s"]);
        let sizes = Axis::of_sizes(&rows()).unwrap();
        assert_eq!(sizes.marks.len(), 10);
        assert_eq!(sizes.format_ext(&sizes.marks[1]), "4 KiB");
    }
}
