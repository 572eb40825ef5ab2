//! A request to a model.

use crate::document::{DOCUMENT_VERSION, Step, encode};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tensorlend::{Client, DatasetDraft, Draft, Result};

/// The metadata of a request, as JSON. Without metadata, the request contains all inputs, and its
/// response contains all outputs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestDocument {
    /// Version of this document: 1.
    pub v: u32,
    /// Inputs that are tensors of the namespace. The key is the input's name in the model, the
    /// value the tensor's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, String>,
    /// Requested outputs. The key is the output's name in the model. The value is the name under
    /// which the runner publishes the output, or `null` for an output in the response. If the map
    /// is empty, the response contains all outputs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outputs: BTreeMap<String, Option<String>>,
    /// Preparation steps, by input.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub prepare: BTreeMap<String, Vec<Step>>,
}

impl RequestDocument {
    /// Parses a request's metadata. Empty metadata means an empty document.
    ///
    /// # Errors
    /// The reason for the failure, as text.
    pub fn parse(metadata: &[u8]) -> std::result::Result<Self, String> {
        if metadata.is_empty() {
            return Ok(Self { v: DOCUMENT_VERSION, ..Self::default() });
        }
        let document: Self = serde_json::from_slice(metadata).map_err(|e| format!("the request's metadata: {e}"))?;
        if document.v != DOCUMENT_VERSION {
            return Err(format!("a request of version {}, and {DOCUMENT_VERSION} is known here", document.v));
        }
        Ok(document)
    }
}

/// A request to a model: its inputs, and the destinations of its outputs.
///
/// ```
/// # let broker = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
/// use tensorlend::DType;
/// use tensorlend_model::{ModelRequest, Step};
///
/// let mut state = client.create(DType::F32, [2, 1, 128])?;
/// state.as_mut_slice::<f32>()?.fill(0.0);
/// let request = ModelRequest::new()
///     .input("state", state)                    // in the request
///     .input_from("image", "camera/front")      // a tensor of the namespace, read in place
///     .prepare("image", &[Step::Resize { width: 224, height: 224, antialias: true }, Step::Scale(1.0 / 255.0)])
///     .output("label")                          // in the response
///     .output_to("state", "camera/front/state"); // published
/// # drop(request);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
#[must_use = "a request does nothing until a model is run with it"]
pub struct ModelRequest {
    brought: Vec<(String, Draft)>,
    document: RequestDocument,
}

impl ModelRequest {
    /// Returns a request without inputs. Its response contains all outputs.
    pub fn new() -> Self {
        Self { brought: Vec::new(), document: RequestDocument { v: DOCUMENT_VERSION, ..RequestDocument::default() } }
    }

    /// Adds an input that the request contains.
    pub fn input(mut self, input: &str, draft: Draft) -> Self {
        self.brought.push((input.to_owned(), draft));
        self
    }

    /// Adds an input that is a tensor of the namespace. The runner reads the tensor's value when it
    /// takes the request.
    pub fn input_from(mut self, input: &str, tensor: &str) -> Self {
        self.document.inputs.insert(input.to_owned(), tensor.to_owned());
        self
    }

    /// Sets the steps that prepare an image as this input.
    pub fn prepare(mut self, input: &str, steps: &[Step]) -> Self {
        self.document.prepare.insert(input.to_owned(), steps.to_vec());
        self
    }

    /// Requests an output in the response. A response to a request that names no outputs contains
    /// all of them.
    pub fn output(mut self, output: &str) -> Self {
        self.document.outputs.insert(output.to_owned(), None);
        self
    }

    /// Requests an output that the runner publishes under a name.
    pub fn output_to(mut self, output: &str, tensor: &str) -> Self {
        self.document.outputs.insert(output.to_owned(), Some(tensor.to_owned()));
        self
    }

    /// Returns true if the client can send the request again, because the request contains no
    /// tensors.
    pub(crate) fn is_repeatable(&self) -> bool {
        self.brought.is_empty()
    }

    /// Returns the message, with the tensors that the request contains.
    pub(crate) fn message(&mut self, client: &Client) -> Result<DatasetDraft> {
        let mut message = client.dataset();
        for (input, draft) in std::mem::take(&mut self.brought) {
            message = message.add(&input, draft)?;
        }
        let sent_ns = tensorlend_os::clock::monotonic_ns();
        Ok(message.metadata(&encode(&self.document))?.timestamp(sent_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_of_another_version_or_with_unknown_words_is_refused() {
        assert_eq!(RequestDocument::parse(b"").unwrap().v, 1);
        let text = r#"{"v":1,"inputs":{"x":"a"},"outputs":{"y":null,"z":"b"},"prepare":{"x":[{"scale":0.5},"chw",
            {"resize":{"width":2,"height":3}}]}}"#;
        let document = RequestDocument::parse(text.as_bytes()).unwrap();
        assert_eq!(document.outputs["z"].as_deref(), Some("b"));
        let resize = Step::Resize { width: 2, height: 3, antialias: false };
        assert_eq!(document.prepare["x"], [Step::Scale(0.5), Step::Chw, resize]);
        assert_eq!(RequestDocument::parse(&encode(&document)), Ok(document));
        for bad in [r#"{"v":2}"#, r#"{"v":1,"input":{}}"#, "[]", r#"{"v":1,"prepare":{"x":["blur"]}}"#, "\u{0}"] {
            assert!(RequestDocument::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
