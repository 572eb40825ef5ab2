//! Draws frames into a buffer.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Row as TableRow, StatefulWidget, Table, Widget, Wrap};

use super::app::{App, Mode, Order, Question};
use super::rows::spark;
use super::table::{Cell, Column, Row, Subject, Tab, Width};
use crate::text::{age_text, bytes_text, count, printable, refused_text};

/// Number of lines above and below the table's rows.
pub const LINES_AROUND: u16 = 7;

const KEYS: &str = " q quit  Tab view  s sort  r turn  / filter  p pause  Enter all  x end  ? help";

const HELP: &str = "\
 Tab, 1-6     select the next view, or that one
 arrows, j k  select another row; PgUp PgDn Home End
 s, S         order by the next column, or the one before
 r            reverse the order
 / words      show only rows that contain the words; Esc: all
 p, space     pause, or continue
 Enter        show all columns and details of the row
 x, Del       after y: delete the name or stream; on a client
              or lease, ask its process to end (SIGTERM)
 q, Ctrl-C    end this program
 In maps: ";

/// The characters of a map and their meanings: free memory, and each [`SlotState`] in its order.
const LEGEND: [(char, &str); 4] = [('·', "free"), ('░', "live"), ('█', "leased"), ('▓', "retired")];

/// Draws a frame: the header, the tabs, the table, the footer, and a window if one is open.
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
            let legend: Vec<String> = LEGEND.iter().map(|(c, what)| format!("{c} {what}")).collect();
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
    let seen = &app.facts.sampled.seen;
    let state = if app.is_paused { " PAUSED" } else { "" };
    let namespace = format!(" {}", printable(&seen.namespace));
    let width = usize::from(area.width);
    let room = width.saturating_sub(Span::raw(&namespace).width() + state.len());
    let daemon = match &app.facts.stat {
        Some(stat) => fitting(
            room,
            [
                format!("  tensorlendd {}", printable(&stat.version)),
                format!(" pid {}", stat.pid),
                format!(" ({} mode)", printable(&stat.mode)),
                format!(", up {}", age_text(Duration::from_nanos(stat.uptime_ns))),
            ],
        ),
        None => "  no metrics of the daemon".to_owned(),
    };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let first = Line::from(vec![
        Span::styled(namespace, bold),
        Span::raw(daemon),
        Span::styled(state, Style::new().add_modifier(Modifier::REVERSED)),
    ]);
    let states = &app.facts.sampled.states;
    let free = states.free.map(|free| format!(", {} free", bytes_text(free)));
    let parts = [
        format!(" lent {}", bytes_text(seen.bytes_lent)),
        format!(": {} live", bytes_text(states.live)),
        format!(", {} leased", bytes_text(states.leased)),
        format!(" ({} retired)", bytes_text(states.retired)),
    ];
    let third = fitting(width, parts.into_iter().chain(free));
    let mut fourth = fitting(width, counts(app));
    if let Some(error) = &app.facts.error {
        fourth = format!(" {}", printable(error));
    }
    let lines = vec![first, pool_line(app, area.width), Line::raw(third), Line::raw(fourth)];
    Paragraph::new(lines).render(area, buffer);
}

/// Returns the numbers of names and of their users, with the reasons why they may be too small.
fn counts(app: &App) -> Vec<String> {
    let seen = &app.facts.sampled.seen;
    let mut counts = vec![
        format!(" {}", count(seen.names_live, "name")),
        format!(", {}", count(seen.clients.len() as u64, "client")),
        format!(", {}", count(seen.lease_count(), "lease")),
        format!(", {}", count(seen.streams.len() as u64, "stream")),
        format!(", {}", count(seen.segments.len() as u64, "segment")),
    ];
    if let Some(stat) = app.facts.stat.as_ref().filter(|stat| stat.refusals.total() > 0) {
        counts.push(format!(", {}", refused_text(&stat.refusals)));
    }
    for (is_so, what) in [
        (seen.truncated, "; more than is shown"),
        (seen.incomplete, "; not all names are read yet"),
        (seen.damaged > 0, "; some clients write invalid data"),
    ] {
        counts.extend(is_so.then(|| what.to_owned()));
    }
    counts
}

