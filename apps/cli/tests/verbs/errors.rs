//! Tests of exit statuses, error messages, and the commands that query the daemon.

use std::io::Read;
use std::process::Stdio;

use tensorlend_daemon::Bytes;

use crate::bench::{Bench, Running, program, repository};

#[test]
fn no_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nobody.sock");
    let socket = socket.to_str().unwrap();
    let iris = repository("examples/data/iris.npy");
    for args in [
        &["ping"][..],
        &["stat"],
        &["ls"],
        &["put", "x", &iris],
        &["get", "x", "-o", "x.npy"],
        &["info", "x"],
        &["rm", "x"],
        &["rename", "x", "y"],
        &["copy", "x", "y"],
        &["watch", "x"],
        &["send", "x", &iris],
        &["recv", "x", "-o", "x"],
        &["append", "x", &iris],
        &["list-get", "x", "-o", "x"],
    ] {
        for command in [
            program(args).env("TENSORLEND_SOCKET", socket),
            program(args).args(["--socket", socket]),
            program(&[&["--socket", socket], args].concat()).env("TENSORLEND_SOCKET", "/elsewhere"),
        ] {
            let error = Running::start(command.current_dir(folder.path())).done().fails(3);
            assert!(error.contains(socket) && error.contains("run `tensorlendd --daemonize`"), "{error}");
        }
    }
    // An empty variable counts as unset, so the program tries the default sockets. On a machine where a daemon listens
    // there, `ping` succeeds.
    let done = Running::start(program(&["ping"]).env("TENSORLEND_SOCKET", "")).done();
    assert!([0, 3].contains(&done.status), "{}", done.err);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_socket_option_comes_before_the_variable() {
    let bench = Bench::new();
    let socket = bench.broker.socket().to_str().unwrap();
    Running::start(program(&["ping", "--socket", socket]).env("TENSORLEND_SOCKET", "/nowhere")).done().ok();
    let error = bench.fails(3, &["ping", "--namespace", "nobody's"]);
    assert!(error.contains("nobody's"), "{error}");
}

#[test]
fn things_that_do_not_exist() {
    let bench = Bench::new();
    for args in [
        &["get", "nobody", "-o", "x.npy"][..],
        &["info", "nobody"],
        &["rm", "nobody"],
        &["rename", "nobody", "x"],
        &["copy", "nobody", "x"],
        &["recv", "nobody", "-o", "x"],
        &["list-get", "nobody", "-o", "x"],
        &["save", "nobody", "-o", "x.safetensors"],
    ] {
        let error = bench.fails(4, args);
        assert!(error.contains("\"nobody\""), "{args:?}: {error}");
    }
}

#[test]
fn wrong_use() {
    let bench = Bench::new();
    bench.write("in.raw", [1, 2]);
    for args in [
        &[][..],
        &["nonsense"],
        &["put", "x"],
        &["put", "x", "in.raw", "--dtype", "u8"],
        &["put", "x", "in.raw", "--shape", "2"],
        &["put", "x", "in.raw", "--dtype", "u7", "--shape", "2"],
        &["put", "x", "in.raw", "--dtype", "u8", "--shape", "two"],
        &["get", "x"],
        &["watch", "x", "--timeout", "-1"],
        &["send", "s"],
        &["send", "s", "in.raw", "--capacity", "0"],
        &["send", "s", "in.raw", "--policy", "hope"],
        &["recv", "s", "-o", "x", "--from", "middle"],
        &["completions", "command.com"],
        &["save", "x"],
        &["save", "-o", "x.safetensors"],
    ] {
        let done = bench.run(args);
        assert_eq!((done.status, done.out.as_str()), (2, ""), "{args:?}");
        assert!(done.err.contains("Usage:") || done.err.contains("--help"), "{args:?}: {}", done.err);
    }
    for args in [
        &["put", "x", "in.raw"][..],
        &["put", "x", "in.raw", "--dtype", "u8", "--shape", "3"],
        &["put", "x", "in.gif"],
        &["save", "*", "-o", "x.npz"],
        &["save", "[a", "-o", "x.safetensors"],
        &["load", "in.raw"],
        &["put", "x", &repository("examples/data/iris.npy"), "--dtype", "u8", "--shape", "3"],
    ] {
        bench.fails(2, args);
    }
    assert!(bench.names().is_empty());
}

