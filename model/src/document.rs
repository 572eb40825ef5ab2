//! What is said of models, as JSON: options, faults, statistics, and the steps before a model.

use serde::{Deserialize, Serialize};

/// The version of all documents of models.
pub const DOCUMENT_VERSION: u32 = 1;

/// Rows of one run, at most.
const BATCH_MAX: u32 = 4096;
/// The longest that a request may be kept for others to join it, in milliseconds.
const BATCH_WAIT_MS_MAX: f64 = 10_000.0;

/// A document as bytes.
pub fn encode(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).expect("strings, numbers and maps by name have a JSON form")
}

/// How a model is to be run: what is added with it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelOptions {
    /// Version of this document: 1.
    pub v: u32,
    /// Where it is run: `cpu`.
    pub device: String,
    /// Rows (sizes of the first dimension, summed) that are run together, at most; 1: each request alone.
    pub batch_max: u32,
    /// Rows with which a run begins without waiting for more; default: `batch_max`.
    pub batch_min: Option<u32>,
    /// How long the first request of a run waits for others, in milliseconds; 0: what is there already joins it.
    pub batch_wait_ms: f64,
    /// A word of whoever added it.
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
    /// Reads a model's metadata; none is the defaults.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn parse(metadata: &[u8]) -> std::result::Result<Self, String> {
        if metadata.is_empty() {
            return Ok(Self::default());
        }
        let options: Self = serde_json::from_slice(metadata).map_err(|e| e.to_string())?;
        options.check()?;
        Ok(options)
    }

    /// Whether they can be.
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

/// Why a runner's worker ended, or could not begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Version of this document: 1.
    pub v: u32,
    /// What happened, and what can be done.
    pub why: String,
    /// The runner's process.
    pub runner: u32,
    /// Words of the version of the model that cannot be loaded ([`tensorlend::Version::words`]); `None`: it was served before.
    pub refused: Option<[u64; 2]>,
}

impl Fault {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

/// The middle and the end of what was measured of late, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// Half of them took no longer.
    pub p50: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
}

/// What one runner says of itself, since it loaded the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelStatistics {
    /// Version of this document: 1.
    pub v: u32,
    /// The worker's process.
    pub pid: u32,
    /// What computes, with its version.
    pub engine: String,
    /// Requests that were answered.
    pub requests: u64,
    /// Requests that got an error.
    pub failures: u64,
    /// Times that the model was run.
    pub runs: u64,
    /// Runs by the number of their requests: the first counts runs of one.
    pub batches: Vec<u64>,
    /// Rows (sizes of the first dimension, summed) that were run; a run whose inputs have none in common counts as one.
    #[serde(default)]
    pub rows: u64,
    /// What all runs took together, in microseconds.
    #[serde(default)]
    pub run_us_sum: f64,
    /// From a request's sending to its run, of the last 1024 requests.
    pub queue_us: Quantiles,
    /// The model alone, of the last 1024 runs.
    pub run_us: Quantiles,
}

impl ModelStatistics {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }
}

/// One step from an image to a model's input. An image has elements u8 or f32 and the shape (height, width, channels), or (images,
/// height, width, channels).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// Bilinear: each pixel from all that it covers (`antialias`), as Pillow does, or from its four neighbours.
    Resize {
        /// Pixels in a row.
        width: u32,
        /// Rows.
        height: u32,
        /// Whether pixels that lie between count when it becomes smaller.
        #[serde(default)]
        antialias: bool,
    },
    /// The middle of it; the left and upper edge round half to even, as torchvision's do.
    CenterCrop {
        /// Pixels in a row.
        width: u32,
        /// Rows.
        height: u32,
    },
    /// Each element times a number, as f32: 1/255 makes 0 to 1 of u8.
    Scale(f32),
    /// Each channel less its mean, divided by its deviation, as f32.
    Normalize {
        /// One for each channel.
        mean: Vec<f32>,
        /// One for each channel.
        std: Vec<f32>,
    },
    /// Channels first: (channels, height, width). Nothing else but `batch` can follow.
    Chw,
    /// A first dimension of size 1.
    Batch,
}

impl Step {
    /// Steps as a request has them: a list, in JSON.
    ///
    /// ```
    /// use tensorlend_model::Step;
    ///
    /// assert_eq!(Step::parse_list(r#"[{"scale": 0.5}, "chw"]"#), Ok(vec![Step::Scale(0.5), Step::Chw]));
    /// assert!(Step::parse_list(r#"["blur"]"#).is_err());
    /// ```
    ///
    /// # Errors
    /// What is wrong, in words.
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
