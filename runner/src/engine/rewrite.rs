//! Operators that rten lacks, replaced by others that compute the same, before rten reads the model.
//!
//! rten takes operators from a registry that only knows its own, so that they cannot be added from here; a graph can be rewritten.
//!
//! | operator | becomes |
//! |---|---|
//! | `Dropout` | `Identity`, which it is where a model is not trained |
//! | `LRN` | the mean of squares over neighbouring channels (an `AveragePool` over channels), and what is divided by its power |

use rten_onnx::onnx::{AttributeProto, AttributeType, DataType, GraphProto, ModelProto, NodeProto, TensorProto};
use std::collections::BTreeSet;

/// The model with such operators replaced; `None`: it has none.
///
/// # Errors
/// What is wrong with one of them.
pub fn rewritten(model: &[u8]) -> Result<Option<Vec<u8>>, String> {
    // What cannot be read is for rten to refuse.
    let Ok(mut model) = ModelProto::parse_buf(model) else { return Ok(None) };
    let Some(graph) = &mut model.graph else { return Ok(None) };
    if !has(graph) {
        return Ok(None);
    }
    let mut used = BTreeSet::new();
    collect_used(graph, &mut used);
    rewrite(graph, &used)?;
    model.write_buf().map(Some).map_err(|e| format!("it cannot be rewritten for rten: {e}"))
}

fn is(node: &NodeProto, op: &str) -> bool {
    let is_onnx = node.domain.as_deref().is_none_or(|domain| domain.is_empty() || domain == "ai.onnx");
    is_onnx && node.op_type.as_deref() == Some(op)
}

fn has(graph: &GraphProto) -> bool {
    graph.node.iter().any(|node| is(node, "Dropout") || is(node, "LRN") || inner(node).any(has))
}

/// The graphs in a node: bodies of loops and branches.
fn inner(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    node.attribute.iter().filter_map(|attribute| attribute.g.as_ref())
}

/// Every value that some node takes, or that leaves a graph.
fn collect_used(graph: &GraphProto, used: &mut BTreeSet<String>) {
    used.extend(graph.output.iter().filter_map(|output| output.name.clone()));
    for node in &graph.node {
        used.extend(node.input.iter().cloned());
        inner(node).for_each(|graph| collect_used(graph, used));
    }
}

fn rewrite(graph: &mut GraphProto, used: &BTreeSet<String>) -> Result<(), String> {
    let mut nodes = Vec::with_capacity(graph.node.len());
    for mut node in std::mem::take(&mut graph.node) {
        for graph in node.attribute.iter_mut().filter_map(|attribute| attribute.g.as_mut()) {
            rewrite(graph, used)?;
        }
        if is(&node, "Dropout") {
            // With its mask, or when it may be told to train, it is more than this: rten says that it lacks the operator.
            let has_mask = node.output.get(1).is_some_and(|mask| !mask.is_empty() && used.contains(mask));
            let may_train = node.input.get(2).is_some_and(|mode| !mode.is_empty() && !is_false(mode, graph, &nodes));
            if !has_mask && !may_train {
                node.op_type = Some("Identity".into());
                node.attribute.clear();
                node.input.truncate(1);
                node.output.truncate(1);
            }
            nodes.push(node);
        } else if is(&node, "LRN") {
            nodes.extend(normalization(&node, &mut graph.initializer)?);
        } else {
            nodes.push(node);
        }
    }
    graph.node = nodes;
    Ok(())
}

