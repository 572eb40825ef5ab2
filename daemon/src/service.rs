//! The daemon as a service.

use crate::config::Config;
use crate::core::settings::Mode;
use crate::reload::{Load, Reloader};
use crate::sys::notify::{self, Watchdog};
use crate::sys::{DaemonError, Devices, Keeper, Listener, Shell, Signals, await_turn, limits};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, Resource, Rlimit, Signal, kill_process};
use std::path::PathBuf;

const SYSTEM_SOCKET: &str = "/run/tensorlend/tensorlend.sock";

/// Whether a daemon could run with this configuration: its values, its users and groups.
pub fn check(config: &Config) -> Result<(), DaemonError> {
    limits::settings(config, limits::mode(config.mode))?;
    limits::backing(config)?;
    Ok(())
}

/// Runs the daemon until SIGTERM or SIGINT. `load` reads its configuration: now, and again on each SIGHUP.
///
/// To be called from the process's first thread before it has others: it catches signals for the whole process, makes
/// it undumpable, and raises its limit of descriptors.
pub fn run(load: Load) -> Result<(), DaemonError> {
    tensorlend_os::kernel::check()?;
    let config = load()?;
    let mode = limits::mode(config.mode);
    let mut settings = limits::settings(&config, mode)?;
    // First of all, before other descriptors take the numbers of those that were handed over.
    let (activated, heirlooms) = Listener::handed_over()?;
    let signals = Signals::catch()?;
    // No process of an equal uid may attach, or take descriptors out.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| DaemonError::System { what: "PR_SET_DUMPABLE", error: error.into() })?;
    raise_descriptors();
    settings.descriptors_max = limits::descriptors();
    let listener = match activated {
        Some(listener) => listener,
        None => Listener::bind(&socket_path(&config, mode)?, socket_mode(&config, mode))?,
    };
    let pool = settings.pool_bytes_max;
    // Behind the raised limit of descriptors: the driver opens some for each device.
    let devices = Devices::open(&config.cuda);
    devices.tell(&mut settings);
    let left = (Keeper::of_this_process(), heirlooms);
    let shell =
        Shell::new(listener, settings, (limits::backing(&config)?, devices), left)?.watched(Watchdog::asked_for());
    let reloader = Reloader::new(load, config, mode, pool);
    let status = reloader.status();
    tracing::info!("{status}");
    notify::ready(&status);
    let ended = shell.reloaded_by(reloader).run(&signals);
    notify::stopping();
    tracing::info!("tensorlendd stops");
    ended
}

/// Checks a configuration, has the daemon of this process read it again, and waits until it has. The daemon says in its log, and
/// to its service manager, what came of it.
pub fn ask_to_reload(config: &Config, pid: i32) -> Result<(), DaemonError> {
    check(config)?;
    let process = Pid::from_raw(pid).ok_or(Errno::SRCH);
    process
        .and_then(|process| kill_process(process, Signal::HUP))
        .map_err(|error| DaemonError::System { what: "sending SIGHUP to the daemon", error: error.into() })?;
    let path = socket_path(config, limits::mode(config.mode))?;
    await_turn(&path).map_err(|error| DaemonError::NoAnswer { pid, path, what: error.to_string() })
}

fn socket_path(config: &Config, mode: Mode) -> Result<PathBuf, DaemonError> {
    if let Some(path) = &config.socket {
        return Ok(path.clone());
    }
    if mode == Mode::System {
        let path = PathBuf::from(SYSTEM_SOCKET);
        if let Some(folder) = path.parent() {
            // Where a service manager starts the daemon, it has made the folder; elsewhere nobody has.
            let _ = std::fs::create_dir_all(folder);
        }
        return Ok(path);
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if !folder.is_empty() => Ok(PathBuf::from(folder).join("tensorlend.sock")),
        _ => Err(DaemonError::NoSocketPath),
    }
}

fn socket_mode(config: &Config, mode: Mode) -> u32 {
    config.socket_mode.unwrap_or(match mode {
        Mode::System => 0o666,
        Mode::User => 0o600,
    })
}

/// Every segment and every sheet is a descriptor.
fn raise_descriptors() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if rustix::process::setrlimit(Resource::Nofile, raised).is_err() {
        tracing::warn!("the limit of open descriptors could not be raised from {:?}", limit.current);
    }
}
