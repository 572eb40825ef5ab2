//! A minimal client of Redis's protocol: requests written in one call, bulk replies read straight into the caller's
//! memory, so that no client library adds to Redis's cost.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

const BUFFER_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub struct Connection<S = UnixStream> {
    stream: S,
    buffer: Box<[u8]>,
    /// Start of the unconsumed part of the buffer.
    from: usize,
    to: usize,
    head: Vec<u8>,
}

impl Connection {
    /// Connects to a server of this machine.
    ///
    /// # Errors
    /// The system's error, if no server listens.
    pub fn open(socket: &Path) -> io::Result<Self> {
        Ok(Self::on_this_machine(UnixStream::connect(socket)?))
    }

    fn on_this_machine(stream: UnixStream) -> Self {
        // A larger buffer than the default needs fewer turns for a large request; the system bounds it.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, 4 << 20);
        Self::over(stream)
    }
}

impl Connection<TcpStream> {
    /// Connects to a server of another machine. The buffer size is not set, since that would disable the system's own
    /// tuning.
    ///
    /// # Errors
    /// The system's error, if no server listens.
    pub fn open_tcp(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self::over(stream))
    }
}

impl<S: Read + Write> Connection<S> {
    fn over(stream: S) -> Self {
        Self { stream, buffer: vec![0; BUFFER_BYTES].into(), from: 0, to: 0, head: Vec::new() }
    }

    /// Sends one request; its parts are the command and its arguments.
    ///
    /// # Errors
    /// The system's error, if the server has ended.
    pub fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
        self.head.clear();
        write!(self.head, "*{}\r\n", parts.len())?;
        // Small parts are copied to the header; a large one is written from its own memory.
        let mut pieces: Vec<(usize, Option<&[u8]>)> = Vec::with_capacity(2);
        for part in parts {
            write!(self.head, "${}\r\n", part.len())?;
            if part.len() <= 4096 {
                self.head.extend_from_slice(part);
            } else {
                pieces.push((self.head.len(), Some(part)));
            }
            self.head.extend_from_slice(b"\r\n");
        }
        pieces.push((self.head.len(), None));
        let mut slices = Vec::with_capacity(2 * pieces.len());
        let mut from = 0;
        for (to, large) in pieces {
            slices.push(IoSlice::new(&self.head[from..to]));
            slices.extend(large.map(IoSlice::new));
            from = to;
        }
        let mut slices = &mut slices[..];
        while !slices.is_empty() {
            let written = self.stream.write_vectored(slices)?;
            IoSlice::advance_slices(&mut slices, written);
        }
        Ok(())
    }

    /// Reads a status, a number or an error: the line without its end.
    ///
    /// # Errors
    /// An error if the server has ended, or if the server reports an error.
    pub fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        loop {
            while self.from < self.to {
                let byte = self.buffer[self.from];
                self.from += 1;
                match byte {
                    b'\n' => {
                        let line = String::from_utf8_lossy(&line).into_owned();
                        return if line.starts_with('-') { Err(io::Error::other(line)) } else { Ok(line) };
                    }
                    b'\r' => {}
                    byte => line.push(byte),
                }
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        (self.from, self.to) = (0, self.stream.read(&mut self.buffer)?);
        if self.to == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// Reads a number, or the length of the following data.
    ///
    /// # Errors
    /// The errors of [`Self::line`], and an error if the line is not a number.
    pub fn number(&mut self) -> io::Result<u64> {
        let line = self.line()?;
        line[1..].parse().map_err(|_| io::Error::other(format!("no number: {line}")))
    }

    /// Reads a bulk reply of exactly `target`'s length into it.
    ///
    /// # Errors
    /// The errors of [`Self::line`], and an error if the reply has another length.
    pub fn bulk(&mut self, target: &mut [u8]) -> io::Result<()> {
        let length = self.number()?;
        if length != target.len() as u64 {
            return Err(io::Error::other(format!("{length} bytes instead of {}", target.len())));
        }
        let here = (self.to - self.from).min(target.len());
        target[..here].copy_from_slice(&self.buffer[self.from..self.from + here]);
        self.from += here;
        let rest = &mut target[here..];
        if rest.len() < BUFFER_BYTES / 2 {
            // Little is left: reads the following data in the same call.
            let mut done = 0;
            while done < rest.len() {
                self.fill()?;
                let part = self.to.min(rest.len() - done);
                rest[done..done + part].copy_from_slice(&self.buffer[..part]);
                self.from = part;
                done += part;
            }
        } else {
            self.stream.read_exact(rest)?;
        }
        self.line().map(|_| ())
    }

    /// Stores bytes under a key.
    ///
    /// # Errors
    /// The errors of [`Self::line`].
    pub fn set(&mut self, key: &str, bytes: &[u8]) -> io::Result<()> {
        self.send(&[b"SET", key.as_bytes(), bytes])?;
        self.line().map(|_| ())
    }

    /// Reads the value of a key.
    ///
    /// # Errors
    /// The errors of [`Self::bulk`].
    pub fn get_into(&mut self, key: &str, target: &mut [u8]) -> io::Result<()> {
        self.send(&[b"GET", key.as_bytes()])?;
        self.bulk(target)
    }
}

#[cfg(test)]
mod tests {
    use super::{BUFFER_BYTES, Connection};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn requests_are_whole() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut connection = Connection::on_this_machine(near);
        let large = vec![b'x'; 5000];
        connection.send(&[b"SET", b"key", &large]).unwrap();
        drop(connection);
        let mut sent = Vec::new();
        far.read_to_end(&mut sent).unwrap();
        let head = b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5000\r\n";
        assert_eq!(sent, [&head[..], &large, b"\r\n"].concat());
    }

    #[test]
    fn replies_follow_one_another() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut connection = Connection::on_this_machine(near);
        let sizes = [0, 10, 3 * BUFFER_BYTES, 1000, BUFFER_BYTES / 2 - 1];
        let writer = std::thread::spawn(move || {
            far.write_all(b"+OK\r\n:42\r\n").unwrap();
            for size in sizes {
                far.write_all(format!("${size}\r\n").as_bytes()).unwrap();
                far.write_all(&vec![size as u8; size]).unwrap();
                far.write_all(b"\r\n").unwrap();
            }
            far.write_all(b"-ERR no\r\n").unwrap();
        });
        assert_eq!(connection.line().unwrap(), "+OK");
        assert_eq!(connection.number().unwrap(), 42);
        for size in sizes {
            let mut target = vec![0xEE; size];
            connection.bulk(&mut target).unwrap();
            assert!(target.iter().all(|byte| *byte == size as u8), "{size}");
        }
        assert!(connection.line().unwrap_err().to_string().contains("ERR no"));
        assert!(connection.line().is_err(), "the server is gone");
        writer.join().unwrap();
    }
}
