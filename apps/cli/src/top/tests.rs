//! Frames of constant samples, on a terminal of 80 columns and 24 lines.

use std::time::Duration;
use tensorlend::observe::{ClientNo, CursorNo, SlotNo, StreamLine};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use tensorlend::observe::{
    ClientSeen, LeaseSeen, Observation, Origin, Sampled, SegmentSeen, SlotSeen, SlotState, States, StreamSeen,
    SubscriberSeen, ValueSeen,
};
use tensorlend::{DType, Policy, Stat};

use super::app::{App, Mode, Order, Then};
use super::draw::{draw, text};
use super::facts::{Facts, Use};
use super::table::Tab;

const MB: u64 = 1 << 20;

fn value(name: &str, slot: u32, bytes: u64, leases: u64) -> ValueSeen {
    ValueSeen {
        origin: Origin::Name(name.into()),
        owner: ClientNo::new(1),
        slot: SlotNo::new(slot),
        generation: 3,
        bytes,
        is_dataset: false,
        dtype: Some(DType::F32),
        shape: Some(vec![bytes as usize / 4]),
        timestamp_ns: 0,
        leases,
    }
}

fn lease(slot: u32, bytes: u64, value: Option<usize>, seconds: u64) -> LeaseSeen {
    LeaseSeen {
        holder: ClientNo::new(2),
        pid: 200,
        owner: ClientNo::new(1),
        slot: SlotNo::new(slot),
        is_of_segment: false,
        count: 1,
        bytes,
        value,
        age: Duration::from_secs(seconds),
        is_older: seconds > 60,
    }
}

fn facts() -> Facts {
    let client = |number, pid, label: &str| ClientSeen {
        number,
        epoch: 1,
        pid,
        uid: 1000,
        label: label.into(),
        age: Duration::from_mins(5),
        bytes: 64 * MB,
        command: Some(format!("python {label}.py")),
        ..ClientSeen::default()
    };
    let slot = |slot, offset, bytes, state| SlotSeen { slot, offset, bytes, state, value: None };
    let slots = vec![
        slot(SlotNo::new(0), 0, 16 * MB, SlotState::Live),
        slot(SlotNo::new(1), 16 * MB, 16 * MB, SlotState::Leased),
        slot(SlotNo::new(2), 32 * MB, 16 * MB, SlotState::Retired),
    ];
    let seen = Observation {
        namespace: "lab".into(),
        bytes_lent: 64 * MB,
        bytes_max: u64::MAX,
        names_live: 3,
        clients: vec![client(ClientNo::new(1), 100, "producer"), client(ClientNo::new(2), 200, "reader")],
        segments: vec![SegmentSeen {
            owner: ClientNo::new(1),
            bytes: 64 * MB,
            slots_max: 256,
            is_mapped: true,
            slots,
            ..SegmentSeen::default()
        }],
        values: vec![
            value("weights", 0, 16 * MB, 0),
            value("camera/front", 1, 2 * MB, 1),
            value("evil\u{1b}[2J\u{202e}cod", 3, 64, 0),
        ],
        leases: vec![lease(2, 4 * MB, None, 3600), lease(1, 2 * MB, Some(1), 5)],
        streams: vec![StreamSeen {
            name: "frames".into(),
            index: StreamLine::new(0),
            id: 9,
            producer: ClientNo::new(1),
            capacity: 64,
            policy: Policy::Block,
            sent: Some(1234),
            held: 3,
            is_closed: false,
            subscribers: vec![SubscriberSeen {
                client: ClientNo::new(2),
                cursor: CursorNo::new(0),
                lag: Some(3),
                lost: 7,
            }],
        }],
        ..Observation::default()
    };
    let history = vec![0, 32 * MB, 64 * MB];
    let stat =
        Stat { version: "1.2.3".into(), pid: 42, mode: "user".into(), pool_bytes_max: 128 * MB, ..Stat::default() };
    Facts {
        stat: Some(Stat { pool_bytes: 64 * MB, ..stat }),
        uses: vec![Use { kind: "namespace", who: "lab".into(), bytes: 64 * MB, history, ..Use::default() }],
        sampled: Sampled { states: States::of(&seen), seen, rates: [(9, 29.97)].into(), lost: [(9, 7)].into() },
        ..Facts::default()
    }
}

