//! The token that viewers from other machines must present.

use crate::error::Error;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use subtle::ConstantTimeEq;

/// Minimum and maximum length of a token in bytes.
const BYTES: std::ops::RangeInclusive<usize> = 16..=1024;

/// A secret. `Debug` does not show it.
pub struct Token(Vec<u8>);

impl Token {
    /// Reads a token from the first line of a file that only its owner can read or write. The token
    /// must have at least 16 bytes. If the file belongs to another user, its group may read it.
    /// systemd (`LoadCredential=`) and Kubernetes (`fsGroup`) pass a secret of root to this process
    /// in this way.
    ///
    /// # Errors
    /// [`Error::Token`] for a file that cannot be read or that others can access. Also for a token
    /// that is too short, or has characters that HTTP does not allow in a header.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let wrong = |why: String| Error::Token { path: path.display().to_string(), why };
        let file = std::fs::metadata(path).map_err(|e| wrong(e.to_string()))?;
        let mode = file.mode();
        if !is_private(mode, file.uid() == rustix::process::geteuid().as_raw()) {
            return Err(wrong(format!("others can read it (mode {:03o}): chmod 600", mode & 0o777)));
        }
        let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
        Self::new(text.lines().next().unwrap_or_default().trim()).map_err(wrong)
    }

    fn new(text: &str) -> Result<Self, String> {
        if !BYTES.contains(&text.len()) {
            return Err(format!("{} bytes, and it needs {} to {}", text.len(), BYTES.start(), BYTES.end()));
        }
        if !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err("only printable ASCII without spaces can be sent in a header".into());
        }
        Ok(Self(text.as_bytes().to_vec()))
    }

    /// Returns true if an `Authorization` header contains the token. The time of the comparison
    /// depends only on the header's length, and not on its contents.
    pub fn is_in(&self, authorization: Option<&[u8]>) -> bool {
        let Some(said) = authorization.and_then(|header| header.split_at_checked(7)) else { return false };
        said.0.eq_ignore_ascii_case(b"Bearer ") && bool::from(self.0.ct_eq(said.1))
    }
}

/// Returns true if a file of this mode is private. If `is_own` is true, only its owner may access
/// the file. Otherwise its group may read the file, too. The group's mode also covers an access
/// control list.
fn is_private(mode: u32, is_own: bool) -> bool {
    mode & if is_own { 0o077 } else { 0o037 } == 0
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_itself_will_do() {
        let token = Token::new("0123456789abcdef").unwrap();
        assert!(token.is_in(Some(b"Bearer 0123456789abcdef")) && token.is_in(Some(b"bearer 0123456789abcdef")));
        for wrong in
            [&b"Bearer 0123456789abcdeF"[..], b"Bearer 0123456789abcde", b"Bearer ", b"Basic 0123456789abcdef", b""]
        {
            assert!(!token.is_in(Some(wrong)));
        }
        assert!(!token.is_in(None));
        assert!(is_private(0o100_400, true) && is_private(0o100_600, true) && is_private(0o100_440, false));
        for (mode, is_own) in [(0o440, true), (0o604, true), (0o444, false), (0o460, false)] {
            assert!(!is_private(mode, is_own), "{mode:o}");
        }
        assert!(Token::new("short").is_err() && Token::new("0123456789abcde f").is_err());
    }
}
