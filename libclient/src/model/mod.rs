//! Models beside the data: what is put, run and taken away by name, and computed by a runner in a process of its own.
//!
//! A model is a name like others, and its runners are servers of a service ([`crate::Client::serve`]), so that a request takes
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
mod document;
mod handle;
mod request;

pub use answer::ModelAnswer;
pub use document::{Fault, ModelOptions, ModelStatistics, Quantiles, Step};
pub use handle::Model;
pub use request::{ModelRequest, RequestDocument};

use crate::client::Client;
use crate::error::{Error, Result, check_name};
use crate::lease::lease::Dataset;
use crate::names::version::Version;
use std::time::Duration;

/// Bytes of a model, at most, unless a runner allows more.
pub const MODEL_BYTES_MAX: u64 = 2 << 30;

/// A model that was added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    /// Its name, as [`Client::model`] takes it.
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

impl Client {
    /// Adds a model, or replaces it: runners take it up by themselves. It is copied once, into shared memory.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// # let bytes = [8u8; 64];
    /// use tensorlend::ModelOptions;
    ///
    /// client.put_model("resnet", &bytes, &ModelOptions::default())?; // a file's bytes
    /// assert_eq!(client.models("*")?[0].name, "resnet");
    /// assert_eq!(client.get_model("resnet")?.0.as_slice::<u8>()?, bytes);
    /// assert!(client.delete_model("resnet")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for options that cannot be, or no bytes; [`Error::Name`]; otherwise as [`Client::put`].
    pub fn put_model(&self, model: &str, bytes: &[u8], options: &ModelOptions) -> Result<Version> {
        let name = model_bytes_name(model);
        check_name(&name)?;
        options.check().map_err(|why| Error::Argument(format!("model {model:?}: {why}")))?;
        if bytes.is_empty() {
            return Err(Error::Argument(format!("model {model:?} has no bytes: give those of an ONNX file")));
        }
        let mut draft = self.create(tensorlend_layout::DType::U8, &[bytes.len() as u64])?;
        draft.copy_from(bytes)?;
        draft.set_metadata(&document::encode(options))?;
        draft.publish(&name)
    }

    /// A model's bytes, where they lie, and its options.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Argument`] for options that this version does not know.
    pub fn get_model(&self, model: &str) -> Result<(crate::Lease, ModelOptions)> {
        let lease = self.get(&model_bytes_name(model))?;
        let options = ModelOptions::parse(lease.metadata())
            .map_err(|why| Error::Argument(format!("the options of model {model:?}: {why}")))?;
        Ok((lease, options))
    }

    /// Takes a model away: its runners end. False if there was none.
    ///
    /// # Errors
    /// As [`Client::delete`].
    pub fn delete_model(&self, model: &str) -> Result<bool> {
        self.delete(&model_bytes_name(model))
    }

    /// The models whose names match a glob, sorted by name.
    ///
    /// # Errors
    /// As [`Client::list`].
    pub fn models(&self, glob: &str) -> Result<Vec<ModelInfo>> {
        let found = self.list(&model_bytes_name(glob))?.into_iter().filter_map(|info| {
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
    pub fn model_fault(&self, model: &str) -> Result<Option<Fault>> {
        match self.get(&model_fault_name(model)) {
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
    pub fn model_statistics(&self, model: &str) -> Result<Vec<ModelStatistics>> {
        let of_one = format!("{}/.stat/*", globset::escape(&model_service(model)));
        let mut all = Vec::new();
        for info in self.list(&of_one)? {
            // One that has ended meanwhile, or speaks another version, says nothing.
            let Ok(lease) = self.get(&info.name) else { continue };
            all.extend(lease.as_slice::<u8>().ok().and_then(|bytes| serde_json::from_slice(bytes).ok()));
        }
        Ok(all)
    }

    /// A model to be run: keep it, since its way to a runner is opened once. See [`Model::run`].
    ///
    /// # Errors
    /// [`Error::Name`].
    pub fn model(&self, model: &str) -> Result<Model> {
        Model::open(self, model)
    }

    /// Runs a model once: its inputs are tensors by name, and so are its outputs, each as (the model's name for it, the tensor's
    /// name). Without outputs all of them are in what is returned; else the versions that were published, by
    /// [`ModelAnswer`] of it. For many runs keep a [`Client::model`]: this one opens a way to a runner each time.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// client.put("image", &[0f32; 3])?;
    /// let missing = client.run_model("resnet", &[("x", "image")], &[("y", "classes")], None);
    /// assert!(missing.unwrap_err().is_not_found()); // no such model was added
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Model::run`].
    pub fn run_model(
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
        self.model(model)?.run(request, timeout)
    }
}
