//! `tensorlend rename`: a tensor gets another name.

use tensorlend::Client;

use crate::failure::Failure;

/// Give what a name holds another name.
///
/// What the new name held is replaced. For a moment both names are seen, never neither.
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
}

impl RenameArgs {
    pub fn run(&self, client: &Client) -> Result<(), Failure> {
        let rename = if self.list { Client::rename_list } else { Client::rename };
        Ok(rename(client, &self.from, &self.to)?)
    }
}
