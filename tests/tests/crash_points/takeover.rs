//! Kills during a takeover: of the next daemon, of a client that continues its session there, and of the fd store.

use crate::{Build, nothing_is_left};
use rustix::process::Signal;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tensorlend::Policy;
use tensorlend_tests::filled::{self, filled, put};
use tensorlend_tests::keeper::Service;
use tensorlend_tests::stored::{Machine, end};
use tensorlend_tests::{Agent, eventually};

const MODES: [&str; 2] = ["mode = \"system\"\n", "mode = \"user\"\n"];

/// Returns the crash points of a kind, each with the plan of a kill at its first passage after the file exists.
fn plans(build: &Build, kind: &str, begin: &Path) -> Vec<(String, (String, String))> {
    let points = build.points().into_iter().enumerate().filter(|(_, point)| point.starts_with(kind));
    let plan = |number| ("TENSORLEND_CRASH".to_owned(), format!("{number}:1:{}", begin.display()));
    points.map(|(number, point)| (point, plan(number))).collect()
}

#[test]
fn a_next_daemon_that_is_killed_as_it_takes_over_leaves_all_to_the_one_after_it() {
    let Some(build) = Build::find() else { return };
    for mode in MODES {
        let plans = plans(&build, "next: ", Path::new("/"));
        assert_eq!(plans.len(), 3);
        for (point, plan) in plans {
            let mut daemon = Service::start_with(mode, build.0.join("tensorlendd"), None);
            let (producer, consumer, other) = (daemon.client(), daemon.client(), daemon.client());
            let jobs = producer.queue("jobs").unwrap();
            for value in 1..=2 {
                jobs.put(filled(&producer, value).unwrap(), None).unwrap();
            }
            put(&producer, "name", 3).unwrap();
            let camera = producer.stream("camera").capacity(4).policy(Policy::Block).open().unwrap();
            let mut frames = consumer.subscribe("camera").unwrap();
            camera.send(filled(&producer, 4).unwrap()).unwrap();
            let first = consumer.queue("jobs").unwrap().get(None).unwrap();
            daemon.end(Signal::KILL);
            daemon.start_and_kill_by(plan);
            daemon.start_again();
            let second = other.queue("jobs").unwrap().get(Duration::from_secs(30)).unwrap();
            assert_eq!((first.number(), second.number()), (0, 1), "{point}, {mode}");
            assert_eq!(filled::value(second.value().tensor().unwrap()), Ok(2), "{point}, {mode}");
            assert!(first.done().unwrap() && second.done().unwrap(), "{point}, {mode}");
            assert_eq!(filled::value(&other.get("name").unwrap()), Ok(3), "{point}, {mode}");
            camera.send(filled(&producer, 5).unwrap()).unwrap();
            for value in 4..=5 {
                let message = frames.recv_timeout(Duration::from_secs(30)).unwrap();
                assert_eq!(filled::value(message.tensor().unwrap()), Ok(value), "{point}, {mode}");
            }
            assert!(!daemon.log().contains("lost"), "{point}, {mode}: {}", daemon.log());
            drop((frames, camera, jobs, producer, consumer, other));
            nothing_is_left(|| daemon.client(), daemon.client(), &point);
            daemon.wait_kept(0);
        }
    }
}

#[test]
fn a_client_that_is_killed_as_it_continues_its_session_ends_and_loses_no_item() {
    let Some(build) = Build::find() else { return };
    for mode in MODES {
        let plans = plans(&build, "resume: ", Path::new("/"));
        assert_eq!(plans.len(), 3);
        for (point, (variable, plan)) in plans {
            let mut daemon = Service::start_with(mode, build.0.join("tensorlendd"), None);
            let client = daemon.client();
            let jobs = client.queue("jobs").unwrap();
            for value in 1..=2 {
                jobs.put(filled(&client, value).unwrap(), None).unwrap();
            }
            let mut command = Command::new(build.0.join("tensorlend-agent"));
            command.env(variable, plan);
            let mut victim = Agent::steer(command);
            victim.ok(&format!("connect {}", daemon.socket().display()));
            let sum = victim.ok("put theirs 1000 1");
            victim.ok("claim jobs");
            daemon.restart();
            assert_eq!(victim.wait().signal(), Some(9), "{point}, {mode}");
            for number in 0..2 {
                let item = jobs.get(Duration::from_secs(30)).unwrap();
                assert_eq!(item.number(), number, "{point}, {mode}");
                assert!(item.done().unwrap(), "{point}, {mode}");
            }
            let mut reader = Agent::steer(Command::new(build.0.join("tensorlend-agent")));
            reader.ok(&format!("connect {}", daemon.socket().display()));
            assert!(reader.ok("sum theirs").ends_with(&sum), "{point}, {mode}");
            reader.exit();
            drop((jobs, client));
            nothing_is_left(|| daemon.client(), daemon.client(), &point);
            daemon.wait_kept(0);
        }
    }
}

/// The store is killed after each of its steps. The daemon stores everything again, and the next daemon has it.
#[test]
fn an_fd_store_killed_at_any_step_is_filled_again() {
    let Some(build) = Build::find() else { return };
    for mode in ["system", "user"] {
        for kind in ["store: entry stored", "store: entry removed", "store: all sent"] {
            let mut machine = Machine::configured(mode);
            let begin = machine.path("begin");
            let plans = plans(&build, kind, &begin);
            let mut store = machine.program();
            store.envs(plans.into_iter().map(|(_, plan)| plan));
            machine.start_store_as(store);
            machine.start_daemon();
            let client = machine.client();
            put(&client, "before", 1).unwrap();
            std::fs::write(&begin, "").unwrap();
            let mut round = 0;
            eventually(&format!("{kind}: the end of the store"), || {
                round += 1;
                machine.agent().ok(&format!("put theirs/{round} 1000 {round}"));
                if kind == "store: all sent" {
                    machine.restart_daemon();
                }
                machine.store.as_mut().unwrap().try_wait().unwrap().is_some()
            });
            end(&mut machine.store, Signal::KILL);
            machine.start_store();
            eventually("the daemon's reconnection", || machine.log().contains("the fd store runs again"));
            machine.restart_daemon();
            assert_eq!(filled::value(&client.get("before").unwrap()), Ok(1), "{kind}, {mode}");
            for number in 1..=round {
                machine.agent().ok(&format!("sum theirs/{number}"));
            }
            put(&client, "after", 2).unwrap();
            assert_eq!(filled::value(&machine.client().get("after").unwrap()), Ok(2), "{kind}, {mode}");
        }
    }
}
