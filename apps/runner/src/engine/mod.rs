//! The engines that run models. All engines implement one trait.

mod buffer;
mod files;
#[cfg(feature = "onnxruntime")]
mod onnxruntime;
mod rewrite;
mod rten;
mod signature;

pub use buffer::{Buffer, Output, OwnedBytes};
pub use signature::{Port, Signature};

use crate::args::Args;
use tensorlend::DType;

/// An input that is read in place, in row-major order. The worker has checked it against the
/// signature.
#[derive(Clone, Copy, Debug)]
pub struct Feed<'f> {
    pub dtype: DType,
    pub shape: &'f [u64],
    pub bytes: &'f [u8],
}

/// A function that allocates memory for an output of this type and shape.
pub type Make<'m> = dyn FnMut(DType, &[u64]) -> Result<Buffer, String> + 'm;

/// A model that is ready to run.
pub trait Engine {
    /// The engine's name, with its version.
    fn name(&self) -> String;

    /// Runs the model on `inputs`, which are in the signature's order. `wanted` contains the
    /// numbers of the requested outputs in the signature. The returned outputs have the order of
    /// `wanted`.
    ///
    /// # Errors
    /// The engine's reason for a failed run.
    fn run(&mut self, inputs: &[Feed<'_>], wanted: &[usize], make: &mut Make<'_>) -> Result<Vec<Output>, String>;
}

/// The engine of a worker, without a model. The library of the engine is loaded, and nothing of it runs yet.
pub enum Library {
    #[cfg(feature = "onnxruntime")]
    OnnxRuntime(Box<onnxruntime::Library>),
    Rten,
}

impl Library {
    /// Loads the engine: ONNX Runtime if its library is named or installed, and otherwise the
    /// built-in engine.
    ///
    /// # Errors
    /// The reason why the named library cannot be used.
    pub fn open(args: &Args) -> Result<Self, String> {
        #[cfg(feature = "onnxruntime")]
        if let Some(library) = onnxruntime::Library::open(args)? {
            return Ok(Self::OnnxRuntime(Box::new(library)));
        }
        #[cfg(not(feature = "onnxruntime"))]
        if args.onnxruntime.is_some() {
            let why = "this runner was built without ONNX Runtime: omit --onnxruntime and unset ORT_DYLIB_PATH";
            return Err(why.into());
        }
        Ok(Self::Rten)
    }

    /// Loads a model. The bytes must be private memory: a publisher may change shared memory between
    /// the check and the use.
    ///
    /// # Errors
    /// The reason why the model cannot be read.
    pub fn load(self, args: &Args, model: Vec<u8>) -> Result<(Box<dyn Engine>, Signature), String> {
        files::refuse(&model)?;
        let signature = Signature::read(&model)?;
        let engine: Box<dyn Engine> = match self {
            #[cfg(feature = "onnxruntime")]
            Self::OnnxRuntime(library) => Box::new(library.load(args, &model, &signature)?),
            Self::Rten => Box::new(rten::Rten::load(args, model, &signature)?),
        };
        Ok((engine, signature))
    }
}
