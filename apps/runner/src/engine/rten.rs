//! rten, the built-in engine, which is written in Rust.
//!
//! rten reads inputs of f32, i32, i8 and u8 in place. rten computes i64 and bool as i32, and f64
//! and f16 as f32. The worker converts these inputs and outputs, and refuses an i64 value that does
//! not fit into i32. rten allocates its outputs itself, and its interface accepts no memory for
//! them. So the worker copies each output once.

use super::rewrite::rewritten;
use super::{Engine, Feed, Make, Output, Signature};
use crate::args::Args;
use half::f16;
use rten::{Model, ModelOptions, NodeId, RunOptions, ThreadPool, Value, ValueOrView, ValueView};
use rten_tensor::{AsView, Layout, Tensor};
use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tensorlend::DType;

/// A model that rten runs.
pub struct Rten {
    model: Model,
    signature: Signature,
    inputs: Vec<NodeId>,
    outputs: Vec<NodeId>,
    pool: Option<Arc<ThreadPool>>,
}

impl Rten {
    /// Loads a model, after [`rewritten`] has replaced the operators that rten lacks.
    pub fn load(args: &Args, model: Vec<u8>, signature: &Signature) -> Result<Self, String> {
        let bytes = caught(|| rewritten(&model))??.unwrap_or(model);
        let load = || {
            let mut options = ModelOptions::with_all_ops();
            options.prepack_weights(true);
            options.load(bytes)
        };
        let model = caught(load)?.map_err(|e| format!("rten cannot read it: {e}"))?;
        let node = |port: &super::Port| model.node_id(&port.name).map_err(|e| format!("{:?}: {e}", port.name));
        let inputs = signature.inputs.iter().map(node).collect::<Result<_, _>>()?;
        let outputs = signature.outputs.iter().map(node).collect::<Result<_, _>>()?;
        let pool = args.threads.map(|threads| Arc::new(ThreadPool::with_num_threads(threads.into())));
        Ok(Self { model, signature: signature.clone(), inputs, outputs, pool })
    }
}

impl Engine for Rten {
    fn name(&self) -> String {
        "rten 0.27".into()
    }

    fn run(&mut self, inputs: &[Feed<'_>], wanted: &[usize], make: &mut Make<'_>) -> Result<Vec<Output>, String> {
        let mut values = Vec::with_capacity(inputs.len());
        for ((feed, node), port) in inputs.iter().zip(&self.inputs).zip(&self.signature.inputs) {
            values.push((*node, value(feed).map_err(|why| format!("input {:?}: {why}", port.name))?));
        }
        let nodes: Vec<NodeId> = wanted.iter().map(|&at| self.outputs[at]).collect();
        let mut options = RunOptions::default();
        options.thread_pool.clone_from(&self.pool);
        let computed = caught(|| self.model.run(values, &nodes, Some(options)))?.map_err(|e| e.to_string())?;
        let mut outputs = Vec::with_capacity(wanted.len());
        for (value, &at) in computed.iter().zip(wanted) {
            let port = &self.signature.outputs[at];
            let written = written(value, port.dtype, make).map_err(|why| format!("output {:?}: {why}", port.name))?;
            outputs.push(written);
        }
        Ok(outputs)
    }
}

/// Converts a panic of rten to an error. rten only reads the model, so the model is still valid
/// after a panic.
fn caught<T>(what: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(what)).map_err(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        format!("rten panicked: {}", words.unwrap_or("without a word"))
    })
}

