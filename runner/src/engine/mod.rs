//! Engines that compute models, behind one trait.

mod buffer;
#[cfg(feature = "onnxruntime")]
mod onnxruntime;
mod rewrite;
mod rten;
mod signature;

pub use buffer::{Buffer, Output, Own};
pub use signature::{Port, Signature};

use crate::args::Args;
use tensorlend::DType;

/// An input: row-major elements in place, checked against the signature.
#[derive(Clone, Copy, Debug)]
pub struct Feed<'f> {
    pub dtype: DType,
    pub shape: &'f [u64],
    pub bytes: &'f [u8],
}

/// Allocates memory for an output of this type and shape.
pub type Make<'m> = dyn FnMut(DType, &[u64]) -> Result<Buffer, String> + 'm;

/// A model that is ready to run.
pub trait Engine {
    /// The engine's name, with its version.
    fn name(&self) -> String;

    /// Runs the model on inputs in the signature's order. `wanted` are numbers of outputs in the signature; the returned outputs
    /// have the same order.
    ///
    /// # Errors
    /// The reason of a failed computation.
    fn run(&mut self, inputs: &[Feed<'_>], wanted: &[usize], make: &mut Make<'_>) -> Result<Vec<Output>, String>;
}

/// Reads a model: with ONNX Runtime if its library is named or installed, otherwise with the built-in engine.
///
/// # Errors
/// The reason why the model cannot be read.
pub fn load(args: &Args, model: &[u8], signature: &Signature) -> Result<Box<dyn Engine>, String> {
    #[cfg(feature = "onnxruntime")]
    if let Some(library) = onnxruntime::library(args)? {
        return Ok(Box::new(onnxruntime::OnnxRuntime::load(&library, args, model, signature)?));
    }
    #[cfg(not(feature = "onnxruntime"))]
    if args.onnxruntime.is_some() {
        return Err("this runner was built without ONNX Runtime: leave --onnxruntime and ORT_DYLIB_PATH away".into());
    }
    Ok(Box::new(rten::Rten::load(args, model, signature)?))
}