/// Joins as many of the parts as fit into the width. No part is truncated, because a truncated
/// number is another number.
fn fitting(width: usize, parts: impl IntoIterator<Item = String>) -> String {
    let mut text = String::new();
    for part in parts {
        if Span::raw(&text).width() + Span::raw(&part).width() > width && !text.is_empty() {
            break;
        }
        text += &part;
    }
    text
}

/// Returns the pool's usage as a bar, with the history of the observed namespace.
fn pool_line(app: &App, width: u16) -> Line<'static> {
    const BAR_MAX: usize = 20;
    let Some(stat) = &app.facts.stat else { return Line::raw("") };
    let text = match stat.pool_bytes_max {
        u64::MAX => format!(" {}, no limit", bytes_text(stat.pool_bytes)),
        most => format!(" {} of {}", bytes_text(stat.pool_bytes), bytes_text(most)),
    };
    let bar = usize::from(width).saturating_sub(text.len() + 6).min(BAR_MAX);
    let filled = (u128::from(stat.pool_bytes) * bar as u128 / u128::from(stat.pool_bytes_max.max(1))) as usize;
    let filled = filled.min(bar);
    let history = app.facts.uses.iter().find(|one| one.kind == "namespace").map_or(&[][..], |one| &one.history);
    let highest = history.iter().max().map(|&highest| format!("lent, 0 to {}: ", bytes_text(highest)));
    let label = highest.unwrap_or_default();
    let room = usize::from(width).saturating_sub(text.len() + bar + 11 + label.len());
    let bar = format!("{}{}", "█".repeat(filled), "·".repeat(bar - filled));
    let over_time: Vec<char> = spark(history).chars().collect();
    let latest: String = over_time[over_time.len().saturating_sub(room)..].iter().collect();
    Line::from(vec![
        Span::raw(if bar.is_empty() { " pool" } else { " pool " }),
        Span::styled(bar, styled(app, Color::Cyan, Modifier::empty())),
        Span::raw(format!("{text}  {}", if latest.is_empty() { "" } else { &label })),
        Span::styled(latest, styled(app, Color::Cyan, Modifier::empty())),
    ])
}

