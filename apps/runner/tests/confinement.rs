//! Models that name files, and the confinement of the processes that load models.

mod common;

use common::{LONG, Runner, broker, client, draft, eventually, models};
use rten_onnx::onnx::{DataLocation, DataType, GraphProto, StringStringEntryProto, TensorProto};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tensorlend::{Client, Error};
use tensorlend_model::{ModelOptions, ModelRequest, Models};

const SECRET: &[u8] = b"a key that only the runner's user may read";

/// Publishes a model whose output is the contents of the file at `location`, as far as the engine returns them. Returns
/// the output, or the reason of the refusal.
fn read_by_model(client: &Client, location: &str) -> Result<Vec<u8>, String> {
    let entry = |key: &str, value: &str| StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) };
    let length = SECRET.len().to_string();
    let stolen = TensorProto {
        name: Some("stolen".into()),
        dims: vec![SECRET.len() as i64],
        data_type: Some(DataType::UINT8),
        data_location: Some(DataLocation::EXTERNAL),
        external_data: vec![entry("location", location), entry("offset", "0"), entry("length", &length)],
        ..TensorProto::default()
    };
    let file = models::file(GraphProto {
        node: vec![models::node("Identity", &["stolen"], &["y"]), models::node("Identity", &["x"], &["z"])],
        initializer: vec![stolen],
        input: vec![models::value("x", DataType::FLOAT, &[models::Of(1)])],
        output: vec![
            models::value("y", DataType::UINT8, &[models::Of(SECRET.len() as i64)]),
            models::value("z", DataType::FLOAT, &[models::Of(1)]),
        ],
        ..GraphProto::default()
    });
    let models = Models::new(client);
    models.put("thief", &file, &ModelOptions::default()).unwrap();
    let request = ModelRequest::new().input("x", draft(client, &[1], &[1.0f32])).output("y");
    match models.open("thief").unwrap().run(request, LONG) {
        Ok(answer) => Ok(answer.get("y").unwrap().as_slice::<u8>().unwrap().to_vec()),
        Err(Error::Answer { why, .. }) => Err(why),
        Err(other) => panic!("{other}"),
    }
}

fn secret_is_not_read(options: &[&str]) {
    let broker = broker();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&path).unwrap();
    std::io::Write::write_all(&mut file, SECRET).unwrap();
    let mut runner = Runner::start_in(broker.socket(), options, &[], Some(folder.path()));
    let client = client(&broker);
    let upwards = format!("{}{}", "../".repeat(32), path.strip_prefix("/").unwrap().display());
    for location in ["secret", path.to_str().unwrap(), &upwards] {
        let why =
            read_by_model(&client, location).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_err();
        assert!(why.contains("external data") && why.contains("onnx.save"), "{location}: {why}");
    }
    assert!(runner.is_running());
}

#[test]
fn rten_gives_a_model_no_file() {
    secret_is_not_read(&[]);
}

#[test]
fn onnx_runtime_gives_a_model_no_file() {
    let Some(library) = common::onnxruntime() else { return };
    secret_is_not_read(&["--onnxruntime", library.to_str().unwrap()]);
}

