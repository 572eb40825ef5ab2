//! The lower bound of a transfer: bytes over one TCP connection, between memory that is already allocated on both
//! sides.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use tensorlend_benches::worker::Role;

/// The role name of the process at the other end.
pub const ROLE: &str = "plain";
/// Maximum number of bytes that the other end stores.
const BYTES_MAX: usize = 256 << 20;

/// The client's end of a connection.
pub struct Plain(TcpStream);

impl Plain {
    /// Connects to the other end.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }

    /// Sends bytes, and waits until the other end has stored them.
    pub fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(&head(b'p', bytes.len()))?;
        self.0.write_all(bytes)?;
        self.0.read_exact(&mut [0])
    }

    /// Fetches as many stored bytes as fit into `target`.
    pub fn get_into(&mut self, target: &mut [u8]) -> io::Result<()> {
        self.0.write_all(&head(b'g', target.len()))?;
        self.0.read_exact(target)
    }
}

fn head(what: u8, bytes: usize) -> [u8; 9] {
    let mut head = [what; 9];
    head[1..].copy_from_slice(&(bytes as u64).to_le_bytes());
    head
}

/// Serves every connection.
pub fn serve(role: &Role) {
    let listener = TcpListener::bind(&role.args[0]).expect("a port");
    for stream in listener.incoming() {
        let mut stream = stream.expect("a connection");
        stream.set_nodelay(true).expect("an option");
        std::thread::spawn(move || answer(&mut stream));
    }
}

fn answer(stream: &mut TcpStream) {
    let mut memory = Vec::new();
    let mut head = [0; 9];
    while stream.read_exact(&mut head).is_ok() {
        let bytes = u64::from_le_bytes(head[1..].try_into().expect("eight bytes")) as usize;
        assert!(bytes <= BYTES_MAX, "more than anybody asks for");
        if memory.len() < bytes {
            memory.resize(bytes, 1);
        }
        let done = match head[0] {
            b'p' => stream.read_exact(&mut memory[..bytes]).and_then(|()| stream.write_all(&[1])),
            _ => stream.write_all(&memory[..bytes]),
        };
        if done.is_err() {
            return;
        }
    }
}
