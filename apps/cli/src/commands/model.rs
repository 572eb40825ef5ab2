//! `tensorlend model`: models for `tensorlend-runner`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use serde::Serialize;
use tensorlend::{Client, Error};
use tensorlend_model::{MODEL_BYTES_MAX, ModelAnswer, ModelOptions, ModelRequest, ModelStatistics, Models, Quantiles};

use crate::failure::Failure;
use crate::files::FileError;
use crate::options::{Json, seconds};
use crate::output::{self, Table};

/// Add, run and remove models that tensorlend-runner serves on this machine.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  tensorlend model add resnet resnet50.onnx --batch-max 8 --batch-wait-ms 2
  tensorlend-runner &
  tensorlend model run resnet --in x=image --out y=classes
  tensorlend model stat resnet
")]
pub struct ModelArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    Add(AddArgs),
    Ls(LsArgs),
    Rm(RmArgs),
    Run(RunArgs),
    Stat(StatArgs),
}

/// Add a model, or replace it: runners load it by themselves.
///
/// A file that is not ONNX, or is truncated, is rejected with exit status 6. A runner finds out whether the engine
/// supports the model's operators: see `model ls`.
#[derive(clap::Args, Debug)]
struct AddArgs {
    /// The model's name.
    name: String,
    /// An ONNX file, 2 GiB at most.
    file: PathBuf,
    /// Device that runs it: cpu.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Maximum number of rows (sizes of the first dimension) in one batch.
    #[arg(long, value_name = "N", default_value_t = 1)]
    batch_max: u32,
    /// Milliseconds that a request waits for others to join its batch.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    batch_wait_ms: f64,
    #[command(flatten)]
    json: Json,
}

/// List models, and whether they are served.
///
/// STATE is "served"; "no runner" while no runner serves it; "failed" if its last worker ended and the runner starts
/// another; "refused" if a runner could not read it: requests return an error until it is replaced. The reason stands
/// below the table.
#[derive(clap::Args, Debug)]
struct LsArgs {
    /// Glob of the names, as in ls.
    #[arg(default_value = "*", hide_default_value = true)]
    glob: String,
    #[command(flatten)]
    json: Json,
}

/// Remove a model. The runners that serve it end.
#[derive(clap::Args, Debug)]
struct RmArgs {
    /// The model's name.
    name: String,
}

/// Run a model on tensors, and publish its outputs.
#[derive(clap::Args, Debug)]
struct RunArgs {
    /// The model's name.
    name: String,
    /// An input: the model's name for it, and the tensor's name.
    #[arg(long = "in", value_name = "INPUT=TENSOR", value_parser = pair)]
    inputs: Vec<(String, String)>,
    /// An output: the model's name for it, and the tensor's name; at least one.
    #[arg(long = "out", value_name = "OUTPUT=TENSOR", value_parser = pair, required = true)]
    outputs: Vec<(String, String)>,
    /// Seconds to wait for the response.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    timeout: Duration,
    #[command(flatten)]
    json: Json,
}

/// Show the metrics of a model's runners: requests, batches, and their times.
#[derive(clap::Args, Debug)]
struct StatArgs {
    /// The model's name.
    name: String,
    #[command(flatten)]
    json: Json,
}

#[derive(Serialize)]
struct Listed {
    name: String,
    nbytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    options: Option<ModelOptions>,
    runners: usize,
    state: State,
    /// The reason why a worker ended, or why the model's options cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// Whether runners serve a model.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// Runners respond to requests.
    Served,
    /// Requests wait for a runner.
    Waiting,
    /// The last worker ended, and the runner starts another.
    Failed,
    /// Requests return an error until the model is replaced.
    Refused,
}

impl State {
    fn text(self) -> &'static str {
        match self {
            Self::Served => "served",
            Self::Waiting => "no runner",
            Self::Failed => "failed",
            Self::Refused => "refused",
        }
    }
}

impl ModelArgs {
    pub fn run(&self, client: &Client) -> Result<(), Failure> {
        let models = &Models::new(client);
        match &self.verb {
            Verb::Add(add) => add.run(models),
            Verb::Ls(ls) => ls.run(models),
            Verb::Rm(rm) => rm.run(models),
            Verb::Run(run) => run.run(models),
            Verb::Stat(stat) => stat.run(models),
        }
    }
}

impl AddArgs {
    fn run(&self, models: &Models) -> Result<(), Failure> {
        let bytes = read(&self.file)?;
        if !bytes.is_empty() {
            crate::onnx::check(&bytes).map_err(|what| {
                let remedy = "give a model in ONNX's format, such as torch.onnx.export writes; nothing was added";
                Failure::File(FileError::Unsupported { path: self.file.clone(), what, remedy })
            })?;
        }
        let options = ModelOptions {
            device: self.device.clone(),
            batch_max: self.batch_max,
            batch_wait_ms: self.batch_wait_ms,
            ..ModelOptions::default()
        };
        models.put(&self.name, &bytes, &options)?;
        if self.json.on {
            let (name, nbytes) = (self.name.clone(), bytes.len() as u64);
            let (state, why) = (State::Waiting, None);
            return output::json(&Listed { name, nbytes, options: Some(options), runners: 0, state, why });
        }
        output::line(format_args!("added model {}, {} bytes", self.name, bytes.len()))
    }
}