fn app(tab: Tab) -> App {
    let mut app = App::new(tab, false);
    app.take(facts());
    app
}

fn frame_of(app: &mut App, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(app, frame.area(), frame.buffer_mut())).unwrap();
    text(terminal.backend().buffer())
}

fn frame(app: &mut App) -> String {
    frame_of(app, 80, 24)
}

fn press(app: &mut App, keys: &str) -> Then {
    let mut then = Then::Nothing;
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\t' => KeyCode::Tab,
            '\u{1b}' => KeyCode::Esc,
            other => KeyCode::Char(other),
        };
        then = app.key(KeyEvent::new(code, KeyModifiers::NONE));
    }
    then
}

fn line_of(frame: &str, words: &str) -> usize {
    frame.lines().position(|line| line.contains(words)).unwrap_or_else(|| panic!("no {words:?} in\n{frame}"))
}

#[test]
fn the_head_tells_of_the_whole() {
    let frame = frame(&mut app(Tab::Use));
    assert!(frame.starts_with(" lab  tensorlendd 1.2.3 pid 42 (user mode), up 0.0 s\n"), "{frame}");
    assert!(frame.contains(" pool ██████████·········· 64.0 MiB of 128.0 MiB  lent, 0 to 64.0 MiB: ▁▅█\n"), "{frame}");
    assert!(frame.contains(" 3 names, 2 clients, 2 leases, 1 stream, 1 segment\n"), "{frame}");
    assert!(
        frame.contains(" lent 64.0 MiB: 16.0 MiB live, 32.0 MiB leased (16.0 MiB retired), 16.0 MiB free\n"),
        "{frame}"
    );
    assert!(frame.ends_with("? help\n"), "{frame}");
    assert_eq!(frame.lines().count(), 24);
}

#[test]
fn each_view_shows_its_facts() {
    for (tab, words) in [
        (Tab::Use, &["lab", "namespace", "64.0 MiB", "▁▅█"][..]),
        (Tab::Names, &["camera/front", "f32", "2.0 MiB", "100 producer"]),
        (Tab::Leases, &["> 60 min", "old value of 100 produc", "200 reader", "camera/front"]),
        (Tab::Streams, &["frames", "1234", "30.0/s", "3/64", "block"]),
        (Tab::Clients, &["100", "1000", "alive", "LEASED▾", "python reader"]),
        (Tab::Segments, &["host", "75 %", "░░░░░░░░██████████▓▓▓▓▓▓▓"]),
    ] {
        let frame = frame(&mut app(tab));
        for word in words {
            assert!(frame.contains(word), "{tab:?} without {word:?}:\n{frame}");
        }
    }
}

#[test]
fn names_do_not_steer_the_terminal() {
    let mut app = app(Tab::Names);
    press(&mut app, "/evil\n\n");
    let frame = frame(&mut app);
    assert!(frame.contains("evil\\u{1b}[2J\\u{202e}cod"), "{frame}");
    assert!(!frame.contains(['\u{1b}', '\u{202e}']));
}

#[test]
fn rows_are_ordered_filtered_and_told_in_full() {
    let mut app = app(Tab::Names);
    let at = |app: &mut App, words: &str| line_of(&frame(app), words);
    assert!(at(&mut app, "camera/front") < at(&mut app, "weights"));
    press(&mut app, "sss");
    assert!(frame(&mut app).contains("BYTES▾"));
    assert!(at(&mut app, "weights") < at(&mut app, "camera/front"));
    press(&mut app, "r");
    assert!(at(&mut app, "evil") < at(&mut app, "camera/front"));
    press(&mut app, "/CAM\n");
    let filtered = frame(&mut app);
    assert!(
        filtered.contains("camera/front") && !filtered.contains("weights") && filtered.contains("1 of 3"),
        "{filtered}"
    );
    press(&mut app, "\n");
    assert!(frame(&mut app).contains("2097152"), "{}", frame(&mut app));
    press(&mut app, "\n\u{1b}");
    assert!(frame(&mut app).contains("weights"));
}

