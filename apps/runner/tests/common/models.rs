//! Tiny models, made of ONNX's own messages.

use rten_onnx::onnx::{
    AttributeProto, AttributeType, DataType, Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    TensorProto, TensorShapeProto, TypeProto, TypeProtoTensor, ValueInfoProto,
};

/// A size: a number, or a name for a size that varies.
pub enum Size {
    Of(i64),
    Open(&'static str),
}
pub use Size::{Of, Open};

pub fn value(name: &str, dtype: DataType, shape: &[Size]) -> ValueInfoProto {
    let dim = shape.iter().map(|size| match size {
        Of(size) => Dimension { dim_value: Some(*size), dim_param: None },
        Open(word) => Dimension { dim_value: None, dim_param: Some((*word).into()) },
    });
    let tensor = TypeProtoTensor { elem_type: Some(dtype), shape: Some(TensorShapeProto { dim: dim.collect() }) };
    ValueInfoProto {
        name: Some(name.into()),
        r#type: Some(TypeProto { tensor_type: Some(tensor), ..TypeProto::default() }),
    }
}

pub fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    NodeProto {
        op_type: Some(op.into()),
        name: Some(format!("{op} of {outputs:?}")),
        input: words(inputs),
        output: words(outputs),
        ..NodeProto::default()
    }
}

pub fn floats(name: &str, values: &[f32]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: vec![values.len() as i64],
        data_type: Some(DataType::FLOAT),
        float_data: values.to_vec(),
        ..TensorProto::default()
    }
}

pub fn integers(name: &str, dims: &[i64], values: &[i64]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: dims.to_vec(),
        data_type: Some(DataType::INT64),
        int64_data: values.to_vec(),
        ..TensorProto::default()
    }
}

pub fn file(graph: GraphProto) -> Vec<u8> {
    file_of(17, graph)
}

/// A model with this version of ONNX's operators.
pub fn file_of(opset: i64, graph: GraphProto) -> Vec<u8> {
    let model = ModelProto {
        ir_version: Some(8),
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(opset) }],
        ..ModelProto::default()
    };
    model.write_buf().expect("a small message is written")
}

/// y = factor x + 1, of (N, 3).
pub fn affine(factor: f32) -> Vec<u8> {
    file(GraphProto {
        node: vec![node("Mul", &["x", "factor"], &["scaled"]), node("Add", &["scaled", "one"], &["y"])],
        initializer: vec![floats("factor", &[factor; 3]), floats("one", &[1.0])],
        input: vec![value("x", DataType::FLOAT, &[Open("N"), Of(3)])],
        output: vec![value("y", DataType::FLOAT, &[Open("N"), Of(3)])],
        ..GraphProto::default()
    })
}

