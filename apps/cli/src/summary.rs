//! Descriptions of tensors and datasets, as a line or as JSON.

use std::fmt;

use serde::Serialize;
use tensorlend::{DType, Info, InfoKind, Member, Tensor, TensorInfo, Value};
use tensorlend_os::clock::duration_ns;
use xxhash_rust::xxh3::xxh3_64;

use crate::failure::Failure;
use crate::save::{elements, on_device};

/// A tensor's element type, sizes and bytes.
#[derive(Clone, Debug, Serialize)]
pub struct TensorSummary {
    #[serde(rename = "name", skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strides: Option<Vec<i64>>,
    pub nbytes: u64,
    /// The UUID of the device that holds a dataset's tensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The xxh3-64 checksum of the elements in C order, in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum_xxh3: Option<String>,
}

impl TensorSummary {
    pub fn new(member: Option<&str>, dtype: DType, shape: &[usize]) -> Self {
        // Check for a 0 first, because the product of the other dimensions may overflow.
        let elements = if shape.contains(&0) { 0 } else { shape.iter().product::<usize>() as u64 };
        Self {
            member: member.map(str::to_owned),
            dtype: dtype.name(),
            shape: shape.to_vec(),
            strides: None,
            nbytes: elements * dtype.item_bytes() as u64,
            device: None,
            checksum_xxh3: None,
        }
    }

    fn of_info(member: Option<&str>, info: &TensorInfo) -> Self {
        let device = info.device.filter(|_| member.is_some()).map(|uuid| uuid.to_string());
        Self { strides: Some(info.strides.clone()), device, ..Self::new(member, info.dtype, &info.shape) }
    }

    fn of_tensor(member: Option<&str>, tensor: &Tensor, checksum: bool) -> Result<Self, Failure> {
        let mut summary = Self::new(member, tensor.dtype(), tensor.shape());
        if checksum {
            summary.checksum_xxh3 = Some(format!("{:016x}", xxh3_64(&elements(tensor)?)));
        }
        Ok(summary)
    }
}

impl fmt::Display for TensorSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(member) = &self.member {
            write!(f, "{member} ")?;
        }
        write!(f, "{} {:?}, {} bytes", self.dtype, self.shape, self.nbytes)?;
        if let Some(device) = &self.device {
            write!(f, " on {device}")?;
        }
        match &self.checksum_xxh3 {
            Some(sum) => write!(f, ", xxh3 {sum}"),
            None => Ok(()),
        }
    }
}

/// The description of a tensor or a dataset.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Summary {
    Tensor(TensorSummary),
    Dataset { nbytes: u64, tensors: Vec<TensorSummary> },
}

impl Summary {
    pub fn dataset(tensors: Vec<TensorSummary>) -> Self {
        Self::Dataset { nbytes: tensors.iter().map(|t| t.nbytes).sum(), tensors }
    }

    pub fn of_info(info: &Info) -> Self {
        match &info.kind {
            InfoKind::Tensor(tensor) => Self::Tensor(TensorSummary::of_info(None, tensor)),
            InfoKind::Dataset(members) => {
                Self::dataset(members.iter().map(|(name, t)| TensorSummary::of_info(Some(name), t)).collect())
            }
        }
    }

    /// Describes a leased value. If `checksum` is true, reads every byte of the value.
    pub fn of_value(value: &Value, checksum: bool) -> Result<Self, Failure> {
        match value {
            Value::Tensor(lease) => TensorSummary::of_tensor(None, lease, checksum).map(Self::Tensor),
            Value::Dataset(dataset) => {
                let summary = |(name, member): (&str, Member<'_>)| match member {
                    Member::Host(tensor) => TensorSummary::of_tensor(Some(name), tensor, checksum),
                    Member::Device(_) => Err(on_device(name)),
                };
                let members = dataset.members().map(summary);
                Ok(Self::dataset(members.collect::<Result<_, _>>()?))
            }
            _ => Err(on_device("the value")),
        }
    }

    pub fn nbytes(&self) -> u64 {
        match self {
            Self::Tensor(tensor) => tensor.nbytes,
            Self::Dataset { nbytes, .. } => *nbytes,
        }
    }

    /// Returns the element type and the shape, for the columns of a table.
    pub fn columns(&self) -> (String, String) {
        match self {
            Self::Tensor(tensor) => (tensor.dtype.to_owned(), format!("{:?}", tensor.shape)),
            Self::Dataset { tensors, .. } => ("dataset".to_owned(), crate::text::count(tensors.len() as u64, "tensor")),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor(tensor) => tensor.fmt(f),
            Self::Dataset { nbytes, tensors } => {
                write!(f, "dataset of {}, {nbytes} bytes", crate::text::count(tensors.len() as u64, "tensor"))?;
                // To keep the line short, omit the members of a dataset with more than 8.
                let shown = tensors.iter().filter(|_| tensors.len() <= 8);
                for (at, tensor) in shown.enumerate() {
                    write!(f, "{}{tensor}", if at == 0 { ": " } else { "; " })?;
                }
                Ok(())
            }
        }
    }
}

/// Formats a timestamp of the producer's clock as seconds since the clock's epoch.
pub fn timestamp_text(timestamp_ns: u64) -> String {
    format!("{}.{:09}", timestamp_ns / 1_000_000_000, timestamp_ns % 1_000_000_000)
}

/// Returns the nanoseconds since 1970, which this program uses as timestamps.
pub fn now_ns() -> u64 {
    duration_ns(std::time::UNIX_EPOCH.elapsed().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_the_kind_and_no_empty_fields() {
        let tensor = TensorSummary::new(None, DType::F32, &[2, 3]);
        let json = serde_json::to_value(Summary::Tensor(tensor)).unwrap();
        assert_eq!(json, serde_json::json!({"kind": "tensor", "dtype": "f32", "shape": [2, 3], "nbytes": 24}));
    }

    #[test]
    fn an_empty_tensor_of_huge_sizes_has_no_bytes() {
        assert_eq!(TensorSummary::new(None, DType::F32, &[1 << 40, 0, 1 << 40]).nbytes, 0);
        assert_eq!(TensorSummary::new(None, DType::F64, &[]).nbytes, 8);
    }

    #[test]
    fn a_line_names_the_members() {
        let members =
            vec![TensorSummary::new(Some("a"), DType::U8, &[2]), TensorSummary::new(Some("b"), DType::U8, &[])];
        let text = Summary::dataset(members).to_string();
        assert_eq!(text, "dataset of 2 tensors, 3 bytes: a u8 [2], 2 bytes; b u8 [], 1 bytes");
    }
}
