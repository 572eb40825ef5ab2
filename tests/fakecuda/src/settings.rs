//! The settings of a test: environment variables, read once, and files in the control folder, read at each use.

use std::env;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// A function that fails by order of the test.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Failure {
    pub function: String,
    pub code: u32,
    at: Option<u64>,
    onwards: bool,
}

impl Failure {
    /// Returns true if the call with this number, counted from 1, fails.
    pub fn hits(&self, call: u64) -> bool {
        self.at.is_none_or(|at| call == at || (self.onwards && call > at))
    }
}

pub struct Settings {
    pub folder: Option<PathBuf>,
    pub log: Option<PathBuf>,
    pub devices: u32,
    /// Bytes of each device's memory.
    pub memory_bytes: u64,
    pub zero: bool,
    pub linger: Option<Duration>,
    /// Maximum number of queued pieces of work in a stream. A call that queues one more blocks.
    pub depth: Option<u64>,
    failures: Vec<Failure>,
}

pub fn get() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| {
        let number = |name| env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
        Settings {
            folder: env::var_os("FAKECUDA_DIR").map(PathBuf::from),
            log: env::var_os("FAKECUDA_LOG").map(PathBuf::from),
            devices: number("FAKECUDA_DEVICES").unwrap_or(1).min(8) as u32,
            memory_bytes: number("FAKECUDA_MEMORY").unwrap_or(1 << 30),
            zero: env::var_os("FAKECUDA_ZERO").is_some_and(|value| value == "1"),
            linger: number("FAKECUDA_LINGER_MS").map(Duration::from_millis),
            depth: number("FAKECUDA_DEPTH"),
            failures: parse(&env::var("FAKECUDA_FAIL").unwrap_or_default()),
        }
    })
}

/// The failures of the environment and those of the folder's file `fail`, which may change while a program runs.
pub fn failures() -> Vec<Failure> {
    let settings = get();
    let mut failures = settings.failures.clone();
    if let Some(folder) = &settings.folder
        && let Ok(text) = std::fs::read_to_string(folder.join("fail"))
    {
        failures.extend(parse(&text));
    }
    failures
}

/// Returns the files that hold the stream workers while they exist: `gate` for all processes, `gate.PID` for one.
pub fn gates() -> Vec<PathBuf> {
    let folder = get().folder.iter();
    folder.flat_map(|folder| [folder.join("gate"), folder.join(format!("gate.{}", std::process::id()))]).collect()
}

/// Parses failures such as `cuMemCreate=2@3,cuMemMap=201@2+`: the function, the `CUresult`, and the number of the call
/// that fails. A plus adds all later calls. Without a number, all calls fail.
fn parse(text: &str) -> Vec<Failure> {
    let one = |entry: &str| {
        let (function, rest) = entry.trim().split_once('=')?;
        let (code, at) = rest.split_once('@').map_or((rest, None), |(code, at)| (code, Some(at)));
        let at = at.map(str::trim);
        let onwards = at.is_some_and(|at| at.ends_with('+'));
        let at = at.and_then(|at| at.trim_end_matches('+').parse().ok());
        Some(Failure { function: function.trim().to_owned(), code: code.trim().parse().ok()?, at, onwards })
    };
    text.split([',', '\n']).filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn failures_are_parsed() {
        let failures = parse("cuMemCreate=2@3, cuMemMap=201\ncuInit=100@2+,nonsense");
        assert_eq!(failures.len(), 3);
        assert!(!failures[0].hits(2) && failures[0].hits(3) && !failures[0].hits(4));
        assert!(failures[1].hits(1) && failures[1].hits(9));
        assert!(!failures[2].hits(1) && failures[2].hits(2) && failures[2].hits(3));
    }
}
