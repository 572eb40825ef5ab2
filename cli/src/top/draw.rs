//! Draws frames into a buffer.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row as TableRow, StatefulWidget, Table, Widget, Wrap};

use super::app::{App, Mode, Question};
use super::map;
use super::rows::{age_text, spark};
use super::table::{Row, Subject, Tab, Width};
use crate::output::{bytes_text, count, printable};

/// Number of lines above and below the table's rows.
pub const LINES_AROUND: u16 = 7;

const KEYS: &str = " q quit  Tab view  s sort  r turn  / filter  p pause  Enter all  x end  ? help";

const HELP: &str = "\
 Tab, 1-6     the next view, or that one
 arrows, j k  another row; PgUp PgDn Home End
 s, S         order by the next column, or the one before
 r            the other way round
 / words      only rows that contain the words; Esc: all
 p, space     stand still, and go on
 Enter        all about the row
 x, Del       after y: delete the name or stream; on a client
              or lease, ask its process to end (SIGTERM)
 q, Ctrl-C    end this program
 In maps: ";

/// Draws a frame: the head, the tabs, the table, the foot, and a window if one is open.
pub fn draw(app: &mut App, area: Rect, buffer: &mut Buffer) {
    let [head, tabs, table, foot] =
        Layout::vertical([Constraint::Length(4), Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)])
            .areas(area);
    draw_head(app, head, buffer);
    draw_tabs(app, tabs, buffer);
    draw_table(app, table, buffer);
    draw_foot(app, foot, buffer);
    match &app.mode {
        Mode::Table | Mode::Filter => {}
        Mode::Help => {
            let legend: Vec<String> = map::LEGEND.iter().map(|(c, what)| format!("{c} {what}")).collect();
            draw_window(" Keys ", format!("{HELP}{}", legend.join(", ")), area, buffer);
        }
        Mode::Details => draw_details(app, area, buffer),
        Mode::Confirm(question) => draw_window(" Sure? ", question_text(question), area, buffer),
    }
}

fn styled(app: &App, color: Color, modifier: Modifier) -> Style {
    let style = Style::new().add_modifier(modifier);
    if app.has_colors { style.fg(color) } else { style }
}

fn draw_head(app: &App, area: Rect, buffer: &mut Buffer) {
    let seen = &app.facts.seen;
    let daemon = match &app.facts.stat {
        Some(stat) => {
            let up = age_text(Duration::from_nanos(stat.uptime_ns));
            format!(
                "tensorlendd {} pid {} ({} mode), up {up}",
                printable(&stat.version),
                stat.pid,
                printable(&stat.mode)
            )
        }
        None => "no figures of the daemon".to_owned(),
    };
    let state = if app.is_paused { " PAUSED" } else { "" };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let first = Line::from(vec![
        Span::styled(format!(" {}", printable(&seen.namespace)), bold),
        Span::raw(format!("  {daemon}")),
        Span::styled(state, Style::new().add_modifier(Modifier::REVERSED)),
    ]);
    let states = &app.facts.states;
    let used = states.live + states.leased + states.retired;
    let third = format!(
        " here {}: {} live, {} leased, {} retired, {} free",
        bytes_text(seen.bytes_lent),
        bytes_text(states.live),
        bytes_text(states.leased),
        bytes_text(states.retired),
        bytes_text(seen.bytes_lent.saturating_sub(used)),
    );
    let leases: u64 = seen.leases.iter().map(|lease| lease.count).sum();
    let mut fourth = format!(
        " {}, {}, {}, {}, {}",
        count(seen.names_live, "name"),
        count(seen.clients.len() as u64, "client"),
        count(leases, "lease"),
        count(seen.streams.len() as u64, "stream"),
        count(seen.segments.len() as u64, "segment"),
    );
    for (is_so, what) in [
        (seen.truncated, "more than is shown"),
        (seen.incomplete, "not all was seen yet"),
        (seen.damaged > 0, "some clients write nonsense"),
    ] {
        if is_so {
            fourth += "; ";
            fourth += what;
        }
    }
    if let Some(error) = &app.facts.error {
        fourth = format!(" {}", printable(error));
    }
    let lines = vec![first, pool_line(app, area.width), Line::raw(third), Line::raw(fourth)];
    Paragraph::new(lines).render(area, buffer);
}