#[test]
fn a_name_is_deleted_after_a_yes_and_not_before() {
    let mut app = app(Tab::Names);
    assert_eq!(press(&mut app, "x"), Then::Nothing);
    assert!(frame(&mut app).contains("Delete the name \"camera/front\"?"), "{}", frame(&mut app));
    for no in ["n", "\n", "\u{1b}", "x", "q"] {
        app.mode = Mode::Table;
        press(&mut app, "x");
        assert_eq!(press(&mut app, no), Then::Nothing);
        assert!(matches!(app.mode, Mode::Table) && app.said == "nothing was done");
    }
    assert_eq!(press(&mut app, "xy"), Then::Do(Order { is_stream: false, name: "camera/front".into() }));
    press(&mut app, "4");
    assert_eq!(press(&mut app, "xy"), Then::Do(Order { is_stream: true, name: "frames".into() }));
    press(&mut app, "6x");
    assert!(app.said.contains("segment") && matches!(app.mode, Mode::Table));
    // The sample's process does not exist.
    press(&mut app, "5x");
    assert!(matches!(app.mode, Mode::Table) && app.said.contains("process 100"), "{}", app.said);
}

/// A question concerns its original subject, whatever the next sample contains.
#[test]
fn the_chosen_row_stays_chosen() {
    let mut app = app(Tab::Names);
    press(&mut app, "j");
    assert_eq!(app.row().unwrap().cells[0].text, "evil\\u{1b}[2J\\u{202e}cod");
    press(&mut app, "j");
    let mut more = facts();
    more.sampled.seen.values.insert(0, value("another", 7, 1, 0));
    app.take(more);
    assert_eq!(app.row().unwrap().cells[0].text, "weights");
    let mut fewer = facts();
    fewer.sampled.seen.values.clear();
    app.take(fewer);
    assert!(app.row().is_none());
    assert_eq!(press(&mut app, "xy"), Then::Nothing);
}

#[test]
fn a_pause_keeps_the_picture_and_nothing_is_missed() {
    let mut app = app(Tab::Names);
    press(&mut app, "p");
    let mut later = facts();
    later.sampled.seen.values.push(value("later", 9, 1, 0));
    app.take(later);
    let paused = frame(&mut app);
    assert!(paused.contains("PAUSED") && !paused.contains("later"), "{paused}");
    press(&mut app, "p");
    let going = frame(&mut app);
    assert!(!going.contains("PAUSED") && going.contains("later"), "{going}");
}

#[test]
fn help_and_the_end() {
    let mut app = app(Tab::Names);
    press(&mut app, "?");
    let help = frame(&mut app);
    assert!(help.contains("order by the next column") && help.contains("█ leased"), "{help}");
    assert_eq!(press(&mut app, "q"), Then::Nothing, "it closes the help");
    assert_eq!(press(&mut app, "q"), Then::Quit);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    press(&mut app, "/");
    assert_eq!(app.key(interrupt), Then::Quit);
}

#[test]
fn numbers_in_json_have_one_unit() {
    let row = |tab, at: usize| app(tab).json()["rows"][at].clone();
    assert_eq!(row(Tab::Streams, 0)["rate"], 29.97, "messages per second");
    assert_eq!((&row(Tab::Leases, 0)["age"], &row(Tab::Leases, 0)["bytes"]), (&3600.0.into(), &(4 * MB).into()));
    assert_eq!(row(Tab::Clients, 0)["age"], 300.0, "seconds, as for leases");
    assert_eq!(row(Tab::Segments, 0)["in use"], 75);
    assert_eq!(row(Tab::Names, 1)["name"], "evil\u{1b}[2J\u{202e}cod");
    assert_eq!(app(Tab::Use).json()["bytes"]["leased"], 32 * MB);
}

