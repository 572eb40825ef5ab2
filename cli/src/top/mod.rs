//! `tensorlend top`: a broker in a terminal.

mod app;
mod draw;
mod facts;
mod map;
mod process;
mod rows;
mod screen;
mod table;
#[cfg(test)]
mod tests;

use std::io::IsTerminal;
use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::args::{Connection, seconds};
use crate::failure::Failure;
use crate::output;
use app::App;
use facts::Sampler;
use table::{Sort, Tab};

/// Columns of a frame that is printed, where no terminal says how many there are.
const COLUMNS: u16 = 120;
/// Rows of a frame that is printed, at most.
const ROWS_MAX: usize = 10_000;

/// Show the broker in the terminal: memory over time, names, leases, streams, clients, maps of segments.
///
/// A client like any other that reads what lies in shared memory: the daemon is asked for its figures once a look, and no
/// lease is taken. A look is no snapshot: what it shows need not have held at one and the same moment. Leases carry no
/// time: their age is how long this program has seen them. Keys: ? in the program.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  tensorlend top
  tensorlend top --tab leases --interval 5
  tensorlend top --once --tab streams                 one frame as text, for a log
  tensorlend top --once --tab names --sort bytes --filter camera
  ssh -t robot tensorlend top
")]
pub struct TopArgs {
    /// Print one frame as text and end; so it is too where standard output is no terminal. With streams it looks twice,
    /// an interval apart, since a rate follows from two looks.
    #[arg(long)]
    once: bool,
    /// What to show first.
    #[arg(long, value_enum, default_value = "use")]
    tab: Tab,
    /// The column to order by, as its head is written; of numbers the largest first.
    #[arg(long, value_name = "COLUMN")]
    sort: Option<String>,
    /// Only rows that contain this.
    #[arg(long, value_name = "WORDS")]
    filter: Option<String>,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
}

impl TopArgs {
    pub fn run(&self, at: &Connection) -> Result<(), Failure> {
        let has_colors = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let mut app = App::new(self.tab, has_colors);
        if let Some(sort) = self.sort()? {
            app.set_sort(sort);
        }
        app.set_filter(self.filter.clone().unwrap_or_default());
        let mut sampler = Sampler::new(at.builder("top")?)?;
        if !self.once && std::io::stdout().is_terminal() {
            return screen::show(app, sampler, self.interval);
        }
        let mut facts = sampler.look();
        if !facts.seen.streams.is_empty() || facts.seen.incomplete {
            std::thread::sleep(self.interval);
            facts = sampler.look();
        }
        app.take(facts);
        output::text_block(&frame(app))
    }

    fn sort(&self) -> Result<Option<Sort>, Failure> {
        let Some(head) = &self.sort else { return Ok(None) };
        let columns = self.tab.columns();
        let found = columns.iter().position(|column| column.head.eq_ignore_ascii_case(head));
        let column = found.ok_or_else(|| {
            let heads: Vec<String> = columns.iter().map(|column| format!("{:?}", column.head.to_lowercase())).collect();
            Failure::Usage(format!("--sort {head:?}: this view has {}", heads.join(", ")))
        })?;
        Ok(Some(Sort { column: Some(column), is_descending: columns[column].is_right }))
    }
}

/// A frame with all rows, as text, and without what keys are for.
fn frame(mut app: App) -> String {
    let width = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).map_or(COLUMNS, |size| size.ws_col.max(40));
    let rows = app.rows.len().min(ROWS_MAX) as u16;
    let area = Rect::new(0, 0, width, rows + draw::LINES_AROUND);
    let mut buffer = Buffer::empty(area);
    draw::draw(&mut app, area, &mut buffer);
    let text = draw::text(&buffer);
    let lines: Vec<&str> = text.lines().collect();
    // The tabs and the foot tell of keys.
    let (head, rest) = lines.split_at(4);
    let shown: Vec<&str> = head.iter().chain(&rest[1..rest.len() - 1]).copied().collect();
    shown.join("\n") + "\n"
}

/// From a tenth of a second to an hour.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = seconds(text)?;
    let sensible = Duration::from_millis(100)..=Duration::from_hours(1);
    if sensible.contains(&interval) { Ok(interval) } else { Err("give seconds from 0.1 to 3600".into()) }
}
