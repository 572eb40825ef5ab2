//! `tensorlend top`: the daemon's state in a terminal.

mod app;
mod draw;
mod facts;
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

use crate::failure::Failure;
use crate::options::{Connection, Json, Observe, interval};
use crate::output;
use crate::text::printable;
use app::App;
use facts::Sampler;
use table::{Sort, Tab};

/// Default number of columns of a printed frame.
const COLUMNS: u16 = 120;
/// Maximum number of rows of a printed frame.
const ROWS_MAX: usize = 10_000;

/// Show the daemon's state in the terminal: memory over time, names, leases, streams, clients, maps of segments.
///
/// Joins as a client and reads shared memory. It requests the daemon's metrics once per sample and takes no lease. A
/// sample is not a snapshot: its parts may be from different moments. Leases carry no time: their age is the time since
/// this program first saw them. Keys: ? in the program.
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
    #[command(flatten)]
    json: Json,
    /// Print one frame as text and end; this is the default if standard output is not a terminal. With streams it takes
    /// two samples, an interval apart, to compute rates.
    #[arg(long)]
    once: bool,
    /// The first tab.
    #[arg(long, value_enum, default_value = "use")]
    tab: Tab,
    /// The column to sort by, as its header is written; numbers sort from the largest down.
    #[arg(long, value_name = "COLUMN")]
    sort: Option<String>,
    /// Only rows that contain this.
    #[arg(long, value_name = "WORDS")]
    filter: Option<String>,
    /// Seconds between two samples.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    #[command(flatten)]
    observe: Observe,
}

/// Observes the namespace that the user named, or the daemon's only namespace.
fn observed(at: &Connection) -> Result<Sampler, Failure> {
    let namespace = match &at.observed_namespaces()?[..] {
        [one] => one.clone(),
        [] => return Err(Failure::NotFound("the daemon has no namespace yet: no client has joined one".into())),
        several => {
            let names = printable(&several.join(", "));
            return Err(Failure::Usage(format!("--observe shows one namespace: --namespace one of {names}")));
        }
    };
    Ok(Sampler::inspecting(at.client("top", None), &namespace)?)
}

impl TopArgs {
    pub fn run(&self, at: &Connection) -> Result<(), Failure> {
        let has_colors = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let mut app = App::new(self.tab, has_colors);
        if let Some(sort) = self.sort()? {
            app.set_sort(sort);
        }
        app.set_filter(self.filter.clone().unwrap_or_default());
        let mut sampler = if self.observe.on { observed(at)? } else { Sampler::new(at.builder("top")?)? };
        if !self.once && !self.json.on && std::io::stdout().is_terminal() {
            return screen::show(app, sampler, self.interval);
        }
        let mut facts = sampler.sample();
        if !facts.sampled.seen.streams.is_empty() || facts.sampled.seen.incomplete {
            std::thread::sleep(self.interval);
            facts = sampler.sample();
        }
        app.take(facts);
        if self.json.on { output::json(&app.json()) } else { output::text_block(&frame(app)) }
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

/// Returns a frame with all rows as text, without the hints about keys.
fn frame(mut app: App) -> String {
    let width = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).map_or(COLUMNS, |size| size.ws_col.max(40));
    let rows = app.rows.len().min(ROWS_MAX) as u16;
    let area = Rect::new(0, 0, width, rows + draw::LINES_AROUND);
    let mut buffer = Buffer::empty(area);
    draw::draw(&mut app, area, &mut buffer);
    let text = draw::text(&buffer);
    let lines: Vec<&str> = text.lines().collect();
    // Omit the line of tabs and the last line, which contain hints about keys.
    let (head, rest) = lines.split_at(4);
    let shown: Vec<&str> = head.iter().chain(&rest[1..rest.len() - 1]).copied().collect();
    shown.join("\n") + "\n"
}
