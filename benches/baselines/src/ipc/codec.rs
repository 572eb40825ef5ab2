//! The encodings of a tensor.

use bincode::config::standard;

use super::tensor::Tensor;
use crate::BaselineError;

/// The encodings of a tensor in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    Bincode,
    Postcard,
    /// The bytes without a description. Both sides know the tensor's type and shape.
    Raw,
}

/// A decoded message, as a tensor with its own memory or as the message itself.
pub enum Decoded<'m> {
    Tensor(Tensor),
    Message(&'m [u8]),
}

impl Codec {
    #[cfg(test)]
    pub const ALL: [Self; 3] = [Self::Bincode, Self::Postcard, Self::Raw];

    pub fn name(self) -> &'static str {
        match self {
            Self::Bincode => "bincode",
            Self::Postcard => "postcard",
            Self::Raw => "raw",
        }
    }

    /// Encodes a tensor, and calls `send` with the message.
    pub fn encode(
        self,
        tensor: &Tensor,
        send: impl FnOnce(&[u8]) -> Result<(), BaselineError>,
    ) -> Result<(), BaselineError> {
        match self {
            Self::Bincode => {
                send(&bincode::serde::encode_to_vec(tensor, standard()).map_err(|e| self.failed("encoding", e))?)
            }
            Self::Postcard => send(&postcard::to_allocvec(tensor).map_err(|e| self.failed("encoding", e))?),
            Self::Raw => send(&tensor.data),
        }
    }

    pub fn decode(self, message: &[u8]) -> Result<Decoded<'_>, BaselineError> {
        match self {
            Self::Bincode => bincode::serde::decode_from_slice(message, standard())
                .map(|(tensor, _)| Decoded::Tensor(tensor))
                .map_err(|e| self.failed("decoding", e)),
            Self::Postcard => {
                postcard::from_bytes(message).map(Decoded::Tensor).map_err(|e| self.failed("decoding", e))
            }
            Self::Raw => Ok(Decoded::Message(message)),
        }
    }

    fn failed(self, doing: &'static str, error: impl ToString) -> BaselineError {
        BaselineError::Codec { codec: self.name(), doing, why: error.to_string() }
    }
}

impl Decoded<'_> {
    /// Returns the tensor's bytes.
    pub fn data(&self) -> &[u8] {
        match self {
            Self::Tensor(tensor) => &tensor.data,
            Self::Message(message) => message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Codec, Tensor};

    #[test]
    fn a_tensor_survives_each_of_them() {
        let data: Vec<u8> = (0..=255).cycle().take(2400).collect();
        let tensor = Tensor { dtype: "f32".to_owned(), shape: vec![2, 300], data };
        for codec in Codec::ALL {
            let mut message = Vec::new();
            codec
                .encode(&tensor, |bytes| {
                    message.extend_from_slice(bytes);
                    Ok(())
                })
                .unwrap();
            assert!((2400..2432).contains(&message.len()));
            assert_eq!(codec.decode(&message).unwrap().data(), tensor.data);
        }
        assert!(Codec::Bincode.decode(&[200]).is_err() && Codec::Postcard.decode(&[200]).is_err());
    }
}
