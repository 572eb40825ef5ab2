//! Refusal of models that name a file.
//!
//! An ONNX file may refer to other files: a tensor may have *external data*, the elements in a file
//! of its own, and a node `EPContext` may name a compiled graph. ONNX Runtime opens these files
//! with the rights of the runner's user. A client that publishes a model would so choose a file to
//! read. The check runs before any engine sees the bytes.
//!
//! The check walks all messages of the schema (`onnx.proto`, IR version 14) that can contain a
//! tensor or a node, and visits every occurrence of a field. So it does not matter whether an
//! engine merges repeated messages or takes the last one. Encodings that two decoders may read in
//! different ways are refused.

/// Maximum depth of messages. Protocol Buffers decoders have this limit, too.
const DEPTH_MAX: u32 = 100;
/// Maximum length of a name or a path in an error message, in bytes.
const TEXT_MAX: usize = 200;
/// The identifier of ONNX Runtime's own format, and its position in a file.
const ORT_FORMAT: (usize, &[u8]) = (4, b"ORTM");
/// The operator that names a compiled graph.
const COMPILED: &[u8] = b"EPContext";

/// Types of messages that can contain a tensor or a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Model,
    Training,
    Function,
    Graph,
    Node,
    Attribute,
    Sparse,
    Tensor,
}

impl Kind {
    /// Returns the type of the messages in a field. Returns `None` for a field whose contents
    /// cannot name a file.
    fn inner(self, field: u32) -> Option<Self> {
        Some(match (self, field) {
            (Self::Model, 7) | (Self::Training, 1 | 2) | (Self::Attribute, 6 | 11) => Self::Graph,
            (Self::Model, 20) => Self::Training,
            (Self::Model, 25) => Self::Function,
            (Self::Function, 7) | (Self::Graph, 1) => Self::Node,
            (Self::Function, 11) | (Self::Node, 5) => Self::Attribute,
            (Self::Graph, 15) | (Self::Attribute, 22 | 23) => Self::Sparse,
            (Self::Graph, 5) | (Self::Attribute, 5 | 10) | (Self::Sparse, 1 | 2) => Self::Tensor,
            _ => return None,
        })
    }
}

/// Numbers of fields.
const NODE_OPERATOR: u32 = 4;
const TENSOR_NAME: u32 = 8;
const TENSOR_EXTERNAL_DATA: u32 = 13;
const TENSOR_DATA_LOCATION: u32 = 14;
const ENTRY_KEY: u32 = 1;
const ENTRY_VALUE: u32 = 2;

/// Checks that a model consists of these bytes alone.
///
/// # Errors
/// A text with the part of the model that names a file, and the remedy; or the defect of the file.
pub fn refuse(model: &[u8]) -> Result<(), String> {
    let (at, identifier) = ORT_FORMAT;
    if model.get(at..).is_some_and(|rest| rest.starts_with(identifier)) {
        return Err("it is in ONNX Runtime's own format, which the runner cannot check: add the ONNX file".into());
    }
    walk(Kind::Model, model, 0)
}

fn walk(kind: Kind, message: &[u8], depth: u32) -> Result<(), String> {
    if depth > DEPTH_MAX {
        return Err(format!("its graphs are nested deeper than {DEPTH_MAX} messages, so it was not checked"));
    }
    for field in Fields(message) {
        let Field { number, value } = field?;
        match (kind, number, &value) {
            (Kind::Tensor, TENSOR_EXTERNAL_DATA, _) => return Err(external(message)),
            // 0 is the tensor's own message. The decoders of ONNX read the lower 32 bits.
            (Kind::Tensor, TENSOR_DATA_LOCATION, value) if !matches!(value, Value::Varint(place) if *place as u32 == 0) =>
            {
                return Err(external(message));
            }
            (Kind::Node, NODE_OPERATOR, Value::Bytes(operator)) if *operator == COMPILED => {
                return Err(
                    "it has an EPContext node, which names a compiled graph in a file, and the runner opens no \
                            file that a model names: add the model from which this one was compiled"
                        .into(),
                );
            }
            _ => {}
        }
        if let Some(inner) = kind.inner(number) {
            match value {
                Value::Bytes(message) => walk(inner, message, depth + 1)?,
                _ => return Err(damaged("a field has another wire type than its message")),
            }
        }
    }
    Ok(())
}

/// Returns the error for a tensor with external data.
fn external(tensor: &[u8]) -> String {
    let of = |number: u32| {
        Fields(tensor).flatten().filter(move |field| field.number == number).filter_map(|field| field.value.bytes())
    };
    let tensor = of(TENSOR_NAME).last().map_or_else(|| "a tensor".into(), |name| format!("tensor {}", text(name)));
    let path = of(TENSOR_EXTERNAL_DATA).find_map(|entry| {
        let of = |number: u32| {
            Fields(entry).flatten().filter(move |field| field.number == number).find_map(|field| field.value.bytes())
        };
        (of(ENTRY_KEY)? == b"location").then(|| of(ENTRY_VALUE))?
    });
    let path = path.map_or_else(String::new, |path| format!(" in the file {}", text(path)));
    format!(
        "{tensor} has external data{path}, and the runner opens no file that a model names: save the model with its \
         data inside, onnx.save(onnx.load(\"model.onnx\"), \"whole.onnx\"), and add that file"
    )
}

fn text(bytes: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(TEXT_MAX)]))
}

fn damaged(why: &str) -> String {
    format!("it is no ONNX file, or is damaged: {why}")
}

struct Field<'m> {
    number: u32,
    value: Value<'m>,
}

enum Value<'m> {
    Varint(u64),
    Fixed,
    Bytes(&'m [u8]),
}

impl<'m> Value<'m> {
    fn bytes(self) -> Option<&'m [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// The fields of a message. After an error, there are no further fields.
struct Fields<'m>(&'m [u8]);

impl<'m> Iterator for Fields<'m> {
    type Item = Result<Field<'m>, String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'m> Fields<'m> {
    fn field(&mut self) -> Result<Field<'m>, String> {
        let key = self.short().ok_or_else(|| damaged("the key of a field has more than 32 bits, or is cut off"))?;
        let (number, wire) = (key >> 3, key & 7);
        let cut_off = || damaged("it is cut off in a field");
        let value = match wire {
            0 => Value::Varint(self.varint().ok_or_else(cut_off)?),
            1 => self.take(8).map(|_| Value::Fixed).ok_or_else(cut_off)?,
            2 => {
                let length = self.short().ok_or_else(|| damaged("the length of a field is too large or cut off"))?;
                Value::Bytes(self.take(length as usize).ok_or_else(cut_off)?)
            }
            5 => self.take(4).map(|_| Value::Fixed).ok_or_else(cut_off)?,
            // 3 and 4 are groups, which ONNX has never used. Decoders differ in how they read them.
            _ => return Err(damaged(&format!("a field has wire type {wire}"))),
        };
        if number == 0 { Err(damaged("a field has the number 0")) } else { Ok(Field { number, value }) }
    }

    /// Reads a number of at most five bytes and 32 bits. Decoders truncate or refuse others.
    fn short(&mut self) -> Option<u32> {
        let before = self.0.len();
        let value = self.varint()?;
        (before - self.0.len() <= 5).then(|| u32::try_from(value).ok())?
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for at in 0..10 {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'m [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests;
