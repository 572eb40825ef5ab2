//! Globs: patterns for names.

use crate::error::{Error, Result};

/// Maximum bytes of a pattern. Every name is shorter, and a pattern of this length still compiles.
const GLOB_BYTES_MAX: usize = 1024;

/// A compiled pattern for names, with the syntax of [`crate::Client::list`]. `*` and `?` match any characters,
/// including `/`. `[ab]`, `{a,b}` and `\` work as in a shell.
///
/// ```
/// let cameras = tensorlend::Glob::new("camera/*")?;
/// assert!(cameras.is_match("camera/front/left") && !cameras.is_match("lidar"));
/// assert!(tensorlend::Glob::new("[a").is_err());
/// # Ok::<(), tensorlend::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Glob(globset::GlobSet);

impl Glob {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// [`Error::Argument`] for an invalid pattern, or one of more than 1024 bytes.
    pub fn new(pattern: &str) -> Result<Self> {
        if pattern.len() > GLOB_BYTES_MAX {
            let why = format!("a pattern of {} bytes is too long: at most {GLOB_BYTES_MAX}", pattern.len());
            return Err(Error::Argument(why));
        }
        globset::GlobBuilder::new(pattern)
            .build()
            // Build a set of one glob: compiling a single glob panics if the automaton would be too large.
            .and_then(|one| globset::GlobSetBuilder::new().add(one).build())
            .map(Self)
            .map_err(|e| Error::Argument(format!("glob {pattern:?}: {e}")))
    }

    /// Returns whether the pattern matches the whole name.
    pub fn is_match(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}
