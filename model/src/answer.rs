//! What an answer of a model says beside the outputs.

use crate::document::{DOCUMENT_VERSION, encode};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use tensorlend::{Client, DType, Dataset, DatasetDraft, Error, Result, Version};

/// The member of an answer that has the versions of what was published.
const VERSIONS: &str = ".versions";

/// What an answer says beside its outputs: how long they took, and what was published in place of being brought.
///
/// ```no_run
/// # let client = tensorlend::Client::connect()?;
/// use tensorlend_model::{ModelAnswer, ModelRequest, Models};
///
/// let answer = Models::new(&client).open("classifier")?.run(ModelRequest::new().input_from("x", "image"), None)?;
/// let told = ModelAnswer::of(&answer)?;
/// println!("waited {:?}, computed {:?}", told.queue, told.run);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelAnswer {
    /// From the request's sending to its run; zero where the request did not say when it was sent.
    pub queue: Duration,
    /// The model alone; of several requests that were run together, all of that run.
    pub run: Duration,
    /// The versions that were published for the request, by the model's names of the outputs.
    pub versions: BTreeMap<String, Version>,
}

/// The metadata of an answer, as JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Document {
    v: u32,
    queue_us: f64,
    run_us: f64,
    /// Outputs that were published, in the order of the rows of `.versions`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    published: Vec<String>,
}

impl ModelAnswer {
    /// From an answer of a runner.
    ///
    /// # Errors
    /// [`Error::Argument`] for an answer that is none.
    pub fn of(answer: &Dataset) -> Result<Self> {
        let odd = || Error::Argument("the answer does not tell what a runner's does".into());
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

    /// Adds it to the draft of an answer, for who serves a model.
    ///
    /// # Errors
    /// As [`Client::create`] and [`DatasetDraft::add`].
    pub fn write(&self, client: &Client, mut answer: DatasetDraft) -> Result<DatasetDraft> {
        let document = Document {
            v: DOCUMENT_VERSION,
            queue_us: self.queue.as_secs_f64() * 1e6,
            run_us: self.run.as_secs_f64() * 1e6,
            published: self.versions.keys().cloned().collect(),
        };
        if !self.versions.is_empty() {
            let mut words = client.create(DType::U64, &[self.versions.len() as u64, 2])?;
            for (to, version) in words.as_mut_slice::<u64>()?.chunks_exact_mut(2).zip(self.versions.values()) {
                to.copy_from_slice(&version.words());
            }
            answer = answer.add(VERSIONS, words)?;
        }
        answer.metadata(&encode(&document))
    }
}
