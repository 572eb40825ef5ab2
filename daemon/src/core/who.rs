//! The text by which the log names a client. One log line must identify the client without the
//! fields of the log entry.

use std::fmt;
use tensorlend_layout::number::ClientNo;

/// Maximum bytes of a client's label, and of its command's name.
pub const NAME_BYTES_MAX: usize = 63;

/// A client, as named in the log: `client 3 (pid 12, uid 1000, tensorlend put)`.
#[derive(Clone, Copy, Debug)]
pub struct Who<'w> {
    /// The client's number in its namespace. `None` if the client has not joined.
    pub client: Option<ClientNo>,
    /// The pid of the client's process; 0: unknown.
    pub pid: u32,
    pub uid: u32,
    /// The name of the client's command; empty: unknown.
    pub command: &'w str,
    /// The label that the client gave itself.
    pub label: &'w str,
}

impl fmt::Display for Who<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.client {
            Some(client) => write!(f, "client {client} (")?,
            None => write!(f, "a client (")?,
        }
        match self.pid {
            0 => write!(f, "pid unknown")?,
            pid => write!(f, "pid {pid}")?,
        }
        write!(f, ", uid {}", self.uid)?;
        let Self { command, label, .. } = *self;
        match (command.is_empty(), label.is_empty()) {
            (true, true) => {}
            // The default label is the program's name, and `tensorlend put` has the label
            // `tensorlend put`. So a label that begins with the command replaces it.
            (false, false) if !label.starts_with(command) => write!(f, ", {command}, {label}")?,
            (_, false) => write!(f, ", {label}")?,
            (false, true) => write!(f, ", {command}")?,
        }
        f.write_str(")")
    }
}

/// Returns untrusted text for a line of the log. The result has at most 63 bytes, is cut between
/// two characters, and contains no control characters.
pub fn plain(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(NAME_BYTES_MAX)];
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untrusted_text_is_cut_between_characters() {
        assert_eq!(plain("camera\n1"), "camera 1");
        assert_eq!(plain(&"é".repeat(40)), "é".repeat(31));
    }

    #[test]
    fn a_line_names_the_command_and_the_label_once() {
        let who =
            |command, label| Who { client: Some(ClientNo::new(3)), pid: 12, uid: 1000, command, label }.to_string();
        assert_eq!(who("tensorlend", "tensorlend put"), "client 3 (pid 12, uid 1000, tensorlend put)");
        assert_eq!(who("python3", "camera"), "client 3 (pid 12, uid 1000, python3, camera)");
        assert_eq!(who("", "camera"), "client 3 (pid 12, uid 1000, camera)");
        let stranger = Who { client: None, pid: 0, uid: 7, command: "", label: "" };
        assert_eq!(stranger.to_string(), "a client (pid unknown, uid 7)");
    }
}
