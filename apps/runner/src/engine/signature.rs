//! The inputs and outputs that a model's file declares. They are the same for every engine.

use super::Feed;
use rten_onnx::onnx::{DataType, ModelProto, ValueInfoProto};
use std::collections::BTreeMap;
use std::fmt;
use tensorlend::DType;

const NDIM_MAX: usize = 16;

/// The size of one dimension of an input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dim {
    /// The dimension has exactly this size.
    Fixed(u64),
    /// The dimension may have any size, but the same size as each dimension with this name.
    Named(String),
    /// The dimension may have any size.
    Any,
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => write!(f, "{size}"),
            Self::Named(name) => f.write_str(name),
            Self::Any => f.write_str("?"),
        }
    }
}

/// An input or an output of a model, with its type and shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub name: String,
    pub dtype: DType,
    /// The sizes. `None` if the model does not declare them.
    pub dims: Option<Vec<Dim>>,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.dims {
            Some(dims) => {
                let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
                write!(f, "{} [{}]", self.dtype, dims.join(", "))
            }
            None => write!(f, "{} of any shape", self.dtype),
        }
    }
}

/// The inputs and outputs of a model, in the order of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
}

impl Signature {
    /// Reads the signature from an ONNX file.
    ///
    /// # Errors
    /// A text that names the defect of the file, or the unsupported part of the file.
    pub fn read(model: &[u8]) -> Result<Self, String> {
        let model = ModelProto::parse_buf(model).map_err(|e| format!("it is no ONNX file, or is cut off: {e}"))?;
        let graph = model.graph.ok_or("it is no ONNX file: it has no graph")?;
        let weights: Vec<&str> = graph.initializer.iter().filter_map(|weight| weight.name.as_deref()).collect();
        // Files of old format versions also list weights as inputs.
        let given = graph.input.iter().filter(|input| !input.name.as_deref().is_some_and(|n| weights.contains(&n)));
        let inputs = given.map(|input| port("input", input)).collect::<Result<Vec<_>, _>>()?;
        let outputs = graph.output.iter().map(|output| port("output", output)).collect::<Result<Vec<_>, _>>()?;
        if outputs.is_empty() {
            return Err("its graph has no output".into());
        }
        Ok(Self { inputs, outputs })
    }

    /// Returns the number of an input.
    ///
    /// # Errors
    /// A text that lists the model's inputs, if none of them has this name.
    pub fn input(&self, name: &str) -> Result<usize, String> {
        find(&self.inputs, "input", name)
    }

    /// Returns the number of an output.
    ///
    /// # Errors
    /// A text that lists the model's outputs, if none of them has this name.
    pub fn output(&self, name: &str) -> Result<usize, String> {
        find(&self.outputs, "output", name)
    }

