//! Tensors that outlive a live update of the kernel. No kernel with a live update runs the tests: they make the
//! descriptors again as its documentation describes.

use rustix::fs::SealFlags;
use rustix::process::Signal;
use std::os::fd::OwnedFd;
use tensorlend::{Client, DType, Draft};
use tensorlend_tests::keeper::{Service, link};
use tensorlend_tests::{Agent, budget, eventually, skip_without, skip_without_root};

fn agent(service: &Service) -> Agent {
    let mut agent = Agent::start();
    agent.ok(&format!("connect {}", service.socket().display()));
    agent
}

/// Checks that this is memory of a daemon: nobody else may open it, and nobody can change its length.
fn is_of_a_daemon((name, fd): &(String, OwnedFd)) {
    let stat = rustix::fs::fstat(fd).unwrap();
    assert!(link(fd).starts_with("/memfd:tensorlend-"), "{name} is {}", link(fd));
    assert_eq!((stat.st_uid, stat.st_mode & 0o077), (rustix::process::geteuid().as_raw(), 0), "{name}");
    let seals = rustix::fs::fcntl_get_seals(fd).unwrap();
    assert!(seals.contains(SealFlags::SHRINK | SealFlags::GROW), "{name} has {seals:?}");
}

fn filled(client: &Client, value: u64) -> Draft {
    let mut draft = client.create(DType::U64, &[100u64]).unwrap();
    draft.as_mut_slice::<u64>().unwrap().fill(value);
    draft
}

#[test]
fn tensors_outlive_a_live_update() {
    if skip_without_root() {
        return;
    }
    let (names, large) = budget((300, 20_000_000), (1_000, 1 << 30));
    for (mode, seals) in [("user", false), ("user", true), ("system", false), ("system", true)] {
        let mut service = Service::start(&format!("mode = \"{mode}\"\n[pool]\nbytes_max = \"3GiB\"\n"));
        let (mut a, mut b) = (agent(&service), agent(&service));
        let sum = a.ok(&format!("put large {large} 1"));
        b.ok(&format!("many n {names}"));
        b.ok("put-for expires 3600000 false");
        b.ok("put-for ephemeral - true");
        let writer = service.client();
        for number in 0..3 {
            writer.append("list", filled(&writer, number)).unwrap();
        }
        drop(writer);
        a.ok("stream frames 4");
        b.ok("subscribe frames");
        b.ok("hold large");
        // systemd ends the programs and the daemon before the kernel starts the next one.
        service.end(Signal::TERM);
        a.kill();
        b.kill();
        service.live_update(seals);
        service.start_again();

        let mut c = agent(&service);
        assert!(c.ok("sum large").ends_with(&sum), "{mode}, seals: {seals}");
        c.ok(&format!("check-many n {names}"));
        let client = service.client();
        let items = client.get_all("list").unwrap();
        let values: Vec<u64> = items.iter().map(|it| it.tensor().unwrap().as_slice::<u64>().unwrap()[0]).collect();
        assert_eq!(values, [0, 1, 2]);
        drop(items);
        // The rest of a lifetime is unknown, since the clock began again.
        for name in ["expires", "ephemeral"] {
            eventually("the end of a name", || client.get(name).is_err_and(|error| error.is_not_found()));
        }
        // The clients of the former kernel have ended, and their pids belong to others now.
        eventually("the end of former sessions", || client.stat().unwrap().clients == 2);
        service.stored().iter().for_each(is_of_a_daemon);

        // Everything works as before, and the memory is like any other for the next daemon.
        filled(&client, 7).publish("n1").unwrap();
        filled(&client, 7).publish("new").unwrap();
        assert_eq!(client.get("n1").unwrap().as_slice::<u64>().unwrap(), [7; 100]);
        service.restart();
        assert!(agent(&service).ok("sum large").ends_with(&sum), "{mode}, seals: {seals}");
        assert_eq!(client.get("new").unwrap().as_slice::<u64>().unwrap(), [7; 100]);
        for entry in client.list("*").unwrap() {
            client.delete(&entry.name).unwrap();
        }
        client.clear("list").unwrap();
        client.delete_stream("frames").unwrap();
        drop(client);
        c.exit();
        let watcher = service.client();
        eventually("the return of the memory", || {
            let stat = watcher.stat().unwrap();
            (stat.bytes_in_use, stat.names) == (0, 0)
        });
    }
}

/// A daemon that is killed while it copies loses at most the descriptor that it was copying. The next daemon takes over its
/// copies together with the originals that are left.
#[test]
fn a_daemon_that_is_killed_between_copies_leaves_the_rest() {
    if skip_without_root() || skip_without("strace") {
        return;
    }
    // One of two successive messages removes an original, and the other one stores its copy.
    for message in [6, 7] {
        let mut service = Service::start("mode = \"system\"\n");
        let mut agents: Vec<Agent> = (0..8).map(|_| agent(&service)).collect();
        let put = |(number, agent): (usize, &mut Agent)| agent.ok(&format!("put t{number} 900000 {number}"));
        let sums: Vec<String> = agents.iter_mut().enumerate().map(put).collect();
        service.end(Signal::TERM);
        agents.iter_mut().for_each(Agent::kill);
        service.live_update(false);
        service.start_and_kill_at(message);
        let is_copy = |(_, fd): &&(String, OwnedFd)| link(fd).starts_with("/memfd:tensorlend-");
        let stored = service.stored();
        let copies = stored.iter().filter(is_copy).count();
        assert!(0 < copies && copies < stored.len(), "{copies} of {} are copies", stored.len());
        service.start_again();
        service.stored().iter().for_each(is_of_a_daemon);

        let (mut reader, watcher) = (agent(&service), service.client());
        let is_there = |(number, _): &(usize, &String)| watcher.get(&format!("t{number}")).is_ok();
        let there: Vec<_> = sums.iter().enumerate().filter(is_there).collect();
        assert!(there.len() + 1 >= sums.len(), "only {there:?} are left");
        for (number, sum) in there {
            assert!(reader.ok(&format!("sum t{number}")).ends_with(sum), "t{number}");
        }
        eventually("the end of former sessions", || watcher.stat().unwrap().clients == 2);
    }
}
