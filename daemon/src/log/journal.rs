//! Entries of systemd's journal, in the journal's native protocol: datagrams to a socket.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::{Errno, Result};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    sendmsg_addr, sendto, socket_with,
};
use std::fmt::Debug;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use tensorlend_os::log_queue::{LogQueue, Target};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

const SOCKET: &str = "/run/systemd/journal/socket";

/// Prefix of the daemon's own fields in the journal.
const FIELD_PREFIX: &str = "TENSORLEND_";

/// The name of the program in the journal.
const IDENTIFIER: &str = "tensorlendd";

pub struct Journal {
    socket: OwnedFd,
    /// Each datagram has the address, because the journal may be restarted.
    address: SocketAddrUnix,
}

impl Journal {
    /// Opens the journal of this machine.
    ///
    /// # Errors
    /// If no process has the journal's socket.
    pub fn open() -> Result<Self> {
        Self::open_at(Path::new(SOCKET))
    }

    fn open_at(path: &Path) -> Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let it = Self { socket, address: SocketAddrUnix::new(path)? };
        // The journal ignores empty datagrams. A journal that does not read exists, too.
        match it.send(&[], SendFlags::DONTWAIT) {
            Ok(_) | Err(Errno::AGAIN) => Ok(it),
            Err(error) => Err(error),
        }
    }

    fn send(&self, entry: &[u8], flags: SendFlags) -> Result<usize> {
        let flags = flags | SendFlags::NOSIGNAL;
        match sendto(&self.socket, entry, flags, &self.address) {
            Err(Errno::MSGSIZE | Errno::NOBUFS) => self.send_file(entry, flags),
            done => done,
        }
    }

    /// Sends an entry that is too large for a datagram, as a sealed memfd.
    fn send_file(&self, entry: &[u8], flags: SendFlags) -> Result<usize> {
        let file = memfd_create("tensorlend-journal", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let mut rest = entry;
        while !rest.is_empty() {
            rest = &rest[rustix::io::write(&file, rest)?..];
        }
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let file = [file.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&file));
        sendmsg_addr(&self.socket, &self.address, &[], &mut control, flags)?;
        Ok(entry.len())
    }
}

impl Target for Journal {
    fn try_write(&self, entry: &[u8]) -> Result<usize> {
        self.send(entry, SendFlags::DONTWAIT)
    }

    fn write(&self, entry: &[u8]) -> Result<usize> {
        self.send(entry, SendFlags::empty())
    }
}

/// Writes each event as an entry, with a field for each value.
pub struct Entries(pub LogQueue);

impl<S: Subscriber> Layer<S> for Entries {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut entry = Entry::of(event.metadata());
        event.record(&mut entry);
        self.0.write(&entry.0);
    }
}

struct Entry(Vec<u8>);

impl Entry {
    fn of(metadata: &Metadata<'_>) -> Self {
        let mut it = Self(Vec::with_capacity(512));
        let priority: &[u8] = match *metadata.level() {
            Level::ERROR => b"3",
            Level::WARN => b"4",
            Level::INFO => b"6",
            _ => b"7",
        };
        it.put("", "PRIORITY", |value| value.extend_from_slice(priority));
        it.put("", "SYSLOG_IDENTIFIER", |value| value.extend_from_slice(IDENTIFIER.as_bytes()));
        it.put("", "TARGET", |value| value.extend_from_slice(metadata.target().as_bytes()));
        if let (Some(file), Some(line)) = (metadata.file(), metadata.line()) {
            it.put("", "CODE_FILE", |value| value.extend_from_slice(file.as_bytes()));
            it.put("", "CODE_LINE", |value| value.extend_from_slice(line.to_string().as_bytes()));
        }
        it
    }

    /// Appends a field: its name, a newline, eight bytes with the length of the value, the value and
    /// a newline. So the value may contain any byte.
    fn put(&mut self, prefix: &str, name: &str, write: impl FnOnce(&mut Vec<u8>)) {
        let bytes = &mut self.0;
        bytes.extend_from_slice(prefix.as_bytes());
        // Names consist of letters, digits and underscores.
        let is_valid = |&byte: &u8| byte == b'_' || byte.is_ascii_alphanumeric();
        bytes.extend(name.bytes().filter(is_valid).map(|byte| byte.to_ascii_uppercase()));
        bytes.extend_from_slice(b"\n\0\0\0\0\0\0\0\0");
        let start = bytes.len();
        write(bytes);
        let length = (bytes.len() - start) as u64;
        bytes[start - 8..start].copy_from_slice(&length.to_le_bytes());
        bytes.push(b'\n');
    }

