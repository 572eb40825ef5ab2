//! Drivers that return errors, and machines with no driver, no device, or the wrong one: every process reports the
//! cause, and host memory continues to work.

use std::path::Path;
use std::process::Command;
use tensorlend::{Client, Error};
use tensorlend_tests::location::Location;
use tensorlend_tests::machine::{config, folder_with, on_machine, placed, placed_with, surround};
use tensorlend_tests::{Agent, Daemon, eventually, run};

const MB: u64 = 1 << 20;

fn device_bytes(client: &Client) -> u64 {
    let stat = client.stat().unwrap();
    let charged: u64 = stat.uids.iter().map(|uid| uid.device_bytes).sum();
    stat.devices.iter().map(|device| device.bytes_in_use).sum::<u64>().max(charged)
}

/// Returns true if an error is clear to a user: it names the attempted operation and the driver's error.
fn is_clear(error: &str, function: &str) -> bool {
    error.contains(function) || error.contains("CUDA_ERROR") || error.contains("device")
}

/// Functions that the daemon calls for its first segment, by allocator.
const OF_THE_DAEMON: [(&str, &[&str]); 2] = [
    ("pool", &["cuMemCreate", "cuMemExportToShareableHandle"]),
    (
        "async",
        &[
            "cuDevicePrimaryCtxRetain",
            "cuStreamCreate",
            "cuMemPoolCreate",
            "cuMemPoolExportToShareableHandle",
            "cuMemAllocFromPoolAsync",
            "cuMemPoolExportPointer",
            "cuStreamSynchronize",
        ],
    ),
];

#[test]
fn errors_of_the_daemons_driver() {
    on_machine("errors_of_the_daemons_driver", |machine| {
        for (allocator, functions) in OF_THE_DAEMON {
            let daemon = machine.daemon(&config(allocator, "idle_bytes_max = 0\n"));
            for function in functions {
                let client = daemon.client();
                let location = Location::named("cuda", &client);
                let failing = machine.fail(&format!("{function}=999"));
                match location.put(&client, "x", 1, MB) {
                    // The daemon did not need the function this time, or the failure concerned the client's own copy.
                    Ok(_) => println!("{allocator}: {function} is not needed"),
                    Err(error) => {
                        println!("{allocator}: {function}: {error}");
                        assert!(is_clear(&error.to_string(), function), "{function}: {error}");
                        assert!(matches!(error, Error::Refused { .. } | Error::Device { .. }), "{error:?}");
                    }
                }
                Location::Host.put(&client, "host", 2, MB).unwrap();
                assert!(Location::Host.get(&client, "host").unwrap().is(2));
                drop(failing);
                location.put(&client, "x", 3, MB).unwrap();
                assert!(location.get(&client, "x").unwrap().is(3));
                client.delete("x").unwrap();
                client.delete("host").unwrap();
                drop(client);
                let watcher = daemon.client();
                eventually("the return of all", || device_bytes(&watcher) == 0);
            }
            let watcher = daemon.client();
            assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
            eventually("the return of all", || {
                let stat = watcher.stat().unwrap();
                (stat.bytes_in_use, stat.segments, stat.clients) == (0, 0, 1)
            });
        }
    });
}

/// Functions that a client calls.
const OF_A_CLIENT: [&str; 24] = [
    "cuInit",
    "cuDeviceGetCount",
    "cuDeviceGetUuid",
    "cuMemImportFromShareableHandle",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemRelease",
    "cuMemAddressFree",
    "cuDevicePrimaryCtxRetain",
    "cuCtxPushCurrent",
    "cuCtxSynchronize",
    "cuMemcpyHtoD",
    "cuMemcpyDtoH",
    "cuMemcpyHtoDAsync",
    "cuMemHostRegister",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventQuery",
    "cuMemPoolImportFromShareableHandle",
    "cuMemPoolImportPointer",
];

