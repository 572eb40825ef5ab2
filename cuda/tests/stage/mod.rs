//! Running a test with a driver, and in a second process.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use tensorlend_cuda::{Device, Driver};

/// The variable that names the folder with the driver's library.
const LIBRARY: &str = "TENSORLEND_CUDA_LIB";
/// The variable that is set in a process that uses that folder.
const INSIDE: &str = "TENSORLEND_CUDA_TEST_INSIDE";
/// The variable with the role of a test's other process.
const ROLE: &str = "TENSORLEND_CUDA_TEST_ROLE";

pub use tensorlend_os::skip::skip;

/// Returns true if `test` must continue in this process. If it needs another process, one that finds the driver of
/// `TENSORLEND_CUDA_LIB` or runs no other test, this function has run it there.
pub fn on_a_driver(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_none() {
        again(test, None, Stdio::null());
        return false;
    }
    match Driver::get() {
        Ok(_) => true,
        // A user who names a library wants it tested.
        Err(unavailable) if std::env::var_os(LIBRARY).is_some() => panic!("{LIBRARY}: {unavailable}"),
        Err(unavailable) => {
            skip(&format!("no CUDA: {unavailable}"));
            false
        }
    }
}

/// Prints an observed behaviour, and the device: a fake device shows only the behaviour that its authors expect.
pub fn observed(what: &str) {
    let devices = Driver::get().map(|driver| driver.devices().unwrap_or_default());
    println!("OBSERVED on {}: {what}", devices.unwrap_or_default().first().map_or("no device", Device::name));
}

/// Returns the role of this process in a test of two.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Runs the other process of a test to its end.
pub fn as_role(test: &str, role: &str, fd: impl Into<OwnedFd>) {
    again(test, Some(role), Stdio::from(fd.into()));
}

fn again(test: &str, role: Option<&str>, stdin: Stdio) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(INSIDE, "1").stdin(stdin);
    if let Some(folder) = std::env::var_os(LIBRARY) {
        command.env("LD_LIBRARY_PATH", folder);
    }
    if let Some(role) = role {
        command.env(ROLE, role);
    }
    let output = command.output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{test} {}: {}\n{out}\n{err}", role.unwrap_or_default(), output.status);
    assert!(out.contains("1 passed"), "{test} did not run:\n{out}");
    for line in
        out.lines().filter(|line| !line.is_empty() && !line.starts_with("running") && !line.starts_with("test "))
    {
        println!("{line}");
    }
    eprint!("{err}");
}

/// Encodes 64 bytes for an environment variable.
pub fn to_hex(bytes: &[u8; 64]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Decodes 64 bytes from the text of [`to_hex`].
pub fn from_hex(text: &str) -> [u8; 64] {
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
}
