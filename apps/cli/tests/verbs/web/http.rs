//! A minimal HTTP client for these tests: one request for each connection.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// The address of a server.
#[derive(Clone)]
pub enum At {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

pub trait Stream: Read + Write + Send {}
impl Stream for TcpStream {}
impl Stream for UnixStream {}

pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn headers(&self) -> &[(String, String)] {
        &self.headers
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{}: {e}", self.text()))
    }
}

pub fn connect(at: &At) -> Box<dyn Stream> {
    let patience = Some(Duration::from_mins(5));
    match at {
        At::Tcp(address) => {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(patience).unwrap();
            Box::new(stream)
        }
        At::Unix(path) => {
            let stream = UnixStream::connect(path).unwrap();
            stream.set_read_timeout(patience).unwrap();
            Box::new(stream)
        }
    }
}

/// Sends one request without a body. The Host header is the server's address, unless `headers` contains another.
pub fn ask(at: &At, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "Host") {
        let host = match at {
            At::Tcp(address) => address.to_string(),
            At::Unix(_) => "localhost".into(),
        };
        let _ = write!(head, "Host: {host}\r\n");
    }
    for (name, value) in headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    raw(at, format!("{head}\r\n").as_bytes())
}

/// Sends these bytes and reads the response until the server closes the connection.
pub fn raw(at: &At, words: &[u8]) -> Answer {
    let mut stream = connect(at);
    let _ = stream.write_all(words);
    let mut reader = BufReader::new(stream);
    let (status, headers) = read_head(&mut reader);
    let mut body = Vec::new();
    let _ = reader.read_to_end(&mut body);
    Answer { status, headers, body }
}

pub fn read_head(reader: &mut impl BufRead) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("no status in {line:?}")).parse().unwrap();
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(':') else { return (status, headers) };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}
