//! Writes the stub of the compiled module with docstrings. maturin puts it into wheels (pyproject.toml, `include`).

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=backend/stub.py");
    println!("cargo::rerun-if-changed=src");
    // cargo runs the script at each build if a file is missing, as this one is in a source distribution.
    println!("cargo::rerun-if-changed=tensorlend/_twins.py");
    println!("cargo::rerun-if-env-changed=PYO3_PYTHON");
    let stub = Path::new(&env::var_os("OUT_DIR").expect("cargo sets it")).join("_native.pyi");
    // maturin names the interpreter for which it builds.
    let python = env::var_os("PYO3_PYTHON").unwrap_or_else(|| "python3".into());
    let done = Command::new(&python).arg("backend/stub.py").arg(stub).status();
    assert!(done.is_ok_and(|status| status.success()), "{} is missing, or backend/stub.py failed", python.display());
}
