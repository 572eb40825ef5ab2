//! Runs a program at a pseudo-terminal. The program has one end, and a thread reads the other end into a screen.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

const DEADLINE: Duration = Duration::from_mins(5);
/// A line on the screen from before the program starts. The line must be there again after the program has ended.
const BEFORE: &str = "what was there before";

/// A pseudo-terminal and the program that runs at it.
pub struct Terminal {
    child: Child,
    ours: File,
    /// The program's end of the pseudo-terminal, open here too so that it outlives the program.
    theirs: OwnedFd,
    screen: Arc<Mutex<vt100::Parser>>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    /// Starts a program at a terminal of 80 columns and 24 lines, which becomes its controlling terminal.
    pub fn start(command: &mut Command) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let path = ptsname(&ours, Vec::new()).unwrap();
        let theirs =
            rustix::fs::open(path.as_c_str(), OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(24, 80, 0)));
        let end = || Stdio::from(theirs.try_clone().unwrap());
        // setsid gives the program a session with this terminal, as a shell would.
        let mut at_terminal = Command::new("setsid");
        at_terminal.args(["--ctty", "--wait"]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => at_terminal.env(name, value),
                None => at_terminal.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            at_terminal.current_dir(folder);
        }
        let started = at_terminal.env("TERM", "xterm-256color").stdin(end()).stdout(end()).stderr(end()).spawn();
        let child = started.expect("setsid, of util-linux, which every distribution has");
        let mut it = Self { child, ours: File::from(ours), theirs, screen, reader: None };
        it.resize(24, 80);
        it.screen.lock().unwrap().process(BEFORE.as_bytes());
        let (mut output, shown) = (it.ours.try_clone().unwrap(), it.screen.clone());
        it.reader = Some(std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // `read` fails when no process has the other end open any more.
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                shown.lock().unwrap().process(&bytes[..read]);
            }
        }));
        it
    }

    /// The text that the terminal shows.
    pub fn frame(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Waits until `is_right` accepts a frame, and returns that frame. Panics if the program ends or after `DEADLINE`.
    pub fn until(&mut self, what: &str, is_right: impl Fn(&str) -> bool) -> String {
        let since = Instant::now();
        loop {
            let frame = self.frame();
            if is_right(&frame) {
                return frame;
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() && since.elapsed() < DEADLINE, "not so: {what} ({ended:?})\n{frame}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn keys(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).unwrap();
    }

    pub fn resize(&mut self, lines: u16, columns: u16) {
        let size = Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        self.screen.lock().unwrap().screen_mut().set_size(lines, columns);
        tcsetwinsize(&self.ours, size).unwrap();
    }

    /// Whether the program shows the alternate screen and has turned off line mode.
    pub fn is_taken_over(&self) -> bool {
        let modes = tcgetattr(&self.theirs).unwrap().local_modes;
        self.screen.lock().unwrap().screen().alternate_screen() && !modes.contains(LocalModes::ICANON)
    }

    pub fn has_colors(&self) -> bool {
        let screen = self.screen.lock().unwrap();
        let cells = (0..24).flat_map(|line| (0..80).map(move |column| (line, column)));
        cells
            .filter_map(|(line, column)| screen.screen().cell(line, column))
            .any(|cell| cell.fgcolor() != vt100::Color::Default)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until the program has ended and has restored the terminal. Returns its exit status and the frame after
    /// that.
    pub fn end(mut self) -> (i32, String) {
        let since = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(since.elapsed() < DEADLINE, "it does not end\n{}", self.frame());
            std::thread::sleep(Duration::from_millis(2));
        };
        let modes = tcgetattr(&self.theirs).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO), "keys are echoed again, a line at a time");
        // The thread may not have read the program's last output yet.
        while self.screen.lock().unwrap().screen().alternate_screen()
            || self.screen.lock().unwrap().screen().hide_cursor()
        {
            assert!(since.elapsed() < DEADLINE, "it did not leave its screen\n{}", self.frame());
            std::thread::sleep(Duration::from_millis(2));
        }
        let frame = self.frame();
        assert!(frame.contains(BEFORE), "{frame}");
        (status.code().unwrap_or(-1), frame)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
