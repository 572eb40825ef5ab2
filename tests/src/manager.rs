//! A real service manager for a test: `systemd --user` in separate namespaces, with the units of `packaging/`.
//!
//! It sees a fresh `/run`, its own processes and its own cgroup, and has no effect outside. All its processes end with
//! this value, or with the test's process, however that ends. [`Manager::command`] runs programs that need the same
//! `/run`.

use crate::{Agent, binary, eventually, run, skip};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

const NAMESPACES: &str = include_str!("manager/namespaces.sh");
/// The test's folder, seen from inside.
const INSIDE: &str = "/run/test";
const TOOLS: [&str; 5] = ["unshare", "nsenter", "setpriv", "systemctl", "systemd-analyze"];
/// Targets that a user's manager must have reached before it starts sockets and services.
const TARGETS: [&str; 8] = [
    "basic.target",
    "exit.target",
    "paths.target",
    "shutdown.target",
    "sockets.target",
    "systemd-exit.service",
    "timers.target",
    "default.target",
];

pub const SERVICE: &str = "tensorlendd.service";
pub const SOCKET: &str = "tensorlendd.socket";

/// Selects the units for the system or those for a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The system's, with full sandboxing; the manager then runs as root.
    System,
    /// A user's; the manager runs as an ordinary user.
    User,
}

/// Returns the path of a folder of the workspace.
pub fn workspace(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests' crate has a parent").join(path)
}

impl Scope {
    /// Returns the user who runs the manager.
    pub fn uid(self) -> u32 {
        match self {
            Self::System => 0,
            Self::User => 64_010,
        }
    }

    /// Returns the folder of the units.
    pub fn packaging(self) -> PathBuf {
        workspace(match self {
            Self::System => "packaging",
            Self::User => "packaging/user",
        })
    }

    /// Returns the control socket, seen from inside.
    pub fn socket(self) -> String {
        match self {
            Self::System => "/run/tensorlend/tensorlend.sock".into(),
            Self::User => format!("{}/tensorlend.sock", runtime(self.uid())),
        }
    }
}

/// Returns the folder of this user's manager's sockets.
fn runtime(uid: u32) -> String {
    if uid == 0 { "/run".into() } else { format!("/run/user/{uid}") }
}

/// Returns true if no manager can be run here, and records the reason. The test then returns.
pub fn skip_without_systemd() -> bool {
    if !rustix::process::geteuid().is_root() {
        skip("needs root for namespaces of its own");
        return true;
    }
    let found = |tool: &&str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(tool).exists())
    };
    if let Some(tool) = TOOLS.iter().find(|tool| !found(tool)) {
        skip(&format!("{tool} is not installed (apt-get install systemd util-linux)"));
        return true;
    }
    if !Path::new("/lib/systemd/systemd").exists() {
        skip("systemd is not installed (apt-get install systemd)");
        return true;
    }
    let refused = refused();
    if let Some(why) = refused {
        skip(&format!("no namespaces and cgroups of its own here: {why}"));
    }
    refused.is_some()
}

/// Returns the reason why namespaces and cgroups cannot be created: in a container, even root may lack the right.
fn refused() -> Option<&'static str> {
    static TRIED: OnceLock<Option<String>> = OnceLock::new();
    let attempt = || {
        let script =
            "mkdir \"$0/tree\"; mount -t cgroup2 cgroup2 \"$0/tree\"; rmdir \"$(mktemp -d \"$0/tree/XXXXXX\")\"";
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--cgroup", "--propagation", "private", "sh", "-ec", script]);
        let tried = run(command.arg(folder.path()));
        let why = String::from_utf8_lossy(&tried.stderr).trim().replace('\n', "; ");
        (!tried.status.success()).then_some(why)
    };
    TRIED.get_or_init(attempt).as_deref()
}

/// A running service manager.
pub struct Manager {
    scope: Scope,
    /// The process that started the manager. When its standard input is closed, the manager ends.
    child: Child,
    /// The pid of the first process inside, seen from outside.
    pid: u32,
    folder: TempDir,
}

impl Manager {
    /// Starts a manager with the units of `scope` from `packaging/`, in which only the program's path is changed.
    /// `service` is text for a drop-in file of the service, such as `"[Service]\nWatchdogSec=2s"`. The manager starts
    /// no unit yet.
    ///
    /// Call [`skip_without_systemd`] first.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(scope: Scope, service: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("tensorlend-manager-").tempdir().expect("a temporary folder");
        let path = folder.path();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("it is ours");
        prepare(scope, path, service);
        let script = path.join("namespaces.sh");
        std::fs::write(&script, NAMESPACES).expect("the script is written");
        let mut command = Command::new("sh");
        command.arg(&script).arg(path).arg(scope.uid().to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("sh is there");
        let mut line = String::new();
        let _ = BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line);
        let pid = line.trim().parse().expect("the namespaces are made, and their first process names itself");
        let manager = Self { scope, child, pid, folder };
        eventually("a service manager that is up", || {
            manager.systemctl(&["is-active", "basic.target"]).status.success()
        });
        if scope == Scope::System {
            let file = workspace("packaging/tensorlend.tmpfiles.conf");
            let made = run(manager.command("systemd-tmpfiles").arg("--create").arg(file));
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
        manager
    }

