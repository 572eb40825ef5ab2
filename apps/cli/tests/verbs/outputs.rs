//! Tests of output files: planted links, devices, and signals during a write.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::bench::{Bench, program};

const SECRET: &str = "a private key";

/// Returns the file's type and the lower bits of its mode, without following a link.
fn mode(path: &Path) -> (bool, u32) {
    let meta = fs::symlink_metadata(path).unwrap();
    (meta.is_file(), meta.permissions().mode() & 0o7777)
}

/// Every command that writes a file replaces a planted link, and leaves the file alone to which the link points.
#[test]
fn planted_links_are_replaced_and_not_followed() {
    let bench = Bench::new();
    let client = bench.client();
    client.put("t", &[1u8, 2, 3]).unwrap();
    client.append("l", client.create_from(&[7u8]).unwrap()).unwrap();
    let victim = bench.path("victim");
    for folder in ["items", "messages"] {
        fs::create_dir(bench.path(folder)).unwrap();
    }
    let mut new = bench.path("new");
    fs::write(&new, "").unwrap();
    new = fs::canonicalize(new).unwrap();
    let usual = mode(&new);
    let check = |file: &str, run: &dyn Fn()| {
        for target in [&victim, &bench.path("nothing")] {
            fs::write(&victim, SECRET).unwrap();
            fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
            let _ = fs::remove_file(bench.path(file));
            symlink(target, bench.path(file)).unwrap();
            run();
            assert_eq!(fs::read_to_string(&victim).unwrap(), SECRET, "{file}");
            assert!(!bench.path("nothing").exists(), "{file}");
            assert_eq!(mode(&bench.path(file)), usual, "{file}: a new file in place of the link");
            assert!(!bench.read(file).is_empty(), "{file}");
        }
    };
    for file in ["t.npy", "t.npz", "t.safetensors", "t.raw"] {
        check(file, &|| _ = bench.ok(&["get", "t", "-o", file]));
    }
    check("any", &|| _ = bench.ok(&["get", "t", "-o", "any", "--raw"]));
    check("all.safetensors", &|| _ = bench.ok(&["save", "t", "-o", "all.safetensors"]));
    check("items/000000.npy", &|| _ = bench.ok(&["list-get", "l", "-o", "items"]));
    check("messages/000000.npy", &|| {
        let producer = client.stream("s").open().unwrap();
        let recv = bench.start(&["recv", "s", "-o", "messages", "--count", "1", "--timeout", "60"]);
        producer.send(client.create_from(&[7u8]).unwrap()).unwrap();
        recv.done().ok();
    });
}

#[test]
fn a_replaced_file_keeps_its_mode_without_special_bits() {
    let bench = Bench::new();
    bench.client().put("t", &[1u8]).unwrap();
    for (before, after) in [(0o600, 0o600), (0o664, 0o664), (0o4755, 0o755), (0o2755, 0o755)] {
        bench.write("t.npy", "old");
        fs::set_permissions(bench.path("t.npy"), fs::Permissions::from_mode(before)).unwrap();
        bench.ok(&["get", "t", "-o", "t.npy"]);
        assert_eq!(mode(&bench.path("t.npy")), (true, after), "{before:o}");
    }
}

