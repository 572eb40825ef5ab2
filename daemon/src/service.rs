//! The daemon as a service.

use crate::config::{Config, ConfigError};
use crate::core::settings::{Mode, Settings};
use crate::reload::{Load, Reloader};
use crate::sys::notify::{self, Watchdog};
use crate::sys::{Backing, DaemonError, Devices, Keeper, Listener, Shell, Signals, await_turn, limits, spill};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, Resource, Rlimit, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a daemon that cannot be started stays before it ends, under a service manager.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

const SYSTEM_SOCKET: &str = "/run/tensorlend/tensorlend.sock";

/// What a daemon of a configuration is made of, before anybody can connect.
struct Parts {
    mode: Mode,
    settings: Settings,
    backing: Backing,
    devices: Devices,
    /// Users and groups of namespaces that could not be found.
    unknown: Vec<String>,
    /// Why segments cannot be spilled.
    spill: Option<ConfigError>,
}

impl Parts {
    /// The first half of a start, which is all of a check but for the socket. A fault without which a daemon can serve its
    /// clients is no error here, but a part of the result.
    fn gather(config: &Config) -> Result<Self, DaemonError> {
        let mode = limits::mode(config.mode);
        let (mut settings, unknown) = limits::settings_and_unknown(config, mode)?;
        let backing = limits::backing(config)?;
        raise_descriptors();
        settings.descriptors_max = limits::descriptors();
        let spill = spill::check(&settings).err();
        // Behind the raised limit of descriptors: the driver opens some for each device.
        let devices = Devices::open(&config.cuda);
        devices.tell(&mut settings);
        Ok(Self { mode, settings, backing, devices, unknown, spill })
    }
}

/// Checks whether a daemon could run with this configuration, and all of it would work: does what a start does, short of
/// making the socket. Users and groups that do not exist are warnings in the log.
///
/// It raises this process's limit of descriptors.
pub fn check(config: &Config) -> Result<(), DaemonError> {
    limits::check_system()?;
    let Parts { mode, unknown, spill, .. } = Parts::gather(config)?;
    for it in unknown {
        tracing::warn!("{it}: this entry would grant nothing");
    }
    if let Some(fault) = spill {
        return Err(fault.into());
    }
    let mut path = socket_path(config, mode)?;
    if config.socket.is_none() && mode == Mode::System && !path.parent().is_some_and(Path::exists) {
        // A start makes this folder, in its own.
        path.pop();
    }
    Listener::check(&path)
}

/// Runs the daemon until SIGTERM or SIGINT. `load` reads its configuration: now, and again on each SIGHUP.
///
/// To be called from the process's first thread before it has others: it catches signals for the whole process, makes
/// it undumpable, and raises its limit of descriptors.
pub fn run(load: Load) -> Result<(), DaemonError> {
    limits::check_system()?;
    let config = load()?;
    // First of all, before other descriptors take the numbers of those that were handed over.
    let (activated, heirlooms) = Listener::handed_over()?;
    let signals = Signals::catch()?;
    // No process of an equal uid may attach, or take descriptors out.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| DaemonError::System { what: "PR_SET_DUMPABLE", error: error.into() })?;
    let Parts { mode, settings, backing, devices, unknown, spill } = Parts::gather(&config)?;
    let listener = if let Some(listener) = activated {
        listener
    } else {
        let path = socket_path(&config, mode)?;
        if let Some(folder) = path.parent().filter(|_| config.socket.is_none() && mode == Mode::System) {
            // Where a service manager starts the daemon, it has made the folder; elsewhere nobody has.
            let _ = std::fs::create_dir_all(folder);
        }
        Listener::bind(&path, socket_mode(&config, mode))?
    };
    let pool = settings.pool_bytes_max;
    let left = (Keeper::of_this_process(), heirlooms);
    let shell = Shell::new(listener, settings, (backing, devices), left)?.watched(Watchdog::asked_for());
    let reloader = Reloader::new(load, config, mode, pool).with_faults(unknown, spill);
    let status = reloader.status();
    tracing::info!("{status}");
    notify::ready(&status);
    let ended = shell.reloaded_by(reloader).run(&signals);
    notify::stopping();
    crate::log::tell_left_out();
    tracing::info!("tensorlendd stops");
    ended
}

/// Checks a configuration, has the daemon of this process read it again, and waits until it has. The daemon says in its log, and
/// to its service manager, what came of it.
pub fn ask_to_reload(config: &Config, pid: i32) -> Result<(), DaemonError> {
    // The running daemon has its socket and its devices: only what it reads again has to be right.
    limits::settings(config, limits::mode(config.mode))?;
    limits::backing(config)?;
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
        return Ok(PathBuf::from(SYSTEM_SOCKET));
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

/// Waits before a daemon that could not be started ends, so that a service manager that starts it again and again does so
/// every few seconds. SIGTERM and SIGINT end the process at once.
pub fn pause_before_retry(error: &DaemonError) {
    notify::status(&format!("not started, and tried again: {error}"));
    let _ = nix::sys::signal::SigSet::all().thread_unblock();
    std::thread::sleep(RETRY_PAUSE);
}