/// A library that each process of the runner loads. After SIGUSR1, it writes a line for each attempt, with the error.
const PROBE: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static void attempt(const char *what, long result) {
    int why = errno;
    dprintf(2, "PROBE %d %s %s\n", getpid(), what, result < 0 ? strerrorname_np(why) : "OK");
}
static void probe(int signal) {
    const char *secret = getenv("PROBE_SECRET");
    char link[64], *none[] = { NULL };
    attempt("read", open(secret, O_RDONLY));
    attempt("environ", open("/proc/self/environ", O_RDONLY));
    attempt("cores", open("/proc/cpuinfo", O_RDONLY));
    attempt("relative", open("secret", O_RDONLY));
    attempt("create", open(getenv("PROBE_NEW"), O_WRONLY | O_CREAT, 0600));
    attempt("chmod", chmod(secret, 0640));
    attempt("tcp", socket(AF_INET, SOCK_STREAM, 0));
    attempt("udp", socket(AF_INET6, SOCK_DGRAM, 0));
    attempt("unix", socket(AF_UNIX, SOCK_SEQPACKET, 0));
    attempt("exec", execve("/nowhere", none, none));
    attempt("execat", syscall(SYS_execveat, -1, "/nowhere", none, none, 0));
    pid_t child = fork();
    if (child == 0) _exit(0);
    attempt("fork", child);
    if (child > 0) waitpid(child, NULL, 0);
    attempt("signal", kill(getppid(), 0));
    attempt("uring", syscall(SYS_io_uring_setup, 0, NULL));
    int memory = memfd_create("probe", MFD_CLOEXEC);
    snprintf(link, sizeof link, "/proc/self/fd/%d", memory);
    attempt("memfd", open(link, O_RDWR | O_CLOEXEC));
    dprintf(2, "PROBE %d done OK\n", getpid());
}
__attribute__((constructor)) static void start(void) { signal(SIGUSR1, probe); }
"#;

/// Compiles [`PROBE`] into this folder.
fn probe(folder: &Path) -> Option<PathBuf> {
    if tensorlend_tests::skip_without("cc") {
        return None;
    }
    let (source, library) = (folder.join("probe.c"), folder.join("probe.so"));
    std::fs::write(&source, PROBE).unwrap();
    let mut compile = Command::new("cc");
    let done = tensorlend_tests::run(compile.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Some(library)
}

/// The results of the attempts of a process.
fn attempts(runner: &Runner, pid: u32) -> BTreeMap<String, String> {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::USR1).unwrap();
    let lines = || {
        let log = runner.log();
        let of = format!("PROBE {pid} ");
        let lines = log.lines().filter_map(|line| line.split_once(&of)?.1.split_once(' '));
        lines.map(|(what, result)| (what.to_owned(), result.to_owned())).collect::<BTreeMap<_, _>>()
    };
    eventually("the attempts", || lines().contains_key("done"));
    lines()
}

fn confined(options: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let Some(library) = probe(folder.path()) else { return };
    let (secret, new) = (folder.path().join("secret"), folder.path().join("new"));
    std::fs::write(&secret, SECRET).unwrap();
    let broker = broker();
    let [preload, secret, new] = [&library, &secret, &new].map(|path| path.to_str().unwrap());
    let environment = [("LD_PRELOAD", preload), ("PROBE_SECRET", secret), ("PROBE_NEW", new)];
    let mut runner = Runner::start_in(broker.socket(), options, &environment, Some(folder.path()));
    let client = client(&broker);
    let models = Models::new(&client);
    models.put("affine", &models::affine(2.0), &ModelOptions::default()).unwrap();
    let mut model = models.open("affine").unwrap();
    let mut run = || {
        let request = ModelRequest::new().input("x", draft(&client, &[1, 3], &[1.0f32; 3]));
        let answer = model.run(request, LONG).unwrap();
        assert_eq!(answer.get("y").unwrap().as_slice::<f32>().unwrap(), [3.0; 3]);
    };
    run();
    let [worker] = runner.workers()[..] else { panic!("{:?}", runner.workers()) };

    // The supervisor is not confined, so the attempts work as such. Kernels without IPv6 or io_uring are left out.
    let free = attempts(&runner, runner.pid());
    for (what, result) in free.iter().filter(|(what, _)| !["udp", "uring"].contains(&what.as_str())) {
        assert_eq!(result, if what.starts_with("exec") { "ENOENT" } else { "OK" }, "{what}");
    }
    std::fs::remove_file(new).unwrap();

    let confined = attempts(&runner, worker);
    let is = |what: &str, wanted: &str| assert_eq!(confined[what], wanted, "{what}: {confined:?}");
    for what in ["chmod", "tcp", "udp", "exec", "execat", "fork", "signal", "uring"] {
        is(what, "EPERM");
    }
    for what in ["unix", "memfd", "cores"] {
        is(what, "OK");
    }
    is("relative", "ENOENT");
    if runner.log().contains("offers no Landlock") {
        tensorlend_tests::skip("files of a worker: the kernel has no Landlock");
    } else {
        for what in ["read", "environ", "create"] {
            is(what, "EACCES");
        }
        assert!(!Path::new(new).exists());
    }
    // All threads have the filters, also those that the engine has started.
    for thread in std::fs::read_dir(format!("/proc/{worker}/task")).unwrap() {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        assert!(status.contains("\nSeccomp:\t2\n") && status.contains("\nNoNewPrivs:\t1\n"), "{status}");
    }
    let directory = std::fs::read_link(format!("/proc/{worker}/cwd")).unwrap();
    assert!(directory.to_str().unwrap().ends_with(" (deleted)"), "{}", directory.display());
    run();
    assert!(runner.is_running());
}

