//! Models beside the data: what is put, run and taken away by name, and computed by a runner in a process of its own.
//!
//! A model is a name like others, and its runners are servers of a service ([`Client::serve`]), so that a request takes
//! the way of every call and each of the words below is somebody's:
//!
//! | name | holds | owner |
//! |---|---|---|
//! | `model/NAME/.onnx` | the model's bytes, u8; [`ModelOptions`] as metadata | who adds it |
//! | `model/NAME` | the service: `.server`, `.door`, `.line` as of every service | runners, callers |
//! | `model/NAME/.stat/R` | [`ModelStatistics`] of one runner, ephemeral | that runner's worker |
//! | `model/NAME/.fault` | [`Fault`]: why the last worker ended, ephemeral | a runner |
//!
//! All four say what they have to say in JSON with a version `v`, so that programs without this library can take part.

mod answer;
mod deadline;
mod document;
mod handle;
mod request;

pub use answer::ModelAnswer;
pub use document::{Fault, ModelOptions, ModelStatistics, Quantiles, Step};
pub use handle::Model;
pub use request::{ModelRequest, RequestDocument};

use std::time::Duration;
use tensorlend::{Client, DType, Dataset, Error, Lease, Result, Version, check_name};

/// Bytes of a model, at most, unless a runner allows more.
pub const MODEL_BYTES_MAX: u64 = 2 << 30;

/// A model that was added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    /// Its name, as [`Models::open`] takes it.
    pub name: String,
    /// Length of its file, in bytes.
    pub nbytes: u64,
    /// Which value of `model/NAME/.onnx` it is.
    pub version: Version,
}

/// The service of a model.
pub fn model_service(model: &str) -> String {
    format!("model/{model}")
}

/// The name of its bytes.
pub fn model_bytes_name(model: &str) -> String {
    format!("model/{model}/.onnx")
}

/// The name of its last fault.
pub fn model_fault_name(model: &str) -> String {
    format!("model/{model}/.fault")
}

/// The name of one runner's statistics.
pub fn model_statistics_name(model: &str, runner: u32) -> String {
    format!("model/{model}/.stat/{runner}")
}

/// The model to which a name of model bytes belongs.
pub fn model_of_bytes_name(name: &str) -> Option<&str> {
    name.strip_prefix("model/")?.strip_suffix("/.onnx").filter(|model| !model.is_empty())
}

/// The models of a client's namespace.
///
/// ```no_run
/// use tensorlend::Client;
/// use tensorlend_model::{ModelOptions, Models};
///
/// let client = Client::connect()?;
/// let models = Models::new(&client);
/// models.put("resnet", &std::fs::read("resnet50.onnx")?, &ModelOptions::default())?;
/// models.run("resnet", &[("x", "image")], &[("y", "classes")], None)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Models {
    client: Client,
}

