//! Runs of the build script: in a clone, in an archive, and without a commit.

#![cfg(not(any(loom, miri)))]

use std::path::{Path, PathBuf};
use std::process::Command;

/// 2026-02-28 23:30 in UTC; the next day in the committer's time zone.
const EPOCH: &str = "1772321400";
const DATE: &str = "2026-02-28";

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A copy of the script in a folder of its own.
struct Copy {
    folder: PathBuf,
}

impl Copy {
    fn new() -> Self {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = std::env::temp_dir().join(format!("tensorlend-build-script-{}", std::process::id()));
        let crate_folder = folder.join("clone/shm-layout");
        std::fs::create_dir_all(&crate_folder).unwrap();
        std::fs::copy(own.join("commit.txt"), crate_folder.join("commit.txt")).unwrap();
        std::fs::write(folder.join("clone/.gitattributes"), "shm-layout/commit.txt export-subst\n").unwrap();
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        run(Command::new(rustc)
            .args(["--edition", "2024", "-o"])
            .arg(folder.join("script"))
            .arg(own.join("build.rs"))
            .env_remove("RUSTFLAGS"));
        Self { folder }
    }

    fn git(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("git");
        for (name, value) in [("NAME", "a"), ("EMAIL", "a@localhost"), ("DATE", &format!("{EPOCH} +0200"))] {
            command.env(format!("GIT_AUTHOR_{name}"), value).env(format!("GIT_COMMITTER_{name}"), value);
        }
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
        run(command.args(arguments).current_dir(self.folder.join("clone")))
    }

    /// Runs the script. Returns the commit that it passes on, and the files on which the result depends.
    fn build(&self, root: &str, profile: &str, epoch: Option<&str>) -> (String, Vec<String>) {
        let mut command = Command::new(self.folder.join("script"));
        command.current_dir(self.folder.join(root).join("shm-layout")).env("PROFILE", profile);
        command.env_remove("SOURCE_DATE_EPOCH").env("GIT_CEILING_DIRECTORIES", &self.folder);
        command.envs(epoch.map(|epoch| ("SOURCE_DATE_EPOCH", epoch)));
        let output = run(&mut command);
        let values = |key: &str| -> Vec<String> {
            output.lines().filter_map(|line| line.strip_prefix(key)).map(str::to_owned).collect()
        };
        let commit = values("cargo::rustc-env=TENSORLEND_COMMIT=").pop().unwrap();
        (commit, values("cargo::rerun-if-changed="))
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn the_commit_comes_from_the_archive_or_from_git() {
    let copy = Copy::new();
    let (release, debug) = ("release", "debug");
    // Without git and without an archive.
    assert_eq!(copy.build("clone", release, None).0, "");
    assert_eq!(copy.build("clone", release, Some(EPOCH)).0, DATE);
    assert_eq!(copy.build("clone", debug, None).0, "debug build");
    if Command::new("git").arg("--version").output().is_err() {
        return;
    }
    copy.git(&["init", "--quiet"]);
    copy.git(&["add", "."]);
    let mut hash = String::new();
    for number in ["1", "2"] {
        copy.git(&["commit", "--quiet", "--allow-empty", "-m", number]);
        let former = std::mem::replace(&mut hash, copy.git(&["rev-parse", "HEAD"]));
        assert_ne!(former, hash);
        let expected = format!("{} {DATE}", &hash[..12]);
        let (commit, files) = copy.build("clone", release, Some("0"));
        assert_eq!(commit, expected);
        let is_log = |file: &String| file.ends_with("/logs/HEAD");
        let log = files.iter().find(|file| is_log(file)).unwrap_or_else(|| panic!("{files:?}"));
        let log = std::fs::read_to_string(copy.folder.join("clone/shm-layout").join(log)).unwrap();
        assert!(log.contains(&hash), "a commit changes the file: {log}");
        // A debug build does not depend on the commit.
        let (commit, files) = copy.build("clone", debug, None);
        assert_eq!((commit.as_str(), &files[..]), ("debug build", &["build.rs".to_owned(), "commit.txt".into()][..]));
        // An archive of the commit, without git.
        let archive = copy.folder.join("archive.tar");
        copy.git(&["archive", "-o", archive.to_str().unwrap(), &format!("--prefix=archive{number}/"), "HEAD"]);
        run(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&copy.folder));
        for profile in [release, debug] {
            assert_eq!(copy.build(&format!("archive{number}"), profile, None).0, expected);
        }
    }
    // The commit of a repository that contains a copy is another project's.
    std::fs::create_dir_all(copy.folder.join("clone/vendor/shm-layout")).unwrap();
    assert_eq!(copy.build("clone/vendor", release, None).0, "");
}
