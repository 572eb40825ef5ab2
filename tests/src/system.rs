//! A whole system for a test: this machine's files, which it may change since they are thrown away, and a systemd of its own
//! as the first process. Packages are installed in it as anywhere.

use crate::{Agent, eventually, run};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

const SCRIPT: &str = include_str!("system/system.sh");

/// What systemd puts before and behind the test's folder: its share, seen from inside.
pub const INSIDE: &str = "/run/test";

/// A running system.
pub struct System {
    /// Keeps it alive by its standard input.
    child: Child,
    /// Its first process, as it is seen from outside.
    pid: u32,
    folder: TempDir,
}

impl System {
    /// Starts one; why not, if that cannot be done here. Ask [`crate::manager::skip_without_systemd`] first.
    ///
    /// # Errors
    /// What the kernel or systemd refused.
    ///
    /// # Panics
    /// If there is no place for temporary files, or systemd does not come up.
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

    /// A folder that is [`INSIDE`] the system, too.
    pub fn share(&self) -> PathBuf {
        self.folder.path().join("share")
    }

    /// A command that runs inside as root.
    pub fn command(&self, program: &str) -> Command {
        self.command_as(0, program)
    }

    /// A command that runs inside as another user.
    pub fn command_as(&self, uid: u32, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--pid", "--cgroup", "--uts", "--ipc", "--net", "--target"]).arg(self.pid.to_string());
        command.arg(format!("--setuid={uid}")).arg(format!("--setgid={uid}")).arg("--wd=/").arg(program);
        command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
        command
    }

    /// Runs a program inside as root, for what must succeed; what it has printed.
    ///
    /// # Panics
    /// If it does not succeed.
    pub fn ok(&self, program: &str, args: &[&str]) -> String {
        let Output { status, stdout, stderr } = run(self.command(program).args(args));
        let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert!(status.success(), "{program} {args:?}: {out}{err}\n{}", self.log());
        out.trim().to_owned()
    }

    /// Whether a path is there, seen from inside.
    pub fn has(&self, path: &str) -> bool {
        run(self.command("test").args(["-e", path])).status.success()
    }

    /// Files whose names have this in them, anywhere but where processes and tests keep theirs.
    pub fn named(&self, part: &str) -> Vec<String> {
        let folders = ["/etc", "/usr", "/var/lib", "/var/cache", "/run", "/opt"];
        let args = ["-name", &format!("*{part}*"), "-not", "-path", "/run/test/*"].map(str::to_owned);
        let found = run(self.command("find").args(folders).arg("-xdev").args(args));
        String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect()
    }

    /// An agent inside, as this user: its program has to lie in [`System::share`].
    pub fn agent_as(&self, uid: u32) -> Agent {
        Agent::start_as(|_| self.command_as(uid, &format!("{INSIDE}/tensorlend-agent")))
    }

    /// What systemd has said so far.
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