    /// Returns a command that runs inside, as the manager's user.
    pub fn command(&self, program: &str) -> Command {
        self.command_as(self.scope.uid(), program)
    }

    /// Returns a command that runs inside, as another user.
    pub fn command_as(&self, uid: u32, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--pid", "--cgroup", "--target"]).arg(self.pid.to_string());
        command.arg(format!("--setuid={uid}")).arg(format!("--setgid={uid}")).arg(program);
        command.env("XDG_RUNTIME_DIR", runtime(uid)).env_remove("DBUS_SESSION_BUS_ADDRESS");
        command
    }

    /// Replaces the configuration of the system's daemon, which reads it when it starts or is reloaded. (A user's
    /// daemon reads none unless a drop-in names one: this file is `/run/test/tensorlendd.toml`.)
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn configure(&self, text: &str) {
        crate::replace(&self.folder.path().join("tensorlendd.toml"), text);
    }

    /// Returns the inside's root folder, as reached from outside.
    pub fn root(&self) -> PathBuf {
        format!("/proc/{}/root", self.pid).into()
    }

    /// Returns a `tensorlend` command that runs inside, as the manager's user, and connects to the daemon.
    pub fn tool(&self, args: &[&str]) -> Command {
        self.add_tool();
        let mut command = self.command(&format!("{INSIDE}/bin/tensorlend"));
        command.args(["--socket", &self.scope.socket()]).args(args);
        command
    }

    fn add_tool(&self) {
        install(&binary("tensorlend"), &self.folder.path().join("bin"), "0755");
    }

    /// Installs a unit that runs the command line tool, and the tool; returns the unit's name. A template such as
    /// `tensorlend-restore@.service` becomes the instance of `user`. [`Manager::to_restore`] is the folder of the units
    /// that save and restore.
    ///
    /// # Panics
    /// If the manager rejects it.
    pub fn add_tool_unit(&self, unit: &str, user: &str) -> String {
        self.add_tool();
        let units = self.folder.path().join("units");
        let unit = copy_tool_unit(self.scope, &units, unit, user, &format!("{INSIDE}/bin/tensorlend"));
        self.ok(&["daemon-reload"]);
        unit
    }

    /// Returns the folder whose files the unit `tensorlend-restore` restores, seen from inside.
    ///
    /// # Panics
    /// If the unit has never run.
    pub fn to_restore(&self, user: &str) -> PathBuf {
        // The manager chooses one of the two: since version 254 the second.
        let folders = [".config", ".local/state"].map(|state| Path::new(state).join("tensorlend-restore").join(user));
        let there = folders.iter().find(|it| self.folder.path().join(it).exists());
        Path::new(INSIDE).join(there.expect("the unit has run once"))
    }

    /// Runs `systemctl --user` inside.
    pub fn systemctl(&self, args: &[&str]) -> Output {
        run(self.command("systemctl").arg("--user").args(args))
    }

    /// As [`Manager::systemctl`], for a command that must succeed; returns its output.
    ///
    /// # Panics
    /// If it does not succeed.
    pub fn ok(&self, args: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.systemctl(args);
        assert!(status.success(), "systemctl {args:?}: {}\n{}", String::from_utf8_lossy(&stderr), self.log());
        String::from_utf8(stdout).expect("systemctl prints UTF-8").trim().to_owned()
    }

    /// Returns a property of a unit: see `systemctl show`.
    pub fn property(&self, unit: &str, name: &str) -> String {
        self.ok(&["show", "--value", "--property", name, unit])
    }

    /// Returns the daemon's pid, seen from inside; 0: none.
    ///
    /// # Panics
    /// If the manager reports no number.
    pub fn daemon(&self) -> u32 {
        self.property(SERVICE, "MainPID").parse().expect("a number")
    }

    /// Returns the number of descriptors that the manager stores for the daemon.
    ///
    /// # Panics
    /// If the manager reports no number.
    pub fn kept(&self) -> u32 {
        self.property(SERVICE, "NFileDescriptorStore").parse().expect("a number")
    }

    /// Sends the daemon a signal, such as `"KILL"`.
    pub fn signal(&self, signal: &str) {
        self.ok(&["kill", "--kill-who=main", "--signal", signal, SERVICE]);
    }

    /// Waits until a daemon other than `before` runs and has reported that it is ready.
    pub fn restarted(&self, before: u32) -> u32 {
        let mut now = 0;
        eventually("a daemon that was started again", || {
            now = self.daemon();
            now != 0 && now != before && self.property(SERVICE, "ActiveState") == "active"
        });
        now
    }

    /// Starts an agent inside that is not connected yet, as the manager's user. [`Agent::kill`] does not reach the
    /// agent itself, but the agent ends when its standard input does.
    pub fn agent(&self) -> Agent {
        self.agent_as(self.scope.uid())
    }

