//! The start of the daemon as a service.

use crate::background;
use crate::config::{Config, ConfigError, ModeChoice};
use crate::core::settings::{Mode, Settings};
use crate::sys::notify::{self, Watchdog};
use crate::sys::reload::{Load, Reloader};
use crate::sys::{Backing, DaemonError, Devices, FdStore, Listener, Shell, Signals, Supply, await_turn, limits, spill};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Pid, Signal, kill_process};
use std::path::Path;
use std::time::Duration;

/// Time that a daemon which cannot start waits before it ends, under a service manager.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// The result of the check of a configuration's values. A start, [`check`] and [`ask_to_reload`] do the same check.
struct Checked {
    settings: Settings,
    backing: Backing,
    /// Messages about users and groups of namespaces that were not found.
    unknown: Vec<String>,
    /// The reason why segments cannot be spilled.
    spill: Option<ConfigError>,
}

impl Checked {
    /// Checks the values. If the daemon can serve clients in spite of a fault, the fault is part of
    /// the result, and not an error.
    fn of(config: &Config, mode: Mode) -> Result<Self, ConfigError> {
        let in_file = |error: ConfigError| error.in_file(&config.source);
        let (settings, unknown) = limits::settings_and_unknown(config, mode).map_err(in_file)?;
        let backing = limits::backing(config).map_err(in_file)?;
        let spill = spill::check(&settings).err().map(in_file);
        Ok(Self { settings, backing, unknown, spill })
    }
}

/// Logs a warning for each user or group that does not exist.
fn warn_of_unknown(config: &Config, unknown: Vec<String>) {
    for it in unknown {
        let place = config.source.place_of(&it);
        tracing::warn!("{place}{it}: this entry would grant nothing");
    }
}

/// Returns the fault of a feature as an error. A daemon serves clients in spite of it.
fn refuse(fault: Option<ConfigError>) -> Result<(), DaemonError> {
    fault.map_or(Ok(()), |fault| Err(fault.into()))
}

/// The results of the first half of a start.
struct Parts {
    mode: Mode,
    settings: Settings,
    backing: Backing,
    devices: Devices,
    /// Messages about users and groups of namespaces that were not found.
    unknown: Vec<String>,
    /// The reason why segments cannot be spilled.
    spill: Option<ConfigError>,
}

impl Parts {
    /// Performs the first half of a start. [`check`] performs this half too. If the daemon can
    /// serve clients in spite of a fault, the fault is part of the result, and not an error.
    fn gather(config: &Config) -> Result<Self, DaemonError> {
        let mode = limits::mode(config.mode);
        if config.mode == ModeChoice::Auto && mode == Mode::System && rustix::process::getuid().is_root() {
            tracing::warn!(
                "the daemon runs as root in system mode: clients of root can write to memory that others of root have \
                 published. For a test you can ignore this. Otherwise run tensorlendd as a user of its own, or set \
                 mode = \"system\" or \"user\" in the configuration"
            );
        }
        let Checked { mut settings, backing, unknown, spill } = Checked::of(config, mode)?;
        limits::raise_descriptors();
        settings.descriptors_max = limits::descriptors();
        // The devices are opened after `raise_descriptors`, because the driver opens some
        // descriptors for each device.
        let devices = Devices::open(&config.cuda);
        devices.tell(&mut settings);
        Ok(Self { mode, settings, backing, devices, unknown, spill })
    }
}

/// Checks that a daemon could run with this configuration, with all of its features. Performs all
/// steps of a start, except the creation of the socket. Logs a warning for each user or group that
/// does not exist.
///
/// The function raises this process's limit of descriptors.
///
/// # Errors
/// The error with which the daemon would fail to start, or the fault of a feature.
pub fn check(config: &Config) -> Result<(), DaemonError> {
    limits::check_system()?;
    let Parts { mode, unknown, spill, .. } = Parts::gather(config)?;
    warn_of_unknown(config, unknown);
    refuse(spill)?;
    let mut path = limits::socket_path(config, mode)?;
    if config.socket.is_none() && mode == Mode::System && !path.parent().is_some_and(Path::exists) {
        // The daemon would create this directory, so the check applies to its parent.
        path.pop();
    }
    Listener::check(&path)
}