/// Drawing must not panic for any size.
#[test]
fn any_size_can_be_drawn() {
    for tab in Tab::ALL {
        for keys in ["", "?", "\n", "x", "/x"] {
            let mut app = app(tab);
            press(&mut app, keys);
            for (width, height) in [(1, 1), (2, 30), (10, 3), (33, 8), (80, 24), (300, 90)] {
                frame_of(&mut app, width, height);
            }
        }
        frame(&mut App::new(tab, true));
    }
}

/// A part of a shape is another shape, so other columns give way.
#[test]
fn a_long_shape_is_whole() {
    let mut app = app(Tab::Names);
    let mut long = facts();
    long.sampled.seen.values[0].shape = Some(vec![1024, 100_000, 3, 65_536]);
    app.take(long);
    for columns in [48, 60, 80, 120] {
        let frame = frame_of(&mut app, columns, 24);
        assert!(frame.contains("[1024, 100000, 3, 65536]") && frame.contains("16.0 MiB"), "{frame}");
        assert_eq!(frame.contains("OWNER"), columns >= 80, "{frame}");
    }
}

#[test]
fn many_rows_are_scrolled_through() {
    let mut app = app(Tab::Names);
    let mut many = facts();
    many.sampled.seen.values = (0..1000).map(|n| value(&format!("n{n:04}"), n, 1, 0)).collect();
    app.take(many);
    frame(&mut app);
    press(&mut app, "G");
    let last = frame(&mut app);
    assert!(last.contains("n0999") && last.contains("n0983") && !last.contains("n0982"), "{last}");
    press(&mut app, "kkk");
    assert!(frame(&mut app).contains("n0999"), "it does not scroll before it has to");
    press(&mut app, "g");
    assert!(frame(&mut app).contains("n0000"));
}

#[test]
fn without_colors_there_are_none() {
    let colors = |has_colors| {
        let mut app = App::new(Tab::Use, has_colors);
        app.take(facts());
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| draw(&mut app, frame.area(), frame.buffer_mut())).unwrap();
        terminal.backend().buffer().content().iter().filter(|cell| cell.fg != Color::Reset).count()
    };
    assert_eq!(colors(false), 0);
    assert!(colors(true) > 0);
}

/// Returns the numbers of a frame, with their fractions.
fn numbers(text: &str) -> std::collections::BTreeSet<String> {
    let pieces = text.split(|c: char| !c.is_ascii_digit() && c != '.' && c != '/');
    let pieces = pieces.map(|piece| piece.trim_matches(['.', '/']));
    pieces.filter(|piece| piece.starts_with(|c: char| c.is_ascii_digit())).map(str::to_owned).collect()
}

/// A cut number is another number.
#[test]
fn a_narrow_terminal_cuts_no_number() {
    let frame = |tab, columns: u16| {
        let mut app = app(tab);
        app.facts.sampled.seen.streams[0].sent = Some(12_345_678_901);
        app.take(app.facts.clone());
        let area = ratatui::layout::Rect::new(0, 0, columns, 24);
        let mut buffer = ratatui::buffer::Buffer::empty(area);
        draw(&mut app, area, &mut buffer);
        text(&buffer)
    };
    for tab in Tab::ALL {
        let whole = numbers(&frame(tab, 300));
        for columns in [30, 41, 52, 63, 80, 120] {
            let narrow = frame(tab, columns);
            // The first column of text may contain numbers, and may be cut.
            let cut: Vec<_> = numbers(&narrow).into_iter().filter(|it| !whole.contains(it)).collect();
            assert!(cut.is_empty(), "{tab:?} at {columns} columns: {cut:?}\n{narrow}");
        }
    }
}