#[test]
fn devices_and_pipes_are_written_in_place() {
    let bench = Bench::new();
    bench.client().put("t", &[7u8, 8, 9]).unwrap();
    let inode = |path: &str| fs::metadata(path).unwrap().ino();
    let before = inode("/dev/null");
    bench.ok(&["get", "t", "-o", "/dev/null", "--raw"]);
    assert_eq!(inode("/dev/null"), before);

    let pipe = bench.path("pipe.npy");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe).unwrap()
    });
    bench.ok(&["get", "t", "-o", "pipe.npy"]);
    bench.ok(&["get", "t", "-o", "file.npy"]);
    assert_eq!(reader.join().unwrap(), bench.read("file.npy"));
    assert!(!mode(&pipe).0, "the pipe is still there");
    // These formats need a file in which the writer can move.
    fs::rename(&pipe, bench.path("pipe.npz")).unwrap();
    let reader = std::thread::spawn({
        let pipe = bench.path("pipe.npz");
        move || fs::read(pipe).unwrap()
    });
    let error = bench.fails(6, &["get", "t", "-o", "pipe.npz"]);
    assert!(error.contains("write a file"), "{error}");
    assert!(reader.join().unwrap().is_empty());

    // Standard output, into a pipe and into a file. The elements come before the command's own line.
    for path in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let to_pipe = bench.command(&["get", "t", "-o", path, "--raw"]).output().unwrap();
        assert!(to_pipe.status.success() && to_pipe.stdout.starts_with(&[7, 8, 9]), "{path}: {to_pipe:?}");
        let file = fs::File::create(bench.path("out")).unwrap();
        let status = bench.command(&["get", "t", "-o", path, "--raw"]).stdout(Stdio::from(file)).status().unwrap();
        assert!(status.success() && bench.read("out") == to_pipe.stdout, "{path}");
    }
    // A planted link to a device is a link.
    symlink("/dev/null", bench.path("planted.raw")).unwrap();
    bench.ok(&["get", "t", "-o", "planted.raw"]);
    assert_eq!(bench.read("planted.raw"), [7, 8, 9]);
    symlink("/proc/self/fd/1", bench.path("planted.bin")).unwrap();
    assert!(!bench.ok(&["get", "t", "-o", "planted.bin"]).contains('\u{7}'));
    assert_eq!(bench.read("planted.bin"), [7, 8, 9]);
}

/// A temporary file with a name, if there is one.
fn temporary(folder: &Path) -> Option<PathBuf> {
    let mut files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.find(|path| path.file_name().unwrap().to_string_lossy().starts_with('.'))
}

/// Returns true if a process has an open file of this folder that has no name or a temporary name.
fn is_writing(pid: Pid, folder: &Path) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).into_iter().flatten().flatten();
    descriptors.filter_map(|it| fs::read_link(it.path()).ok()).any(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        file.parent() == Some(folder) && (name.starts_with(".tensorlend-") || name.ends_with(" (deleted)"))
    })
}

fn is_stopped(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|state| state.starts_with(['T', 't']))
}

/// A published tensor whose write takes long enough for a signal.
fn publish_big(client: &tensorlend::Client) {
    let mut draft = client.create(tensorlend::DType::U8, &[96 << 20]).unwrap();
    draft.bytes_mut().fill(1);
    draft.publish("big").unwrap();
}

/// Runs the command until the signal arrives during its write. The folder must then contain `left` and nothing else.
fn interrupt(bench: &Bench, signal: Signal, left: &[&str], command: impl Fn() -> std::process::Command) {
    let folder = fs::canonicalize(bench.path("")).unwrap();
    let before: Vec<_> = left.iter().map(|file| bench.read(file)).collect();
    // The command may end before the signal arrives. Then the test starts it again.
    let caught = (0..100).any(|_| {
        let mut child = command().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        while child.try_wait().unwrap().is_none() && !is_writing(pid, &folder) {
            std::thread::sleep(Duration::from_micros(200));
        }
        let _ = kill_process(pid, Signal::STOP);
        while child.try_wait().unwrap().is_none() && !is_stopped(pid) {
            std::thread::sleep(Duration::from_micros(200));
        }
        let is_writing = is_writing(pid, &folder);
        let _ = kill_process(pid, signal);
        let _ = kill_process(pid, Signal::CONT);
        let status = child.wait().unwrap();
        assert_eq!(temporary(&folder), None, "{signal:?} left a file");
        let caught = is_writing && {
            let ended_by = status.signal();
            assert!(ended_by.is_none() || ended_by == Some(signal.as_raw()), "{status:?}");
            ended_by.is_some()
        };
        if !caught {
            for file in fs::read_dir(&folder).unwrap() {
                fs::remove_file(file.unwrap().path()).unwrap();
            }
            left.iter().zip(&before).for_each(|(file, bytes)| bench.write(file, bytes));
        }
        caught
    });
    assert!(caught, "{signal:?} did not arrive during a write");
    let files = fs::read_dir(&folder).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap());
    assert_eq!(files.collect::<Vec<_>>(), left, "{signal:?}");
    left.iter().zip(&before).for_each(|(file, bytes)| assert!(bench.read(file) == *bytes, "{file}"));
}

