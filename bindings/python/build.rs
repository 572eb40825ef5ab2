//! Writes the stub of the compiled module with docstrings. maturin puts it into wheels (pyproject.toml, `include`).

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=backend/stub.py");
    println!("cargo::rerun-if-changed=src");
    let stub = Path::new(&env::var_os("OUT_DIR").expect("cargo sets it")).join("_native.pyi");
    let done = Command::new("python3").arg("backend/stub.py").arg(stub).status();
    assert!(done.is_ok_and(|status| status.success()), "python3 is missing, or could not write the stub");
}
