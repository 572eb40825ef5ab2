//! What computes a model, behind one trait.

#[cfg(feature = "onnxruntime")]
mod onnxruntime;
mod place;
mod rewrite;
mod rten;
mod signature;

pub use place::{Output, Own, Place};
pub use signature::{Port, Signature};

use crate::args::Args;
use tensorlend::DType;

/// An input: row-major elements where they lie, already checked against the signature.
#[derive(Clone, Copy, Debug)]
pub struct Feed<'f> {
    pub dtype: DType,
    pub shape: &'f [u64],
    pub bytes: &'f [u8],
}

/// Makes room for an output of this type and shape.
pub type Make<'m> = dyn FnMut(DType, &[u64]) -> Result<Place, String> + 'm;

/// A model that is ready to be run.
pub trait Engine {
    /// What computes, with its version.
    fn name(&self) -> String;

    /// Runs the model on inputs in the signature's order. `wanted` are numbers of outputs in the signature, and what is returned
    /// has their order.
    ///
    /// # Errors
    /// Why it could not be computed.
    fn run(&mut self, inputs: &[Feed<'_>], wanted: &[usize], make: &mut Make<'_>) -> Result<Vec<Output>, String>;
}

/// Reads a model, with ONNX Runtime where its library was given or is found, else with what is built in.
///
/// # Errors
/// Why it cannot be read.
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