/// Checks the errors of a client whose driver fails: the client survives, and its host memory works. Returns the number
/// of errors.
fn check_errors(agent: &mut Agent, function: &str, when: &str) -> usize {
    let mut errors = 0;
    let orders = [
        "value theirs",
        "hold theirs",
        "put x 300000 1",
        "put y 3000000 2",
        "value x",
        "hold y",
        "draft 100000",
        "draft-at-work 5000",
        "release y",
        "release theirs",
        "drop-drafts",
        "value y",
    ];
    for order in orders {
        if let Err(error) = agent.ask(order) {
            errors += 1;
            let follows = ["not held", "no tensor named", "no stream"];
            let clear = is_clear(&error, function) || follows.iter().any(|text| error.contains(text));
            assert!(clear, "{function}{when}: {order}: {error}");
        }
        assert!(agent.ended().is_none(), "{function}{when}: {order}: the client died");
    }
    errors
}

fn errors_of_clients(allocator: &str) {
    on_machine(&format!("errors_of_clients_drivers_with_{allocator}"), |machine| {
        let daemon = machine.daemon(&config(allocator, "quarantine_ms = 0\nidle_bytes_max = 0\n"));
        let watcher = daemon.client();
        let owner = daemon.client();
        Location::named("cuda", &owner).put(&owner, "theirs", 5, 1000).unwrap();
        let start = device_bytes(&watcher);
        let mut noticed = 0;
        for function in OF_A_CLIENT {
            // The function fails once, or from the second call on.
            for when in ["@1", "@2+"] {
                let fail = format!("{function}=999{when}");
                let mut agent = placed_with(&daemon.socket(), "cuda", &[("FAKECUDA_FAIL", &fail)]);
                let errors = check_errors(&mut agent, function, when);
                noticed += usize::from(errors > 0);
                println!("{fail}: {errors} errors");
                // After a single transient error everything works.
                if when == "@1" && !["cuInit", "cuDeviceGetCount"].contains(&function) {
                    agent.ok("put x 1000 3");
                    assert_eq!(agent.ok("value x"), "3");
                }
                agent.ok(&format!("connect {} host", daemon.socket().display()));
                agent.ok("put h 1000 4");
                assert_eq!(agent.ok("value h"), "4");
                agent.exit();
                for name in ["x", "y", "h"] {
                    watcher.delete(name).unwrap();
                }
                eventually(&format!("the return of all after {fail}"), || device_bytes(&watcher) == start);
            }
        }
        assert!(noticed > 15, "{noticed}");
        owner.delete("theirs").unwrap();
        drop(owner);
        assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
        eventually("the return of all", || {
            let stat = watcher.stat().unwrap();
            (stat.bytes_in_use, stat.segments, stat.clients, stat.frozen) == (0, 0, 1, 0)
        });
    });
}

#[test]
fn errors_of_clients_drivers_with_pool() {
    errors_of_clients("pool");
}

#[test]
fn errors_of_clients_drivers_with_async() {
    errors_of_clients("async");
}

/// Starts a daemon with such a driver; also returns the output of its command line about devices.
fn start_daemon(folder: &Path, config: &str, arguments: &[&str], variables: &[(&str, &str)]) -> (Daemon, String) {
    let daemon = Daemon::start_as(config, |program| {
        let mut command = Command::new(program);
        surround(&mut command, folder).args(arguments).envs(variables.iter().copied());
        command
    });
    let shown = run(&mut daemon.cli(&["stat"]));
    assert!(shown.status.success());
    let text = String::from_utf8(shown.stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with("device")).map_or("", |line| &line["device".len()..]);
    let said = line.trim().to_owned();
    assert_eq!(daemon.client().stat().unwrap().device, said);
    (daemon, said)
}

fn host_memory_works(daemon: &Daemon) {
    let (a, b) = (daemon.client(), daemon.client());
    Location::Host.put(&a, "x", 1, MB).unwrap();
    assert!(Location::Host.get(&b, "x").unwrap().is(1));
    assert!(a.devices().is_empty() && a.stat().unwrap().devices.is_empty());
    let none = Location::Device(tensorlend::Uuid([1; 16])).put(&a, "y", 1, 100).unwrap_err();
    assert!(none.is_device(), "{none}");
    assert!(none.to_string().contains("see [cuda] in its configuration"), "{none}");
}

