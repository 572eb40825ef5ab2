//! `tensorlend run`: runs a Python program with the transports of the Python package.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::again;
use crate::failure::Failure;
use crate::options::Connection;

const EXAMPLES: &str = "\
Examples:
  tensorlend run train.py --epochs 3
  tensorlend run -m package.train
  tensorlend run --weights server.py
";

/// Python code that fails if the package is not installed. It imports nothing of the package.
const CHECK: &str = "import importlib.util as u, sys; sys.exit(u.find_spec('tensorlend') is None)";

/// Run a Python program unchanged, and lend the large arrays and tensors that its processes exchange.
///
/// Starts `python3 -m tensorlend.run`, which needs the Python package. Call that module with another interpreter, or with
/// options of the interpreter.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// Load each file of safetensors once per machine: load_file maps lent memory.
    #[arg(long)]
    weights: bool,
    /// PROGRAM, -m MODULE or -c CODE, and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl RunArgs {
    /// Replaces this process by the program. Returns only if that fails.
    pub fn run(&self, at: &Connection) -> Result<(), Failure> {
        if !at.namespaces().is_empty() {
            return Err(Failure::Usage(
                "run has no --namespace: its arrays are in the user's private namespace".into(),
            ));
        }
        let python = interpreter()?;
        let mut command = Command::new(&python);
        command.args(["-m", "tensorlend.run"]).args(self.weights.then_some("--weights")).args(&self.program);
        if let Some(socket) = at.socket() {
            command.env("TENSORLEND_SOCKET", socket);
        }
        Err(not_started(&python, &command.exec()))
    }
}

/// Returns the interpreter of the Python package that runs this tool, or `python3`.
fn interpreter() -> Result<OsString, Failure> {
    if let Some(python) = again::interpreter() {
        return Ok(python);
    }
    let python = OsString::from("python3");
    let found = Command::new(&python).args(["-c", CHECK]).stdin(Stdio::null()).status();
    if found.map_err(|error| not_started(&python, &error))?.success() {
        return Ok(python);
    }
    Err(Failure::Other(
        "python3 has no package tensorlend: install it with `pip install tensorlend`, or activate the environment that has it"
            .into(),
    ))
}

fn not_started(python: &OsString, error: &std::io::Error) -> Failure {
    Failure::Other(format!("cannot start {}: {error}", python.display()).into())
}
