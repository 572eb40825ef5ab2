//! How a test comes onto a driver, and gets a second process.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use tensorlend_cuda::{Device, Driver};

/// Names the folder with the driver's library.
const LIBRARY: &str = "TENSORLEND_CUDA_LIB";
/// Set in a process that has that folder.
const INSIDE: &str = "TENSORLEND_CUDA_TEST_INSIDE";
/// What the other process of a test is told.
const ROLE: &str = "TENSORLEND_CUDA_TEST_ROLE";

pub use tensorlend_os::skip::skip;

/// Whether `test` shall go on in this process. If it has to be another one, which finds the driver of `TENSORLEND_CUDA_LIB`,
/// or has no other test in it, it has been run there.
pub fn on_a_driver(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_none() {
        again(test, None, Stdio::null());
        return false;
    }
    match Driver::get() {
        Ok(_) => true,
        // Who names a library wants it tested.
        Err(unavailable) if std::env::var_os(LIBRARY).is_some() => panic!("{LIBRARY}: {unavailable}"),
        Err(unavailable) => {
            skip(&format!("no CUDA: {unavailable}"));
            false
        }
    }
}

/// Tells what a device was seen to do, and which: a fake one shows nothing but what its authors believe.
pub fn observed(what: &str) {
    let devices = Driver::get().map(|driver| driver.devices().unwrap_or_default());
    println!("OBSERVED on {}: {what}", devices.unwrap_or_default().first().map_or("no device", Device::name));
}

/// What this process is to do in a test of two.
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

/// 64 bytes for an environment variable.
pub fn to_hex(bytes: &[u8; 64]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// And back.
pub fn from_hex(text: &str) -> [u8; 64] {
    std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
}
