//! SVG plots of the measurements.

use std::fs;
use std::ops::Range;
use std::path::Path;

use plotters::prelude::*;

use super::report::{Measured, Report};
use super::setting::{FLOOR, OURS};
use super::table::{size_text, time_text};
use crate::plot::{
    Area, BLUE, Drawn, FONT, GREEN, GRID, GRID_FINE, INK, ORANGE, PURPLE, PlotError, SKY, VERMILION, svg, write,
};

/// The colors of floors (grey) and of other libraries. tensorlend is green.
const GREY: RGBColor = RGBColor(0x77, 0x77, 0x77);
const OTHERS: [RGBColor; 9] = [
    VERMILION,
    BLUE,
    PURPLE,
    ORANGE,
    SKY,
    RGBColor(0x8C, 0x56, 0x4B),
    RGBColor(0x9A, 0x7D, 0x0A),
    RGBColor(0x5B, 0x3A, 0x8E),
    RGBColor(0x80, 0x00, 0x20),
];

/// Writes `operations.svg` and `exchange.svg` into `folder`. Creates this directory if needed.
/// Omits rows that were not measured.
pub fn plot(report: &Report, folder: &Path) -> Result<(), PlotError> {
    let (exchanges, operations): (Vec<_>, Vec<_>) =
        report.results.iter().partition(|row| row.name.starts_with("exchange_"));
    let failed = |error| PlotError::Folder { path: folder.to_owned(), error };
    fs::create_dir_all(folder).map_err(failed)?;
    let write = |name: &str, svg: String| write(&folder.join(name), &svg);
    if !operations.is_empty() {
        let height_px = 110 + 19 * operations.len() as u32;
        write("operations.svg", svg(height_px, |area| draw_operations(&operations, report.placement, area))?)?;
    }
    if !exchanges.is_empty() {
        write("exchange.svg", svg(620, |area| draw_exchanges(&exchanges, area))?)?;
    }
    Ok(())
}

/// Returns the range of whole decades that contains all rows.
fn decades(rows: &[&Measured]) -> Range<f64> {
    let least = rows.iter().map(|row| row.min_ns).fold(f64::INFINITY, f64::min);
    let most = rows.iter().map(|row| row.max_ns).fold(0.0, f64::max);
    10_f64.powf(least.log10().floor())..10_f64.powf(most.log10().ceil())
}

fn short(ns: f64) -> String {
    time_text(ns).replace(".00 ", " ").replace(".0 ", " ")
}

fn what(row: &Measured) -> String {
    let size = row.size_bytes.map_or_else(String::new, |bytes| format!(", {}", size_text(bytes)));
    let peer = if row.peer == FLOOR || row.peer == OURS { String::new() } else { format!(" ({})", row.peer) };
    format!("{}{size}{peer}", row.name)
}

