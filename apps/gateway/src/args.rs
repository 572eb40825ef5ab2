//! The command-line options of `tensorlend-gateway`.

use clap::Parser;
use std::path::PathBuf;
use tracing_subscriber::EnvFilter;

/// Read tensors of other machines, and let other machines read those of this one.
///
/// Programs then read a name NODE/NAME like a local one. The configuration lists the names that are exported, imported
/// and accepted. Zenoh determines the nodes, and how they find and authenticate each other.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "tensorlend-gateway",
    version = tensorlend::build(),
    max_term_width = 100,
    after_help = "\
Examples:
  tensorlend-gateway --config /etc/tensorlend/gateway.toml
  tensorlend-gateway --config gateway.toml --check
  tensorlend-gateway --print-config > gateway.toml
"
)]
pub struct Args {
    /// The configuration file.
    #[arg(long, value_name = "FILE", required_unless_present = "print_config")]
    pub config: Option<PathBuf>,
    /// The daemon's socket; overrides the configuration. Default: the user's daemon, then the system's.
    #[arg(long, value_name = "PATH", env = "TENSORLEND_SOCKET", hide_env_values = true)]
    pub socket: Option<PathBuf>,
    /// Read the configuration, print whether it is valid, and exit.
    #[arg(long)]
    pub check: bool,
    /// Print a configuration with every option, and exit.
    #[arg(long, conflicts_with_all = ["config", "check"])]
    pub print_config: bool,
}

impl Args {
    /// Returns true if `TENSORLEND_LOG_FORMAT` selects a log of JSON objects, as is usual in
    /// containers.
    pub fn logs_json() -> bool {
        std::env::var_os("TENSORLEND_LOG_FORMAT").is_some_and(|format| format == "json")
    }

    /// Returns the log filter: `TENSORLEND_LOG`, or the default filter.
    pub fn filter() -> EnvFilter {
        EnvFilter::try_from_env("TENSORLEND_LOG")
            .unwrap_or_else(|_| EnvFilter::new("tensorlend_gateway=info,zenoh=warn"))
    }
}
