//! ONNX Runtime, a library that the worker loads at its start.
//!
//! The runtime reads inputs in place. If the shape of an output follows from the inputs' shapes,
//! the runtime writes the output into the memory of the response. Otherwise the worker copies the
//! output once.

mod calls;

use super::{Engine, Feed, Make, Output, Signature};
use crate::args::Args;
use calls::{OutputBuffer, Run};
use ort::environment::{Environment, EnvironmentBuilder};
use ort::logging::LogLevel;
use ort::session::Session;
use ort::session::builder::SessionBuilder;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use tensorlend::DType;

/// The file names under which the system's loader may find the library.
const LIBRARIES: [&str; 2] = ["libonnxruntime.so.1", "libonnxruntime.so"];

/// ONNX Runtime's library, loaded, and the description of its environment. The environment itself
/// is made with the model, because it starts threads, which must inherit the confinement.
pub struct Library {
    builder: EnvironmentBuilder,
    path: PathBuf,
}

impl Library {
    /// Loads the library. Returns `None` if no library is named or installed.
    ///
    /// # Errors
    /// An error text if the named library does not exist, or cannot be loaded.
    pub fn open(args: &Args) -> Result<Option<Self>, String> {
        let path = match args.onnxruntime.as_ref().filter(|path| !path.as_os_str().is_empty()) {
            Some(path) if path.is_file() => path.clone(),
            Some(path) => {
                let path = path.display();
                return Err(format!("ONNX Runtime is not at {path}: see --onnxruntime and ORT_DYLIB_PATH"));
            }
            None => match LIBRARIES.iter().map(PathBuf::from).find(|name| ort::init_from(name).is_ok()) {
                Some(name) => name,
                None => return Ok(None),
            },
        };
        let builder = ort::init_from(&path).map_err(|e| at(&path, &e))?;
        Ok(Some(Self { builder, path }))
    }

    /// Loads a model.
    ///
    /// # Errors
    /// The runtime's reason why it cannot read the model.
    pub fn load(self, args: &Args, model: &[u8], signature: &Signature) -> Result<OnnxRuntime, String> {
        let builder = self.builder.with_name("tensorlend").with_telemetry(false);
        let environment = builder.build().map_err(|e| at(&self.path, &e))?;
        let session = build(&environment, args, model).map_err(|e| format!("ONNX Runtime cannot read it: {e}"))?;
        let c = |ports: &[super::Port]| -> Result<Vec<CString>, String> {
            ports.iter().map(|port| CString::new(port.name.as_str()).map_err(|e| e.to_string())).collect()
        };
        let names = Names { inputs: c(&signature.inputs)?, outputs: c(&signature.outputs)? };
        let unforeseen = vec![false; signature.outputs.len()];
        Ok(OnnxRuntime { session, signature: signature.clone(), names, unforeseen, version: calls::version() })
    }
}

fn at(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("ONNX Runtime at {}: {error}", path.display())
}

/// A model that ONNX Runtime runs.
pub struct OnnxRuntime {
    session: Session,
    signature: Signature,
    names: Names,
    /// For each output, whether a run may have computed another shape than the graph declares. The
    /// worker then stops predicting the shape of this output.
    unforeseen: Vec<bool>,
    version: String,
}

/// The names of inputs and outputs, as C strings.
struct Names {
    inputs: Vec<CString>,
    outputs: Vec<CString>,
}

