//! `tensorlend rename`: renames a tensor or a list.

use tensorlend::Client;

use crate::failure::Failure;
use crate::options::Json;
use crate::output;

/// Rename a value.
///
/// It replaces the value of the new name. Both names exist for a moment, and one of them exists at every moment.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  tensorlend rename draft final\n  tensorlend mv --list results results-monday\n")]
pub struct RenameArgs {
    /// The old name.
    from: String,
    /// The new name.
    to: String,
    /// Rename a list.
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    json: Json,
}

impl RenameArgs {
    pub fn run(&self, client: &Client) -> Result<(), Failure> {
        let rename = if self.list { Client::rename_list } else { Client::rename };
        rename(client, &self.from, &self.to)?;
        if self.json.on {
            let kind = if self.list { "list" } else { "name" };
            output::json(&serde_json::json!({ "kind": kind, "from": self.from, "to": self.to }))?;
        }
        Ok(())
    }
}
