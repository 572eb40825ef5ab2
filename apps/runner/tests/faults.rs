//! Models that crash, hang, grow without end or are damaged take their worker with them, and nothing else.

#![allow(clippy::float_cmp, reason = "whole numbers and halves of this size are exact")]

mod common;

use common::{LONG, Runner, broker, client, draft, eventually, models};
use rustix::process::{Pid, Signal, kill_process};
use tensorlend::{Client, Error};
use tensorlend_daemon::Embedded;
use tensorlend_model::{Model, ModelOptions, ModelRequest, Models};

fn repeat(client: &Client, model: &mut Model, times: i64) -> Result<f32, Error> {
    let times = draft(client, &[], &[times]);
    let request = ModelRequest::new().input("times", times).input("x", draft(client, &[1], &[0.5f32]));
    Ok(model.run(request, LONG)?.get("y").unwrap().as_slice::<f32>()?[0])
}

/// A client with a model that runs for as long as it is asked to.
fn looping(broker: &Embedded) -> (Client, Model) {
    let client = client(broker);
    let models = Models::new(&client);
    models.put("loop", &models::looping(), &ModelOptions::default()).unwrap();
    let model = models.open("loop").unwrap();
    (client, model)
}

/// The process of that model's worker.
fn worker(client: &Client) -> u32 {
    let pid = || Models::new(client).statistics("loop").unwrap().first().map(|of| of.pid);
    eventually("the worker's statistics", || pid().is_some());
    pid().unwrap()
}

/// The processor time of a process, in ticks of 10 ms: fields 14 and 15 of its `stat`, see proc_pid_stat(5).
fn computed(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(") ").unwrap().1.split(' ').skip(11).take(2);
    fields.map(|field| field.parse::<u64>().unwrap()).sum()
}

fn why(error: Error) -> String {
    match error {
        Error::Answer { why, .. } => why,
        other => panic!("{other}"),
    }
}

#[test]
fn a_run_that_does_not_end_is_ended_and_the_caller_is_told() {
    let broker = broker();
    let mut runner = Runner::start(&broker, &["--timeout", "5"]);
    let (client, mut model) = looping(&broker);
    assert_eq!(repeat(&client, &mut model, 3).unwrap(), 3.5);
    let hung = why(repeat(&client, &mut model, 2_000_000_000).unwrap_err());
    assert!(hung.contains("did not end within 5s") && hung.contains("--timeout"), "{hung}");
    assert_eq!(repeat(&client, &mut model, 4).unwrap(), 4.5);
    assert!(runner.is_running());
}

#[test]
fn a_worker_that_crashes_is_replaced_and_its_callers_are_told() {
    let broker = broker();
    let mut runner = Runner::start(&broker, &[]);
    let (client, mut model) = looping(&broker);
    assert_eq!(repeat(&client, &mut model, 1).unwrap(), 1.5);
    let pid = worker(&client);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let client = common::client(&broker);
            repeat(&client, &mut Models::new(&client).open("loop").unwrap(), 2_000_000_000)
        });
        // A request that the worker has not received goes to the next worker. This worker computes only the requests
        // that it has received.
        let idle = computed(pid);
        eventually("a worker that computes", || computed(pid) > idle + 20);
        kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::ABORT).unwrap();
        let crashed = asking.join().unwrap();
        let crashed = why(crashed.unwrap_err());
        assert!(crashed.contains("SIGABRT") && crashed.contains(&pid.to_string()), "{crashed}");
    });
    assert_eq!(repeat(&client, &mut model, 2).unwrap(), 2.5);
    assert!(runner.is_running());
}

#[test]
fn a_worker_that_gives_no_sign_of_life_is_killed() {
    let broker = broker();
    let mut runner = Runner::start(&broker, &[]);
    let (client, mut model) = looping(&broker);
    assert_eq!(repeat(&client, &mut model, 1).unwrap(), 1.5);
    kill_process(Pid::from_raw(worker(&client) as i32).unwrap(), Signal::STOP).unwrap();
    let silent = why(repeat(&client, &mut model, 1).unwrap_err());
    assert!(silent.contains("no sign of life"), "{silent}");
    assert_eq!(repeat(&client, &mut model, 2).unwrap(), 2.5);
    assert!(runner.is_running());
}