fn value<'f>(feed: &Feed<'f>) -> Result<ValueOrView<'f>, String> {
    let shape: Vec<usize> = feed.shape.iter().map(|&size| size as usize).collect();
    Ok(match feed.dtype {
        DType::F32 => view::<f32>(&shape, feed)?,
        DType::I32 => view::<i32>(&shape, feed)?,
        DType::U8 => view::<u8>(&shape, feed)?,
        DType::I8 => view::<i8>(&shape, feed)?,
        DType::I64 => {
            let narrow = |&value: &i64| {
                i32::try_from(value)
                    .map_err(|_| format!("{value} does not fit into the 32 bits with which rten computes"))
            };
            owned(&shape, cast::<i64>(feed.bytes)?.iter().map(narrow).collect::<Result<Vec<i32>, _>>()?)
        }
        DType::BOOL => owned(&shape, feed.bytes.iter().map(|&byte| i32::from(byte != 0)).collect::<Vec<_>>()),
        DType::F64 => owned(&shape, cast::<f64>(feed.bytes)?.iter().map(|&value| value as f32).collect::<Vec<_>>()),
        DType::F16 => owned(&shape, cast::<f16>(feed.bytes)?.iter().map(|value| value.to_f32()).collect::<Vec<_>>()),
        other => return Err(format!("rten does not compute with {other}: use ONNX Runtime (--onnxruntime)")),
    })
}

fn view<'f, T: bytemuck::Pod>(shape: &[usize], feed: &Feed<'f>) -> Result<ValueOrView<'f>, String>
where
    ValueView<'f>: From<rten_tensor::TensorView<'f, T>>,
{
    Ok(ValueView::from_shape(shape, cast::<T>(feed.bytes)?).map_err(|e| e.to_string())?.into())
}

fn owned<T>(shape: &[usize], elements: Vec<T>) -> ValueOrView<'static>
where
    Value: From<Tensor<T>>,
{
    ValueOrView::Value(Tensor::from_data(shape, elements).into())
}

fn cast<T: bytemuck::Pod>(bytes: &[u8]) -> Result<&[T], String> {
    bytemuck::try_cast_slice(bytes).map_err(|e| format!("its bytes are not aligned: {e}"))
}

/// Copies an output into the memory of the response, with the element type that the model declares.
fn written(value: &Value, dtype: DType, make: &mut Make<'_>) -> Result<Output, String> {
    match (value, dtype) {
        (Value::FloatTensor(from), DType::F32) => plain(from, dtype, make),
        (Value::Int32Tensor(from), DType::I32) => plain(from, dtype, make),
        (Value::UInt8Tensor(from), DType::U8) => plain(from, dtype, make),
        (Value::Int8Tensor(from), DType::I8) => plain(from, dtype, make),
        (Value::Int32Tensor(from), DType::I64) => converted(from, dtype, make, |&value| i64::from(value)),
        (Value::Int32Tensor(from), DType::BOOL) => converted(from, dtype, make, |&value| u8::from(value != 0)),
        (Value::FloatTensor(from), DType::F64) => converted(from, dtype, make, |&value| f64::from(value)),
        (Value::FloatTensor(from), DType::F16) => converted(from, dtype, make, |&value| f16::from_f32(value)),
        (other, _) => Err(format!("the model declares {dtype}, and rten computed {}", other.dtype())),
    }
}

fn room<T>(from: &Tensor<T>, dtype: DType, make: &mut Make<'_>) -> Result<Output, String> {
    let shape: Vec<u64> = from.shape().iter().map(|&size| size as u64).collect();
    let buffer = make(dtype, &shape)?;
    Ok(Output { dtype, shape, buffer })
}

fn plain<T: bytemuck::Pod>(from: &Tensor<T>, dtype: DType, make: &mut Make<'_>) -> Result<Output, String> {
    let mut output = room(from, dtype, make)?;
    let elements: Cow<'_, [T]> = from.data().map_or_else(|| from.to_vec().into(), Cow::Borrowed);
    output.buffer.bytes_mut().copy_from_slice(bytemuck::cast_slice(&elements));
    Ok(output)
}

fn converted<T, U: bytemuck::Pod>(
    from: &Tensor<T>,
    dtype: DType,
    make: &mut Make<'_>,
    convert: impl Fn(&T) -> U,
) -> Result<Output, String> {
    let mut output = room(from, dtype, make)?;
    let to = output.buffer.bytes_mut().chunks_exact_mut(size_of::<U>());
    for (to, value) in to.zip(from.iter()) {
        to.copy_from_slice(bytemuck::bytes_of(&convert(value)));
    }
    Ok(output)
}
