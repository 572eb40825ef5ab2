//! Models in the memory that tensorlend shares. Clients put, run and delete models by name, and
//! `tensorlend-runner` runs the models in its own processes.
//!
//! A model is a tensor with a name, and its runners are servers of a service ([`Client::serve`]). Each name has one owner:
//!
//! | name | holds | owner |
//! |---|---|---|
//! | `model/NAME/.onnx` | the model's bytes, u8; [`ModelOptions`] as metadata | its publisher |
//! | `model/NAME` | the service, with `.server`, `.door` and `.line` as every service | runners, callers |
//! | `model/NAME/.stat/R` | [`ModelStatistics`] of one runner, ephemeral | the runner's worker |
//! | `model/NAME/.fault` | [`Fault`]: the reason why the last worker ended, ephemeral | a runner |
//!
//! All documents are JSON with a version `v`, so that programs can take part without this library.

#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc, missing_debug_implementations, missing_docs)]

mod answer;
mod document;
mod handle;
mod request;

pub use answer::ModelAnswer;
pub use document::{Fault, ModelOptions, ModelStatistics, Quantiles, Step};
pub use handle::Model;
pub use request::{ModelRequest, RequestDocument};

use tensorlend::{Client, DType, Dataset, Error, Lease, Result, Timeout, Version, check_name};

/// Maximum size of a model in bytes. A runner can be configured to allow more.
pub const MODEL_BYTES_MAX: u64 = 2 << 30;

/// A model in a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    /// The model's name, for [`Models::open`].
    pub name: String,
    /// Size of the model's file, in bytes.
    pub nbytes: u64,
    /// Version of `model/NAME/.onnx`.
    pub version: Version,
}

/// Returns the name of a model's service.
pub fn model_service(model: &str) -> String {
    format!("model/{model}")
}

/// Returns the name of a model's bytes.
pub fn model_bytes_name(model: &str) -> String {
    format!("model/{model}/.onnx")
}

/// Returns the name of a model's last fault.
pub fn model_fault_name(model: &str) -> String {
    format!("model/{model}/.fault")
}

/// Returns the name of one runner's statistics.
pub fn model_statistics_name(model: &str, runner: u32) -> String {
    format!("model/{model}/.stat/{runner}")
}

/// Returns the model's name, given the name of the model's bytes.
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
    /// Returns the models of this client's namespace, without a request to the daemon. The returned
    /// value contains a clone of the client.
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone() }
    }

    /// Returns the client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Adds or replaces a model. Its runners load the new version without a further request. The
    /// bytes are copied once, into shared memory.
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
    /// [`Error::Argument`] for invalid options or no bytes; [`Error::Name`]; and the errors of
    /// [`Client::put`].
    pub fn put(&self, model: &str, bytes: &[u8], options: &ModelOptions) -> Result<Version> {
        let name = model_bytes_name(model);
        check_name(&name)?;
        options.check().map_err(|why| Error::Argument(format!("model {model:?}: {why}")))?;
        if bytes.is_empty() {
            return Err(Error::Argument(format!("model {model:?} has no bytes: give those of an ONNX file")));
        }
        let mut draft = self.client.create(DType::U8, bytes.len())?;
        draft.copy_from(bytes)?;
        draft.set_metadata(&document::encode(options))?;
        draft.publish(&name)
    }

    /// Leases a model's bytes, and returns the lease and the model's options.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Argument`] for options that this version does not know.
    pub fn get(&self, model: &str) -> Result<(Lease, ModelOptions)> {
        let lease = self.client.get(&model_bytes_name(model))?;
        let options = ModelOptions::parse(lease.metadata())
            .map_err(|why| Error::Argument(format!("the options of model {model:?}: {why}")))?;
        Ok((lease, options))
    }

    /// Deletes a model. Its runners then end. Returns false if the model does not exist.
    ///
    /// # Errors
    /// The errors of [`Client::delete`].
    pub fn delete(&self, model: &str) -> Result<bool> {
        self.client.delete(&model_bytes_name(model))
    }

    /// Lists the models whose names match a glob, sorted by name.
    ///
    /// # Errors
    /// The errors of [`Client::list`].
    pub fn list(&self, glob: &str) -> Result<Vec<ModelInfo>> {
        let found = self.client.list(&model_bytes_name(glob))?.into_iter().filter_map(|info| {
            let name = model_of_bytes_name(&info.name)?.to_owned();
            Some(ModelInfo { name, nbytes: info.nbytes, version: info.version })
        });
        Ok(found.collect())
    }

    /// Returns the reason for the last end of a worker of this model. `None`: no worker has ended,
    /// or the worker's runner has ended too. The runners do not serve the version in
    /// [`Fault::refused`] until a client replaces it.
    ///
    /// # Errors
    /// The errors of [`Client::get`], except for a missing fault.
    pub fn fault(&self, model: &str) -> Result<Option<Fault>> {
        match self.client.get(&model_fault_name(model)) {
            // A document that this version of tensorlend cannot parse counts as no fault.
            Ok(lease) => Ok(lease.as_slice::<u8>().ok().and_then(|bytes| serde_json::from_slice(bytes).ok())),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the metrics of each of a model's runners.
    ///
    /// # Errors
    /// The errors of [`Client::list`].
    pub fn statistics(&self, model: &str) -> Result<Vec<ModelStatistics>> {
        let of_one = format!("{}/.stat/*", globset::escape(&model_service(model)));
        let mut all = Vec::new();
        for info in self.client.list(&of_one)? {
            // Skips runners that have ended since this function read the list, and runners of
            // another version.
            let Ok(lease) = self.client.get(&info.name) else { continue };
            all.extend(lease.as_slice::<u8>().ok().and_then(|bytes| serde_json::from_slice(bytes).ok()));
        }
        Ok(all)
    }

    /// Opens a model for many runs over one connection to a runner. See [`Model::run`].
    ///
    /// # Errors
    /// [`Error::Name`].
    pub fn open(&self, model: &str) -> Result<Model> {
        Model::open(self, model)
    }

    /// Runs a model once. Inputs and outputs are tensors of the namespace. Each pair is the name in
    /// the model and the name of the tensor.
    ///
    /// If `outputs` is empty, the returned dataset contains all outputs. Otherwise the runner
    /// publishes the outputs, and [`ModelAnswer::of`] returns their versions. For many runs, open a
    /// [`Model`]: this method connects to a runner each time.
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
    /// The errors of [`Model::run`].
    pub fn run(
        &self,
        model: &str,
        inputs: &[(&str, &str)],
        outputs: &[(&str, &str)],
        timeout: impl Into<Timeout>,
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

/// Compiles the manual's example.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/models.md")]
struct Manual;