    /// As [`Manager::agent`], as another user.
    pub fn agent_as(&self, uid: u32) -> Agent {
        Agent::start_as(|_| self.command_as(uid, &format!("{INSIDE}/bin/tensorlend-agent")))
    }

    /// Starts an agent that is connected to the daemon.
    pub fn connected(&self) -> Agent {
        let mut agent = self.agent();
        agent.ok(&format!("connect {}", self.scope.socket()));
        agent
    }

    /// Returns how each daemon has ended, in systemd's words: `success`, `signal`, `watchdog`, `exit-code`.
    pub fn ends(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.path().join("ends")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Returns the output of manager and daemon so far.
    pub fn log(&self) -> String {
        let read = |name| std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        format!("--- the manager\n{}--- the daemon\n{}", read("manager.log"), read("daemon.log"))
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let status = self.systemctl(&["status", "--no-pager", "--full", SOCKET, SERVICE]);
            eprintln!("{}{}", String::from_utf8_lossy(&status.stdout), self.log());
        }
        crate::dismiss(&mut self.child);
    }
}

/// Fills the folder: programs, units, users.
fn prepare(scope: Scope, folder: &Path, service: &str) {
    let make = |name: &str| {
        let made = folder.join(name);
        std::fs::create_dir_all(&made).expect("a folder is made");
        made
    };
    let (bin, units) = (make("bin"), make("units"));
    for program in ["tensorlendd", "tensorlend-agent"] {
        install(&binary(program), &bin, "0755");
    }
    for target in TARGETS {
        let file = Path::new("/usr/lib/systemd/user").join(target);
        if file.exists() {
            install(&file, &units, "0644");
        }
    }
    copy_units(scope, &units, &format!("{INSIDE}/bin/tensorlendd"));
    let drop_in = make("units/tensorlendd.service.d");
    // There is no journal inside.
    let text = format!(
        "[Service]\nStandardOutput=append:{INSIDE}/ends\nStandardError=append:{INSIDE}/daemon.log\n\
         ExecStopPost=/bin/sh -c 'echo $SERVICE_RESULT'\n{service}\n"
    );
    std::fs::write(drop_in.join("test.conf"), text).expect("a drop-in is written");
    if scope == Scope::System {
        std::fs::write(folder.join("tensorlendd.toml"), tensorlend_daemon::commented()).expect("our own folder");
        add_users(&make("etc"), folder);
    }
}

/// Copies a file by another process. If this one held the copy open for writing, a child of another test could inherit
/// the descriptor, and the program could not be run (ETXTBSY).
fn install(from: &Path, to: &Path, mode: &str) {
    let done = run(Command::new("install").arg(format!("--mode={mode}")).arg(from).arg(to));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Writes a unit of the command line tool into a folder, with another path of the program; returns its name. A template
/// becomes the instance of `user`.
///
/// # Panics
/// If a service does not contain the program's usual path.
pub fn copy_tool_unit(scope: Scope, folder: &Path, unit: &str, user: &str, program: &str) -> String {
    let name = unit.replace("@.", &format!("@{user}."));
    let text = std::fs::read_to_string(scope.packaging().join(unit)).expect("packaging/ has the unit");
    let starts = text.contains("\nExecStart=/usr/bin/tensorlend ");
    assert!(
        starts || std::path::Path::new(unit).extension().is_some_and(|it| it == "timer"),
        "{unit} starts the program"
    );
    let text = text.replace("/usr/bin/tensorlend ", &format!("{program} "));
    std::fs::write(folder.join(&name), text.replace("/etc/tensorlend/", &format!("{INSIDE}/")))
        .expect("a unit is written");
    name
}

/// Writes the units of `packaging/` into a folder, with another path of the program.
///
/// # Panics
/// If a unit does not contain the program's usual path.
pub fn copy_units(scope: Scope, folder: &Path, program: &str) {
    for unit in [SERVICE, SOCKET] {
        let text = std::fs::read_to_string(scope.packaging().join(unit)).expect("packaging/ has the unit");
        assert!(unit == SOCKET || text.contains("\nExecStart=/usr/bin/tensorlendd"), "{unit} starts the daemon");
        let text = text.replace("/usr/bin/tensorlendd", program);
        let text = text.replace("/etc/tensorlend/", &format!("{INSIDE}/"));
        std::fs::write(folder.join(unit), text).expect("a unit is written");
    }
}

/// Adds the machine's users, and those that the packages create.
fn add_users(etc: &Path, root: &Path) {
    for file in ["passwd", "group"] {
        std::fs::copy(Path::new("/etc").join(file), etc.join(file)).expect("the machine has users");
    }
    let files = ["tensorlend.sysusers.conf", "tensorlend-gateway.sysusers.conf"];
    let files = files.map(|file| workspace("packaging").join(file));
    let made = run(Command::new("systemd-sysusers").arg(format!("--root={}", root.display())).args(files));
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}
