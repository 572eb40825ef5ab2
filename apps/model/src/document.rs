//! The JSON documents of models: options, faults, statistics, and preparation steps.

use serde::{Deserialize, Serialize};

/// Version of every JSON document in this module.
pub const DOCUMENT_VERSION: u32 = 1;

/// Maximum number of rows in a batch.
const BATCH_MAX: u32 = 4096;
/// Maximum time that a request waits for other requests to join its batch, in milliseconds.
const BATCH_WAIT_MS_MAX: f64 = 10_000.0;

/// Encodes a document.
pub fn encode(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).expect("strings, numbers and maps by name have a JSON form")
}

/// Options of a model, stored with its bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelOptions {
    /// Version of this document: 1.
    pub v: u32,
    /// Device that runs the model: `cpu`.
    pub device: String,
    /// Maximum number of rows (sizes of the first dimension, summed) in a batch; 1: no batches.
    pub batch_max: u32,
    /// Number of rows at which a batch starts without waiting for more. `None`: `batch_max`.
    pub batch_min: Option<u32>,
    /// Time that the first request of a batch waits for other requests, in milliseconds. 0: the
    /// batch contains only requests that have already arrived.
    pub batch_wait_ms: f64,
    /// A label that the publisher of the model chooses.
    pub tag: String,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self {
            v: DOCUMENT_VERSION,
            device: "cpu".into(),
            batch_max: 1,
            batch_min: None,
            batch_wait_ms: 0.0,
            tag: String::new(),
        }
    }
}

impl ModelOptions {
    /// Parses a model's metadata. Empty metadata means the defaults.
    ///
    /// # Errors
    /// The reason for the failure, as text.
    pub fn parse(metadata: &[u8]) -> std::result::Result<Self, String> {
        if metadata.is_empty() {
            return Ok(Self::default());
        }
        let options: Self = serde_json::from_slice(metadata).map_err(|e| e.to_string())?;
        options.check()?;
        Ok(options)
    }

    /// Checks the ranges of the options.
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        if self.v != DOCUMENT_VERSION {
            return Err(format!("options of version {}, and {DOCUMENT_VERSION} is known", self.v));
        }
        if !self.device.eq_ignore_ascii_case("cpu") {
            return Err(format!("device {:?}: models run on \"cpu\"", self.device));
        }
        if !(1..=BATCH_MAX).contains(&self.batch_max) {
            return Err(format!("batches of {} rows: give 1 to {BATCH_MAX}", self.batch_max));
        }
        if self.batch_min.is_some_and(|least| !(1..=self.batch_max).contains(&least)) {
            return Err(format!("batch_min has to be 1 to batch_max, which is {}", self.batch_max));
        }
        if !(0.0..=BATCH_WAIT_MS_MAX).contains(&self.batch_wait_ms) {
            return Err(format!("a wait of {} ms: give 0 to {BATCH_WAIT_MS_MAX}", self.batch_wait_ms));
        }
        Ok(())
    }
}

/// The reason why a runner's worker ended, or could not start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Version of this document: 1.
    pub v: u32,
    /// The cause and the remedy.
    pub why: String,
    /// Process id of the runner.
    pub runner: u32,
    /// The version of the model that the runner cannot load, as returned by
    /// [`tensorlend::Version::words`]. `None`: the worker ended after it had loaded the model.
    pub refused: Option<[u64; 2]>,
}

impl Fault {
    /// Encodes the document as JSON.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

/// Quantiles of recent measurements, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// Metrics of one runner since it loaded the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelStatistics {
    /// Version of this document: 1.
    pub v: u32,
    /// Process id of the worker.
    pub pid: u32,
    /// Name and version of the engine.
    pub engine: String,
    /// Requests that got a response.
    pub requests: u64,
    /// Requests that got an error.
    pub failures: u64,
    /// Runs of the model.
    pub runs: u64,
    /// Runs by the number of their requests: the first element counts runs of one request.
    pub batches: Vec<u64>,
    /// Rows (sizes of the first dimension, summed) of all runs. A run whose inputs have no common
    /// size of the first dimension counts as one row.
    #[serde(default)]
    pub rows: u64,
    /// Total time of all runs, in microseconds.
    #[serde(default)]
    pub run_us_sum: f64,
    /// Time from the send of a request to the start of its run, over the last 1024 requests.
    pub queue_us: Quantiles,
    /// Time of the model alone, over the last 1024 runs.
    pub run_us: Quantiles,
}

impl ModelStatistics {
    /// Encodes the document as JSON.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

/// One step that prepares an image as a model's input. An image has elements u8 or f32, and the
/// shape (height, width, channels) or (images, height, width, channels).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// Bilinear resampling. With `antialias`, each new pixel is computed from all pixels that it
    /// covers, as in Pillow; otherwise from the four neighbours.
    Resize {
        /// Width, in pixels.
        width: u32,
        /// Height, in pixels.
        height: u32,
        /// Whether each pixel of a smaller image averages all pixels that it covers.
        #[serde(default)]
        antialias: bool,
    },
    /// Crops the centre. The left and upper edges round half to even, as in torchvision.
    CenterCrop {
        /// Width, in pixels.
        width: u32,
        /// Height, in pixels.
        height: u32,
    },
    /// Multiplies each element by a number, as f32. For example, 1/255 maps u8 to the range 0 to 1.
    Scale(f32),
    /// Subtracts each channel's mean from the channel and divides by the channel's standard
    /// deviation, as f32.
    Normalize {
        /// One value for each channel.
        mean: Vec<f32>,
        /// One value for each channel.
        std: Vec<f32>,
    },
    /// Moves the channels to the front: (channels, height, width). Only `batch` can follow this
    /// step.
    Chw,
    /// Inserts a first dimension of size 1.
    Batch,
}

impl Step {
    /// Parses the steps of a request from a JSON list.
    ///
    /// ```
    /// use tensorlend_model::Step;
    ///
    /// assert_eq!(Step::parse_list(r#"[{"scale": 0.5}, "chw"]"#), Ok(vec![Step::Scale(0.5), Step::Chw]));
    /// assert!(Step::parse_list(r#"["blur"]"#).is_err());
    /// ```
    ///
    /// # Errors
    /// The reason for the failure, as text.
    pub fn parse_list(text: &str) -> std::result::Result<Vec<Self>, String> {
        serde_json::from_str(text).map_err(|e| format!("the steps before a model: {e}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_cannot_be_are_refused_and_say_why() {
        assert_eq!(ModelOptions::parse(b""), Ok(ModelOptions::default()));
        let some = ModelOptions { batch_max: 8, batch_wait_ms: 2.5, tag: "v3".into(), ..ModelOptions::default() };
        assert_eq!(ModelOptions::parse(&encode(&some)), Ok(some));
        for (bad, word) in [
            (r#"{"v":2}"#, "version 2"),
            (r#"{"v":1,"device":"gpu"}"#, "gpu"),
            (r#"{"v":1,"batch_max":0}"#, "0 rows"),
            (r#"{"v":1,"batch_min":2}"#, "batch_min"),
            (r#"{"v":1,"batch_wait_ms":-1}"#, "-1 ms"),
            (r#"{"v":1,"batchmax":2}"#, "batchmax"),
            ("{", "EOF"),
        ] {
            let why = ModelOptions::parse(bad.as_bytes()).unwrap_err();
            assert!(why.contains(word), "{bad}: {why}");
        }
    }
}
