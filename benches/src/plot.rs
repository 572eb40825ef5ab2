//! Plots of lines over sizes or counts, as SVG.

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use std::error::Error;
use tensorlend_baselines::plot::{BLUE, FONT, GREEN, GRID, INK, ORANGE, PURPLE, SKY, VERMILION, WIDTH_PX};

const SIZE_PX: (u32, u32) = (WIDTH_PX, 600);
const COLORS: [RGBColor; 8] = [GREEN, VERMILION, BLUE, PURPLE, ORANGE, SKY, INK, RGBColor(0x99, 0x99, 0x99)];

/// Lines with a legend.
#[derive(Clone, Debug)]
pub struct Plot {
    /// The title.
    pub title: String,
    /// Label of the horizontal axis.
    pub x: String,
    /// Label of the vertical axis, in nanoseconds.
    pub y: String,
    /// Whether both axes are logarithmic.
    pub log: bool,
    /// Name and points of each line.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}

impl Plot {
    /// Returns the picture.
    ///
    /// # Errors
    /// An error if there is nothing to draw, or if plotters fails.
    pub fn svg(&self) -> Result<String, Box<dyn Error>> {
        let points = || self.lines.iter().flat_map(|(_, points)| points).filter(|p| p.0 > 0.0 && p.1 > 0.0);
        let ends = |of: fn(&(f64, f64)) -> f64| {
            points().map(of).fold((f64::INFINITY, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)))
        };
        let ((x_low, x_high), (y_low, y_high)) = (ends(|p| p.0), ends(|p| p.1));
        if x_low >= x_high || y_high <= 0.0 {
            return Err("there are no two points".into());
        }
        let mut svg = String::new();
        if self.log {
            self.draw(&mut svg, (x_low..x_high * 1.1).log_scale(), (y_low * 0.8..y_high * 1.3).log_scale())?;
        } else {
            self.draw(&mut svg, 0.0..x_high, 0.0..y_high * 1.05)?;
        }
        Ok(svg)
    }

    fn draw<X, Y>(&self, svg: &mut String, x: X, y: Y) -> Result<(), Box<dyn Error>>
    where
        X: AsRangedCoord<Value = f64>,
        Y: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let area = SVGBackend::with_string(svg, SIZE_PX).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, (FONT, 22).into_font().color(&INK))
            .margin(16)
            .margin_right(28)
            .x_label_area_size(52)
            .y_label_area_size(84)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .axis_style(INK)
            .bold_line_style(GRID)
            .light_line_style(WHITE)
            .label_style((FONT, 15).into_font().color(&INK))
            .x_label_formatter(&|x| short(*x))
            .y_label_formatter(&|y| crate::table::nanos(*y))
            .x_desc(&self.x)
            .y_desc(&self.y)
            .draw()?;
        for ((name, points), color) in self.lines.iter().zip(COLORS.into_iter().cycle()) {
            let points = || points.iter().copied().filter(|p| p.0 > 0.0 && p.1 > 0.0);
            chart
                .draw_series(LineSeries::new(points(), color.stroke_width(2)))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 26, y)], color.stroke_width(2)));
            chart.draw_series(points().map(|at| Circle::new(at, 3, color.filled())))?;
        }
        chart
            .configure_series_labels()
            // Lines rise: a logarithmic plot has room at the lower right, a linear one at the upper left.
            .position(if self.log { SeriesLabelPosition::LowerRight } else { SeriesLabelPosition::UpperLeft })
            .margin(14)
            .legend_area_size(34)
            .background_style(WHITE.mix(0.9))
            .border_style(GRID)
            .label_font((FONT, 15).into_font().color(&INK))
            .draw()?;
        area.present()?;
        Ok(())
    }
}

/// Formats a size or a count briefly.
fn short(x: f64) -> String {
    match x {
        x if x >= 1e6 => format!("{} M", crate::table::digits(x / 1e6).replace(".00", "")),
        x if x >= 1e3 => format!("{} k", crate::table::digits(x / 1e3).replace(".00", "")),
        x => crate::table::digits(x).replace(".00", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::Plot;

    #[test]
    fn it_names_its_lines() {
        let line = vec![(8.0, 70.0), (1024.0, 300.0), (1e6, 40_000.0)];
        let mut plot = Plot {
            title: "Time".into(),
            x: "bytes".into(),
            y: "median".into(),
            log: true,
            lines: vec![("first".into(), line.clone()), ("second".into(), line)],
        };
        for log in [true, false] {
            plot.log = log;
            let svg = plot.svg().unwrap();
            assert!(svg.contains("first") && svg.contains("second") && svg.contains("bytes"));
        }
        plot.lines.clear();
        assert!(plot.svg().is_err());
    }
}
