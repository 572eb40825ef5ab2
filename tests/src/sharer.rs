//! Programs that share memory without tensorlend: holders of one object each, openers that race with its removal, and a
//! program whose children have equal memory.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tensorlend_layout::raw::View;
use tensorlend_layout::word::Word;
use tensorlend_os::map;
use tensorlend_os::memfd::{self, Access};

/// Bytes of the equal memory of each child.
pub const EQUAL_BYTES: usize = 8 << 20;

/// Runs the program that the words select, until its standard input ends.
pub fn run(words: &[String]) -> Option<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["mapped", path] => hold(mapped(File::open(path).ok()?)),
        ["open", path] => hold(File::open(path)),
        ["deleted", path] => {
            std::fs::write(path, vec![1; 8192]).ok()?;
            let view = mapped(File::open(path).ok()?);
            std::fs::remove_file(path).ok()?;
            hold(view);
        }
        ["memfd", name] => hold(memfd::create(name, 8192)),
        ["race", folder, number] => race(Path::new(folder), number.parse().ok()?),
        ["parent", kind, seconds] => parent(kind, seconds.parse().ok()?),
        ["child", "equal"] => hold(equal_bytes()),
        ["child", path] => hold(memfd_of_parent(path)),
        _ => return None,
    }
    Some(())
}

/// Prints that it is ready, and keeps the value until the input ends.
fn hold<T>(value: T) {
    println!("ready");
    let _ = std::io::stdout().flush();
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(std::hint::black_box(value));
}

/// Maps the first page of a file, and closes the file.
fn mapped(file: File) -> View {
    map::sheet(&file.into(), 4096, Access::Read).expect("the file has a page")
}

/// Bytes that are equal in each process, without two equal pages.
fn equal_bytes() -> Vec<u8> {
    (0..EQUAL_BYTES / 8).flat_map(|at| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes()).collect()
}

fn memfd_of_parent(path: &str) -> View {
    let file = File::open(path).expect("the parent has a memfd").into();
    map::sheet(&file, EQUAL_BYTES, Access::Read).expect("it has these bytes")
}

/// Starts two children with equal memory of their own, or with one memory for both, and exits with status 3.
fn parent(kind: &str, seconds: f64) {
    let memory = memfd::create("sharer", EQUAL_BYTES as u64).expect("there is memory");
    let kind = if kind == "equal" {
        kind.to_owned()
    } else {
        File::from(memory.try_clone().expect("a descriptor")).write_all(&equal_bytes()).expect("it has room");
        format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd())
    };
    let child = || {
        let mut command = Command::new("/proc/self/exe");
        command.args(["sharer", "child", &kind]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a child starts");
        child.stdout.as_mut().expect("a pipe").read_exact(&mut [0; 5]).expect("the child is ready");
        child
    };
    let mut children = [child(), child()];
    std::thread::sleep(Duration::from_secs_f64(seconds));
    for child in &mut children {
        drop(child.stdin.take());
        child.wait().expect("a child ends");
    }
    println!("out");
    eprintln!("err");
    std::process::exit(3);
}

/// The page on which a test and its openers tell each other the file that they race for.
pub struct Race(View);

impl Race {
    /// Opens the page in this folder, which must exist.
    pub fn open(folder: &Path) -> Self {
        let file =
            File::options().read(true).write(true).open(folder.join("race")).expect("the test has made the page");
        Self(map::sheet(&file.into(), 4096, Access::Write).expect("it is a page"))
    }

    fn word(&self, at: usize) -> &Word {
        self.0.at(at).expect("a word of the page")
    }

    /// The number of the present file; 0 before the first.
    pub fn file(&self) -> &Word {
        self.word(0)
    }

    /// 1 if the race is over.
    pub fn over(&self) -> &Word {
        self.word(8)
    }

    /// The file for which an opener races.
    pub fn at(&self, opener: usize) -> &Word {
        self.word(64 + opener * 64)
    }

    /// Number of times that an opener has opened a file.
    pub fn opened(&self, opener: usize) -> &Word {
        self.word(64 + opener * 64 + 8)
    }

    /// Number of opened files whose name no longer led to them while the opener held them.
    pub fn lost(&self, opener: usize) -> &Word {
        self.word(64 + opener * 64 + 16)
    }
}

/// Returns the path of a file of the race. The folder has its prefix.
pub fn racing(folder: &Path, number: u64) -> PathBuf {
    let prefix = std::fs::read_to_string(folder.join("prefix")).expect("the test has chosen a prefix");
    format!("{prefix}{number:04}").into()
}

/// Opens and maps the present file again and again, and checks each time that its name leads to it.
fn race(folder: &Path, opener: usize) {
    let race = Race::open(folder);
    let (mut present, mut path) = (0, PathBuf::new());
    while race.over().read() == 0 {
        let number = race.file().read();
        if number == 0 {
            std::thread::yield_now();
            continue;
        }
        if number != present {
            (present, path) = (number, racing(folder, number));
            race.at(opener).set(number);
        }
        let Ok(file) = File::options().read(true).write(true).open(&path) else { continue };
        race.opened(opener).add(1);
        let own = file.metadata().expect("an open file has an inode").ino();
        let leads = || std::fs::metadata(&path).is_ok_and(|found| found.ino() == own);
        let leads_now = leads();
        // Every other time, only the mapping holds the file.
        let (view, file) = match race.opened(opener).read() % 2 {
            0 => (Some(mapped(file)), None),
            _ => (None, Some(file)),
        };
        let since = Instant::now();
        while since.elapsed() < Duration::from_micros(20) {}
        if !leads_now || !leads() {
            race.lost(opener).add(1);
        }
        drop((file, view));
        // Gives the remover time without a holder.
        let since = Instant::now();
        while since.elapsed() < Duration::from_micros(number % 7 * 20) {}
    }
}
