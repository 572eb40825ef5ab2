//! The reload of the configuration on SIGHUP. The loop reads the file. Another thread looks up the
//! users and groups, and checks the values: see `finder.rs`.

use super::finder::{Found, Lookup, Resolved};
use super::{Shell, notify};
use crate::config::{Config, ConfigError};
use crate::core::Event;
use crate::core::settings::{Mode, Settings};
use crate::options::{self, Takes};
use std::sync::Arc;
use tensorlend_os::clock::boottime_ns;

/// Minimum pause between two look-ups of unknown users and groups, because a name service may be slow.
const FIND_PAUSE_NS: u64 = 10_000_000_000;

/// A function that reads the configuration named on the daemon's command line.
pub type Load = Box<dyn Fn() -> Result<Config, ConfigError> + Send>;

/// The source of new configurations, and the configuration in effect.
pub struct Reloader {
    load: Load,
    /// The configuration in effect. Options that need a restart have the values that they had at the start.
    running: Config,
    mode: Mode,
    /// Changed options that need a restart to take effect.
    put_off: Vec<String>,
    /// The error of the last reload, if the file was rejected.
    error: Option<String>,
    pool_bytes_max: u64,
    /// Messages about users and groups of namespaces that were not found, with their options in the file.
    unknown: Vec<String>,
    /// The reason, found at the start, why segments cannot be spilled.
    spill_fault: Option<String>,
}

impl Reloader {
    /// Creates the reloader of a daemon that was started with `running`.
    pub fn new(load: Load, running: Config, mode: Mode, pool_bytes_max: u64) -> Self {
        let (put_off, unknown) = (Vec::new(), Vec::new());
        Self { load, running, mode, put_off, error: None, pool_bytes_max, unknown, spill_fault: None }
    }

    /// Adds the faults with which the daemon started. The log and the status report them.
    pub fn with_faults(mut self, unknown: Vec<String>, spill: Option<ConfigError>) -> Self {
        self.spill_fault = spill.map(|error| error.to_string());
        if let Some(fault) = &self.spill_fault {
            tracing::warn!("the daemon spills nothing until you correct this: {fault}");
        }
        self.note_unknown(unknown);
        self
    }

    /// Returns a look-up of the users and groups that were not found. Returns `None` if all were
    /// found.
    fn unknown(&self) -> Option<Lookup> {
        (!self.unknown.is_empty()).then(|| Lookup { config: self.running.clone(), mode: self.mode, file: None })
    }

    /// Reads the file. Returns the look-up that completes the check of the file. If the file is
    /// invalid, logs this and returns `None`, and the configuration stays as it is.
    fn read(&mut self) -> Option<Lookup> {
        match (self.load)() {
            Ok(file) => {
                let config = options::without_restart(file.clone(), &self.running);
                Some(Lookup { config, mode: self.mode, file: Some(file) })
            }
            Err(error) => {
                self.reject(&error);
                None
            }
        }
    }

    /// Reports why the configuration stays as it is.
    fn reject(&mut self, why: &dyn std::fmt::Display) {
        tracing::error!("the configuration was not reloaded, and stays as it is: {why}");
        self.error = Some(why.to_string());
    }

    /// Applies the result of a look-up. Returns the new settings. Returns `None` if the settings
    /// stay as they are.
    fn found(&mut self, lookup: Lookup, resolved: Resolved) -> Option<Settings> {
        let (settings, unknown) = match (resolved, &lookup.file) {
            (Ok(found), Some(file)) => {
                self.note_changes(file);
                self.error = None;
                tracing::info!("configuration reloaded");
                found
            }
            (Ok(found), None) if found.1 != self.unknown && lookup.config == self.running => found,
            // The look-up has found no further user or group, or the configuration has changed
            // since the look-up began.
            (_, None) => return None,
            (Err(error), Some(_)) => {
                self.reject(&error);
                return None;
            }
        };
        self.running = lookup.config;
        self.note_unknown(unknown);
        self.pool_bytes_max = settings.pool_bytes_max;
        Some(settings)
    }