/// Whether this value is a constant that says no. Nodes come after those of which they take something.
fn is_false(name: &str, graph: &GraphProto, before: &[NodeProto]) -> bool {
    let weight = graph.initializer.iter().find(|weight| weight.name.as_deref() == Some(name));
    let constant = || {
        let node =
            before.iter().find(|node| is(node, "Constant") && node.output.iter().any(|output| output == name))?;
        node.attribute.iter().find_map(|attribute| attribute.t.as_ref())
    };
    let Some(tensor) = weight.or_else(constant) else { return false };
    // A bool is a byte in the one field, and an integer in the other.
    let mut elements: Vec<i32> = tensor.int32_data.clone();
    if let Some(raw) = &tensor.raw_data {
        elements.extend(raw.borrow().iter().map(|&byte| i32::from(byte)));
    }
    !elements.is_empty() && elements.iter().all(|&element| element == 0)
}

/// y = x / (bias + alpha / size * (sum of x^2 over `size` neighbouring channels))^beta
fn normalization(node: &NodeProto, weights: &mut Vec<TensorProto>) -> Result<Vec<NodeProto>, String> {
    let ([x], [y]) = (&node.input[..], &node.output[..]) else {
        return Err("an LRN has one input and one output".into());
    };
    let attribute = |name: &str| node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name));
    let number = |name: &str, default: f32| attribute(name).and_then(|attribute| attribute.f).unwrap_or(default);
    let size = attribute("size").and_then(|attribute| attribute.i).filter(|size| (1..1 << 16).contains(size));
    let size = size.ok_or_else(|| format!("the LRN that computes {y:?} has no size, or none that can be"))?;
    let name = |part: &str| format!("{y}/LRN/{part}");
    let mut made = Vec::new();
    let mut add = |op: &str, inputs: &[&str], output: &str, attribute: Vec<AttributeProto>| {
        made.push(NodeProto {
            op_type: Some(op.into()),
            name: Some(format!("{op} of {output}")),
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            output: vec![output.to_owned()],
            attribute,
            ..NodeProto::default()
        });
    };
    for (part, dims, elements) in [("rows", vec![3], vec![0, 0, -1]), ("axes", vec![1], vec![1])] {
        weights.push(TensorProto {
            name: Some(name(part)),
            dims,
            data_type: Some(DataType::INT64),
            int64_data: elements,
            ..TensorProto::default()
        });
    }
    let factors = [("alpha", number("alpha", 1e-4)), ("beta", number("beta", 0.75)), ("bias", number("bias", 1.0))];
    for (part, value) in factors {
        weights.push(TensorProto {
            name: Some(name(part)),
            dims: vec![1],
            data_type: Some(DataType::FLOAT),
            float_data: vec![value],
            ..TensorProto::default()
        });
    }
    // (N, C, ...) as a picture of one channel, of which channels are the rows: a window over rows is one over channels. Its mean
    // counts the zeros beyond the edge, so that it is the sum over `size`.
    let window = vec![
        integers("kernel_shape", vec![size, 1]),
        integers("pads", vec![(size - 1) / 2, 0, size / 2, 0]),
        integers("strides", vec![1, 1]),
        AttributeProto {
            name: Some("count_include_pad".into()),
            r#type: Some(AttributeType::INT),
            i: Some(1),
            ..AttributeProto::default()
        },
    ];
    add("Shape", &[x], &name("shape"), vec![]);
    add("Mul", &[x, x], &name("squares"), vec![]);
    add("Reshape", &[&name("squares"), &name("rows")], &name("flat"), vec![]);
    add("Unsqueeze", &[&name("flat"), &name("axes")], &name("picture"), vec![]);
    add("AveragePool", &[&name("picture")], &name("means"), window);
    add("Mul", &[&name("means"), &name("alpha")], &name("scaled"), vec![]);
    add("Add", &[&name("scaled"), &name("bias")], &name("base"), vec![]);
    add("Pow", &[&name("base"), &name("beta")], &name("power"), vec![]);
    add("Reshape", &[&name("power"), &name("shape")], &name("divisor"), vec![]);
    add("Div", &[x, &name("divisor")], y, vec![]);
    Ok(made)
}

fn integers(name: &str, values: Vec<i64>) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        r#type: Some(AttributeType::INTS),
        ints: values,
        ..AttributeProto::default()
    }
}
