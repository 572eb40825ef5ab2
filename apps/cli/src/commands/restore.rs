//! `tensorlend restore`: publishes saved files after a start.

use std::path::{Path, PathBuf};

use crate::commands::load::LoadArgs;
use crate::failure::Failure;
use crate::files::FileError;
use crate::options::{Connection, Json};

const EXAMPLES: &str = "\
Examples:
  tensorlend restore boot.safetensors
  tensorlend restore /var/lib/tensorlend-restore/alice    every .safetensors file in it, in the order of their names
";

/// Publish the contents of files, except names that exist already.
///
/// For the start of a machine or a daemon (docs/how-to/save.md has units for it), and harmless at any other time. Each
/// file is read whole before its first name is published, as by load. The command reports a file that is damaged or
/// does not fit on standard error and restores the others; the exit status is that of the last failure.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RestoreArgs {
    /// Files and folders: a folder stands for its files with the extension .safetensors. It may be empty.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    json: Json,
}

impl RestoreArgs {
    pub fn run(&self, at: &Connection) -> Result<(), Failure> {
        let mut files = Vec::new();
        for path in &self.paths {
            match files_at(path) {
                Ok(more) => files.extend(more.into_iter().map(Ok)),
                Err(failure) => files.push(Err(failure)),
            }
        }
        let whole = files.len();
        let restored = files.into_iter().map(|file| self.restore(at, file?));
        let mut failures: Vec<Failure> = restored.filter_map(Result::err).collect();
        let failed = failures.len();
        let Some(last) = failures.pop() else { return Ok(()) };
        for failure in &failures {
            crate::failure::tell(failure);
        }
        Err(if whole > 1 {
            last.context(format!("{failed} of {whole} files were not restored; the last"))
        } else {
            last
        })
    }

    /// Loads one file in a session of its own. After the session has ended, the daemon may spill
    /// the loaded values to make room for the next file.
    fn restore(&self, at: &Connection, file: PathBuf) -> Result<(), Failure> {
        LoadArgs::missing_of(file).load(at, "restore")?.print(self.json)
    }
}

/// Returns the path itself. For a directory, returns its .safetensors files in the order of their
/// names.
fn files_at(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let cannot = |source| {
        let (path, remedy) = (path.to_owned(), "give a folder that can be read");
        Failure::File(FileError::Io { path, doing: "read", source, remedy })
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(cannot)? {
        let file = entry.map_err(cannot)?.path();
        if file.extension().is_some_and(|extension| extension == "safetensors") {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}