impl Models {
    /// Returns the models of this client's namespace. Asks nobody anything; the client is cloned, which costs little.
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone() }
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Adds a model, or replaces it: runners take it up by themselves. It is copied once, into shared memory.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// # let bytes = [8u8; 64];
    /// use tensorlend_model::{ModelOptions, Models};
    ///
    /// let models = Models::new(&client);
    /// models.put("resnet", &bytes, &ModelOptions::default())?; // a file's bytes
    /// assert_eq!(models.list("*")?[0].name, "resnet");
    /// assert_eq!(models.get("resnet")?.0.as_slice::<u8>()?, bytes);
    /// assert!(models.delete("resnet")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for options that cannot be, or no bytes; [`Error::Name`]; otherwise as [`Client::put`].
    pub fn put(&self, model: &str, bytes: &[u8], options: &ModelOptions) -> Result<Version> {
        let name = model_bytes_name(model);
        check_name(&name)?;
        options.check().map_err(|why| Error::Argument(format!("model {model:?}: {why}")))?;
        if bytes.is_empty() {
            return Err(Error::Argument(format!("model {model:?} has no bytes: give those of an ONNX file")));
        }
        let mut draft = self.client.create(DType::U8, &[bytes.len() as u64])?;
        draft.copy_from(bytes)?;
        draft.set_metadata(&document::encode(options))?;
        draft.publish(&name)
    }

    /// A model's bytes, where they lie, and its options.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Argument`] for options that this version does not know.
    pub fn get(&self, model: &str) -> Result<(Lease, ModelOptions)> {
        let lease = self.client.get(&model_bytes_name(model))?;
        let options = ModelOptions::parse(lease.metadata())
            .map_err(|why| Error::Argument(format!("the options of model {model:?}: {why}")))?;
        Ok((lease, options))
    }

    /// Takes a model away: its runners end. False if there was none.
    ///
    /// # Errors
    /// As [`Client::delete`].
    pub fn delete(&self, model: &str) -> Result<bool> {
        self.client.delete(&model_bytes_name(model))
    }

    /// The models whose names match a glob, sorted by name.
    ///
    /// # Errors
    /// As [`Client::list`].
    pub fn list(&self, glob: &str) -> Result<Vec<ModelInfo>> {
        let found = self.client.list(&model_bytes_name(glob))?.into_iter().filter_map(|info| {
            let name = model_of_bytes_name(&info.name)?.to_owned();
            Some(ModelInfo { name, nbytes: info.nbytes, version: info.version })
        });
        Ok(found.collect())
    }

    /// Why a runner's worker for this model ended last; `None`: none did, or the runner that knows of it has ended. With
    /// [`Fault::refused`], of the version that those words are of, no runner serves it until it is replaced.
    ///
    /// # Errors
    /// As [`Client::get`]; that there is no fault is none.
    pub fn fault(&self, model: &str) -> Result<Option<Fault>> {
        match self.client.get(&model_fault_name(model)) {
            // Of another version of tensorlend: nothing that could be told.
            Ok(lease) => Ok(lease.as_slice::<u8>().ok().and_then(|bytes| serde_json::from_slice(bytes).ok())),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What a model's runners say of themselves, one each.
    ///
    /// # Errors
    /// As [`Client::list`].
    pub fn statistics(&self, model: &str) -> Result<Vec<ModelStatistics>> {
        let of_one = format!("{}/.stat/*", globset::escape(&model_service(model)));
        let mut all = Vec::new();
        for info in self.client.list(&of_one)? {
            // One that has ended meanwhile, or speaks another version, says nothing.
            let Ok(lease) = self.client.get(&info.name) else { continue };
            all.extend(lease.as_slice::<u8>().ok().and_then(|bytes| serde_json::from_slice(bytes).ok()));
        }
        Ok(all)
    }

    /// A model to be run: keep it, since its way to a runner is opened once. See [`Model::run`].
    ///
    /// # Errors
    /// [`Error::Name`].
    pub fn open(&self, model: &str) -> Result<Model> {
        Model::open(self, model)
    }

    /// Runs a model once: its inputs are tensors by name, and so are its outputs, each as (the model's name for it, the tensor's
    /// name). Without outputs all of them are in what is returned; else the versions that were published, by
    /// [`ModelAnswer`] of it. For many runs keep a [`Model`]: this one opens a way to a runner each time.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// use tensorlend_model::Models;
    ///
    /// client.put("image", &[0f32; 3])?;
    /// let missing = Models::new(&client).run("resnet", &[("x", "image")], &[("y", "classes")], None);
    /// assert!(missing.unwrap_err().is_not_found()); // no such model was added
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Model::run`].
    pub fn run(
        &self,
        model: &str,
        inputs: &[(&str, &str)],
        outputs: &[(&str, &str)],
        timeout: Option<Duration>,
    ) -> Result<Dataset> {
        let mut request = ModelRequest::new();
        for (input, tensor) in inputs {
            request = request.input_from(input, tensor);
        }
        for (output, tensor) in outputs {
            request = request.output_to(output, tensor);
        }
        self.open(model)?.run(request, timeout)
    }
}

/// The manual's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../../docs/models.md")]
struct Manual;