impl OnnxRuntime {
    /// Runs the model, with memory for the outputs whose shapes the worker can predict.
    fn run_once(&mut self, inputs: &[Feed<'_>], wanted: &[usize], make: &mut Make<'_>) -> Result<Vec<Output>, Failed> {
        let mut foreseen: Vec<Option<Output>> = Vec::with_capacity(wanted.len());
        for &at in wanted {
            let port = &self.signature.outputs[at];
            let shape = (!self.unforeseen[at]).then(|| self.signature.foresee(port, inputs)).flatten();
            foreseen.push(match shape {
                Some(shape) => {
                    let buffer = make(port.dtype, &shape).map_err(Failed::of)?;
                    Some(Output { dtype: port.dtype, shape, buffer })
                }
                None => None,
            });
        }
        let any_foreseen = foreseen.iter().any(Option::is_some);
        let mut run = Run::new(&mut self.session);
        for (feed, name) in inputs.iter().zip(&self.names.inputs) {
            run.input(name, feed, code(feed.dtype).ok_or_else(|| Failed::of(format!("{} is unknown", feed.dtype)))?)?;
        }
        for (&at, output) in wanted.iter().zip(&mut foreseen) {
            let port = &self.signature.outputs[at];
            let code = code(port.dtype).ok_or_else(|| Failed::of(format!("{} is unknown", port.dtype)))?;
            let buffer = output.as_mut().map(|output| OutputBuffer {
                shape: &output.shape,
                bytes: output.buffer.bytes_mut(),
                code,
            });
            run.output(&self.names.outputs[at], buffer)?;
        }
        let made = run.go().map_err(|why| Failed { why, foreseen: any_foreseen })?;
        let mut outputs = Vec::with_capacity(wanted.len());
        for ((output, made), &at) in foreseen.into_iter().zip(made).zip(wanted) {
            let port = &self.signature.outputs[at];
            outputs.push(match (output, made) {
                (Some(output), _) => output,
                (None, Some(made)) => {
                    let shape = made.shape()?;
                    let mut buffer = make(port.dtype, &shape).map_err(Failed::of)?;
                    made.copy_to(buffer.bytes_mut(), code(port.dtype)).map_err(Failed::of)?;
                    Output { dtype: port.dtype, shape, buffer }
                }
                (None, None) => return Err(Failed::of(format!("output {:?} was not computed", port.name))),
            });
        }
        Ok(outputs)
    }
}

/// The error of a failed run.
struct Failed {
    why: String,
    /// Whether the worker had predicted an output's shape. A wrong prediction may have caused the
    /// failure.
    foreseen: bool,
}

impl Failed {
    fn of(why: String) -> Self {
        Self { why, foreseen: false }
    }
}

impl From<String> for Failed {
    fn from(why: String) -> Self {
        Self::of(why)
    }
}

impl Engine for OnnxRuntime {
    fn name(&self) -> String {
        format!("ONNX Runtime {}", self.version)
    }

    fn run(&mut self, inputs: &[Feed<'_>], wanted: &[usize], make: &mut Make<'_>) -> Result<Vec<Output>, String> {
        match self.run_once(inputs, wanted, make) {
            Ok(outputs) => Ok(outputs),
            // The graph may declare one shape and compute another. The runtime then refuses to
            // write the output.
            Err(failed) if failed.foreseen => {
                let before = std::mem::replace(&mut self.unforeseen, vec![true; self.signature.outputs.len()]);
                let outputs = self.run_once(inputs, wanted, make).map_err(|failed| failed.why);
                if outputs.is_err() {
                    self.unforeseen = before;
                }
                outputs
            }
            Err(failed) => Err(failed.why),
        }
    }
}

fn build(environment: &Environment, args: &Args, model: &[u8]) -> Result<Session, String> {
    let builder: SessionBuilder = Session::builder(environment).map_err(|e| e.to_string())?;
    // Only errors are logged, because the runtime's warnings are advice for authors of graphs.
    let mut builder = builder.with_log_level(LogLevel::Error).map_err(|e| e.to_string())?;
    if let Some(threads) = args.threads {
        builder = builder.with_intra_threads(threads.into()).map_err(|e| e.to_string())?;
    }
    builder.commit_from_memory(model).map_err(|e| e.to_string())
}

/// Returns ONNX's number for an element type. Returns `None` if ONNX has no such type.
fn code(dtype: DType) -> Option<u32> {
    Some(match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I8 => 3,
        DType::U16 => 4,
        DType::I16 => 5,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::BOOL => 9,
        DType::F16 => 10,
        DType::F64 => 11,
        DType::U32 => 12,
        DType::U64 => 13,
        DType::BF16 => 16,
        _ => return None,
    })
}