impl LsArgs {
    fn run(&self, models: &Models) -> Result<(), Failure> {
        let mut all = Vec::new();
        for model in models.list(&self.glob)? {
            // Another client may have removed the model since it was listed.
            let (options, wrong) = match models.get(&model.name) {
                Ok((_, options)) => (Some(options), None),
                Err(error) if error.is_not_found() => continue,
                Err(Error::Argument(why)) => (None, Some(why)),
                Err(error) => return Err(error.into()),
            };
            let runners = models.statistics(&model.name)?.len();
            let fault = models.fault(&model.name)?;
            // A refusal applies to one version of the model's file. Ignore the refusal of an earlier version.
            let is_of_another = |refused: [u64; 2]| refused != model.version.words();
            let fault = fault.filter(|fault| !fault.refused.is_some_and(is_of_another));
            let (state, why) = match fault {
                Some(fault) if fault.refused.is_some() => (State::Refused, Some(fault.why)),
                _ if runners > 0 => (State::Served, wrong),
                Some(fault) => (State::Failed, Some(fault.why)),
                None => (State::Waiting, wrong),
            };
            all.push(Listed { name: model.name, nbytes: model.nbytes, options, runners, state, why });
        }
        if self.json.on {
            return output::json(&all);
        }
        let mut table = Table::new(&["MODEL", ">BYTES", ">BATCH", ">RUNNERS", "STATE"]);
        let mut reasons = String::new();
        for Listed { name, nbytes, options, runners, state, why } in all {
            let batch = options.map_or("?".to_owned(), |options| options.batch_max.to_string());
            if let Some(why) = why {
                let _ = writeln!(reasons, "{}: {}", crate::text::printable(&name), crate::text::printable(&why));
            }
            table.row([name, nbytes.to_string(), batch, runners.to_string(), state.text().to_owned()]);
        }
        let gap = if reasons.is_empty() { "" } else { "\n" };
        output::text_block(&format!("{}{gap}{reasons}", table.text()))
    }
}

impl RmArgs {
    fn run(&self, models: &Models) -> Result<(), Failure> {
        if !models.delete(&self.name)? {
            return Err(missing(&self.name));
        }
        output::line(format_args!("removed model {}", self.name))
    }
}

impl RunArgs {
    fn run(&self, models: &Models) -> Result<(), Failure> {
        let mut request = ModelRequest::new();
        for (input, tensor) in &self.inputs {
            request = request.input_from(input, tensor);
        }
        for (output, tensor) in &self.outputs {
            request = request.output_to(output, tensor);
        }
        let answer = match models.open(&self.name)?.run(request, Some(self.timeout)) {
            Err(Error::NotFound(_)) => return Err(missing(&self.name)),
            other => other?,
        };
        let published = ModelAnswer::of(&answer)?.versions;
        let named = || self.outputs.iter().filter(|(output, _)| published.contains_key(output));
        if self.json.on {
            let names: std::collections::BTreeMap<_, _> = named().cloned().collect();
            return output::json(&names);
        }
        for (output, tensor) in named() {
            output::line(format_args!("{output} -> {tensor}"))?;
        }
        Ok(())
    }
}

impl StatArgs {
    fn run(&self, models: &Models) -> Result<(), Failure> {
        let all = models.statistics(&self.name)?;
        if all.is_empty() && models.list("*")?.iter().all(|model| model.name != self.name) {
            return Err(missing(&self.name));
        }
        if self.json.on {
            return output::json(&all);
        }
        let head = ["PROCESS", "ENGINE", ">REQUESTS", ">FAILED", ">RUNS", ">QUEUE p50/p99 us", ">RUN p50/p99 us"];
        let mut table = Table::new(&head);
        for ModelStatistics { pid, engine, requests, failures, runs, queue_us, run_us, .. } in all {
            let two = |of: Quantiles| format!("{:.0}/{:.0}", of.p50, of.p99);
            let counts = [requests.to_string(), failures.to_string(), runs.to_string()];
            let [requests, failures, runs] = counts;
            table.row([pid.to_string(), engine, requests, failures, runs, two(queue_us), two(run_us)]);
        }
        output::text_block(&table.text())
    }
}

fn missing(name: &str) -> Failure {
    Failure::NotFound(format!("there is no model {name:?}: see `tensorlend model ls`"))
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    use std::io::Read;
    let fail = |cause: std::io::Error| {
        let remedy = "check that the file exists, and that this user may read it";
        Failure::File(FileError::Io { path: file.to_owned(), doing: "read", source: cause, remedy })
    };
    let open = std::fs::File::open(file).map_err(fail)?;
    let mut bytes = Vec::new();
    open.take(MODEL_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > MODEL_BYTES_MAX {
        return Err(Failure::Limit(format!("{} has more than {MODEL_BYTES_MAX} bytes", file.display())));
    }
    Ok(bytes)
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((of_model, tensor)) if !of_model.is_empty() && !tensor.is_empty() => Ok((of_model.into(), tensor.into())),
        _ => Err("give the model's name and the tensor's: x=image".into()),
    }
}