/// Draws a line for each row, from the fastest to the slowest sample. A dot marks the median.
fn draw_operations(rows: &[&Measured], placement: &str, area: &Area) -> Drawn {
    // Plotters also requests a label at the end of the range.
    let count = rows.len();
    let caption = format!("Floors (grey), tensorlend (green) and others, on cores that are {placement}");
    let mut chart = ChartBuilder::on(area)
        .caption(caption, (FONT, 20).into_font().color(&INK))
        .margin(12)
        .margin_right(32)
        .x_label_area_size(48)
        .y_label_area_size(270)
        .build_cartesian_2d(decades(rows).log_scale(), (0..count - 1).into_segmented())?;
    let name = |at: &SegmentValue<usize>| match at {
        // Plotters numbers segments from the bottom, but the first row belongs at the top.
        SegmentValue::CenterOf(index) => rows.iter().rev().nth(*index).map_or_else(String::new, |row| what(row)),
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(GRID_FINE)
        .label_style((FONT, 12).into_font().color(&INK))
        .x_label_formatter(&|ns| short(*ns))
        .y_labels(count + 1)
        .y_label_formatter(&name)
        .disable_y_mesh()
        .x_desc("median, and fastest to slowest")
        .draw()?;
    for (row, index) in rows.iter().zip((0..count).rev()) {
        let color = match row.peer {
            FLOOR => GREY,
            OURS => GREEN,
            _ => OTHERS[0],
        };
        let at = |ns: f64| (ns, SegmentValue::CenterOf(index));
        let span = PathElement::new([at(row.min_ns), at(row.max_ns)], color.mix(0.5).stroke_width(2));
        chart.draw_series([span])?;
        chart.draw_series([Circle::new(at(row.p50_ns), 4, color.filled())])?;
    }
    Ok(())
}

/// Draws one curve over the sizes for each peer.
fn draw_exchanges(rows: &[&Measured], area: &Area) -> Drawn {
    let size = |row: &Measured| row.size_bytes.unwrap_or(1).max(1) as f64;
    let least = rows.iter().map(|row| size(row)).fold(f64::INFINITY, f64::min);
    let most = rows.iter().map(|row| size(row)).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption("Handing a tensor to another process: round trip", (FONT, 22).into_font().color(&INK))
        .margin(14)
        .margin_right(28)
        .x_label_area_size(52)
        .y_label_area_size(76)
        .build_cartesian_2d((least / 1.5..most * 1.5).log_scale().base(4.0), decades(rows).log_scale())?;
    chart
        .configure_mesh()
        .axis_style(INK)
        .bold_line_style(GRID)
        .light_line_style(GRID_FINE)
        .label_style((FONT, 14).into_font().color(&INK))
        .x_label_formatter(&|bytes| size_text(bytes.round() as u64))
        .y_label_formatter(&|ns| short(*ns))
        .x_desc("size of the tensor")
        .y_desc("median, and fastest to slowest")
        .draw()?;
    let mut series: Vec<(&str, &str)> = Vec::new();
    for row in rows {
        if !series.contains(&(row.name.as_str(), row.peer)) {
            series.push((&row.name, row.peer));
        }
    }
    let mut others = OTHERS.iter().cycle();
    for (name, peer) in series {
        let is_put = name.contains("put");
        let color = match peer {
            OURS if is_put => GREEN.mix(0.55).to_rgba(),
            OURS => GREEN.to_rgba(),
            _ => others.next().unwrap_or(&GREY).to_rgba(),
        };
        let label = if is_put { format!("{peer}, copied in") } else { peer.to_owned() };
        let line: Vec<_> = rows.iter().filter(|row| row.name == name && row.peer == peer).collect();
        for row in &line {
            let span = [(size(row), row.min_ns), (size(row), row.max_ns)];
            chart.draw_series([PathElement::new(span, color.mix(0.4).stroke_width(1))])?;
        }
        let points = || line.iter().map(|row| (size(row), row.p50_ns));
        chart
            .draw_series(LineSeries::new(points(), color.stroke_width(2)))?
            .label(label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], color.stroke_width(3)));
        chart.draw_series(points().map(|at| Circle::new(at, 4, color.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .margin(12)
        .legend_area_size(32)
        .background_style(WHITE.mix(0.85))
        .border_style(GRID)
        .label_font((FONT, 13).into_font().color(&INK))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{FLOOR, Measured, OURS, draw_exchanges, draw_operations, svg};

    fn row(name: &str, peer: &'static str, size_bytes: Option<u64>, p50_ns: f64) -> Measured {
        let (min_ns, max_ns) = (p50_ns / 2.0, p50_ns * 3.0);
        Measured { name: name.to_owned(), peer, size_bytes, p50_ns, min_ns, max_ns, floor: None, ratio: None }
    }

    #[test]
    fn each_row_is_named() {
        let rows = [
            row("cacheline_one_way", FLOOR, None, 50.0),
            row("stream_poll_one_way", OURS, Some(1024), 300.0),
            row("stream_poll_one_way", "iceoryx2", Some(1024), 400.0),
        ];
        let rows: Vec<&Measured> = rows.iter().collect();
        let svg = svg(300, |area| draw_operations(&rows, "near", area)).unwrap();
        for text in ["cacheline_one_way", "stream_poll_one_way, 1 KiB", "(iceoryx2)", "near", "100 ns", "1 us"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
    }

    #[test]
    fn each_peer_has_a_curve() {
        let mut rows = Vec::new();
        for bytes in [1024, 1 << 20] {
            rows.push(row("exchange_round_trip", OURS, Some(bytes), 900.0));
            rows.push(row("exchange_put_round_trip", OURS, Some(bytes), 1000.0 + bytes as f64));
            rows.push(row("exchange_round_trip", "raw/unix-socket", Some(bytes), 9000.0 + bytes as f64));
        }
        let rows: Vec<&Measured> = rows.iter().collect();
        let svg = svg(600, |area| draw_exchanges(&rows, area)).unwrap();
        for text in ["tensorlend, copied in", "raw/unix-socket", "1 KiB", "1 MiB"] {
            assert!(svg.contains(text), "{text}");
        }
    }
}