fn number(name: &str, value: f32) -> AttributeProto {
    AttributeProto {
        name: Some(name.into()),
        r#type: Some(AttributeType::FLOAT),
        f: Some(value),
        ..AttributeProto::default()
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

/// y = LRN of Dropout of x, of (N, C, 2): as old networks for images have them.
pub fn normalized(size: i64, alpha: f32, beta: f32, bias: f32) -> Vec<u8> {
    let mut dropout = node("Dropout", &["x"], &["kept", "mask that nobody reads"]);
    dropout.attribute.push(number("ratio", 0.5));
    let mut normalization = node("LRN", &["kept"], &["y"]);
    normalization.attribute.extend([number("alpha", alpha), number("beta", beta), number("bias", bias)]);
    normalization.attribute.push(integer("size", size));
    let shape = || [Open("N"), Open("C"), Of(2)];
    file(GraphProto {
        node: vec![dropout, normalization],
        input: vec![value("x", DataType::FLOAT, &shape())],
        output: vec![value("y", DataType::FLOAT, &shape())],
        ..GraphProto::default()
    })
}

/// y = Softmax or LogSoftmax of x, in a model of this opset. All sizes vary.
pub fn softmax(op: &str, opset: i64, axis: Option<i64>, rank: usize) -> Vec<u8> {
    let mut softmax = node(op, &["x"], &["y"]);
    softmax.attribute.extend(axis.map(|axis| integer("axis", axis)));
    let shape: Vec<Size> = ["A", "B", "C", "D"][..rank].iter().map(|&word| Open(word)).collect();
    file_of(
        opset,
        GraphProto {
            node: vec![softmax],
            input: vec![value("x", DataType::FLOAT, &shape)],
            output: vec![value("y", DataType::FLOAT, &shape)],
            ..GraphProto::default()
        },
    )
}

/// A model with an operator that does not exist.
pub fn odd() -> Vec<u8> {
    file(GraphProto {
        node: vec![node("Transmogrify", &["x"], &["y"])],
        input: vec![value("x", DataType::FLOAT, &[Of(1)])],
        output: vec![value("y", DataType::FLOAT, &[Of(1)])],
        ..GraphProto::default()
    })
}

/// sum = a + b, difference = a - b, of any one size; one input is of i64, and so is an output.
pub fn pair() -> Vec<u8> {
    file(GraphProto {
        node: vec![
            node("Add", &["a", "b"], &["sum"]),
            node("Sub", &["a", "b"], &["difference"]),
            node("Add", &["count", "count"], &["twice"]),
        ],
        input: vec![
            value("a", DataType::FLOAT, &[Open("size")]),
            value("b", DataType::FLOAT, &[Open("size")]),
            value("count", DataType::INT64, &[Of(1)]),
        ],
        output: vec![
            value("sum", DataType::FLOAT, &[Open("size")]),
            value("difference", DataType::FLOAT, &[Open("size")]),
            value("twice", DataType::INT64, &[Of(1)]),
        ],
        ..GraphProto::default()
    })
}

/// y = x + 1, repeated as often as an input says, so an input determines the duration of a run.
pub fn looping() -> Vec<u8> {
    let body = GraphProto {
        node: vec![node("Identity", &["go"], &["is_running"]), node("Add", &["state", "step"], &["next"])],
        initializer: vec![floats("step", &[1.0])],
        input: vec![
            value("at", DataType::INT64, &[]),
            value("go", DataType::BOOL, &[]),
            value("state", DataType::FLOAT, &[Of(1)]),
        ],
        output: vec![value("is_running", DataType::BOOL, &[]), value("next", DataType::FLOAT, &[Of(1)])],
        ..GraphProto::default()
    };
    let mut repeat = node("Loop", &["times", "", "x"], &["y"]);
    repeat.attribute.push(AttributeProto {
        name: Some("body".into()),
        r#type: Some(AttributeType::GRAPH),
        g: Some(body),
        ..AttributeProto::default()
    });
    file(GraphProto {
        node: vec![repeat],
        input: vec![value("times", DataType::INT64, &[]), value("x", DataType::FLOAT, &[Of(1)])],
        output: vec![value("y", DataType::FLOAT, &[Of(1)])],
        ..GraphProto::default()
    })
}

/// `x` in a shape that is an input, so an input determines the memory of a run.
pub fn growing() -> Vec<u8> {
    file(GraphProto {
        node: vec![node("Expand", &["x", "shape"], &["large"]), node("ReduceSum", &["large"], &["y"])],
        input: vec![value("x", DataType::FLOAT, &[Of(1)]), value("shape", DataType::INT64, &[Of(2)])],
        output: vec![value("y", DataType::FLOAT, &[Open("a"), Open("b")])],
        ..GraphProto::default()
    })
}

/// The same graph with weights of its own: something that can be damaged in many places.
pub fn weighty() -> Vec<u8> {
    let weights: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let matrix = TensorProto { dims: vec![8, 8], ..floats("weights", &weights) };
    file(GraphProto {
        node: vec![node("MatMul", &["x", "weights"], &["product"]), node("Relu", &["product"], &["y"])],
        initializer: vec![matrix],
        input: vec![value("x", DataType::FLOAT, &[Open("N"), Of(8)])],
        output: vec![value("y", DataType::FLOAT, &[Open("N"), Of(8)])],
        ..GraphProto::default()
    })
}