#[test]
fn machines_without_a_device_that_can_be_lent_say_why() {
    let fake: &[&str] = &["--allow-fake-cuda"];
    let all = config("pool", "");
    let missing = "[cuda]\ndevices = [\"GPU-00000000-0000-0000-0000-000000000001\"]\n";
    on_machine("machines_without_a_device_that_can_be_lent_say_why", |machine| {
        let folder = machine.path("");
        let empty = folder_with(None);
        type Case<'c> = (&'c Path, &'c str, &'c [&'c str], &'c [(&'c str, &'c str)], &'c str);
        let cases: [Case<'_>; 9] = [
            (&folder, "", fake, &[], "cuda.devices of the daemon's configuration names no device"),
            (empty.path(), &all, fake, &[], "no libcuda.so.1: install the NVIDIA driver"),
            (&folder, &all, fake, &[("FAKECUDA_FAIL", "cuInit=34")], "is the stub of the CUDA toolkit"),
            (&folder, &all, fake, &[("FAKECUDA_FAIL", "cuInit=999")], "cuInit returned"),
            (&folder, &all, fake, &[("FAKECUDA_DEVICES", "0")], "the NVIDIA driver finds no device"),
            (&folder, &all, fake, &[("FAKECUDA_FAIL", "cuDriverGetVersion=999")], "or newer: install a newer driver"),
            (&folder, missing, fake, &[], "names GPU-00000000-0000-0000-0000-000000000001, and the driver shows this"),
            (&folder, &all, &[], &[], "start tensorlendd with --allow-fake-cuda if it is meant"),
            (&folder, &config("pool", "").replace("256MiB", "1MiB"), fake, &[], "cuda.bytes_max allows 1 MiB"),
        ];
        for (folder, config, arguments, variables, expected) in cases {
            let (daemon, said) = start_daemon(folder, config, arguments, variables);
            println!("{said}");
            assert!(said.contains(expected), "{said:?} does not say {expected:?}");
            assert!(said.starts_with("no device memory is lent: "), "{said}");
            host_memory_works(&daemon);
        }
    });
}

/// The daemon has a device, and the client has none: the client cannot read device tensors, but everything else works.
#[test]
fn a_client_without_a_driver_says_so() {
    on_machine("a_client_without_a_driver_says_so", |machine| {
        let daemon = machine.daemon(&config("pool", ""));
        let client = daemon.client();
        let location = Location::named("cuda", &client);
        location.put(&client, "x", 1, 1000).unwrap();
        Location::Host.put(&client, "host", 2, 1000).unwrap();
        let empty = folder_with(None);
        let nowhere = empty.path().display().to_string();
        let cases: [(&[(&str, &str)], &str); 2] =
            [(&[("LD_LIBRARY_PATH", &nowhere)], "no libcuda.so.1"), (&[("FAKECUDA_DEVICES", "0")], "finds no device")];
        for (variables, expected) in cases {
            let mut agent = placed_with(&daemon.socket(), "cuda", variables);
            for order in ["put y 1000 1", "sum x", "hold x", "draft 100"] {
                let error = agent.ask(order).unwrap_err();
                assert!(error.contains(expected), "{order}: {error}");
            }
            agent.ok(&format!("connect {} host", daemon.socket().display()));
            assert_eq!(agent.ok("value host"), "2");
            agent.exit();
        }
        let mut reader = placed(&daemon.socket(), "cuda");
        assert_eq!(reader.ok("value x"), "1");
        reader.exit();
        client.delete("x").unwrap();
        client.delete("host").unwrap();
        drop(client);
        let watcher = daemon.client();
        eventually("the return of all", || device_bytes(&watcher) == 0);
    });
}
