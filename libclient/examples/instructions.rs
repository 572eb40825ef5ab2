//! Counts the instructions of the calls that a program makes for each tensor, with callgrind, the tool of valgrind.
//!
//!     cargo run --profile dist -p tensorlend --example instructions [STEP...]
//!
//! A count is the same on each run, also on a busy machine. It says nothing about cache lines, which cost more: `tensorlend bench`
//! measures both. For the functions in which a step spends its instructions, run what `STEP` prints on the error output through
//! `callgrind_annotate`.

use std::hint::black_box;
use std::process::Command;
use tensorlend::{Client, DType, Draft, Sender, Stream, Subscription, Version};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The number of calls before the counted ones, which map memory and fill the magazines, and of the counted ones.
const ROUNDS: (u64, u64) = (2000, 1000);
const BYTES: u64 = 1024;

/// The clients and streams of a process that passes tensors to itself.
struct Parties {
    producer: Client,
    consumer: Client,
    stream: Stream,
    sender: Sender,
    of_stream: Subscription,
    of_sender: Subscription,
    seen: Version,
    number: u64,
    _daemon: tensorlend_daemon::Embedded,
}

impl Parties {
    fn meet() -> Result<Self> {
        let daemon = tensorlend_daemon::embedded()?;
        let connect = || Client::builder().socket(daemon.socket()).connect();
        let (producer, consumer) = (connect()?, connect()?);
        let stream = producer.stream("general").open()?;
        let sender = producer.stream("prepared").open()?.sender(DType::U8, [BYTES])?;
        let of_stream = consumer.subscription("general").open()?;
        let of_sender = consumer.subscription("prepared").open()?;
        let seen = producer.put("name", &[0u8; BYTES as usize])?;
        Ok(Self { producer, consumer, stream, sender, of_stream, of_sender, seen, number: 0, _daemon: daemon })
    }

    fn draft(&self) -> Result<Draft> {
        Ok(self.producer.create(DType::U8, [BYTES])?)
    }
}

/// A step: its name, and a round in which it is counted once.
type Step = (&'static str, fn(&mut Parties) -> Result<()>);

const STEPS: [Step; 12] = [
    ("create", |it| counted(|| it.draft()).map(drop)),
    ("send", |it| {
        let draft = it.draft()?;
        counted(|| Ok(it.stream.send(draft)?))?;
        it.of_stream.borrow()?;
        Ok(())
    }),
    ("borrow", |it| {
        it.stream.send(it.draft()?)?;
        counted(|| Ok(it.of_stream.borrow().map(dropped)?))
    }),
    ("recv", |it| {
        it.stream.send(it.draft()?)?;
        counted(|| Ok(it.of_stream.recv().map(dropped)?))
    }),
    ("loan and send", |it| {
        counted(|| Ok(it.sender.loan()?.send()?))?;
        it.of_sender.borrow()?;
        Ok(())
    }),
    ("borrow of a loan", |it| {
        it.sender.loan()?.send()?;
        counted(|| Ok(it.of_sender.borrow().map(dropped)?))
    }),
    ("borrow of a loan, and its bytes", |it| {
        it.sender.loan()?.send()?;
        counted(|| {
            let message = it.of_sender.borrow()?;
            black_box(message.tensor()?.bytes());
            Ok(())
        })
    }),
    ("publish over a value", |it| {
        let draft = it.draft()?;
        counted(|| Ok(draft.publish("name")?)).map(drop)
    }),
    ("get", |it| counted(|| Ok(it.consumer.get("name").map(dropped)?))),
    ("wait_newer", |it| {
        it.draft()?.publish("name")?;
        it.seen = counted(|| Ok(it.consumer.wait_newer("name", it.seen, None)?.version()))?;
        Ok(())
    }),
    ("a new name", |it| {
        it.number += 1;
        let (draft, name) = (it.draft()?, format!("new/{}", it.number));
        counted(|| Ok(draft.publish(&name)?)).map(drop)
    }),
    ("delete", |it| {
        it.number += 1;
        let name = format!("new/{}", it.number);
        it.draft()?.publish(&name)?;
        counted(|| Ok(it.producer.delete(&name)?)).map(drop)
    }),
];

/// Drops a value that the compiler must make.
fn dropped<T>(value: T) {
    drop(black_box(value));
}

/// Makes a call. callgrind counts only inside this function.
#[inline(never)]
fn counted<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    black_box(call())
}

/// Runs a step as often as the command line says.
fn play(name: &str, rounds: u64) -> Result<()> {
    let (_, step) = STEPS.iter().find(|(known, _)| *known == name).ok_or("no such step")?;
    let mut parties = Parties::meet()?;
    (0..rounds).try_for_each(|_| step(&mut parties))
}

/// Returns the number of instructions that this many rounds of a step take.
fn count(name: &str, rounds: u64) -> Result<u64> {
    let this = std::env::current_exe()?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*instructions::counted*", "--callgrind-out-file=/dev/null"])
        .arg(this)
        .args(["play", name, &rounds.to_string()])
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text.lines().find_map(|line| line.split_once("Collected : ")).ok_or_else(|| text.clone())?.1;
    Ok(collected.trim().parse()?)
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [play_word, name, rounds] = words.as_slice()
        && play_word == "play"
    {
        return play(name, rounds.parse()?);
    }
    println!("| step, {BYTES} B | instructions |\n|---|--:|");
    for (name, _) in STEPS.iter().filter(|(name, _)| words.is_empty() || words.iter().any(|word| word == name)) {
        let (warm, all) = (count(name, ROUNDS.0)?, count(name, ROUNDS.0 + ROUNDS.1)?);
        println!("| `{name}` | {} |", (all - warm) / ROUNDS.1);
    }
    Ok(())
}