fn draw_tabs(app: &App, area: Rect, buffer: &mut Buffer) {
    let rows = if app.filter.is_empty() {
        format!("  {}", app.rows_all)
    } else {
        format!("  {} of {}", app.rows.len(), app.rows_all)
    };
    let all = Tab::ALL.into_iter().enumerate().map(|(at, tab)| (tab, format!(" {} {} ", at + 1, tab.title())));
    let all: Vec<(Tab, String)> = all.collect();
    let width: usize = all.iter().map(|(_, text)| text.len()).sum();
    // A narrow terminal shows only the present view and the number of its rows.
    let is_narrow = width + rows.len() > usize::from(area.width);
    let mut spans = Vec::new();
    for (tab, text) in all.into_iter().filter(|(tab, _)| !is_narrow || *tab == app.tab) {
        let style = if tab == app.tab { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        spans.push(Span::styled(text, style));
    }
    spans.push(Span::raw(rows));
    Paragraph::new(Line::from(spans)).render(area, buffer);
}

fn draw_table(app: &mut App, area: Rect, buffer: &mut Buffer) {
    let columns = app.tab.columns();
    let sort = app.sort();
    app.page = usize::from(area.height.saturating_sub(1)).max(1);
    // Lay out only the visible rows, because there may be a hundred thousand rows.
    let selected = app.table.selected();
    let mut first = app.table.offset();
    if let Some(selected) = selected {
        first = first.min(selected).max((selected + 1).saturating_sub(app.page));
    }
    first = first.min(app.rows.len().saturating_sub(app.page));
    *app.table.offset_mut() = first;
    let visible = &app.rows[first..app.rows.len().min(first + app.page)];
    let shown = fitting_columns(columns, visible, usize::from(area.width));
    let widths: Vec<Constraint> = shown.iter().map(|&(_, width)| width).collect();
    let heads = shown.iter().map(|&(at, _)| {
        let mark = match sort.column {
            Some(column) if column == at && sort.is_descending => "▾",
            Some(column) if column == at => "▴",
            _ => "",
        };
        aligned(format!("{}{mark}", columns[at].head), columns[at].is_right)
    });
    let header = TableRow::new(heads).style(styled(app, Color::Cyan, Modifier::BOLD));
    let head_area = Rect { height: 1, ..area };
    let places = Layout::horizontal(widths.iter().copied()).spacing(1).split(head_area);
    let map_width = places.last().map_or(0, |place| usize::from(place.width));
    let rows = visible.iter().map(|row| table_row(app, row, &shown, map_width));
    let table = Table::new(rows, widths)
        .header(header)
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = ratatui::widgets::TableState::new().with_selected(selected.map(|at| at - first));
    StatefulWidget::render(table, area, buffer, &mut state);
}

/// Returns the columns that fit side by side into the width, each with its width. The columns that yield get what the
/// others leave. A column that does not fit is omitted.
fn fitting_columns(columns: &[Column], rows: &[Row], width: usize) -> Vec<(usize, Constraint)> {
    let mut shown = Vec::new();
    let mut left = width + 1;
    let (yielding, firm): (Vec<_>, Vec<_>) = columns.iter().enumerate().partition(|(_, column)| column.yields);
    for (at, column) in firm.into_iter().chain(yielding) {
        let longest = || rows.iter().map(|row| Span::raw(&row.cells[at].text).width()).max().unwrap_or(0);
        let (least, constraint) = match column.width {
            Width::Fixed(fixed) => {
                let least = usize::from(fixed).max(if column.is_whole { longest() } else { 0 });
                (least, Constraint::Length(least as u16))
            }
            Width::Share(share, least) => (usize::from(least), Constraint::Fill(share)),
        };
        if let Some(rest) = left.checked_sub(least + 1) {
            left = rest;
            shown.push((at, constraint));
        }
    }
    shown.sort_by_key(|&(at, _)| at);
    shown
}

fn table_row<'a>(app: &App, row: &'a Row, shown: &[(usize, Constraint)], map_width: usize) -> TableRow<'a> {
    let columns = app.tab.columns();
    let cells = shown.iter().map(|&(at, _)| {
        if let Subject::Segment(segment) = row.subject
            && at + 1 == columns.len()
        {
            return Line::raw(map_text(app, segment, map_width));
        }
        aligned(row.cells[at].text.clone(), columns[at].is_right)
    });
    TableRow::new(cells)
}

fn map_text(app: &App, segment: usize, width: usize) -> String {
    let Some(segment) = app.facts.sampled.seen.segments.get(segment) else { return String::new() };
    if !segment.is_mapped {
        return "slots unknown".to_owned();
    }
    segment.map(width).into_iter().map(|state| LEGEND[state.map_or(0, |state| state as usize + 1)].0).collect()
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
    let cells = columns.zip(row.cells.iter().map(Cell::details));
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
        Question::Delete(Order { is_stream, name }) => {
            let (what, effect) = if *is_stream {
                ("stream", "Its producer and its subscribers get an error.")
            } else {
                ("name", "Readers keep it until they drop their leases.")
            };
            format!(" Delete the {what} \"{}\"?\n {effect}\n\n y/N ", printable(name))
        }
        Question::End(process) => format!(
            " Ask process {} of user {} to end (SIGTERM)?\n {}\n Its published values stay, and its leases end.\n\n y/N ",
            process.pid,
            process.uid,
            printable(&process.command)
        ),
    }
}

/// Draws a window in the middle of the area. The window is as large as its text.
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

/// Returns a frame as text, as lines without trailing spaces.
pub fn text(buffer: &Buffer) -> String {
    let area = buffer.area;
    let mut text = String::new();
    for y in area.top()..area.bottom() {
        let mut line = String::new();
        let mut x = area.left();
        while x < area.right() {
            let symbol = buffer[(x, y)].symbol();
            line.push_str(symbol);
            // A symbol that is two columns wide is in the first of two cells, so skip the second
            // cell.
            x += (Span::raw(symbol).width() as u16).max(1);
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}
