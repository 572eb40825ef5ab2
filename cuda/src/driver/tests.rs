//! Tests of the messages without a driver, or with a wrong one. A process loads a library once, so each case has a process of its
//! own; the tests compile the wrong libraries, of functions that return a number.
#![allow(unsafe_code)]

use super::*;
use crate::api::{Api, Ipc, Pools};
use crate::pool::{IMPORTS, Pool};
use crate::{Access, Allocation, Context, Mapping};
use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use tensorlend_os::mutex::lock;
use tensorlend_os::skip::skip;

const ROLE: &str = "TENSORLEND_CUDA_TEST_ROLE";

/// A library: the result of `cuInit`, the version, the devices, the missing function and the failing one. All other functions
/// only record their calls.
struct Library {
    init: u32,
    version: u32,
    devices: u32,
    without: &'static str,
    fails: &'static str,
}

const GOOD: Library = Library { init: 0, version: 13000, devices: 1, without: "", fails: "" };

impl Library {
    /// Compiles the library into a folder, if there is a compiler.
    fn make(&self, folder: &Path) -> bool {
        let names = Api::NAMES.iter().chain(Pools::NAMES).chain(Ipc::NAMES);
        let mut source = "int dprintf(int, const char *, ...);\n".to_owned();
        for name in names.chain(&["cuGetErrorName", "cuGetErrorString"]).filter(|name| **name != self.without) {
            let (arguments, body) = match *name {
                "cuInit" => ("unsigned f".to_owned(), format!("return {};", self.init)),
                "cuDriverGetVersion" => ("int *v".to_owned(), format!("*v = {}; return 0;", self.version)),
                "cuDeviceGetCount" => ("int *n".to_owned(), format!("*n = {}; return 0;", self.devices)),
                "cuGetErrorName" => ("unsigned e, const char **t".to_owned(), "*t = \"A_NAME\"; return 0;".to_owned()),
                "cuGetErrorString" => ("unsigned e, const char **t".to_owned(), "*t = 0; return 1;".to_owned()),
                "cuDeviceGetAttribute" => ("int *v, int a, int d".to_owned(), "*v = 1; return 0;".to_owned()),
                _ if *name == self.fails => ("void".to_owned(), format!("dprintf(1, \"CALL {name}\\n\"); return 801;")),
                _ => ("void".to_owned(), format!("dprintf(1, \"CALL {name}\\n\"); return 0;")),
            };
            writeln!(source, "unsigned {name}({arguments}) {{ {body} }}").unwrap();
        }
        let file = folder.join("library.c");
        std::fs::write(&file, source).unwrap();
        let made = Command::new("cc")
            .args(["-shared", "-fPIC", "-w", "-o"])
            .arg(folder.join("libcuda.so"))
            .arg(&file)
            .status();
        // cudarc tries `libcuda.so` first; other programs load `libcuda.so.1`.
        made.is_ok_and(|status| status.success())
            && std::fs::copy(folder.join("libcuda.so"), folder.join("libcuda.so.1")).is_ok()
    }
}

/// Returns the output of a process that finds its libraries in `folder` first.
fn said(folder: &Path, role: &str) -> String {
    let text = output(folder, role);
    text.lines().find_map(|line| line.split_once("SAID ")).expect("the child ran its test").1.to_owned()
}

fn output(folder: &Path, role: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "driver::tests::in_a_child", "--nocapture"])
        .env("LD_LIBRARY_PATH", folder)
        .env(ROLE, role)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn with(library: &Library, role: &str) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    if !library.make(folder.path()) {
        skip("no C compiler to make a library with");
        return None;
    }
    Some(said(folder.path(), role))
}

#[test]
fn in_a_child() {
    match std::env::var(ROLE).as_deref() {
        Ok("get") => match Driver::get() {
            Ok(driver) => println!("SAID {} {} {}", driver.version(), driver.has_pools(), driver.has_ipc()),
            Err(unavailable) => {
                let again = Error::from(Driver::get().err().expect("the answer stays"));
                assert_eq!(again.to_string(), unavailable.to_string());
                println!("SAID {unavailable}");
            }
        },
        Ok("map") => {
            let device = Driver::get().unwrap().devices().unwrap().remove(0);
            let allocation = Allocation::create(&device, 4096).unwrap();
            println!("SAID");
            let mapping = Mapping::map(&allocation, 4096, &device, Access::Read);
            println!("SAID {}", mapping.as_ref().err().map(ToString::to_string).unwrap_or_default());
            // SAFETY: in the child the drops make no calls, and the child ends at once.
            let child = unsafe { libc::fork() };
            drop((mapping, allocation));
            if child == 0 {
                // SAFETY: the call only ends the process.
                unsafe { libc::_exit(0) };
            }
            // SAFETY: the child was created above, and nothing is written.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        }
        Ok("devices") => println!("SAID {}", Driver::get().unwrap().devices().unwrap_err()),
        Ok("fork") => {
            Driver::get().unwrap();
            // SAFETY: the child calls nothing that allocates or locks, and ends at once.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let forked = matches!(Driver::get(), Err(Unavailable::Forked));
                // SAFETY: the call only ends the process.
                unsafe { libc::_exit(if forked { 7 } else { 1 }) };
            }
            let mut status = 0;
            // SAFETY: the child was created above, and one int is written.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            println!("SAID {}", libc::WEXITSTATUS(status));
        }
        Ok("fork during a free") => {
            let context = Context::primary(&Driver::get().unwrap().devices().unwrap()[0]).unwrap();
            let imported = Pool::import(std::io::stdin().as_fd()).unwrap().import_pointer(&context, &[0; 64]).unwrap();
            // Another thread may hold the lock while it frees an import.
            let imports = lock(&IMPORTS);
            // SAFETY: in the child the drop makes no calls, and the child ends at once or by the alarm.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: the call sets a timer of this process.
                unsafe { libc::alarm(60) };
                drop(imported);
                // SAFETY: the call only ends the process.
                unsafe { libc::_exit(7) };
            }
            drop(imports);
            let mut status = 0;
            // SAFETY: the child was created above, and one int is written.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            println!("SAID {}", libc::WEXITSTATUS(status));
        }
        _ => {}
    }
}