/// Runs the daemon until SIGTERM or SIGINT. `load` reads the daemon's configuration at the start,
/// and again after each SIGHUP.
///
/// The process's first thread calls this function before other threads exist. The function catches
/// signals for the whole process, makes the process undumpable, and raises its limit of
/// descriptors.
///
/// # Errors
/// If the daemon cannot start, or its event loop fails.
pub fn run(load: Load) -> Result<(), DaemonError> {
    limits::check_system()?;
    let config = load()?;
    // The manager's descriptors are taken over before any other descriptor is opened, because a new
    // descriptor could get one of their numbers.
    let (activated, stored) = Listener::handed_over()?;
    let signals = Signals::catch()?;
    // This prevents processes of the same uid from attaching to this process (ptrace), and from
    // taking its descriptors.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| DaemonError::System { what: "PR_SET_DUMPABLE", error: error.into() })?;
    let Parts { mode, settings, backing, devices, unknown, spill } = Parts::gather(&config)?;
    let listener = if let Some(listener) = activated {
        listener
    } else {
        let path = limits::socket_path(&config, mode)?;
        if let Some(folder) = path.parent().filter(|_| config.socket.is_none() && mode == Mode::System) {
            // A service manager creates this directory. Without one, the directory may be missing.
            let _ = std::fs::create_dir_all(folder);
        }
        Listener::bind(&path, socket_mode(&config, mode))?
    };
    let pool = settings.pool_bytes_max;
    let own = listener.path().filter(|_| mode == Mode::User && !notify::is_heard() && stored.is_empty());
    let left = FdStore::connect(config.fd_store_at(), own, stored)?;
    let shell = Shell::new(listener, settings, Supply { backing, devices }, left)?.watched(Watchdog::asked_for());
    let shell = shell.watching_its_socket().ending_when_idle(config.idle_exit_s);
    let reloader = Reloader::new(load, config, mode, pool).with_faults(unknown, spill);
    let status = reloader.status();
    tracing::info!("{status}");
    notify::ready(&status);
    background::ready();
    let ended = shell.reloaded_by(reloader).run(&signals);
    notify::stopping();
    crate::log::tell_left_out();
    tracing::info!("tensorlendd stops");
    ended
}

/// Checks a configuration, makes the daemon with this pid read the configuration again, and waits
/// until the daemon has done so. The daemon reports the result in its log and to its service
/// manager.
///
/// # Errors
/// If the configuration is invalid, or the daemon does not respond. Also, after the reload, if the daemon cannot spill.
pub fn ask_to_reload(config: &Config, pid: i32) -> Result<(), DaemonError> {
    // This does not check the socket and the devices, because the running daemon has already opened
    // them.
    let Checked { unknown, spill, .. } = Checked::of(config, limits::mode(config.mode))?;
    warn_of_unknown(config, unknown);
    if !survives_hup(pid) {
        let path = limits::socket_path(config, limits::mode(config.mode))?;
        let what = "it does not handle SIGHUP, and so is no daemon".to_owned();
        return Err(DaemonError::NoAnswer { pid, path, what });
    }
    let process = Pid::from_raw(pid).ok_or(Errno::SRCH);
    process
        .and_then(|process| kill_process(process, Signal::HUP))
        .map_err(|error| DaemonError::System { what: "sending SIGHUP to the daemon", error: error.into() })?;
    let path = limits::socket_path(config, limits::mode(config.mode))?;
    await_turn(&path).map_err(|error| DaemonError::NoAnswer { pid, path, what: error.to_string() })?;
    // The daemon has taken over the rest: a broken disk must not keep an administrator from ending a user's rights.
    refuse(spill)
}

/// Returns false if SIGHUP would end the process.
fn survives_hup(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    // Without a file, the signal fails with the reason.
    status.is_empty()
        || status.lines().any(|line| {
            let mask = line.strip_prefix("SigBlk:").or_else(|| line.strip_prefix("SigCgt:"));
            let bits = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
            bits.is_some_and(|bits| bits & 1 << (Signal::HUP.as_raw() - 1) != 0)
        })
}

fn socket_mode(config: &Config, mode: Mode) -> u32 {
    config.socket_mode.unwrap_or(match mode {
        Mode::System => 0o666,
        Mode::User => 0o600,
    })
}

/// Waits for [`RETRY_PAUSE`] after a failed start. The wait limits the rate at which a service
/// manager restarts the daemon. SIGTERM and SIGINT end the process at once.
pub fn pause_before_retry(error: &dyn std::fmt::Display) {
    notify::status(&format!("not started, and tried again: {error}"));
    let _ = nix::sys::signal::SigSet::all().thread_unblock();
    std::thread::sleep(RETRY_PAUSE);
}
