//! Replacement of operators before rten loads a model. The replaced operators are those that rten
//! lacks, or that rten treats as a newer version than the model's. The replacements are equivalent.
//!
//! rten's registry accepts no further operators, so this module rewrites the graph.
//!
//! | operator | becomes |
//! |---|---|
//! | `Dropout` | `Identity`: outside of training, both are the same |
//! | `LRN` | the mean of squares over neighbouring channels (an `AveragePool` over channels), and a division by its power |
//! | `Softmax`, `LogSoftmax` before opset 13 | `Flatten`, the same operator over the last axis, `Reshape` to the former shape |

use rten_onnx::onnx::{AttributeProto, AttributeType, DataType, GraphProto, ModelProto, NodeProto, TensorProto};
use std::collections::BTreeSet;

/// The opset from which `Softmax` and `LogSoftmax` are operators over one axis. rten computes this
/// form for every model, including models of an older opset.
const SOFTMAX_OF_ONE_AXIS: i64 = 13;

/// Returns the model with the table's operators replaced. Returns `None` if the model has none of
/// these operators.
///
/// # Errors
/// The defect of an operator that cannot be replaced.
pub fn rewritten(model: &[u8]) -> Result<Option<Vec<u8>>, String> {
    // An unreadable model is returned unchanged, because rten then reports the error.
    let Ok(mut model) = ModelProto::parse_buf(model) else { return Ok(None) };
    let flattens = opset(&model) < SOFTMAX_OF_ONE_AXIS;
    let Some(graph) = &mut model.graph else { return Ok(None) };
    if !has(graph, flattens) {
        return Ok(None);
    }
    let mut used = BTreeSet::new();
    collect_used(graph, &mut used);
    rewrite(graph, &used, flattens)?;
    model.write_buf().map(Some).map_err(|e| format!("it cannot be rewritten for rten: {e}"))
}

/// Returns the version of ONNX's own operators that a model uses. If a model does not state a
/// version, returns the newest, like rten.
fn opset(model: &ModelProto) -> i64 {
    // Files of format versions 1 and 2 do not state an opset. Their operators are those of opset 1.
    let default = if model.ir_version.is_some_and(|version| version < 3) { 1 } else { i64::MAX };
    let own = model.opset_import.iter().find(|import| is_onnx(import.domain.as_deref()));
    own.and_then(|import| import.version).unwrap_or(default)
}

fn is_onnx(domain: Option<&str>) -> bool {
    domain.is_none_or(|domain| domain.is_empty() || domain == "ai.onnx")
}

fn is(node: &NodeProto, op: &str) -> bool {
    is_onnx(node.domain.as_deref()) && node.op_type.as_deref() == Some(op)
}

/// Returns true if a Softmax or LogSoftmax of an opset before 13 differs from that of opset 13.
/// Over the last axis both are the same.
fn is_flattening(node: &NodeProto) -> bool {
    (is(node, "Softmax") || is(node, "LogSoftmax")) && first_flattened(node) != -1
}

/// Returns the `axis` of a Softmax or LogSoftmax of an opset before 13.
fn first_flattened(node: &NodeProto) -> i64 {
    attribute(node, "axis").map_or(1, |axis| axis.i.unwrap_or_default())
}

fn attribute<'n>(node: &'n NodeProto, name: &str) -> Option<&'n AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some(name))
}

fn has(graph: &GraphProto, flattens: bool) -> bool {
    graph.node.iter().any(|node| {
        is(node, "Dropout")
            || is(node, "LRN")
            || (flattens && is_flattening(node))
            || inner(node).any(|graph| has(graph, flattens))
    })
}

/// Returns the graphs in a node, such as bodies of loops and branches.
fn inner(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    node.attribute.iter().filter_map(|attribute| attribute.g.as_ref())
}

/// Collects every value that is an input of a node, or an output of a graph.
fn collect_used(graph: &GraphProto, used: &mut BTreeSet<String>) {
    used.extend(graph.output.iter().filter_map(|output| output.name.clone()));
    for node in &graph.node {
        used.extend(node.input.iter().cloned());
        inner(node).for_each(|graph| collect_used(graph, used));
    }
}

