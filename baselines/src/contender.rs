//! What the contenders have in common, seen from the producer's side.

use std::fmt;

use crate::codec::Codec;
use crate::lookout::Lookout;
use crate::pipe::Carrier;
use crate::{BaselineError, Lap, copy, resend, serialize};

/// How a tensor is handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// serde and bincode over an ipc-channel.
    Serialize,
    /// serde and postcard over an ipc-channel.
    PostcardChannel,
    /// The bytes as they are over an ipc-channel.
    RawChannel,
    /// serde and bincode over a Unix stream socket.
    BincodeSocket,
    /// serde and postcard over a Unix stream socket.
    PostcardSocket,
    /// The bytes as they are over a Unix stream socket.
    RawSocket,
    /// ipc-channel's shared memory, filled once and sent again each time.
    Resend,
    /// Copied into a segment of the shared_memory crate and out of it.
    Copy,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Serialize,
        Self::PostcardChannel,
        Self::RawChannel,
        Self::BincodeSocket,
        Self::PostcardSocket,
        Self::RawSocket,
        Self::Resend,
        Self::Copy,
    ];

    /// In a word or two, without a space.
    pub fn name(self) -> &'static str {
        match self {
            Self::Serialize => "bincode/ipc-channel",
            Self::PostcardChannel => "postcard/ipc-channel",
            Self::RawChannel => "raw/ipc-channel",
            Self::BincodeSocket => "bincode/unix-socket",
            Self::PostcardSocket => "postcard/unix-socket",
            Self::RawSocket => "raw/unix-socket",
            Self::Resend => "IpcSharedMemory",
            Self::Copy => "shared_memory",
        }
    }

    /// Of those that send messages.
    fn message(self) -> Option<(Codec, Carrier)> {
        match self {
            Self::Serialize => Some((Codec::Bincode, Carrier::IpcChannel)),
            Self::PostcardChannel => Some((Codec::Postcard, Carrier::IpcChannel)),
            Self::RawChannel => Some((Codec::Raw, Carrier::IpcChannel)),
            Self::BincodeSocket => Some((Codec::Bincode, Carrier::UnixSocket)),
            Self::PostcardSocket => Some((Codec::Postcard, Carrier::UnixSocket)),
            Self::RawSocket => Some((Codec::Raw, Carrier::UnixSocket)),
            Self::Resend | Self::Copy => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The producer's side of an exchange that is set up. It lives on one thread.
pub trait Producer {
    /// Hands the payload over untimed; true if the consumer computed the same checksum.
    fn verify(&mut self) -> Result<bool, BaselineError>;

    /// Before a batch of rounds: the consumer must be awake when it returns.
    fn wake(&mut self) -> Result<(), BaselineError>;

    /// One timed exchange.
    fn round(&mut self) -> Result<Lap, BaselineError>;

    /// After a batch of rounds: the consumer must leave its core to others until [`wake`](Self::wake).
    fn rest(&mut self) -> Result<(), BaselineError>;
}

/// Waits for the consumer, which was started meanwhile, and sets the exchange up.
pub type Meet = Box<dyn FnOnce(Lookout) -> Result<Box<dyn Producer>, BaselineError>>;

/// An exchange whose consumer is yet to be started.
pub struct Prepared {
    /// What the consumer is to be started with.
    pub args: Vec<String>,
    /// What is left to do once it is.
    pub meet: Meet,
    /// Ends a `meet` that waits for a consumer that will never come; may be called at any time.
    pub nudge: Box<dyn Fn() + Send>,
}

/// Reserves what the producer needs before its consumer can be started.
pub fn prepare(kind: Kind, bytes: usize) -> Result<Prepared, BaselineError> {
    let mut prepared = match (kind, kind.message()) {
        (_, Some((codec, carrier))) => serialize::prepare(codec, carrier, bytes),
        (Kind::Resend, _) => resend::prepare(bytes),
        _ => copy::prepare(bytes),
    }?;
    prepared.args.insert(0, kind.name().to_owned());
    Ok(prepared)
}

/// The consumer of [`prepare`]'s producer.
pub fn serve(args: &[String]) -> Result<(), BaselineError> {
    let (kind, rest) = parse(args)?;
    match (kind, kind.message()) {
        (_, Some((codec, carrier))) => serialize::serve(codec, carrier, rest),
        (Kind::Resend, _) => resend::serve(rest),
        _ => copy::serve(rest),
    }
}

/// The kind and its own arguments, from what the consumer was started with.
fn parse(args: &[String]) -> Result<(Kind, &[String]), BaselineError> {
    let kind = |name: &String| Kind::ALL.into_iter().find(|kind| kind.name() == name);
    match args.split_first() {
        Some((name, rest)) => kind(name).map(|kind| (kind, rest)),
        None => None,
    }
    .ok_or_else(|| BaselineError::Arguments(args.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::{Kind, parse};

    #[test]
    fn the_first_argument_is_the_kind() {
        for kind in Kind::ALL {
            let args = [kind.to_string(), "x".to_owned()];
            assert_eq!(parse(&args).unwrap(), (kind, &args[1..]));
        }
        assert!(parse(&[]).is_err());
        assert!(parse(&["lend".to_owned()]).unwrap_err().to_string().contains("lend"));
    }
}