    fn put_value(&mut self, field: &Field, write: impl FnOnce(&mut Vec<u8>)) {
        let prefix = if field.name() == "message" { "" } else { FIELD_PREFIX };
        self.put(prefix, field.name(), write);
    }
}

impl Visit for Entry {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put_value(field, |bytes| bytes.extend_from_slice(value.as_bytes()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // A write to a vector does not fail.
        self.put_value(field, |bytes| drop(write!(bytes, "{value:?}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;
    use std::sync::OnceLock;
    use std::time::Duration;
    use tracing_subscriber::layer::SubscriberExt;

    /// Returns the values of an entry's fields with this name.
    fn value<'a>(entry: &'a [u8], name: &str) -> Option<&'a str> {
        let mut rest = entry;
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            let (found, after) = (&rest[..end], &rest[end + 1..]);
            let (length, after) = after.split_first_chunk::<8>()?;
            let (value, after) = after.split_at(u64::from_le_bytes(*length) as usize);
            if found == name.as_bytes() {
                return std::str::from_utf8(value).ok();
            }
            rest = &after[1..];
        }
        None
    }

    fn journal() -> (tempfile::TempDir, UnixDatagram, Journal) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let reader = UnixDatagram::bind(&path).unwrap();
        let journal = Journal::open_at(&path).unwrap();
        assert_eq!(reader.recv(&mut [0; 8]).unwrap(), 0);
        (folder, reader, journal)
    }

    #[test]
    fn an_entry_has_a_field_for_each_value() {
        let (_folder, reader, journal) = journal();
        let entries = Entries(LogQueue::new(journal, |_| panic!("no line is dropped")));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(entries), || {
            tracing::warn!(uid = 7, name = "a\nb", "one {}", "two\nthree");
        });
        let mut entry = [0; 4096];
        let length = reader.recv(&mut entry).unwrap();
        let value = |name| value(&entry[..length], name);
        assert_eq!((value("PRIORITY"), value("MESSAGE")), (Some("4"), Some("one two\nthree")));
        assert_eq!((value("TENSORLEND_UID"), value("TENSORLEND_NAME")), (Some("7"), Some("a\nb")));
        assert_eq!(value("SYSLOG_IDENTIFIER"), Some("tensorlendd"));
        assert!(value("CODE_FILE").unwrap().ends_with("journal.rs") && value("CODE_LINE").is_some());
    }

    #[test]
    fn an_entry_larger_than_a_datagram_is_a_sealed_file() {
        let (_folder, reader, journal) = journal();
        let entry = vec![b'x'; 10 << 20];
        assert_eq!(journal.try_write(&entry), Ok(entry.len()));
        let packet = tensorlend_os::packet::receive(&reader, rustix::net::RecvFlags::empty()).unwrap();
        let file = &packet.descriptors[0];
        assert_eq!(rustix::fs::fstat(file).unwrap().st_size, entry.len() as i64);
        assert!(rustix::fs::fcntl_get_seals(file).unwrap().contains(SealFlags::WRITE | SealFlags::SEAL));
    }

    /// A journal's socket has room for some ten entries.
    #[test]
    fn a_journal_that_does_not_read_blocks_nobody() {
        static QUEUE: OnceLock<LogQueue> = OnceLock::new();
        const LINES: usize = 20_000;
        let (folder, reader, journal) = journal();
        let report = |dropped: u64| QUEUE.get().unwrap().write(dropped.to_string().as_bytes());
        let queue = QUEUE.get_or_init(|| LogQueue::new(journal, report));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(Entries(queue.clone())), || {
            for number in 0..LINES {
                tracing::warn!(number, "line");
            }
        });
        assert!(!queue.flush(Duration::from_millis(1)), "the journal stalls");
        Journal::open_at(&folder.path().join("socket")).expect("a journal that does not read exists");
        let mut entry = [0; 4096];
        let mut next = 0;
        let dropped = loop {
            let length = reader.recv(&mut entry).unwrap();
            let Some(number) = value(&entry[..length], "TENSORLEND_NUMBER") else {
                break std::str::from_utf8(&entry[..length]).unwrap().parse::<usize>().unwrap();
            };
            assert_eq!(number, next.to_string(), "the entries stay in order");
            next += 1;
        };
        assert!(next > 1000 && dropped > 0, "{next} {dropped}");
        assert_eq!(next + dropped, LINES);
    }
}
