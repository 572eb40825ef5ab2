//! Limits of device memory, and isolation: device memory never moves to another namespace.

use tensorlend::{Client, DType, TensorSpec};
use tensorlend_tests::Daemon;
use tensorlend_tests::eventually;
use tensorlend_tests::location::{Draft, Lease, Location, pattern, tells};
use tensorlend_tests::machine::{Machine, config, on_machine};

const MB: u64 = 1 << 20;

/// Publishes until a limit is reached. Returns the number of tensors, and the error.
fn fill(client: &Client, location: Location, each: u64) -> (u64, tensorlend::Error) {
    (0..).find_map(|i| location.put(client, &format!("t{i}"), i, each).err().map(|error| (i, error))).unwrap()
}

fn limit(machine: &Machine, more: &str, room: u64, setting: &str) {
    for allocator in ["pool", "arena", "async"] {
        let config = config(allocator, "idle_bytes_max = 0\n").replace("256MiB", "64MiB");
        let daemon = machine.daemon(&format!("{config}{more}"));
        let client = daemon.client();
        let location = Location::named("cuda", &client);
        let (count, error) = fill(&client, location, 4 * MB);
        assert!(error.is_limit() && error.to_string().contains(setting), "{allocator}: {error}");
        assert_eq!(count, room / (4 * MB), "{allocator}: {error}");
        for value in 0..count {
            assert!(location.get(&client, &format!("t{value}")).unwrap().is(value));
        }
        // Host memory has its own limit, and deleting makes room.
        Location::Host.put(&client, "host", 1, 8 * MB).unwrap();
        client.delete("t0").unwrap();
        location.put(&client, "again", 77, 4 * MB).unwrap();
        let huge = location.create(&client, TensorSpec::new(DType::U8, [1u64 << 45])).map(|_| ()).unwrap_err();
        println!("{allocator}: {error}\n{allocator}: {huge}");
        assert!(huge.is_limit() || huge.to_string().contains("at most 4 GiB"), "{huge}");
        for info in client.list("*").unwrap() {
            client.delete(&info.name).unwrap();
        }
        drop(client);
        let watcher = daemon.client();
        eventually("the return of all", || location.lent_bytes(&watcher).unwrap() == 0);
    }
}

#[test]
fn a_device_has_a_limit() {
    on_machine("a_device_has_a_limit", |machine| {
        // The last line of the section of devices.
        limit(machine, "", 64 * MB, "cuda.bytes_max");
    });
}

#[test]
fn a_uid_has_a_limit() {
    on_machine("a_uid_has_a_limit", |machine| {
        limit(machine, "[uid]\ndevice_bytes_max = \"24MiB\"\n", 24 * MB, "uid.device_bytes_max");
    });
}

#[test]
fn a_namespace_has_a_limit() {
    on_machine("a_namespace_has_a_limit", |machine| {
        let more = "[namespace_default]\ndevice_bytes_max = \"32MiB\"\n";
        limit(machine, more, 32 * MB, "device_bytes_max");
    });
}

#[test]
fn a_device_that_others_have_filled_says_so() {
    on_machine("a_device_that_others_have_filled_says_so", |machine| {
        // The device has less memory than the configured limit.
        let variables = [("FAKECUDA_MEMORY", "33554432")];
        let text = config("pool", "").replace("256MiB", "64MiB");
        let daemon = machine.daemon_with(&text, &variables);
        let client = daemon.client();
        let location = Location::named("cuda", &client);
        let (count, error) = fill(&client, location, 4 * MB);
        println!("{count}: {error}");
        assert!((1..=8).contains(&count), "{count}: {error}");
        for value in 0..count {
            assert!(location.get(&client, &format!("t{value}")).unwrap().is(value));
        }
    });
}

fn join(daemon: &Daemon, namespace: &str) -> Client {
    Client::builder().socket(daemon.socket()).namespace(namespace).label("test").connect().unwrap()
}

const SECRET: u64 = 0x5EC2_E700;

#[test]
fn nothing_of_one_namespace_is_seen_in_another() {
    on_machine("nothing_of_one_namespace_is_seen_in_another", |machine| {
        let own = rustix::process::getuid().as_raw();
        assert!(tells(&pattern(SECRET, 1 << 20)[4096..], SECRET) && !tells(&pattern(1, 1 << 20), SECRET));
        for (mode, allocator) in [("system", "pool"), ("system", "arena"), ("system", "async"), ("user", "pool")] {
            println!("{mode}, {allocator}");
            let spaces = format!("[namespace.a]\nwriters = [\"{own}\"]\n[namespace.b]\nwriters = [\"{own}\"]\n");
            let text = config(allocator, "").replace("256MiB", "16MiB");
            let daemon = machine.daemon(&format!("mode = \"{mode}\"\n{text}{spaces}"));
            for round in 0..3 {
                let (a, b) = (join(&daemon, "a"), join(&daemon, "b"));
                let location = Location::named("cuda", &b);
                for number in 0..4 {
                    location.put(&a, &format!("secret/{number}"), SECRET, 3 * MB).unwrap();
                }
                assert!(location.get(&b, "secret/0").unwrap_err().is_not_found());
                assert!(b.list("*").unwrap().is_empty() && !b.exists("secret/1").unwrap());
                if round == 1 {
                    // Client a occupies the whole device: b gets nothing, and sees nothing of a's.
                    let (_, error) = fill(&b, location, 3 * MB);
                    assert!(error.is_limit(), "{error}");
                }
                for number in 0..4 {
                    a.delete(&format!("secret/{number}")).unwrap();
                }
                drop(a);
                // As soon as there is room: the daemon frees idle memory and allocates it again.
                let spec = || TensorSpec::new(DType::U8, &[3 * MB]);
                let mut drafts: Vec<Draft> = Vec::new();
                eventually("room for b", || {
                    while let Ok(draft) = location.create(&b, spec()) {
                        drafts.push(draft);
                    }
                    drafts.len() >= 3
                });
                for (number, draft) in drafts.into_iter().enumerate() {
                    // The draft was never written.
                    draft.publish(&format!("fresh/{number}")).unwrap();
                    let lease: Lease = location.get(&b, &format!("fresh/{number}")).unwrap();
                    assert!(!tells(&lease.read().unwrap(), SECRET), "{mode}, {allocator}: b reads a's secret");
                    drop(lease);
                }
                for info in b.list("*").unwrap() {
                    b.delete(&info.name).unwrap();
                }
                drop(b);
                let watcher = daemon.client();
                eventually("the return of all", || location.lent_bytes(&watcher).unwrap() == 0);
            }
        }
    });
}
