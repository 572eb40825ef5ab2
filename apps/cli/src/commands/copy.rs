//! `tensorlend copy`: copies a tensor to another name.

use tensorlend::Client;

use crate::failure::Failure;
use crate::options::Json;
use crate::output;

/// Copy the value of a name to another name.
///
/// The copy has its own memory: it does not change when the first name gets a new value. It replaces the value of the
/// new name.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  tensorlend copy weights weights/epoch-3\n")]
pub struct CopyArgs {
    /// Name of the value to copy.
    from: String,
    /// The copy's name.
    to: String,
    #[command(flatten)]
    json: Json,
}

impl CopyArgs {
    pub fn run(&self, client: &Client) -> Result<(), Failure> {
        client.copy(&self.from, &self.to)?;
        if self.json.on {
            output::json(&serde_json::json!({ "from": self.from, "to": self.to }))?;
        }
        Ok(())
    }
}