#[test]
fn no_library() {
    let folder = tempfile::tempdir().unwrap();
    let text = said(folder.path(), "get");
    if text.starts_with(char::is_numeric) {
        skip("there is a driver here");
        return;
    }
    assert!(text.contains("libcuda"), "{text}");
    // A file with this name that is not a library counts as a missing library.
    std::fs::write(folder.path().join("libcuda.so.1"), "no library").unwrap();
    assert_eq!(said(folder.path(), "get"), text);
}

#[test]
fn libraries_of_all_kinds() {
    let cases = [
        (Library { ..GOOD }, "13.0 true true"),
        (Library { version: 12020, ..GOOD }, "12.2 true true"),
        (Library { version: 12010, ..GOOD }, "supports CUDA 12.1, and tensorlend needs 12.2 or newer"),
        (Library { init: 34, ..GOOD }, "stub of the CUDA toolkit"),
        (Library { init: 100, ..GOOD }, "finds no device"),
        (Library { devices: 0, ..GOOD }, "finds no device"),
        (Library { init: 803, ..GOOD }, "cuInit returned A_NAME (803): see nvidia-smi"),
        (Library { init: 123456, ..GOOD }, "cuInit returned A_NAME (123456)"),
        (Library { without: "cuInit", ..GOOD }, "too old: its libcuda lacks cuInit;"),
        (Library { without: "cuGetErrorString", ..GOOD }, "lacks cuGetErrorString;"),
        (Library { without: "cuMemCreate", ..GOOD }, "lacks cuMemCreate;"),
        (Library { without: "cuPointerGetAttributes", ..GOOD }, "lacks cuPointerGetAttributes;"),
        (Library { without: "cuMemPoolImportPointer", ..GOOD }, "13.0 false true"),
        (Library { without: "cuIpcCloseMemHandle", ..GOOD }, "13.0 true false"),
    ];
    for (library, wanted) in cases {
        let Some(text) = with(&library, "get") else { return };
        assert!(text.contains(wanted), "{text}\nshould say: {wanted}");
    }
}

#[test]
fn a_call_that_fails_is_told() {
    if let Some(text) = with(&Library { fails: "cuDeviceGet", ..GOOD }, "devices") {
        assert_eq!(text, "asking about device 0: cuDeviceGet returned A_NAME (801)");
    }
}

/// Returns the calls in order, after the first line of output.
fn calls(library: &Library) -> Option<Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    if !library.make(folder.path()) {
        skip("no C compiler to make a library with");
        return None;
    }
    let output = output(folder.path(), "map");
    let after = output.split_once("SAID").expect("the child ran its test").1;
    Some(after.lines().filter_map(|line| line.strip_prefix("CALL ")).map(ToOwned::to_owned).collect())
}

#[test]
fn a_mapping_is_undone_in_reverse_and_once() {
    let (reserve, map, access) = ("cuMemAddressReserve", "cuMemMap", "cuMemSetAccess");
    let (unmap, free, release) = ("cuMemUnmap", "cuMemAddressFree", "cuMemRelease");
    // A forked child drops everything, too, and calls nothing.
    for (fails, wanted) in [
        ("", &[reserve, map, access, unmap, free, release][..]),
        (reserve, &[reserve, release]),
        (map, &[reserve, map, free, release]),
        (access, &[reserve, map, access, unmap, free, release]),
        (unmap, &[reserve, map, access, unmap, release]),
    ] {
        let Some(calls) = calls(&Library { fails, ..GOOD }) else { return };
        assert_eq!(calls, wanted, "with {fails} failing");
    }
}

#[test]
fn a_forked_child_is_refused() {
    if let Some(text) = with(&GOOD, "fork") {
        assert_eq!(text, "7");
    }
}

#[test]
fn a_forked_child_drops_an_import_while_its_parent_frees_another() {
    if let Some(text) = with(&GOOD, "fork during a free") {
        assert_eq!(text, "7");
    }
}

#[test]
fn messages_say_what_to_do() {
    for (unavailable, wanted) in [
        (Unavailable::NoLibrary, "install the NVIDIA driver"),
        (Unavailable::NoSymbol("cuMemCreate"), "cuMemCreate"),
        (Unavailable::Stub, "LD_LIBRARY_PATH"),
        (Unavailable::TooOld(Version::from_number(11080)), "11.8"),
        (Unavailable::NoDevice, "CUDA_VISIBLE_DEVICES"),
        (Unavailable::Forked, "spawn"),
    ] {
        assert!(unavailable.to_string().contains(wanted), "{unavailable}");
    }
    assert_eq!(Version::from_number(-1), Version { major: 0, minor: 0 });
    assert_eq!(Version::from_number(12090).to_string(), "12.9");
}