#[test]
fn a_worker_with_rten_is_confined() {
    confined(&[]);
}

#[test]
fn a_worker_with_onnx_runtime_is_confined() {
    let Some(library) = common::onnxruntime() else { return };
    confined(&["--onnxruntime", library.to_str().unwrap()]);
}

#[test]
fn onnx_runtime_computes_in_a_confined_worker() {
    let Some(library) = common::onnxruntime() else { return };
    let broker = broker();
    let _runner = Runner::start(&broker, &["--onnxruntime", library.to_str().unwrap()]);
    let client = client(&broker);
    let models = Models::new(&client);
    models.put("weighty", &models::weighty(), &ModelOptions::default()).unwrap();
    let mut model = models.open("weighty").unwrap();
    for rows in [1u64, 1000] {
        let x = draft(&client, &[rows, 8], &vec![1.0f32; rows as usize * 8]);
        let answer = model.run(ModelRequest::new().input("x", x), LONG).unwrap();
        assert_eq!(answer.get("y").unwrap().as_slice::<f32>().unwrap()[..2], [224.0, 232.0]);
    }
    eventually("its statistics", || {
        models.statistics("weighty").unwrap().iter().any(|of| of.engine.starts_with("ONNX Runtime"))
    });
}

/// The path of the socket is relative to a directory that the worker has left.
#[test]
fn a_confined_worker_comes_back_after_a_restart_of_the_daemon() {
    let mut daemon = tensorlend_tests::keeper::Service::start("");
    let folder = daemon.socket().parent().unwrap().to_owned();
    let mut runner = Runner::start_in(Path::new("socket"), &[], &[], Some(&folder));
    let client = daemon.client();
    let models = Models::new(&client);
    models.put("affine", &models::affine(2.0), &ModelOptions::default()).unwrap();
    let run = || {
        let request = ModelRequest::new().input("x", draft(&client, &[1, 3], &[1.0f32; 3]));
        let answer = models.open("affine")?.run(request, LONG)?;
        assert_eq!(answer.get("y").unwrap().as_slice::<f32>().unwrap(), [3.0; 3]);
        Ok::<(), Error>(())
    };
    run().unwrap();
    let workers = runner.workers();
    for _ in 0..2 {
        daemon.restart();
        eventually("a response after the restart", || run().is_ok());
        assert_eq!(runner.workers(), workers);
    }
    assert!(runner.is_running());
}

/// The supervisor passes the name to the worker on its command line.
#[test]
fn a_name_of_a_model_is_no_option() {
    let broker = broker();
    let _runner = Runner::start(&broker, &[]);
    let client = client(&broker);
    let models = Models::new(&client);
    for name in ["--version", "--onnxruntime=/nowhere.so"] {
        models.put(name, &models::affine(2.0), &ModelOptions::default()).unwrap();
        let request = ModelRequest::new().input("x", draft(&client, &[1, 3], &[1.0f32; 3]));
        let answer = models.open(name).unwrap().run(request, LONG).unwrap();
        assert_eq!(answer.get("y").unwrap().as_slice::<f32>().unwrap(), [3.0; 3]);
    }
}
