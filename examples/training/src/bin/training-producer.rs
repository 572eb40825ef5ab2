//! Publishes data sets for trainers, and ends: published tensors stay until they are deleted.

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use tensorlend::Client;
use tensorlend_training::error::Result;
use tensorlend_training::{files, shelf};

/// Publishes Iris, digits and MNIST, whole and in batches.
#[derive(Parser)]
struct Arguments {
    /// The daemon's socket; default: the first one that clients find.
    #[arg(long)]
    socket: Option<PathBuf>,
    /// The folder with iris.npy and digits.npy.
    #[arg(long)]
    data: Option<PathBuf>,
    /// The folder with MNIST's four files (train-images-idx3-ubyte ...).
    #[arg(long)]
    mnist: Option<PathBuf>,
    /// Rows of a batch.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 128, 256, 512, 1024])]
    batch: Vec<usize>,
}

fn main() -> ExitCode {
    match publish(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("training-producer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn publish(arguments: &Arguments) -> Result<()> {
    let mut builder = Client::builder().label("training producer");
    if let Some(socket) = &arguments.socket {
        builder = builder.socket(socket);
    }
    let client = builder.connect()?;
    let mut sets = Vec::new();
    if let Some(folder) = &arguments.data {
        sets.extend([files::iris(folder)?, files::digits(folder)?]);
    }
    if let Some(folder) = &arguments.mnist {
        sets.push(files::mnist(folder)?);
    }
    for set in &sets {
        for (part, samples) in [("train", &set.train), ("test", &set.test)] {
            let name = format!("{}/{part}", set.name);
            // Only the training part is published in batches: tests use the whole other part.
            let sizes = if part == "train" { &arguments.batch[..] } else { &[] };
            let bytes = shelf::publish(&client, &name, samples, sizes)?;
            println!("{name}: {} rows of {}, {bytes} bytes with its batches", samples.len(), samples.width());
        }
    }
    if sets.is_empty() {
        println!("nothing to publish: name a folder by --data or --mnist");
    }
    Ok(())
}