#[test]
fn a_full_pool() {
    let bench = Bench::with(|config| {
        config.pool.bytes_max = Some(Bytes(8 << 20));
        config.pool.spare_segments = 0;
    });
    std::fs::File::create(bench.path("big.raw")).unwrap().set_len(16 << 20).unwrap();
    let error = bench.fails(7, &["put", "big", "big.raw", "--dtype", "u8", "--shape", "16777216"]);
    for word in ["\"big\"", "big.raw", "pool.bytes_max"] {
        assert!(error.contains(word), "{word}: {error}");
    }
    bench.fails(7, &["send", "s", "big.raw", "--dtype", "u8", "--shape", "16777216"]);
    // A value that fits is accepted: the failed commands leaked no memory of the pool.
    std::fs::File::create(bench.path("big.raw")).unwrap().set_len(6 << 20).unwrap();
    bench.ok(&["put", "big", "big.raw", "--dtype", "u8", "--shape", "6291456"]);
    assert_eq!(bench.names(), ["big"]);
}

#[test]
fn figures() {
    let bench = Bench::new();
    bench.ok(&["put", "iris", &repository("examples/data/iris.npy")]);
    let client = bench.client();
    let lease = client.get("iris").unwrap();
    let stat = bench.json_line(&["stat"]);
    assert!(stat["pool"]["bytes_max"].as_u64().unwrap() > 0);
    assert!(stat["bytes_in_use"].as_u64().unwrap() >= 4800);
    assert_eq!(stat["bytes_leased"], 4800);
    assert_eq!(stat["segments"], 1);
    assert_eq!(stat["names"], 1);
    assert_eq!(stat["clients"], 2);
    assert_eq!(stat["pid"], std::process::id());
    drop(lease);
    assert_eq!(bench.json_line(&["stat"])["bytes_leased"], 0);
    let both = client.dataset().add("a", client.create_from(&[0u8; 4096]).unwrap()).unwrap();
    both.add("b", client.create_from(&[0u8; 8192]).unwrap()).unwrap().publish("both").unwrap();
    let lease = client.get_dataset("both").unwrap();
    let stat = bench.json_line(&["stat"]);
    let leased = stat["bytes_leased"].as_u64().unwrap();
    assert!(leased > 4096 + 8192, "{stat}");
    assert_eq!(client.instruments().leased().unwrap(), leased, "a client counts as the command does");
    assert_eq!(
        (&stat["lease_holders"][0]["leased_bytes"], &stat["lease_holders"][0]["leases"]),
        (&leased.into(), &1.into())
    );
    drop(lease);
    let text = bench.ok(&["stat"]);
    for line in ["pool.bytes_max ", "bytes_in_use ", "bytes_leased ", "segments ", "names ", "clients "] {
        assert!(text.lines().any(|l| l.starts_with(line)), "{line}: {text}");
    }
    assert!(text.contains("bytes_leased    0 bytes (0 B)"), "{text}");

    assert!(bench.ok(&["ping"]).starts_with("tensorlendd "));
    assert!(bench.json_line(&["ping"])["round_trip_ns"].as_u64().unwrap() > 0);
}

#[test]
fn help_and_completions_need_no_daemon() {
    let help = |args: &[&str]| {
        let mut command = program(args);
        Running::start(command.env("TENSORLEND_SOCKET", "/nowhere")).done().ok()
    };
    let text = help(&["--help"]);
    for word in ["Examples:", "Exit status:", "  3  no daemon", "put", "completions"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(!text.contains("__peer"));
    assert!(help(&["--version"]).starts_with("tensorlend "));
    for verb in
        ["put", "get", "save", "load", "ls", "rm", "watch", "send", "recv", "stat", "trace", "doctor", "completions"]
    {
        assert!(help(&[verb, "--help"]).contains("Example"), "{verb}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = help(&["completions", shell]);
        assert!(
            script.contains("tensorlend")
                && script.contains("list-get")
                && script.contains("held-by")
                && script.contains("doctor")
                && !script.contains("__peer"),
            "{shell}"
        );
    }
}

#[test]
fn a_closed_pipe_is_the_end_and_no_panic() {
    let bench = Bench::new();
    let client = bench.client();
    client.put("t", &[1u8]).unwrap();
    for args in
        [&["ls"][..], &["stat"], &["info", "t", "--json"], &["watch", "t"], &["completions", "bash"], &["--help"]]
    {
        let mut command = bench.command(args);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut stderr = child.stderr.take().unwrap();
        // The child may or may not have started: in both cases the pipe is closed before the child prints.
        let start = std::time::Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if start.elapsed() > std::time::Duration::from_mins(5) {
                child.kill().unwrap();
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        };
        let mut text = String::new();
        stderr.read_to_string(&mut text).unwrap();
        assert_eq!((status.code(), text.as_str()), (Some(0), ""), "{args:?}");
    }
}
