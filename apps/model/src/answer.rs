//! The metadata of a response.

use crate::document::{DOCUMENT_VERSION, encode};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use tensorlend::{Client, DType, Dataset, DatasetDraft, Error, Result, Version};

/// Name of the tensor in a response that contains the versions of the published outputs.
const VERSIONS: &str = ".versions";

/// The metadata of a response: the times of the request, and the versions of the outputs that the
/// runner published.
///
/// ```no_run
/// # let client = tensorlend::Client::connect()?;
/// use tensorlend_model::{ModelAnswer, ModelRequest, Models};
///
/// let answer = Models::new(&client).open("classifier")?.run(ModelRequest::new().input_from("x", "image"), None)?;
/// let times = ModelAnswer::of(&answer)?;
/// println!("waited {:?}, computed {:?}", times.queue, times.run);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelAnswer {
    /// Time from the send of the request to the start of its run. Zero if the request has no
    /// timestamp.
    pub queue: Duration,
    /// Time of the model alone. For a batch of requests, the time of the whole batch.
    pub run: Duration,
    /// Versions of the published outputs, by the names of the outputs in the model.
    pub versions: BTreeMap<String, Version>,
}

/// The metadata of a response, as JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Document {
    v: u32,
    queue_us: f64,
    run_us: f64,
    /// The published outputs, in the order of the rows of `.versions`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    published: Vec<String>,
}

impl ModelAnswer {
    /// Reads a runner's response.
    ///
    /// # Errors
    /// [`Error::Argument`] for a dataset that is not a runner's response.
    pub fn of(answer: &Dataset) -> Result<Self> {
        let odd = || {
            Error::Argument("the dataset is not a response of tensorlend-runner: check what serves the model".into())
        };
        let Document { v, queue_us, run_us, published } =
            serde_json::from_slice(answer.metadata()).map_err(|_| odd())?;
        let words = answer.get(VERSIONS).map(|words| words.as_slice::<u64>()).transpose();
        let words = words.map_err(|_| odd())?.unwrap_or_default();
        if v != DOCUMENT_VERSION || words.len() != 2 * published.len() {
            return Err(odd());
        }
        let span = |us: f64| Duration::try_from_secs_f64(us / 1e6).map_err(|_| odd());
        let versions = words.chunks_exact(2).map(|pair| Version::from_words([pair[0], pair[1]]));
        Ok(Self { queue: span(queue_us)?, run: span(run_us)?, versions: published.into_iter().zip(versions).collect() })
    }

    /// Adds the times to a response's metadata, and the versions of published outputs as a tensor.
    /// A model server calls this function.
    ///
    /// # Errors
    /// The errors of [`Client::create`] and [`DatasetDraft::add`].
    pub fn write(&self, client: &Client, mut answer: DatasetDraft) -> Result<DatasetDraft> {
        let document = Document {
            v: DOCUMENT_VERSION,
            queue_us: self.queue.as_secs_f64() * 1e6,
            run_us: self.run.as_secs_f64() * 1e6,
            published: self.versions.keys().cloned().collect(),
        };
        if !self.versions.is_empty() {
            let mut words = client.create(DType::U64, (self.versions.len(), 2))?;
            for (to, version) in words.as_mut_slice::<u64>()?.chunks_exact_mut(2).zip(self.versions.values()) {
                to.copy_from_slice(&version.words());
            }
            answer = answer.add(VERSIONS, words)?;
        }
        answer.metadata(&encode(&document))
    }
}