    fn note_changes(&mut self, file: &Config) {
        let changes = options::changes(&self.running, file);
        for change in &changes {
            let option = &change.option;
            match change.takes {
                Takes::Now => tracing::info!(option, "{change}"),
                Takes::NewNamespace => tracing::info!(option, "{change}, in namespaces that are made from now on"),
                Takes::Restart => tracing::warn!(option, "{change}, but not before the daemon is restarted"),
            }
        }
        let put_off = changes.into_iter().filter(|change| change.takes == Takes::Restart);
        self.put_off = put_off.map(|change| change.option).collect();
    }

    fn note_unknown(&mut self, unknown: Vec<String>) {
        for it in unknown.iter().filter(|it| !self.unknown.contains(it)) {
            tracing::warn!("{it}: this entry grants nothing until the name exists");
        }
        for it in self.unknown.iter().filter(|it| !unknown.contains(it)) {
            tracing::info!("no longer so: {it}");
        }
        self.unknown = unknown;
    }

    /// Returns a line for `systemctl status`.
    pub fn status(&self) -> String {
        let (version, mode) = (tensorlend_layout::versions::build(), self.mode);
        let pool = self.pool_bytes_max >> 20;
        let put_off = match &self.put_off[..] {
            [] => String::new(),
            options => format!("; a restart is needed for {}", options.join(", ")),
        };
        let error = self.error.as_ref().map(|error| format!("; the configuration was not reloaded: {error}"));
        let error = error.unwrap_or_default();
        let runs = format!("tensorlendd {version} runs in {mode:?} mode, pool.bytes_max {pool} MiB{put_off}{error}");
        let faults = self.unknown.iter().chain(&self.spill_fault).map(ToString::to_string);
        std::iter::once(runs).chain(faults).collect::<Vec<String>>().join("; ")
    }
}

/// The ordered reloads that have not ended.
#[derive(Debug, Default)]
pub struct Reloads {
    /// Whether a reload is in progress.
    runs: bool,
    /// Whether another reload was ordered after the running look-up had begun.
    follows: bool,
    /// Connections that have closed their sending side and wait for the daemon's hang-up. The
    /// hang-up shows them that the reload has ended.
    waiting: Vec<u64>,
}

impl Shell {
    /// Looks up unknown users and groups of namespaces again. The loop calls this function when a
    /// client connects, because a package may have created them, or the name service may be
    /// available now. The result applies to later connections.
    pub(super) fn find_unknown(&mut self) {
        let now_ns = boottime_ns();
        let Some(lookup) = self.reloader.as_ref().and_then(Reloader::unknown) else { return };
        if now_ns < self.find_after_ns || self.finder.is_running() {
            return;
        }
        self.find_after_ns = now_ns + FIND_PAUSE_NS;
        if let Err(error) = self.finder.start(lookup) {
            tracing::warn!("starting a thread: {error}");
        }
    }

