//! Tests of `tensorlend top`: frames as text, and frames on a terminal.

mod terminal;

use crate::bench::{Bench, Running};
use terminal::Terminal;

#[test]
fn a_frame_as_text() {
    let bench = Bench::new();
    let client = bench.client();
    client.put("camera/front", &[0u8; 4096]).unwrap();
    client.put("weights", &vec![0f32; 1 << 16]).unwrap();
    let lease = client.get("camera/front").unwrap();

    // Standard output is not a terminal here, so the command needs no `--once`.
    let frame = bench.ok(&["top", "--tab", "names", "--sort", "bytes"]);
    let lines: Vec<&str> = frame.lines().collect();
    assert!(
        lines[0].contains("tensorlendd 0.") && lines[0].contains(&format!("pid {}", std::process::id())),
        "{frame}"
    );
    assert!(lines[4].starts_with("NAME") && lines[4].contains("BYTES▾"), "{frame}");
    assert!(lines[5].starts_with("weights") && lines[5].contains("256.0 KiB"), "{frame}");
    assert!(lines[6].starts_with("camera/front") && lines[6].contains("[4096]"), "{frame}");
    assert_eq!(lines.len(), 7, "{frame}");

    let frame = bench.ok(&["top", "--once", "--tab", "leases"]);
    assert!(frame.contains("camera/front") && frame.contains("4.0 KiB"), "{frame}");
    let frame = bench.ok(&["top", "--once", "--tab", "names", "--filter", "WEIGHTS"]);
    assert!(frame.contains("weights") && !frame.contains("camera"), "{frame}");
    let frame = bench.ok(&["top", "--once", "--tab", "clients"]);
    assert!(frame.contains("tensorlend top") && frame.contains("itself"), "{frame}");
    let frame = bench.ok(&["top", "--once", "--tab", "segments"]);
    assert!(frame.contains("host") && frame.contains('░') && frame.contains('█'), "{frame}");
    let frame = bench.ok(&["top", "--once"]);
    assert!(frame.contains("namespace") && frame.contains("pool"), "{frame}");
    drop(lease);
    let error = bench.fails(2, &["top", "--once", "--tab", "names", "--sort", "colour"]);
    assert!(error.contains("\"bytes\""), "{error}");
    assert_eq!(bench.run(&["top", "--tab", "nothing"]).status, 2);
}

#[test]
fn rates_of_streams_follow_from_two_looks() {
    let bench = Bench::new();
    let client = bench.client();
    let stream = client.stream("camera").capacity(8).open().unwrap();
    let running = bench.start(&["top", "--once", "--tab", "streams", "--interval", "0.5"]);
    for _ in 0..4 {
        stream.send(client.create(tensorlend::DType::U8, &[16]).unwrap()).unwrap();
    }
    let frame = running.done().ok();
    assert!(frame.contains("camera") && frame.contains(" 4 ") && frame.contains("4/8"), "{frame}");
}

#[test]
fn without_a_daemon_there_is_nothing_to_show() {
    let error = Running::start(&mut crate::bench::program(&["--socket", "/nonexistent", "top"])).done().fails(3);
    assert!(error.contains("no tensorlend daemon"), "{error}");
}

#[test]
fn a_session_at_a_terminal() {
    let bench = Bench::new();
    let client = bench.client();
    client.put("camera/front", &[0u8; 64]).unwrap();
    client.put("weights", &vec![0f32; 1 << 16]).unwrap();
    let evil = "evil\u{202e}cod";
    client.put(evil, &[0u8; 8]).unwrap();
    let mut top = Terminal::start(&mut bench.command(&["top", "--interval", "0.1", "--tab", "names"]));
    let frame = top.until("names are shown", |frame| frame.contains("weights") && frame.contains("camera/front"));
    assert!(frame.contains("evil\\u{202e}cod") && !frame.contains('\u{202e}'), "{frame}");
    assert!(top.is_taken_over());
    // Order by bytes, the largest first.
    top.keys("sss");
    top.until("the order is another", |frame| {
        let line = |word| frame.lines().position(|line| line.contains(word));
        frame.contains("BYTES▾") && line("weights") < line("camera/front")
    });
    top.keys("/front\r");
    top.until("the others are hidden", |frame| frame.contains("camera/front") && !frame.contains("weights"));
    // A new name appears without a key, and the frame follows the terminal's size.
    client.put("front2", &[0u8; 8]).unwrap();
    top.until("a new name is seen", |frame| frame.contains("front2"));
    top.resize(24, 100);
    top.until("the frame is wider", |frame| frame.lines().any(|line| line.chars().count() > 85));
    // No second resize before the next key. If a key and the resize signal arrive together, crossterm, which polls
    // edge-triggered, returns the signal first and the key only together with the next key. The wide frame shows that the
    // signal has arrived.
    top.keys("g");
    top.until("a row is chosen", |frame| frame.contains("camera/front"));
    top.keys("x");
    top.until("it asks", |frame| frame.contains("Delete the name \"camera/front\"?"));
    top.keys("n");
    top.until("nothing was done", |frame| frame.contains("nothing was done"));
    assert!(client.exists("camera/front").unwrap());
    top.keys("xy");
    top.until("it is deleted", |frame| frame.contains("deleted the name \"camera/front\""));
    assert!(!client.exists("camera/front").unwrap() && client.exists("weights").unwrap());
    top.keys("q");
    let (status, left) = top.end();
    assert_eq!(status, 0, "{left}");
    assert!(!left.contains("weights"), "the terminal shows again what it showed before:\n{left}");
}

#[test]
fn a_client_is_asked_to_end_after_a_yes() {
    let bench = Bench::new();
    bench.write("in.raw", [7]);
    let put = bench.start(&["put", "here", "in.raw", "--dtype", "u8", "--shape", "1", "--ephemeral"]);
    put.line();
    let mut top = Terminal::start(&mut bench.command(&["top", "--interval", "0.1", "--tab", "clients"]));
    // Wait for the first frame: a key typed before the program takes over the terminal would be read in line mode.
    top.until("clients are shown", |frame| frame.contains("tensorl"));
    top.keys("/tensorlend put\r");
    top.until("one client is left", |frame| frame.contains(" 1 of 2"));
    top.keys("x");
    let pid = put.pid();
    top.until("it asks", |frame| frame.contains(&format!("Ask process {pid} of user")));
    top.keys("y");
    top.until("it was asked", |frame| frame.contains(&format!("process {pid} was asked to end")));
    // The signal may end the process, or the process may handle the signal and exit.
    assert_ne!(put.done().status, 0);
    top.until("it is gone", |frame| frame.contains(" 0 of 1"));
    // A signal too must restore the terminal.
    top.signal(rustix::process::Signal::TERM);
    let (_, left) = top.end();
    assert!(!left.contains("Clients"), "{left}");
}

#[test]
fn ctrl_c_ends_it_and_no_color_is_respected() {
    let bench = Bench::new();
    bench.client().put("weights", &[0u8; 8]).unwrap();
    for (variable, has_colors) in [("", true), ("1", false)] {
        let mut command = bench.command(&["top", "--interval", "0.1", "--tab", "names"]);
        command.env("NO_COLOR", variable);
        let mut top = Terminal::start(&mut command);
        top.until("names are shown", |frame| frame.contains("weights"));
        assert_eq!(top.has_colors(), has_colors);
        top.keys("\u{3}");
        assert_eq!(top.end().0, 0);
    }
}
