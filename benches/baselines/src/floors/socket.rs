//! The floors of Unix sockets.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::duo::Duo;
use crate::end::{PingPong, Volley};
use crate::{BaselineError, Cores, Meter};

/// One end of an exchange of one-byte messages.
enum End {
    /// The end of a connection that stays open.
    Standing(UnixStream),
    /// The connecting end of an exchange with a new connection each time.
    Dialling(SocketAddr, Option<UnixStream>),
    /// The accepting end of an exchange with a new connection each time.
    Accepting(UnixListener, Option<UnixStream>),
}

fn failed(error: std::io::Error) -> BaselineError {
    BaselineError::system("use a Unix socket")(error)
}

impl PingPong for End {
    fn send(&mut self) -> Result<(), BaselineError> {
        match self {
            Self::Standing(stream) => stream.write_all(&[1]),
            Self::Dialling(address, connection) => UnixStream::connect_addr(address)
                .and_then(|mut stream| stream.write_all(&[1]).map(|()| *connection = Some(stream))),
            Self::Accepting(_, connection) => match connection.take() {
                Some(mut stream) => stream.write_all(&[1]),
                None => Ok(()),
            },
        }
        .map_err(failed)
    }

    fn receive(&mut self) -> Result<(), BaselineError> {
        let mut byte = [0];
        match self {
            Self::Standing(stream) => stream.read_exact(&mut byte),
            Self::Dialling(_, connection) => match connection.take() {
                Some(mut stream) => stream.read_exact(&mut byte),
                None => Ok(()),
            },
            Self::Accepting(listener, connection) => listener
                .accept()
                .and_then(|(mut stream, _)| stream.read_exact(&mut byte).map(|()| *connection = Some(stream))),
        }
        .map_err(failed)
    }
}

/// Measures a round trip of one byte over a connected pair of stream sockets. Both ends sleep while
/// they wait.
///
/// # Errors
///
/// [`BaselineError`] if the threads cannot be started on these cores.
pub fn unix_socket(cores: Cores) -> Result<Box<dyn Meter>, BaselineError> {
    let (here, there) = UnixStream::pair().map_err(failed)?;
    let end = |stream| move || Ok(Volley::round_trip(End::Standing(stream)));
    Ok(Box::new(Duo::start(cores, end(here), end(there))?))
}

/// Measures a connection to a Unix socket, a round trip of one byte, and the close. This is the
/// floor of a connection to the daemon.
///
/// # Errors
///
/// [`BaselineError`] if the threads cannot be started on these cores.
pub fn unix_connect(cores: Cores) -> Result<Box<dyn Meter>, BaselineError> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // Use an abstract name, which leaves no file behind.
    let name = format!("tensorlend-floor-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let address = SocketAddr::from_abstract_name(name).map_err(failed)?;
    let listener = UnixListener::bind_addr(&address).map_err(failed)?;
    let first = move || Ok(Volley::round_trip(End::Dialling(address, None)));
    let second = move || Ok(Volley::round_trip(End::Accepting(listener, None)));
    Ok(Box::new(Duo::start(cores, first, second)?))
}
