//! The program `tensorlendd`, as a function that its binary and the Python package call.

use crate::sys::notify;
use crate::{Config, DaemonError, background, log, service};
use clap::{CommandFactory, Parser};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use tensorlend_os::stderr;

/// Daemon that owns pooled shared memory and lends tensor slots to client processes.
///
/// Exit codes: 0 stopped by SIGTERM or SIGINT; 1 could not run; 2 wrong usage or configuration.
#[derive(Debug, Parser)]
#[command(name = "tensorlendd", version = tensorlend_layout::versions::build())]
struct Arguments {
    /// Configuration file (TOML); without one, every option has its default
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Path of the control socket, instead of the configuration's
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Do not run a daemon: store a daemon's descriptors, on a Unix socket at this path, until SIGTERM
    ///
    /// For containers, and machines without systemd. The daemon's option fd_store names the same path. After the
    /// daemon's death, the next daemon gets the descriptors and continues with all tensors.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["config", "socket", "check_config", "reload", "print_config"])]
    fd_store: Option<PathBuf>,
    /// End the fd store after this time without a daemon, or at once if a daemon leaves nothing in it
    #[arg(long, value_name = "SECONDS", requires = "fd_store")]
    fd_store_idle: Option<u32>,
    /// Run in the background: return when the daemon listens. It is in user mode and ends when it is idle (options mode and
    /// idle_exit_s), and its log is a file at the path of its socket and ".log"
    #[arg(long, conflicts_with_all = ["fd_store", "check_config", "reload", "print_config"])]
    daemonize: bool,
    /// Be the process in the background
    #[arg(long, hide = true, conflicts_with = "daemonize")]
    detached: bool,
    /// Also lend memory of devices whose driver is a fake for tests
    #[arg(long)]
    allow_fake_cuda: bool,
    /// Format of the log; default: the journal if standard error is connected to it, else text
    ///
    /// TENSORLEND_LOG sets its level: error, warn, info (the default), debug.
    #[arg(long, value_name = "FORMAT", env = "TENSORLEND_LOG_FORMAT")]
    log_format: Option<log::Format>,
    /// Do everything that a start does, except creating the socket and connecting to the fd store, and exit: 0 if a
    /// daemon could run with all its features
    ///
    /// Run it as the daemon's user: another user may have other rights.
    #[arg(long)]
    check_config: bool,
    /// Check the configuration, make the daemon with this process id read it again, and wait until it has
    ///
    /// Needs the same --config and --socket as the daemon. The daemon's log reports the changes, and the options that
    /// need a restart.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    reload: Option<i32>,
    /// Print a configuration file with every option explained, each in a comment, and exit
    #[arg(long)]
    print_config: bool,
}

/// Returns the clap command, for manual pages and shell completions.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Runs the daemon from a command line. The first argument is the program's name. Returns the exit
/// status.
pub fn main(arguments: Vec<OsString>) -> u8 {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            // `use_stderr` is true for a wrong option, and false for --help. Only a wrong option is
            // reported to the service manager.
            if error.use_stderr() && notify::is_heard() {
                let text = error.to_string();
                service::pause_before_retry(&text.lines().next().unwrap_or_default());
            }
            return error.exit_code().try_into().unwrap_or(u8::MAX);
        }
    };
    if arguments.detached {
        background::detach();
    }
    if arguments.fd_store_idle.is_some() {
        // Another process may wait for the end of one of the daemon's files.
        let _ = tensorlend_os::inherited::close_all();
    }
    if arguments.print_config {
        print!("{}", crate::config::commented());
        return 0;
    }
    #[cfg(feature = "crash-points")]
    tensorlend_os::crash::arm();
    let status = run(arguments);
    log::flush();
    status
}

fn run(arguments: Arguments) -> u8 {
    if let Err(error) = log::start(arguments.log_format, arguments.detached) {
        stderr::say(&format!("tensorlendd: systemd's journal cannot be written: {error}"));
        return 1;
    }
    let serves = !arguments.check_config && arguments.reload.is_none();
    match start(arguments) {
        Ok(()) => 0,
        Err(error) => {
            // The text is trimmed, because the texts of the TOML parser end with a line feed.
            stderr::say(&format!("tensorlendd: {} [{}]", error.to_string().trim_end(), error.code()));
            background::failed(&error);
            if serves && notify::is_heard() {
                service::pause_before_retry(&error);
            }
            if matches!(error, DaemonError::Config(_)) { 2 } else { 1 }
        }
    }
}

fn start(arguments: Arguments) -> Result<(), DaemonError> {
    let Arguments { config, socket, fd_store, fd_store_idle, allow_fake_cuda, check_config, reload, .. } = arguments;
    let (daemonize, detached) = (arguments.daemonize, arguments.detached);
    let config = if daemonize { config.map(|path| background::absolute(&path)).transpose()? } else { config };
    if let Some(path) = fd_store {
        return crate::fd_store::run(&path, fd_store_idle.map(|seconds| Duration::from_secs(seconds.into())));
    }
    let file = config.clone();
    let load = move || {
        let mut config = match &config {
            Some(path) => Config::load(path)?,
            None => Config::default(),
        };
        if socket.is_some() {
            config.socket.clone_from(&socket);
        }
        config.cuda.allow_fake = allow_fake_cuda;
        if detached {
            background::defaults(&mut config);
        }
        Ok(config)
    };
    if check_config {
        crate::check(&load()?)?;
        println!("the configuration is right");
        return Ok(());
    }
    if daemonize {
        let mut same: Vec<OsString> = Vec::new();
        if let Some(file) = file {
            same.extend(["--config".into(), file.into()]);
        }
        if allow_fake_cuda {
            same.push("--allow-fake-cuda".into());
        }
        return background::start(load()?, &same);
    }
    match reload {
        Some(pid) => crate::ask_to_reload(&load()?, pid),
        None => crate::run(Box::new(load)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program of another package that contains the daemon, such as Python's, ends by itself.
    #[test]
    fn a_wrong_option_gives_a_status_and_ends_no_process() {
        let status = |option: &str| main(vec!["tensorlendd".into(), option.into()]);
        assert_eq!((status("--configuration"), status("--version"), status("--help")), (2, 0, 0));
    }
}
