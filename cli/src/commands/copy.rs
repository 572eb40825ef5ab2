//! `tensorlend copy`: a tensor gets a double.

use tensorlend::Client;

use crate::failure::Failure;

/// Copy what a name holds to another name.
///
/// The copy has its own memory: it stays as it is when the first name moves on. What the new name held is replaced.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  tensorlend copy weights weights/epoch-3\n")]
pub struct CopyArgs {
    /// What to copy.
    from: String,
    /// The copy's name.
    to: String,
}

impl CopyArgs {
    pub fn run(&self, client: &Client) -> Result<(), Failure> {
        client.copy(&self.from, &self.to)?;
        Ok(())
    }
}