/// Returns the pool's usage as a bar, with its history.
fn pool_line(app: &App, width: u16) -> Line<'static> {
    const BAR: u64 = 20;
    let Some(stat) = &app.facts.stat else { return Line::raw("") };
    let filled = (u128::from(stat.pool_bytes) * u128::from(BAR) / u128::from(stat.pool_bytes_max.max(1))) as u64;
    let filled = filled.min(BAR) as usize;
    let text = format!(" {} of {}", bytes_text(stat.pool_bytes), bytes_text(stat.pool_bytes_max));
    let bar = format!("{}{}", "█".repeat(filled), "·".repeat(BAR as usize - filled));
    let room = usize::from(width).saturating_sub(text.len() + BAR as usize + 11);
    let history = app.facts.uses.iter().find(|one| one.kind == "namespace").map_or(&[][..], |one| &one.history);
    let over_time: Vec<char> = spark(history).chars().collect();
    let latest: String = over_time[over_time.len().saturating_sub(room)..].iter().collect();
    Line::from(vec![
        Span::raw(" pool "),
        Span::styled(bar, styled(app, Color::Cyan, Modifier::empty())),
        Span::raw(format!("{text}  ")),
        Span::styled(latest, styled(app, Color::Cyan, Modifier::empty())),
    ])
}

fn draw_tabs(app: &App, area: Rect, buffer: &mut Buffer) {
    let mut spans = Vec::new();
    for (at, tab) in Tab::ALL.into_iter().enumerate() {
        let style = if tab == app.tab { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        spans.push(Span::styled(format!(" {} {} ", at + 1, tab.title()), style));
    }
    let rows = if app.filter.is_empty() {
        format!("  {}", app.rows_all)
    } else {
        format!("  {} of {}", app.rows.len(), app.rows_all)
    };
    spans.push(Span::raw(rows));
    Paragraph::new(Line::from(spans)).render(area, buffer);
}

fn draw_table(app: &mut App, area: Rect, buffer: &mut Buffer) {
    let columns = app.tab.columns();
    let sort = app.sort();
    let widths = columns.iter().map(|column| match column.width {
        Width::Fixed(width) => Constraint::Length(width),
        Width::Share(share) => Constraint::Fill(share),
    });
    let widths: Vec<Constraint> = widths.collect();
    let heads = columns.iter().enumerate().map(|(at, column)| {
        let mark = match sort.column {
            Some(column) if column == at && sort.is_descending => "▾",
            Some(column) if column == at => "▴",
            _ => "",
        };
        aligned(format!("{}{mark}", column.head), column.is_right)
    });
    let header = TableRow::new(heads).style(styled(app, Color::Cyan, Modifier::BOLD));
    let head_area = Rect { height: 1, ..area };
    let places = Layout::horizontal(widths.iter().copied()).spacing(1).split(head_area);
    let map_width = places.last().map_or(0, |place| usize::from(place.width));
    app.page = usize::from(area.height.saturating_sub(1)).max(1);
    // Lay out the visible rows only, because there may be a hundred thousand.
    let selected = app.table.selected();
    let mut first = app.table.offset();
    if let Some(selected) = selected {
        first = first.min(selected).max((selected + 1).saturating_sub(app.page));
    }
    first = first.min(app.rows.len().saturating_sub(app.page));
    *app.table.offset_mut() = first;
    let visible = &app.rows[first..app.rows.len().min(first + app.page)];
    let rows = visible.iter().map(|row| table_row(app, row, map_width));
    let table = Table::new(rows, widths)
        .header(header)
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = ratatui::widgets::TableState::new().with_selected(selected.map(|at| at - first));
    StatefulWidget::render(table, area, buffer, &mut state);
}

fn table_row<'a>(app: &App, row: &'a Row, map_width: usize) -> TableRow<'a> {
    let columns = app.tab.columns();
    let cells = row.cells.iter().zip(columns).enumerate().map(|(at, (cell, column))| {
        if let Subject::Segment(segment) = row.subject
            && at + 1 == columns.len()
        {
            return Line::raw(map_text(app, segment, map_width));
        }
        aligned(cell.text.clone(), column.is_right)
    });
    TableRow::new(cells)
}

