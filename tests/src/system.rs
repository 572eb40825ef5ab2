//! A whole system for a test: a disposable copy of this machine's files, and its own systemd as the first process.
//! Packages are installed in it as on any machine.

use crate::{Agent, eventually, run};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

const SCRIPT: &str = include_str!("system/system.sh");

/// The test's shared folder, seen from inside.
pub const INSIDE: &str = "/run/test";

pub struct System {
    /// The process that started the system. When its standard input is closed, the system ends.
    child: Child,
    /// The pid of the system's first process, seen from outside.
    pid: u32,
    folder: TempDir,
}

impl System {
    /// Starts a system, or returns the reason why that is impossible here. Call
    /// [`crate::manager::skip_without_systemd`] first.
    ///
    /// # Errors
    /// The refusal of the kernel or systemd.
    ///
    /// # Panics
    /// If a temporary folder cannot be created, or systemd does not start.
    pub fn start() -> Result<Self, String> {
        let folder = tempfile::Builder::new().prefix("tensorlend-system-").tempdir().expect("a temporary folder");
        crate::open_to_all(folder.path());
        let share = folder.path().join("share");
        std::fs::create_dir(&share).expect("a folder is made");
        crate::open_to_all(&share);
        let script = folder.path().join("system.sh");
        std::fs::write(&script, SCRIPT).expect("the script is written");
        let errors = folder.path().join("errors");
        let log = std::fs::File::create(&errors).expect("a log is made");
        let mut command = Command::new("sh");
        command.arg(&script).arg(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().expect("sh is there");
        let mut line = String::new();
        let _ = BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line);
        let Ok(pid) = line.trim().parse() else {
            drop(child.stdin.take());
            let _ = child.wait();
            return Err(std::fs::read_to_string(&errors).unwrap_or_default().trim().replace('\n', "; "));
        };
        let system = Self { child, pid, folder };
        eventually("a system that is up", || {
            run(system.command("systemctl").args(["is-active", "basic.target"])).status.success()
        });
        Ok(system)
    }

    /// Returns the folder that is [`INSIDE`] in the system.
    pub fn share(&self) -> PathBuf {
        self.folder.path().join("share")
    }

    /// Returns a command that runs inside as root.
    pub fn command(&self, program: &str) -> Command {
        self.command_as(0, program)
    }

    /// Returns a command that runs inside as another user.
    pub fn command_as(&self, uid: u32, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--pid", "--cgroup", "--uts", "--ipc", "--net", "--target"]).arg(self.pid.to_string());
        command.arg(format!("--setuid={uid}")).arg(format!("--setgid={uid}")).arg("--wd=/").arg(program);
        command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
        command
    }

    /// Runs a program inside as root, which must succeed; returns its output.
    ///
    /// # Panics
    /// If it does not succeed.
    pub fn ok(&self, program: &str, args: &[&str]) -> String {
        let Output { status, stdout, stderr } = run(self.command(program).args(args));
        let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "{program} {args:?}: {out}{err}\n{}", self.log());
        out.trim().to_owned()
    }

    /// Returns true if a path exists inside.
    pub fn has(&self, path: &str) -> bool {
        run(self.command("test").args(["-e", path])).status.success()
    }

    /// Returns the files whose names contain this, except in the folders of processes and of tests.
    pub fn named(&self, part: &str) -> Vec<String> {
        let folders = ["/etc", "/usr", "/var/lib", "/var/cache", "/run", "/opt"];
        let args = ["-name", &format!("*{part}*"), "-not", "-path", "/run/test/*"].map(str::to_owned);
        let found = run(self.command("find").args(folders).arg("-xdev").args(args));
        String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect()
    }

    /// Starts an agent inside, as this user: its program must be in [`System::share`].
    pub fn agent_as(&self, uid: u32) -> Agent {
        Agent::start_as(|_| self.command_as(uid, &format!("{INSIDE}/tensorlend-agent")))
    }

    /// Returns systemd's output so far.
    pub fn log(&self) -> String {
        let read = |file: &Path| std::fs::read_to_string(file).unwrap_or_default();
        read(&self.share().join("system.log"))
    }
}

impl Drop for System {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let journal = run(self.command("journalctl").args(["--no-pager", "--unit", "tensorlendd*"]));
            eprintln!("{}\n{}", self.log(), String::from_utf8_lossy(&journal.stdout));
        }
        crate::dismiss(&mut self.child);
    }
}