fn rewrite(graph: &mut GraphProto, used: &BTreeSet<String>, flattens: bool) -> Result<(), String> {
    let mut nodes = Vec::with_capacity(graph.node.len());
    for mut node in std::mem::take(&mut graph.node) {
        for graph in node.attribute.iter_mut().filter_map(|attribute| attribute.g.as_mut()) {
            rewrite(graph, used, flattens)?;
        }
        if is(&node, "Dropout") {
            // A Dropout that has a mask output, or that may train, is not an Identity. The node
            // stays in the model, and rten reports that it has no such operator.
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
        } else if flattens && is_flattening(&node) {
            nodes.extend(flattened(node)?);
        } else {
            nodes.push(node);
        }
    }
    graph.node = nodes;
    Ok(())
}

/// Returns true if the value `name` is the constant false. A constant is a weight of the graph or the output of an
/// earlier node, because nodes follow the nodes of their inputs.
fn is_false(name: &str, graph: &GraphProto, before: &[NodeProto]) -> bool {
    let weight = graph.initializer.iter().find(|weight| weight.name.as_deref() == Some(name));
    let constant = || {
        let node =
            before.iter().find(|node| is(node, "Constant") && node.output.iter().any(|output| output == name))?;
        node.attribute.iter().find_map(|attribute| attribute.t.as_ref())
    };
    let Some(tensor) = weight.or_else(constant) else { return false };
    // `raw_data` contains a bool as one byte, and `int32_data` contains it as an integer.
    let mut elements: Vec<i32> = tensor.int32_data.clone();
    if let Some(raw) = &tensor.raw_data {
        elements.extend(raw.borrow().iter().map(|&byte| i32::from(byte)));
    }
    !elements.is_empty() && elements.iter().all(|&element| element == 0)
}

/// Replaces an `LRN` node. The node computes y = x / (bias + alpha / size * (sum of x^2 over `size`
/// neighbouring channels))^beta.
fn normalization(node: &NodeProto, weights: &mut Vec<TensorProto>) -> Result<Vec<NodeProto>, String> {
    let ([x], [y]) = (&node.input[..], &node.output[..]) else {
        return Err("an LRN has one input and one output".into());
    };
    let number = |name: &str, default: f32| attribute(node, name).and_then(|attribute| attribute.f).unwrap_or(default);
    let size = attribute(node, "size").and_then(|attribute| attribute.i).filter(|size| (1..1 << 16).contains(size));
    let size = size.ok_or_else(|| format!("the LRN that computes {y:?} has no size, or none that can be"))?;
    let name = |part: &str| format!("{y}/LRN/{part}");
    let mut made = Vec::new();
    let mut add = |op: &str, inputs: &[&str], output: &str, attribute: Vec<AttributeProto>| {
        made.push(operator(op, inputs, output, attribute));
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
    // The reshaped input is an image with one channel, whose rows are the channels of (N, C, ...). So a window over
    // rows is a window over channels. The mean counts the padding zeros, so it is the sum divided by `size`.
    let window = vec![
        integers("kernel_shape", vec![size, 1]),
        integers("pads", vec![(size - 1) / 2, 0, size / 2, 0]),
        integers("strides", vec![1, 1]),
        integer("count_include_pad", 1),
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

/// Replaces a Softmax or LogSoftmax of an opset before 13. Such an operator treats all dimensions
/// from `axis` on as one dimension.
fn flattened(mut node: NodeProto) -> Result<Vec<NodeProto>, String> {
    let axis = first_flattened(&node);
    let ([x], [y]) = (&node.input[..], &node.output[..]) else {
        return Err("a Softmax or LogSoftmax has one input and one output".into());
    };
    let [shape, flat, normalized] = ["shape", "flat", "normalized"].map(|part| format!("{y}/Softmax/{part}"));
    let before =
        [operator("Shape", &[x], &shape, vec![]), operator("Flatten", &[x], &flat, vec![integer("axis", axis)])];
    let after = operator("Reshape", &[&normalized, &shape], y, vec![integer("allowzero", 1)]);
    (node.input, node.output, node.attribute) = (vec![flat], vec![normalized], vec![integer("axis", -1)]);
    Ok(before.into_iter().chain([node, after]).collect())
}

fn operator(op: &str, inputs: &[&str], output: &str, attribute: Vec<AttributeProto>) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        name: Some(format!("{op} of {output}")),
        input: inputs.iter().map(|&input| input.to_owned()).collect(),
        output: vec![output.to_owned()],
        attribute,
        ..NodeProto::default()
    }
}

fn integer(name: &str, value: i64) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        r#type: Some(AttributeType::INT),
        i: Some(value),
        ..AttributeProto::default()
    }
}

fn integers(name: &str, values: Vec<i64>) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        r#type: Some(AttributeType::INTS),
        ints: values,
        ..AttributeProto::default()
    }
}
