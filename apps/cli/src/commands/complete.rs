//! `tensorlend complete`: prints names for a shell's completion. Help and manual do not show the command.

use std::time::Duration;

use tensorlend::{Client, Error};

use crate::failure::Failure;
use crate::options::Connection;
use crate::output;

/// Time that a user waits for a completion.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of printed names. More names would not help a user.
const NAMES_MAX: usize = 500;

/// Print the names that begin with a prefix.
#[derive(clap::Args, Debug)]
pub struct CompleteArgs {
    kind: Kind,
    #[arg(default_value = "")]
    prefix: String,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Kind {
    Names,
    Streams,
    Lists,
}

impl CompleteArgs {
    pub fn run(&self, at: &Connection) -> Result<(), Failure> {
        // Without a daemon there is nothing to complete. A message would garble the user's command
        // line.
        let Ok(client) = at.builder("complete")?.request_timeout(TIMEOUT).connect() else { return Ok(()) };
        let Ok(mut names) = self.names(&client) else { return Ok(()) };
        names.retain(|name| name.starts_with(&self.prefix) && (!name.starts_with('.') || self.prefix.starts_with('.')));
        names.sort_unstable();
        names.truncate(NAMES_MAX);
        // Names contain no control characters, so each name is one line.
        let end = if names.is_empty() { "" } else { "\n" };
        output::text_block(&(names.join("\n") + end))
    }

    fn names(&self, client: &Client) -> Result<Vec<String>, Error> {
        let found = |all: Vec<tensorlend::Collection>| all.into_iter().map(|it| it.name).collect();
        match self.kind {
            Kind::Names => client.names("*"),
            Kind::Streams => client.streams("*").map(found),
            Kind::Lists => client.lists("*").map(found),
        }
    }
}