    /// Checks that the model accepts these inputs.
    ///
    /// # Errors
    /// A text with the first invalid input, its expected form and its actual form.
    pub fn check(&self, feeds: &[Feed<'_>]) -> Result<(), String> {
        let mut named: BTreeMap<&str, (u64, &str)> = BTreeMap::new();
        for (port, feed) in self.inputs.iter().zip(feeds) {
            let given = || format!("{} {:?} was given", feed.dtype, feed.shape);
            let differ = || format!("input {:?}: the model takes {port}, and {}", port.name, given());
            if feed.dtype != port.dtype {
                return Err(differ());
            }
            let Some(dims) = &port.dims else { continue };
            if dims.len() != feed.shape.len() {
                return Err(differ());
            }
            for (dim, &size) in dims.iter().zip(feed.shape) {
                match dim {
                    Dim::Fixed(wanted) if *wanted != size => return Err(differ()),
                    Dim::Fixed(_) | Dim::Any => {}
                    Dim::Named(word) => {
                        let (known, by) = *named.entry(word).or_insert((size, &port.name));
                        if known != size {
                            return Err(format!("{}, where {word} is {known} by input {by:?}", differ()));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the shape of an output. Returns `None` if the shape does not follow from the shapes
    /// of valid inputs.
    #[cfg(feature = "onnxruntime")]
    pub fn foresee(&self, output: &Port, feeds: &[Feed<'_>]) -> Option<Vec<u64>> {
        let of_word = |word: &str| {
            self.inputs.iter().zip(feeds).find_map(|(port, feed)| {
                let at = port.dims.as_ref()?.iter().position(|dim| matches!(dim, Dim::Named(name) if name == word))?;
                feed.shape.get(at).copied()
            })
        };
        let sizes = output.dims.as_ref()?.iter().map(|dim| match dim {
            Dim::Fixed(size) => Some(*size),
            Dim::Named(word) => of_word(word),
            Dim::Any => None,
        });
        sizes.collect()
    }

    /// Returns true if several requests can run together. This requires that the first dimension of
    /// every input and output may have any size.
    pub fn is_batchable(&self) -> bool {
        let open = |port: &Port| {
            let first = port.dims.as_ref().and_then(|dims| dims.first());
            matches!(first, Some(Dim::Named(_) | Dim::Any))
        };
        !self.inputs.is_empty() && self.inputs.iter().all(open) && self.outputs.iter().all(open)
    }
}

/// Finds an input or output by its name. If none has this name, finds it by its position: `#0` is
/// the first.
fn find(ports: &[Port], kind: &str, name: &str) -> Result<usize, String> {
    let by_place = || name.strip_prefix('#')?.parse::<usize>().ok().filter(|&at| at < ports.len());
    ports.iter().position(|port| port.name == name).or_else(by_place).ok_or_else(|| {
        let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
        format!("the model has no {kind} {name:?}; it has {names:?}")
    })
}

fn port(kind: &str, info: &ValueInfoProto) -> Result<Port, String> {
    let name = info.name.clone().unwrap_or_default();
    tensorlend_name(kind, &name)?;
    let tensor = info.r#type.as_ref().and_then(|kind| kind.tensor_type.as_ref());
    let tensor = tensor.ok_or_else(|| format!("{kind} {name:?} is no tensor"))?;
    let dtype = tensor.elem_type.and_then(dtype_of).ok_or_else(|| {
        let found = tensor.elem_type.map_or("none".into(), |t| t.name().map_or(t.0.to_string(), str::to_owned));
        format!("{kind} {name:?} has element type {found}, of which there are no tensors")
    })?;
    let dims = tensor.shape.as_ref().map(|shape| {
        let dims = shape.dim.iter().map(|dim| match (dim.dim_value, &dim.dim_param) {
            (Some(size), _) if size > 0 => Dim::Fixed(size as u64),
            (Some(0), None) => Dim::Fixed(0),
            (_, Some(word)) if !word.is_empty() => Dim::Named(word.clone()),
            _ => Dim::Any,
        });
        dims.collect::<Vec<_>>()
    });
    if dims.as_ref().is_some_and(|dims| dims.len() > NDIM_MAX) {
        return Err(format!("{kind} {name:?} has more than {NDIM_MAX} dimensions"));
    }
    Ok(Port { name, dtype, dims })
}

/// Checks that the name is valid for a member of a dataset.
fn tensorlend_name(kind: &str, name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > 255 || name.chars().any(char::is_control) {
        return Err(format!("{kind} {name:?}: its name is empty, too long, or has control characters"));
    }
    Ok(())
}

fn dtype_of(onnx: DataType) -> Option<DType> {
    Some(match onnx {
        DataType::FLOAT => DType::F32,
        DataType::UINT8 => DType::U8,
        DataType::INT8 => DType::I8,
        DataType::UINT16 => DType::U16,
        DataType::INT16 => DType::I16,
        DataType::INT32 => DType::I32,
        DataType::INT64 => DType::I64,
        DataType::BOOL => DType::BOOL,
        DataType::FLOAT16 => DType::F16,
        DataType::DOUBLE => DType::F64,
        DataType::UINT32 => DType::U32,
        DataType::UINT64 => DType::U64,
        DataType::BFLOAT16 => DType::BF16,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, dims: &[Dim]) -> Port {
        Port { name: name.into(), dtype: DType::F32, dims: Some(dims.to_vec()) }
    }

    fn feed(shape: &[u64]) -> Feed<'_> {
        Feed { dtype: DType::F32, shape, bytes: &[] }
    }

    #[test]
    fn an_input_that_does_not_fit_is_shown_beside_what_would() {
        let n = || Dim::Named("N".into());
        let signature = Signature {
            inputs: vec![port("a", &[n(), Dim::Fixed(3)]), port("b", &[n()])],
            outputs: vec![port("y", &[n()])],
        };
        assert!(signature.is_batchable());
        assert_eq!(signature.check(&[feed(&[2, 3]), feed(&[2])]), Ok(()));
        let wrong = signature.check(&[feed(&[2, 4]), feed(&[2])]).unwrap_err();
        assert_eq!(wrong, r#"input "a": the model takes f32 [N, 3], and f32 [2, 4] was given"#);
        let uneven = signature.check(&[feed(&[2, 3]), feed(&[5])]).unwrap_err();
        assert!(uneven.ends_with(r#"where N is 2 by input "a""#), "{uneven}");
        assert!(signature.check(&[feed(&[3]), feed(&[2])]).is_err());
        assert!(signature.input("c").unwrap_err().contains(r#"["a", "b"]"#));
        assert_eq!((signature.input("b"), signature.input("#1"), signature.output("#0")), (Ok(1), Ok(1), Ok(0)));
        assert!(signature.output("#1").is_err() && signature.output("#-1").is_err());
    }

    #[test]
    fn a_fixed_first_dimension_is_not_batched() {
        let fixed = port("y", &[Dim::Fixed(1)]);
        assert!(!Signature { inputs: vec![port("x", &[Dim::Any])], outputs: vec![fixed] }.is_batchable());
        assert!(!Signature { inputs: vec![], outputs: vec![port("y", &[Dim::Any])] }.is_batchable());
    }
}
