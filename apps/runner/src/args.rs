//! The command-line options of `tensorlend-runner`.

use clap::Parser;
use std::path::PathBuf;
use std::time::Duration;
use tensorlend::{Client, ClientBuilder};
use tracing_subscriber::EnvFilter;

const MIB: u64 = 1 << 20;
/// The variable that chooses the format of the log.
pub const LOG_FORMAT: &str = "TENSORLEND_LOG_FORMAT";

/// Run ONNX models on the machine whose daemon lends the tensors.
///
/// Serves every model of the namespace, each in a process of its own. Models that are added, replaced or removed while
/// it runs are served, reloaded or dropped. Several runners share the callers of a model.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "tensorlend-runner",
    version = tensorlend::build(),
    max_term_width = 100,
    after_help = "\
Examples:
  tensorlend model add resnet resnet50.onnx
  tensorlend-runner
  tensorlend model run resnet --in x=image --out y=classes
"
)]
pub struct Args {
    /// The models to serve: a glob, as for `tensorlend ls`.
    #[arg(long, value_name = "GLOB", default_value = "*")]
    pub model: String,
    /// The daemon's socket; default: the user's daemon, then the system's.
    #[arg(long, value_name = "PATH", env = "TENSORLEND_SOCKET", hide_env_values = true)]
    pub socket: Option<PathBuf>,
    /// The namespace to join; default: this user's private one.
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// ONNX Runtime's library (libonnxruntime.so), which runs models faster than the built-in engine.
    #[arg(long, value_name = "PATH", env = "ORT_DYLIB_PATH")]
    pub onnxruntime: Option<PathBuf>,
    /// Number of threads that compute, for each model; default: one for each core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
    /// Maximum number of rows that are run together. Overrides the setting with which the model was added.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub batch_max: Option<u32>,
    /// Time that a request waits for others to join it, in milliseconds. Overrides the setting with which the model was
    /// added.
    #[arg(long, value_name = "T", value_parser = milliseconds)]
    pub batch_wait_ms: Option<f64>,
    /// Timeout of a run in seconds: the runner then kills the worker and starts another one.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub timeout: Duration,
    /// Maximum time for reading a model, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    pub load_timeout: Duration,
    /// Maximum of a worker's own memory in MiB. Lent tensors do not count.
    #[arg(long, value_name = "MIB", default_value = "16384", value_parser = clap::value_parser!(u64).range(64..))]
    memory: u64,
    /// Maximum size of a model's file in MiB.
    #[arg(long, value_name = "MIB", default_value = "2048", value_parser = clap::value_parser!(u64).range(1..))]
    model_size: u64,
    /// The model for which this process is the worker; the supervisor sets it when it starts a worker.
    #[arg(long, hide = true, value_name = "MODEL")]
    pub worker: Option<String>,
}

impl Args {
    /// Returns the maximum of a worker's own memory in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.saturating_mul(MIB)
    }

    pub fn model_bytes_max(&self) -> u64 {
        self.model_size.saturating_mul(MIB)
    }

    /// Returns the options with an absolute path of the socket.
    ///
    /// # Errors
    /// The kernel's error, if the working directory has no path.
    pub fn absolute(&self) -> std::io::Result<Self> {
        let mut args = self.clone();
        if let Some(socket) = args.socket.as_mut().filter(|path| !path.as_os_str().is_empty()) {
            *socket = std::path::absolute(&*socket)?;
        }
        Ok(args)
    }

    /// Returns a builder of a client with the configured socket and namespace.
    pub fn client(&self, label: &str) -> ClientBuilder {
        let mut builder = Client::builder().label(label);
        if let Some(socket) = self.socket.as_ref().filter(|path| !path.as_os_str().is_empty()) {
            builder = builder.socket(socket);
        }
        if let Some(namespace) = &self.namespace {
            builder = builder.namespace(namespace);
        }
        builder
    }

    /// Returns the log filter: `TENSORLEND_LOG` or, if unset, the default.
    pub fn filter(&self) -> EnvFilter {
        EnvFilter::try_from_env("TENSORLEND_LOG").unwrap_or_else(|_| EnvFilter::new("warn,tensorlend_runner=info"))
    }
}

/// Returns true if the log consists of JSON objects, as in containers. The variable
/// `TENSORLEND_LOG_FORMAT` selects this.
pub fn logs_json() -> bool {
    std::env::var_os(LOG_FORMAT).is_some_and(|format| format == "json")
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse().map(Duration::try_from_secs_f64) {
        Ok(Ok(time)) if !time.is_zero() => Ok(time),
        _ => Err("give seconds, such as 10 or 0.5".into()),
    }
}

fn milliseconds(text: &str) -> Result<f64, String> {
    let sensible = text.parse().ok().filter(|time| (0.0..=10_000.0).contains(time));
    sensible.ok_or_else(|| "give milliseconds from 0 to 10000".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_options_are_sound() {
        Args::command().debug_assert();
        assert!(milliseconds("nan").is_err() && milliseconds("-1").is_err() && milliseconds("2.5").is_ok());
        assert!(seconds("0").is_err() && seconds("-1").is_err() && seconds("x").is_err());
    }
}