/// A signal during a write ends the command as it does at any other time, and leaves no temporary file.
#[test]
fn a_signal_during_a_write_leaves_no_file() {
    let bench = Bench::new();
    publish_big(&bench.client());
    for (signal, command) in [
        (Signal::INT, &["save", "big", "-o", "big.safetensors"][..]),
        (Signal::TERM, &["get", "big", "-o", "big.npy"]),
        (Signal::HUP, &["get", "big", "--raw", "-o", "big.bytes"]),
        (Signal::QUIT, &["get", "big", "-o", "big.npz"]),
        (Signal::KILL, &["save", "big", "-o", "big.safetensors"]),
        (Signal::KILL, &["get", "big", "-o", "big.npz"]),
    ] {
        interrupt(&bench, signal, &[], || bench.command(command));
    }
    bench.write("old.npy", "old");
    for signal in [Signal::TERM, Signal::KILL] {
        interrupt(&bench, signal, &["old.npy"], || bench.command(&["get", "big", "-o", "old.npy"]));
    }
}

/// The same command on a file system without a feature: strace makes this system call fail.
fn without(bench: &Bench, call: &str, error: &str, args: &[&str]) -> std::process::Command {
    let plain = bench.command(args);
    let mut command = std::process::Command::new("strace");
    // The tracer is not the child of the test, so the command is.
    command.args(["-D", "-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}")]);
    command.args(["-e", &format!("inject={call}:error={error}")]);
    if call == "openat" {
        // Only a file without a name is opened by the path of its folder.
        command.args(["-P", "."]);
    }
    command.arg(plain.get_program()).args(plain.get_args());
    command.env("TENSORLEND_SOCKET", bench.broker.socket()).current_dir(bench.path(""));
    command
}

/// File systems that have no files without names, or that cannot name them later, get a temporary file with a name.
#[test]
fn file_systems_without_unnamed_files() {
    if std::process::Command::new("strace").arg("-V").output().is_err() {
        tensorlend_os::skip::skip("strace is missing");
        return;
    }
    let bench = Bench::new();
    publish_big(&bench.client());
    bench.ok(&["get", "big", "--raw", "-o", "expected"]);
    let expected = bench.read("expected");
    for (call, error) in [("openat", "EOPNOTSUPP"), ("linkat", "EPERM")] {
        for replaced in [false, true] {
            if !replaced {
                let _ = fs::remove_file(bench.path("got.raw"));
            }
            let done = without(&bench, call, error, &["get", "big", "-o", "got.raw"]).output().unwrap();
            assert!(done.status.success(), "{call}: {done:?}");
            assert!(bench.read("got.raw") == expected, "{call}");
            assert_eq!(temporary(&bench.path("")), None, "{call}");
        }
    }
    for file in ["expected", "got.raw"] {
        fs::remove_file(bench.path(file)).unwrap();
    }
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let get = || without(&bench, "openat", "EOPNOTSUPP", &["get", "big", "-o", "got.raw"]);
        interrupt(&bench, signal, &[], get);
    }
}

/// `nohup` and shells ignore signals for the commands that they start in the background.
#[test]
fn ignored_signals_stay_ignored() {
    let bench = Bench::new();
    bench.client().put("t", &vec![1u8; 64 << 20]).unwrap();
    let program = program(&[] as &[&str]).get_program().to_owned();
    let script = format!(
        "trap '' HUP INT; {program:?} get t -o t.npy & child=$!; \
         while kill -HUP $child 2>/dev/null; do kill -INT $child 2>/dev/null; done; wait $child"
    );
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script]).env("TENSORLEND_SOCKET", bench.broker.socket()).current_dir(bench.path(""));
    assert!(shell.stdout(Stdio::null()).status().unwrap().success());
    assert!(bench.path("t.npy").exists());
}