#[test]
fn a_model_that_takes_too_much_memory_ends_its_worker() {
    let broker = broker();
    // As in a container. The callers still get the worker's last line as plain text.
    let mut runner = Runner::start_with(&broker, &["--memory", "1024"], &[("TENSORLEND_LOG_FORMAT", "json")]);
    let client = client(&broker);
    let models = Models::new(&client);
    models.put("growing", &models::growing(), &ModelOptions::default()).unwrap();
    let mut model = models.open("growing").unwrap();
    let mut grow = |rows: i64| {
        let shape = draft(&client, &[2], &[rows, 1 << 20]);
        let request = ModelRequest::new().input("x", draft(&client, &[1], &[1.0f32])).input("shape", shape);
        Ok::<f32, Error>(model.run(request, LONG)?.get("y").unwrap().as_slice::<f32>()?[0])
    };
    assert_eq!(grow(1).unwrap(), (1 << 20) as f32);
    let large = why(grow(1 << 10).unwrap_err());
    assert!(large.contains("SIGABRT") && large.contains("memory allocation"), "{large}");
    eventually("the worker's line as an object with its model", || runner.log().contains("\"model\":\"growing\""));
    for line in runner.log().lines() {
        assert!(line.starts_with("{\"timestamp\":") && line.ends_with('}'), "{line}");
    }
    assert_eq!(grow(1).unwrap(), (1 << 20) as f32);
    assert!(runner.is_running());
}

#[test]
fn a_file_that_is_none_is_refused_at_once_and_tried_again_when_replaced() {
    let broker = broker();
    let mut runner = Runner::start(&broker, &["--model-size", "1"]);
    let client = client(&broker);
    let models = Models::new(&client);
    let file = models::affine(2.0);
    let truncated = &file[..file.len() / 2];
    let long = vec![0; (1 << 20) + 1];
    let cases: [(&[u8], &str); 3] =
        [(b"no model at all", "it cannot be read"), (truncated, "it cannot be read"), (&long, "--model-size")];
    for (bytes, word) in cases {
        models.put("m", bytes, &ModelOptions::default()).unwrap();
        let refused = models.run("m", &[], &[], LONG).unwrap_err();
        let refused = why(refused);
        assert!(refused.contains(word) && refused.contains("until it is replaced"), "{refused}");
    }
    models.put("m", &file, &ModelOptions::default()).unwrap();
    let mut model = models.open("m").unwrap();
    let x = draft(&client, &[1, 3], &[1.0f32; 3]);
    let answer = model.run(ModelRequest::new().input("x", x), LONG).unwrap();
    assert_eq!(answer.get("y").unwrap().as_slice::<f32>().unwrap(), [3.0; 3]);
    assert!(runner.is_running());
}

/// A person or the kernel ends a worker before it has read its model, over and over: the file is not taken for the cause.
#[test]
fn a_worker_that_is_killed_while_it_reads_its_model_is_replaced() {
    let broker = broker();
    let mut runner = Runner::start(&broker, &[]);
    let client = client(&broker);
    let models = Models::new(&client);
    let killed = |runner: &Runner| runner.log().matches("was ended by SIGKILL while it read the model").count();
    // Each right after its start. One that was quicker, and served already, does not count.
    models.put("m", &models::affine(2.0), &ModelOptions::default()).unwrap();
    eventually("workers that were killed while they read", || {
        for worker in runner.workers() {
            let _ = kill_process(Pid::from_raw(worker as i32).unwrap(), Signal::KILL);
        }
        killed(&runner) >= 4
    });
    assert!(!runner.log().contains("not tried again"), "{}", runner.log());
    let mut model = models.open("m").unwrap();
    let x = draft(&client, &[1, 3], &[1.0f32; 3]);
    let answer = model.run(ModelRequest::new().input("x", x), LONG).unwrap();
    assert_eq!(answer.get("y").unwrap().as_slice::<f32>().unwrap(), [3.0; 3]);
    assert!(runner.is_running());
}

/// Files cut off anywhere and with bits turned: each is served or refused, and the supervisor lives.
#[test]
fn damaged_files_do_no_harm() {
    let broker = broker();
    let mut runner = Runner::start(&broker, &["--memory", "1024", "--load-timeout", "5", "--timeout", "2"]);
    let client = client(&broker);
    let models = Models::new(&client);
    let file = models::weighty();
    let mut random = 0x2545_f491_4f6c_dd1du64;
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % below as u64) as usize
    };
    let (mut served, mut refused) = (0, 0);
    for round in 0..48 {
        let mut bytes = file.clone();
        if round % 3 == 0 {
            bytes.truncate(1 + next(file.len() - 1));
        } else {
            for _ in 0..=next(4) {
                bytes[next(file.len())] ^= 1 << next(8);
            }
        }
        let name = format!("m{round}");
        models.put(&name, &bytes, &ModelOptions::default()).unwrap();
        let mut model = models.open(&name).unwrap();
        let x = draft(&client, &[1, 8], &[1.0f32; 8]);
        match model.run(ModelRequest::new().input("x", x), LONG) {
            Ok(_) => served += 1,
            Err(Error::Answer { .. }) => refused += 1,
            Err(other) => panic!("round {round}: {other}"),
        }
        assert!(runner.is_running(), "round {round}");
        models.delete(&name).unwrap();
    }
    assert!(served > 0 && refused > 0, "{served} served, {refused} refused");
}