    /// Begins to read the configuration again. An invalid configuration changes nothing.
    pub(super) fn reload(&mut self) {
        self.check_socket();
        let Some(reloader) = &mut self.reloader else { return };
        notify::reloading();
        self.reloads.follows = self.finder.is_running();
        self.reloads.runs = true;
        if self.reloads.follows {
            return;
        }
        match reloader.read().map(|lookup| self.finder.start(lookup)) {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                reloader.reject(&format_args!("starting a thread: {error}"));
                self.end_reload();
            }
            None => self.end_reload(),
        }
    }

    /// Handles the end of a look-up of users and groups.
    pub(super) fn found(&mut self) {
        let Some(Found { lookup, resolved }) = self.finder.take() else { return };
        let Some(reloader) = &mut self.reloader else { return };
        if let Some(settings) = reloader.found(lookup, resolved) {
            notify::status(&reloader.status());
            self.shares.set_owners(Arc::clone(&settings.owners));
            self.bans.set_owners(Arc::clone(&settings.owners));
            self.lanes.set_owners(Arc::clone(&settings.owners));
            self.deliver(Event::Reload(Box::new(settings)));
        }
        if self.reloads.follows {
            self.reload();
        } else if self.reloads.runs {
            self.end_reload();
        }
    }

    fn end_reload(&mut self) {
        self.reloads.runs = false;
        notify::ready(&self.reloader.as_ref().map_or_else(String::new, Reloader::status));
        for token in std::mem::take(&mut self.reloads.waiting) {
            self.hung_up(token);
        }
        self.deliver_all();
    }

    /// Returns true if a reload is in progress. The connection, which has closed its sending side,
    /// then waits for the end of the reload: see [`await_turn`](super::await_turn).
    pub(super) fn awaits_reload(&mut self, token: u64) -> bool {
        if self.reloads.runs {
            self.reloads.waiting.push(token);
        }
        self.reloads.runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{Backing, Devices, Inherited, Listener, Order, Orders, Supply, limits};
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::Errno;
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
        shutdown, socket_with,
    };
    use std::collections::VecDeque;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
    use std::path::Path;
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use tensorlend_layout::wire::{Hello, Reply, Request, decode, encode};
    use tensorlend_os::packet;

    /// Orders from a test.
    struct QueuedOrders(OwnedFd, Mutex<VecDeque<Order>>);

    impl QueuedOrders {
        fn give(&self, order: Order) {
            self.1.lock().unwrap().push_back(order);
            rustix::io::write(&self.0, &1u64.to_ne_bytes()).unwrap();
        }
    }

    /// Ends the loop, also if the test fails.
    struct End<'a>(&'a QueuedOrders);

    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.give(Order::Stop);
        }
    }

    impl AsFd for QueuedOrders {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }

    impl Orders for QueuedOrders {
        fn next(&self) -> Option<Order> {
            // A semaphore: each read takes one order.
            rustix::io::read(&self.0, &mut [0u8; 8]).ok()?;
            self.1.lock().unwrap().pop_front()
        }
    }

    fn dial(path: &Path) -> OwnedFd {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        socket
    }

    /// Returns the reply; `None` if the daemon closes the connection.
    fn ask(socket: &OwnedFd, request: &Request) -> Option<Reply> {
        packet::send(socket, &encode(request), &[], SendFlags::empty()).ok()?;
        decode(&packet::receive(socket, RecvFlags::empty()).ok()?.bytes)
    }

    fn answers(socket: &OwnedFd) -> bool {
        ask(socket, &Request::Ping).is_some_and(|reply| !matches!(reply, Reply::Refused(_)))
    }

    /// Joins as another client; `None`: the daemon refuses it.
    fn join(path: &Path) -> Option<OwnedFd> {
        let socket = dial(path);
        let Reply::Welcome(_) = ask(&socket, &Request::Hello(Hello::new(None, "test")))? else { return None };
        packet::send(&socket, &encode(&Request::Ack), &[], SendFlags::empty()).unwrap();
        answers(&socket).then_some(socket)
    }

    /// Makes each lookup report its begin, and wait for a message that decides whether the lookup succeeds.
    fn control_lookups(shell: &mut Shell) -> (Receiver<()>, Sender<bool>) {
        let ((asked, lookups), (word, words)) = (channel(), channel::<bool>());
        let (asked, words) = (Mutex::new(asked), Mutex::new(words));
        shell.finder.resolve_by(move |resolve| {
            asked.lock().unwrap().send(()).unwrap();
            let succeeds = words.lock().unwrap().recv().unwrap();
            if succeeds { resolve() } else { Err(ConfigError::Value("the name service is gone".into())) }
        });
        (lookups, word)
    }

    #[test]
    fn a_name_service_that_does_not_answer_delays_no_client_and_a_failed_lookup_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let file = Arc::new(Mutex::new(String::new()));
        let read = Arc::clone(&file);
        let load: Load = Box::new(move || Config::parse(&read.lock().unwrap()));
        let config = Config::default();
        let settings = limits::settings(&config, Mode::User).unwrap();
        let supply = Supply { backing: Backing::default(), devices: Devices::none("none") };
        let mut shell =
            Shell::new(Listener::bind(&path, 0o600).unwrap(), settings, supply, Inherited::default()).unwrap();
        let (lookups, word) = control_lookups(&mut shell);
        let shell = shell.reloaded_by(Reloader::new(load, config, Mode::User, 1 << 30));
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let orders = QueuedOrders(eventfd(0, flags).unwrap(), Mutex::default());
        std::thread::scope(|scope| {
            scope.spawn(|| shell.run(&orders).unwrap());
            let _end = End(&orders);
            let set = |text: &str| text.clone_into(&mut file.lock().unwrap());
            // This call waits for the end of the reload, as `tensorlendd --reload` does.
            let await_turn = || {
                let socket = dial(&path);
                shutdown(&socket, Shutdown::Write).unwrap();
                socket
            };
            let waits = |socket: &OwnedFd| recv(socket, &mut [0; 1], RecvFlags::DONTWAIT).err() == Some(Errno::AGAIN);
            let ends = |socket: &OwnedFd| assert!(matches!(recv(socket, &mut [0; 1], RecvFlags::empty()), Ok((0, _))));

            set("[uid]\nsessions_max = 1");
            orders.give(Order::Reload);
            lookups.recv().unwrap();
            let (waiting, first) = (await_turn(), join(&path).expect("the loop runs"));
            let second = join(&path).expect("the new limit does not hold yet");
            // A second order while the first lookup runs.
            set("[uid]\nsessions_max = 2");
            orders.give(Order::Reload);
            assert!(answers(&first));
            word.send(true).unwrap();
            lookups.recv().unwrap();
            assert!(join(&path).is_none(), "the limit of the first reload");
            assert!(waits(&waiting), "a reload still runs");
            word.send(true).unwrap();
            ends(&waiting);

            set("[uid]\nsessions_max = 5");
            orders.give(Order::Reload);
            lookups.recv().unwrap();
            let waiting = await_turn();
            word.send(false).unwrap();
            ends(&waiting);
            assert!(join(&path).is_none(), "the configuration was rejected whole");
            assert!(answers(&first) && answers(&second));
        });
    }

    #[test]
    fn a_wrong_configuration_changes_nothing_and_a_right_one_what_it_can() {
        let file = Arc::new(Mutex::new(String::new()));
        let read = Arc::clone(&file);
        let load: Load = Box::new(move || Config::parse(&read.lock().unwrap()));
        let mut reloader = Reloader::new(load, Config::default(), Mode::User, 1 << 30);
        let mut with = |text: &str| {
            *file.lock().unwrap() = text.to_owned();
            let settings = reloader.read().and_then(|lookup| {
                let resolved = lookup.resolve();
                reloader.found(lookup, resolved)
            });
            (settings, reloader.status())
        };

        let (settings, status) =
            with("[pool]\nbytes_max = \"256MiB\"\nsegment_bytes = \"2MiB\"\n[uid]\nsessions_max = 3");
        let settings = settings.unwrap();
        assert_eq!((settings.pool_bytes_max, settings.uid_sessions_max), (256 << 20, 3));
        assert_eq!(settings.segment_bytes, 64 << 20, "clients were told the length");
        assert!(status.ends_with("pool.bytes_max 256 MiB; a restart is needed for pool.segment_bytes"), "{status}");

        for wrong in ["[pool]\nbytes = 1", "[uid]\nsessions_max = 0"] {
            let (settings, status) = with(wrong);
            assert!(settings.is_none(), "{wrong}");
            assert!(
                status.contains("256 MiB") && status.contains("; the configuration was not reloaded: the con"),
                "{status}"
            );
        }
        // This file is valid for the next daemon, but not for this one, whose segments are longer.
        let (settings, status) = with("[pool]\nbytes_max = \"4MiB\"\nsegment_bytes = \"1MiB\"");
        assert!(settings.is_none() && status.contains("pool.segment_bytes is 67108864"), "{status}");

        // A user who does not exist gets no rights; the rest applies.
        let (settings, status) = with("[uid]\nsessions_max = 9\n[namespace.lab]\nreaders = [\"no-such-user-here\"]");
        let settings = settings.unwrap();
        assert_eq!(settings.uid_sessions_max, 9);
        assert!(settings.namespaces["lab"].readers.is_empty());
        assert!(status.contains("; namespace.lab.readers: there is no user \"no-such-user-here\""), "{status}");

        let (settings, status) = with("");
        assert!(settings.unwrap().uid_sessions_max > 3);
        assert!(!status.contains(';'), "{status}");
    }
}