fn map_text(app: &App, segment: usize, width: usize) -> String {
    let Some(segment) = app.facts.seen.segments.get(segment) else { return String::new() };
    if !segment.is_mapped {
        return "not looked into".to_owned();
    }
    map::parts(segment, width).into_iter().map(map::character).collect()
}

fn aligned(text: String, is_right: bool) -> Line<'static> {
    let line = Line::raw(text);
    if is_right { line.right_aligned() } else { line }
}

fn draw_foot(app: &App, area: Rect, buffer: &mut Buffer) {
    let line = match &app.mode {
        Mode::Filter => Line::raw(format!(" / {}_", printable(&app.filter))),
        _ if !app.said.is_empty() => Line::raw(format!(" {}", printable(&app.said))),
        _ if !app.filter.is_empty() => Line::raw(format!(" only what contains {:?}; Esc: all", printable(&app.filter))),
        _ => Line::raw(KEYS),
    };
    Paragraph::new(line.style(styled(app, Color::Yellow, Modifier::empty()))).render(area, buffer);
}

fn draw_details(app: &App, area: Rect, buffer: &mut Buffer) {
    let Some(row) = app.row() else { return };
    let columns = app.tab.columns().iter().map(|column| column.head.to_lowercase());
    let cells = columns.zip(row.cells.iter().map(|cell| cell.text.clone()));
    let more = row.more.iter().map(|(what, text)| ((*what).to_owned(), text.clone()));
    let mut text: Vec<String> = cells
        .chain(more)
        .filter(|(_, text)| !text.is_empty())
        .map(|(what, text)| format!(" {what:<13} {text}"))
        .collect();
    if let Subject::Segment(at) = row.subject {
        let width = usize::from(area.width.saturating_sub(10));
        let whole: Vec<char> = map_text(app, at, width * 4).chars().collect();
        text.extend(whole.chunks(width.max(1)).map(|line| format!(" {}", line.iter().collect::<String>())));
    }
    draw_window(" Enter: back ", text.join("\n"), area, buffer);
}

fn question_text(question: &Question) -> String {
    match question {
        Question::DeleteName(name) => {
            format!(" Delete the name \"{}\"?\n Who reads it keeps it until done.\n\n y/N ", printable(name))
        }
        Question::DeleteStream(name) => {
            format!(" Delete the stream \"{}\"?\n Its producer and its subscribers are told.\n\n y/N ", printable(name))
        }
        Question::End(process) => format!(
            " Ask process {} of user {} to end (SIGTERM)?\n {}\n What it published stays, what it reads is let go.\n\n y/N ",
            process.pid,
            process.uid,
            printable(&process.command)
        ),
    }
}

/// Draws a window in the middle, as large as its text.
fn draw_window(title: &str, text: String, area: Rect, buffer: &mut Buffer) {
    let width_max = area.width.saturating_sub(4).max(10);
    let longest = text.lines().map(|line| Span::raw(line).width()).max().unwrap_or(0) as u16;
    let width = (longest + 3).max(title.len() as u16 + 4).min(width_max);
    let inner = usize::from(width.saturating_sub(2)).max(1);
    let lines: usize = text.lines().map(|line| Span::raw(line).width().max(1).div_ceil(inner)).sum();
    let height = (lines as u16 + 2).min(area.height);
    let window = Rect {
        x: area.x + (area.width.saturating_sub(width)) / 2,
        y: area.y + (area.height - height) / 2,
        width: width.min(area.width),
        height,
    };
    Clear.render(window, buffer);
    Paragraph::new(text)
        .wrap(Wrap { trim: false })
        .block(Block::bordered().title(title.to_owned()))
        .render(window, buffer);
}

/// Returns a frame as text: its lines without trailing spaces.
pub fn text(buffer: &Buffer) -> String {
    let area = buffer.area;
    let mut text = String::new();
    for y in area.top()..area.bottom() {
        let mut line = String::new();
        let mut x = area.left();
        while x < area.right() {
            let symbol = buffer[(x, y)].symbol();
            line.push_str(symbol);
            // A symbol that is two columns wide is in the first of two cells. Skip the second.
            x += (Span::raw(symbol).width() as u16).max(1);
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}
