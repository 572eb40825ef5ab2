//! The common style, the drawing area, and the errors of SVG plots.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::files::{self, FileError};

pub use tensorlend_baselines::plot::{
    BLUE, FONT, GREEN, GRID, GRID_FINE, INK, ORANGE, PURPLE, SKY, VERMILION, WIDTH_PX,
};

pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub type Drawn = Result<(), Box<dyn Error>>;

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
    /// The folder of the plots could not be created.
    #[error("the folder {path} cannot be created: {error}; name another folder")]
    Folder {
        /// Path of the folder.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
}

/// Returns the picture that `draw` draws.
pub fn svg(height_px: u32, draw: impl FnOnce(&Area) -> Drawn) -> Result<String, PlotError> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (WIDTH_PX, height_px)).into_drawing_area();
    let drawn = area.fill(&WHITE).map_err(Into::into).and_then(|()| draw(&area));
    drawn.and_then(|()| area.present().map_err(Into::into)).map_err(|error| PlotError::Draw(error.to_string()))?;
    drop(area);
    Ok(svg)
}

/// Writes a picture to a file.
pub fn write(path: &Path, svg: &str) -> Result<(), PlotError> {
    Ok(files::write_bytes(path, svg.as_bytes())?)
}
