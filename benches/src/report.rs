//! Output of results: tables on the terminal, JSON in a folder.

use crate::table::Table;
use std::path::PathBuf;

#[derive(Debug)]
pub struct Report {
    name: &'static str,
    folder: PathBuf,
    /// Whether the benchmark takes few samples of few sizes, which only tests the benchmark itself.
    pub quick: bool,
    parts: serde_json::Map<String, serde_json::Value>,
}

impl Report {
    /// Begins a report, and prints the machine. It is quick with `--quick`, with the variable `TENSORLEND_QUICK`, or if
    /// not run by `cargo bench`.
    pub fn begin(name: &'static str) -> Self {
        let has = |wanted: &str| std::env::args().any(|arg| arg == wanted);
        let quick = has("--quick") || std::env::var_os("TENSORLEND_QUICK").is_some() || !has("--bench");
        let folder = std::env::var_os("TENSORLEND_RESULTS_DIR").map_or_else(default_folder, PathBuf::from);
        std::fs::create_dir_all(&folder).expect("the folder for results can be made");
        let mut report = Self { name, folder, quick, parts: serde_json::Map::new() };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let line_ns = crate::placement::line_ns();
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().unwrap_or("?").to_owned();
        let line = line_ns.map_or("not measured".into(), crate::table::nanos);
        println!("{name}: {cores} cores, a cache line from core to core {line}, load before {load}");
        report.value("machine", serde_json::json!({ "cores": cores, "cache_line_ns": line_ns, "load_before": load }));
        report
    }

    pub fn table(&mut self, key: &str, table: &Table) {
        println!("{table}");
        self.value(key, table.json());
    }

    pub fn value(&mut self, key: &str, value: impl Into<serde_json::Value>) {
        self.parts.insert(key.to_owned(), value.into());
    }

    /// Prints a line that belongs to the result, and stores it.
    pub fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        println!("{text}");
        let notes = self.parts.entry("notes").or_insert_with(|| serde_json::json!([]));
        notes.as_array_mut().expect("notes are a list").push(text.into());
    }

    /// Writes the results as JSON.
    pub fn end(self) {
        let path = self.folder.join(format!("{}.json", self.name));
        let text = serde_json::to_string_pretty(&self.parts).expect("figures are plain values");
        std::fs::write(&path, text + "\n").expect("the figures can be written");
        println!("\nwritten to {}", self.folder.display());
    }
}

/// Next to the build: the program is in target/PROFILE/deps.
fn default_folder() -> PathBuf {
    let program = std::env::current_exe().expect("a program knows where it is");
    program.ancestors().nth(3).expect("it lies in a build folder").join("tensorlend")
}
