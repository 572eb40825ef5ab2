//! Trains a network with one hidden layer on a producer's lent batches, read in place, or on the same files in its own
//! memory.

use clap::{Parser, ValueEnum};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tensorlend::{Client, Version};
use tensorlend_training::error::{Error, Result};
use tensorlend_training::files;
use tensorlend_training::network::Init;
use tensorlend_training::source::{Lent, Owned, Source};
use tensorlend_training::training::{Outcome, Plan, run};

/// The memory of the samples.
#[derive(Clone, Copy, ValueEnum)]
enum From {
    /// The producer's, lent by the daemon.
    Lent,
    /// This process's, for comparison.
    Owned,
}

/// Trains a network on lent data.
#[derive(Parser)]
struct Arguments {
    /// iris, digits or mnist.
    #[arg(long, default_value = "mnist")]
    set: String,
    /// Memory of the samples.
    #[arg(long, value_enum, default_value = "lent")]
    from: From,
    /// The daemon's socket; default: the first one that clients find.
    #[arg(long)]
    socket: Option<PathBuf>,
    /// For `--from owned`: the folder with the set's files.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// Rows of a batch, one of the producer's sizes; default: all rows at once.
    #[arg(long)]
    batch: Option<usize>,
    /// Width of the hidden layer.
    #[arg(long, default_value_t = 128)]
    hidden: usize,
    /// Number of epochs.
    #[arg(long, default_value_t = 5)]
    epochs: usize,
    /// Learning rate.
    #[arg(long, default_value_t = 0.1)]
    rate: f32,
    /// Initialization of weights.
    #[arg(long, value_enum, default_value = "kaiming")]
    init: Init,
    /// Seed of the weights and of the order of the batches.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Timeout of waiting for the producer, in seconds.
    #[arg(long, default_value_t = 30)]
    wait_s: u64,
    /// Print the whole result as JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match train(&arguments) {
        Ok(outcome) if arguments.json => match serde_json::to_string(&outcome) {
            Ok(text) => {
                println!("{text}");
                ExitCode::SUCCESS
            }
            Err(error) => failed(&error),
        },
        Ok(outcome) => {
            tell(&outcome);
            ExitCode::SUCCESS
        }
        Err(error) => failed(&error),
    }
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("training-mlp: {error}");
    ExitCode::FAILURE
}

fn tell(outcome: &Outcome) {
    let batches = outcome.losses.len() / outcome.epochs_s.len().max(1);
    for (epoch, (whole, loading)) in outcome.epochs_s.iter().zip(&outcome.loading_s).enumerate() {
        let losses = &outcome.losses[epoch * batches..(epoch + 1) * batches];
        let mean = losses.iter().sum::<f32>() / batches.max(1) as f32;
        println!("epoch {epoch}: loss {mean:.4}, {:.1} ms, of which {:.3} ms for batches", whole * 1e3, loading * 1e3);
    }
    println!("knows {} of {}", outcome.known.0, outcome.known.1);
}

fn train(arguments: &Arguments) -> Result<Outcome> {
    let plan = Plan {
        hidden: arguments.hidden,
        classes: if arguments.set == "iris" { 3 } else { 10 },
        epochs: arguments.epochs,
        rate: arguments.rate,
        init: arguments.init,
        seed: arguments.seed,
    };
    let (train, test) = match arguments.from {
        From::Lent => lent(arguments)?,
        From::Owned => owned(arguments)?,
    };
    run(&plan, &*train, &*test)
}

type Sources = (Box<dyn Source>, Box<dyn Source>);

fn lent(arguments: &Arguments) -> Result<Sources> {
    let mut builder = Client::builder().label("training mlp");
    if let Some(socket) = &arguments.socket {
        builder = builder.socket(socket);
    }
    let client = builder.connect()?;
    let source = |part: &str, batch| {
        let name = format!("{}/{part}", arguments.set);
        // A producer that was started at the same time may still be reading its files.
        drop(client.wait_value(&name, Version::NONE, Some(Duration::from_secs(arguments.wait_s)))?);
        Lent::new(client.clone(), &name, batch).map(|lent| Box::new(lent) as Box<dyn Source>)
    };
    Ok((source("train", arguments.batch)?, source("test", None)?))
}

fn owned(arguments: &Arguments) -> Result<Sources> {
    let missing = || Error::Use("--from owned needs --folder, where the set's files are".to_owned());
    let folder = arguments.folder.as_deref().ok_or_else(missing)?;
    let set = match arguments.set.as_str() {
        "iris" => files::iris(folder),
        "digits" => files::digits(folder),
        "mnist" => files::mnist(folder),
        other => Err(Error::Use(format!("no set is named {other}: iris, digits, mnist"))),
    }?;
    if arguments.batch == Some(0) {
        return Err(Error::Use("a batch has at least one row".to_owned()));
    }
    Ok((Box::new(Owned::new(set.train, arguments.batch)), Box::new(Owned::new(set.test, None))))
}
