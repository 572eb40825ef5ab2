//! A journal for a test: the two sockets by which services reach systemd's, in the manager's own `/run`.

use crate::manager::Manager;
use crate::{PATIENCE, open_to_all};
use std::collections::BTreeMap;
use std::os::unix::net::{UnixDatagram, UnixListener};

/// The fields of an entry.
pub type Entry = BTreeMap<String, String>;

/// A journal that records the entries of services.
pub struct Journal {
    native: UnixDatagram,
    /// systemd connects the standard error of services to it; the lines stay in its backlog.
    _stream: UnixListener,
}

impl Journal {
    /// Opens a journal for the services of `manager`, before any of them starts.
    ///
    /// # Panics
    /// If the sockets cannot be created.
    pub fn open(manager: &Manager) -> Self {
        let folder = manager.root().join("run/systemd/journal");
        std::fs::create_dir_all(&folder).expect("the folder is made");
        let native = UnixDatagram::bind(folder.join("socket")).expect("the socket is made");
        native.set_read_timeout(Some(PATIENCE)).expect("a socket can have a deadline");
        let stream = UnixListener::bind(folder.join("stdout")).expect("the socket is made");
        for socket in ["socket", "stdout"] {
            open_to_all(&folder.join(socket));
        }
        Self { native, _stream: stream }
    }

    /// Returns the next entry whose message begins with this text.
    ///
    /// # Panics
    /// If none arrives, or one is damaged.
    pub fn entry(&self, message: &str) -> Entry {
        let mut packet = vec![0; 1 << 16];
        loop {
            let length = self.native.recv(&mut packet).expect("an entry comes");
            let entry = parse(&packet[..length]);
            if entry.get("MESSAGE").is_some_and(|text| text.starts_with(message)) {
                return entry;
            }
        }
    }
}

/// Parses the journal's native protocol: `NAME=value` and a newline, or `NAME`, a newline, eight bytes of length, the
/// value and a newline.
fn parse(mut packet: &[u8]) -> Entry {
    let mut entry = Entry::new();
    while !packet.is_empty() {
        let end = packet.iter().position(|&byte| byte == b'\n').expect("a field ends");
        let (line, rest) = packet.split_at(end);
        let rest = &rest[1..];
        let (name, value, rest) = if let Some(at) = line.iter().position(|&byte| byte == b'=') {
            (&line[..at], &line[at + 1..], rest)
        } else {
            let (length, rest) = rest.split_first_chunk::<8>().expect("a field has a length");
            let (value, rest) = rest.split_at(u64::from_le_bytes(*length) as usize);
            (line, value, rest.strip_prefix(b"\n").expect("a field ends"))
        };
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("the daemon writes UTF-8");
        entry.insert(text(name), text(value));
        packet = rest;
    }
    entry
}
