//! The packages that `scripts/release` has built, installed and used without Rust and without a clone. A full run of
//! `./scripts/test` builds them and names their folder in `TENSORLEND_PUBLISHED`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use tensorlend_tests::manager::{SOCKET, skip_without_systemd, workspace};
use tensorlend_tests::system::{INSIDE, System};
use tensorlend_tests::{Daemon, run, skip, skip_without};

const PARTS: [&str; 8] = ["source", "programs", "library", "wheel", "deb", "dev", "gateway", "runner"];

/// A copy of the packages in a folder outside of the clone.
struct Published {
    folder: TempDir,
}

impl Published {
    /// Returns the packages; `None` if this run has none.
    fn copy() -> Option<Self> {
        let from = PathBuf::from(std::env::var_os("TENSORLEND_PUBLISHED")?);
        let folder = tempfile::Builder::new().prefix("tensorlend-published-").tempdir().unwrap();
        for entry in std::fs::read_dir(&from).unwrap_or_else(|e| panic!("{}: {e}", from.display())) {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
            }
        }
        Some(Self { folder })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the package whose name begins and ends like this.
    fn file(&self, begin: &str, end: &str) -> PathBuf {
        let fits = |name: &str| name.starts_with(begin) && name.ends_with(end);
        let names =
            std::fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let found: Vec<String> = names.filter(|name| fits(name)).collect();
        assert_eq!(found.len(), 1, "{begin}*{end}: {found:?}");
        self.path().join(&found[0])
    }

    /// Unpacks an archive and returns its folder.
    fn unpack(&self, begin: &str) -> PathBuf {
        let archive = self.file(begin, "-linux-gnu.tar.gz");
        done(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(self.path()));
        PathBuf::from(archive.display().to_string().trim_end_matches(".tar.gz"))
    }
}

/// Runs a command that must succeed, and returns its output.
fn done(command: &mut Command) -> String {
    let output = run(command);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}\n{}\n{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Returns true for a program's name and version if they contain the release and its commit. Release and tests are of
/// one commit.
fn names_the_commit(version: &str, program: &str) -> bool {
    let release = format!("{program} {} (", env!("CARGO_PKG_VERSION"));
    let commit = Command::new("git").args(["rev-parse", "HEAD"]).output().ok().filter(|it| it.status.success());
    let commit = commit.map(|it| String::from_utf8_lossy(&it.stdout).into_owned()).unwrap_or_default();
    version.starts_with(&release) && version.contains(commit.get(..12).unwrap_or(""))
}

/// Returns the folders of the clone and of Rust that exist.
fn hidden() -> Vec<PathBuf> {
    let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    let of = |variable, folder| std::env::var_os(variable).map_or_else(|| home.join(folder), PathBuf::from);
    let all = [workspace("").canonicalize().unwrap(), of("CARGO_HOME", ".cargo"), of("RUSTUP_HOME", ".rustup")];
    all.into_iter().filter(|folder| folder.is_dir()).collect()
}

/// Returns a command that runs a program in `home` with these variables alone. Where the kernel allows it, the folders of
/// the clone and of Rust are empty for the program.
fn bare(home: &Path, path: &[&Path], program: impl AsRef<OsStr>) -> Command {
    let mut unshare = vec!["unshare", "--mount"];
    if !rustix::process::geteuid().is_root() {
        unshare.push("--map-root-user");
    }
    let may = Command::new(unshare[0]).args(&unshare[1..]).arg("true").output().is_ok_and(|done| done.status.success());
    let mut hide = Vec::new();
    if may {
        hide.extend(hidden().iter().map(|folder| format!("mount -t tmpfs none '{}' && ", folder.display())));
    } else {
        unshare = vec!["env"];
        skip("the folders of the clone and of Rust cannot be hidden from a program (unshare --mount)");
    }
    let script = hide.concat() + "cd \"$1\" && shift && exec env --ignore-environment \"$@\"";
    let mut command = Command::new(unshare[0]);
    command.args(&unshare[1..]).args(["sh", "-c", &script, "bare"]).arg(home);
    let path = std::env::join_paths(path).unwrap();
    for (name, value) in [("HOME", home.as_os_str()), ("TMPDIR", home.as_os_str()), ("PATH", &path)] {
        let mut variable = std::ffi::OsString::from(format!("{name}="));
        variable.push(value);
        command.arg(variable);
    }
    command.arg(program);
    command
}

#[test]
fn what_is_published_is_listed_and_documented() {
    let usage = done(Command::new(workspace("scripts/release")).arg("--help"));
    let manual = std::fs::read_to_string(workspace("docs/internals/releases.md")).unwrap();
    for part in PARTS {
        assert!(usage.lines().any(|line| line.split_whitespace().next() == Some(part)), "{part} in\n{usage}");
        assert!(manual.contains(&format!("| `{part}` |")), "docs/internals/releases.md has no row for {part}");
    }
    let refused = run(Command::new(workspace("scripts/release")).arg("wheels"));
    assert_eq!(refused.status.code(), Some(2), "an unknown part is an error");
}

/// Returns cargo, without the variables that it sets for this test.
fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(workspace(""));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "CARGO" {
            command.env_remove(&*name);
        }
    }
    command
}

/// Returns the files that the code of a package includes, and that its archive does not contain.
fn missing_files(package: &Path) -> Vec<String> {
    let mut find = Command::new("find");
    let sources = done(find.arg(package).args(["-path", "*/src/*", "-name", "*.rs"]));
    let mut missing = Vec::new();
    for source in sources.lines().map(Path::new) {
        let text = std::fs::read_to_string(source).unwrap();
        // Tests are not built there, and files of modules for tests have names of their own.
        let code = text.split("#[cfg(test)]").next().unwrap();
        let lines = code.lines().filter(|line| !line.starts_with("#[doc = "));
        for included in lines.flat_map(|line| line.split("include_").skip(1)) {
            let name = included.split_once("!(\"").and_then(|(_, rest)| rest.split('"').next());
            if name.is_some_and(|name| !source.with_file_name(name).exists()) {
                missing.push(format!("{}: {}", source.display(), name.unwrap()));
            }
        }
    }
    missing
}

/// Every crate for crates.io has what its page there shows, and cargo packs it with all files that its code includes.
#[test]
fn crates_are_ready_to_be_published() {
    let metadata = done(&mut cargo(&["metadata", "--no-deps", "--locked", "--offline", "--format-version=1"]));
    let metadata: serde_json::Value = serde_json::from_str(&metadata).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let (ours, others): (Vec<_>, Vec<_>) = packages.iter().partition(|it| it["publish"].is_null());
    assert!(others.iter().all(|it| it["publish"].as_array().unwrap().is_empty()));
    let name = |package: &serde_json::Value| package["name"].as_str().unwrap().to_owned();
    for package in &ours {
        for field in ["description", "license", "repository", "homepage", "readme", "rust_version"] {
            assert!(package[field].as_str().is_some_and(|it| !it.is_empty()), "{} has no {field}", name(package));
        }
        for field in ["keywords", "categories"] {
            let count = package[field].as_array().unwrap().len();
            assert!((1..=5).contains(&count), "{}: {count} {field}", name(package));
        }
        assert_eq!(package["version"], env!("CARGO_PKG_VERSION"), "{}", name(package));
    }
    let target = tempfile::tempdir().unwrap();
    let mut package = cargo(&["package", "--no-verify", "--allow-dirty", "--locked", "--offline", "--quiet"]);
    package.args(ours.iter().flat_map(|it| ["-p".to_owned(), name(it)])).arg("--target-dir").arg(target.path());
    done(&mut package);
    for package in ours {
        let folder = format!("{}-{}", name(package), env!("CARGO_PKG_VERSION"));
        let archive = target.path().join("package").join(format!("{folder}.crate"));
        done(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(target.path()));
        let missing = missing_files(&target.path().join(folder));
        assert!(missing.is_empty(), "{missing:#?}");
    }
}

/// Each workflow calls programs of this repository that exist, and may do no more than it needs.
#[test]
fn workflows_call_what_exists() {
    let folder = workspace(".github/workflows");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("\npermissions:\n  contents: read\n"), "{}: permissions", path.display());
        for line in text.lines().map(str::trim) {
            if let Some(action) = line.trim_start_matches("- ").strip_prefix("uses: ") {
                match action.split_once('@') {
                    Some((_, version)) => {
                        assert!(version.starts_with('v') || version.starts_with("release/v"), "{action}");
                    }
                    None => assert!(workspace(action).is_file(), "{action} has no version"),
                }
            }
            for word in line.split_whitespace().filter(|word| word.contains("scripts/")) {
                let script = word.trim_start_matches("./");
                assert!(workspace(script).exists(), "{}: {word}", path.display());
            }
        }
    }
}

#[test]
fn sums_are_right_and_no_path_of_the_build_is_left() {
    let Some(published) = Published::copy() else { return };
    done(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(published.path()));
    let (programs, library) = (published.unpack("tensorlend-"), published.unpack("libtensorlend-"));
    done(
        Command::new("python3")
            .args(["-m", "zipfile", "-e"])
            .arg(published.file("tensorlend-", ".whl"))
            .arg("wheel")
            .current_dir(published.path()),
    );
    let wheel = published.path().join("wheel");
    for folder in [programs.join("bin"), library.join("lib"), wheel] {
        // scripts/release builds in a temporary folder of this name.
        for secret in hidden().into_iter().chain([PathBuf::from("/tensorlend-release-")]) {
            let found = run(Command::new("grep").args(["-rlF", "--"]).arg(&secret).arg(&folder));
            assert_eq!(
                found.status.code(),
                Some(1),
                "{}: {}",
                secret.display(),
                String::from_utf8_lossy(&found.stdout)
            );
        }
    }
    if !skip_without("dpkg-deb") {
        for (package, needs) in
            [("tensorlend_", "libc6 (>= 2."), ("tensorlend-gateway_", "libc6"), ("tensorlend-runner_", "libc6")]
        {
            let control = done(Command::new("dpkg-deb").arg("--field").arg(published.file(package, ".deb")));
            assert!(control.contains(needs), "{control}");
        }
    }
}

/// pip, the demo, the package and all programs.
#[test]
fn the_wheel_needs_neither_rust_nor_a_clone() {
    const SCRIPT: &str = "import tensorlend, numpy
with tensorlend.embedded() as broker, broker.connect() as client:
    client.put('weights', numpy.arange(6.0))
    print(client.get('weights').numpy().sum())";
    let Some(published) = Published::copy() else { return };
    let home = published.path();
    let venv = home.join("venv");
    done(Command::new("python3").args(["-m", "venv"]).arg(&venv));
    let pip = |arguments: &[&str]| {
        let mut command = Command::new(venv.join("bin/pip"));
        // Packages outside of the environment would pass for its own.
        command.env_remove("PYTHONPATH");
        command.args(["--disable-pip-version-check", "install", "--quiet", "--only-binary=:all:"]).args(arguments);
        command
    };
    if !run(&mut pip(&["numpy"])).status.success() {
        return skip("pip cannot install numpy here");
    }
    let wheel = published.file("tensorlend-", ".whl");
    let tags =
        format!("tensorlend-{}-cp311-abi3-manylinux_2_28_{}.whl", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    assert_eq!(wheel.file_name().unwrap().to_str(), Some(&*tags));
    done(pip(&["--no-index"]).arg(wheel));
    let bin = venv.join("bin");
    let bare = |program: &str| bare(home, &[&bin], bin.join(program));

    let absent = "import shutil; assert not shutil.which('cargo') and not shutil.which('cc')";
    done(bare("python").args(["-c", absent]));
    let demo = done(bare("tensorlend").args(["demo", "--max-mib", "1"]));
    for line in ["iris ", "rings ", "Every byte was verified", "lend (tensorlend, in place)"] {
        assert!(demo.contains(line), "{line} is missing in\n{demo}");
    }
    assert_eq!(done(bare("python").args(["-c", SCRIPT])).trim(), "15.0");

    let mut daemon = Daemon::start_in("", |_| bare("tensorlendd"));
    // The private namespace ends with its last client.
    let client = daemon.client();
    client.put("weights", &[1u8; 1000]).unwrap();
    let tool = |arguments: &[&str]| done(bare("tensorlend").arg("--socket").arg(daemon.socket()).args(arguments));
    let (names, once) = (tool(&["ls"]), tool(&["top", "--once"]));
    assert!(names.contains("weights") && once.contains("1 name,"), "{names}{once}");
    drop(client);
    assert!(daemon.stop().success());
    for program in ["tensorlend", "tensorlendd", "tensorlend-gateway", "tensorlend-runner"] {
        let version = done(bare(program).arg("--version"));
        assert!(names_the_commit(&version, program), "{version}");
    }
}

#[test]
fn the_archive_of_the_programs_installs_itself() {
    let Some(published) = Published::copy() else { return };
    let (programs, prefix) = (published.unpack("tensorlend-"), published.path().join("prefix"));
    let system = [Path::new("/usr/bin"), Path::new("/bin")];
    let bare = |program: PathBuf| bare(published.path(), &system, program);
    done(bare(programs.join("scripts/install")).arg("--prefix").arg(&prefix));
    let version = done(bare(prefix.join("bin/tensorlend")).arg("--version"));
    assert!(names_the_commit(&version, "tensorlend"), "{version}");
    assert!(prefix.join("share/man/man1/tensorlend.1").exists());
}

/// The examples, compiled with the archive's headers and libraries alone.
#[test]
fn the_library_needs_a_compiler_for_c_alone() {
    let Some(published) = Published::copy() else { return };
    if skip_without("gcc") || skip_without("g++") || skip_without("pkg-config") {
        return;
    }
    let (programs, library) = (published.unpack("tensorlend-"), published.unpack("libtensorlend-"));
    let system = [Path::new("/usr/bin"), Path::new("/bin")];
    let bare = |program: &str| bare(published.path(), &system, program);
    let daemon = Daemon::start_in("", |_| bare(programs.join("bin/tensorlendd").to_str().unwrap()));
    let variables = format!(
        "export PKG_CONFIG_PATH={} TENSORLEND_SOCKET={}\n",
        library.join("lib/pkgconfig").display(),
        daemon.socket().display()
    );
    let examples = library.join("share/doc/libtensorlend");
    let shared = format!("$(pkg-config --cflags --libs tensorlend) -Wl,-rpath,{}", library.join("lib").display());
    let fixed = "$(pkg-config --static --cflags --libs tensorlend | sed s/-ltensorlend/-l:libtensorlend.a/)".to_owned();
    for (compiler, folder, extension) in [("gcc -std=c11", "c", "c"), ("g++ -std=c++17", "cpp", "cpp")] {
        for flags in [&shared, &fixed] {
            let compile = |name: &str| {
                format!("{compiler} {}/{folder}/{name}.{extension} -o {name} {flags}\n", examples.display())
            };
            let script =
                format!("set -e\n{variables}{}{}./producer\n./consumer\n", compile("producer"), compile("consumer"));
            let said = done(bare("sh").args(["-c", &script]));
            assert!(said.contains("480 x 640 x 3") && said.contains("128"), "{said}");
        }
    }
    if !system.iter().any(|folder| folder.join("cmake").exists() && folder.join("make").exists()) {
        return skip("CMake is not installed in /usr/bin (apt-get install cmake make)");
    }
    let script = format!(
        "set -e\n{variables}cmake -S {} -B built -DCMAKE_PREFIX_PATH={}\ncmake --build built\n\
         built/producer_cpp\nbuilt/consumer_c\nbuilt/producer_c\nbuilt/consumer_cpp\n",
        examples.display(),
        library.display()
    );
    let said = done(bare("sh").args(["-c", &script]));
    assert_eq!(said.matches("480 x 640 x 3 u8, first 128").count(), 2, "{said}");
}

/// All four packages in one disposable system: the first command starts the daemon, and a program in C uses the library.
#[test]
fn the_debian_packages_are_installed_together() {
    const USER: u32 = 64_013;
    const PACKAGES: [&str; 4] = ["tensorlend", "libtensorlend-dev", "tensorlend-gateway", "tensorlend-runner"];
    let Some(published) = Published::copy() else { return };
    if skip_without_systemd() || skip_without("dpkg-deb") || skip_without("deb-systemd-helper") {
        return;
    }
    let system = match System::start() {
        Ok(system) => system,
        Err(why) => return skip(&format!("no system of its own here: {why}")),
    };
    for package in PACKAGES {
        std::fs::copy(published.file(&format!("{package}_"), ".deb"), system.share().join("package.deb")).unwrap();
        system.ok("dpkg", &["--install", &format!("{INSIDE}/package.deb")]);
    }
    assert_eq!(system.ok("systemctl", &["is-active", SOCKET]), "active");
    for program in ["tensorlend", "tensorlendd", "tensorlend-gateway", "tensorlend-runner"] {
        let version = system.ok(&format!("/usr/bin/{program}"), &["--version"]);
        assert!(names_the_commit(&version, program), "{version}");
    }
    let user = |arguments: &[&str]| done(system.command_as(USER, "tensorlend").args(arguments));
    user(&["ping"]);
    let library = published.unpack("libtensorlend-");
    if !skip_without("gcc") && !skip_without("pkg-config") {
        let examples = system.share().join("c");
        done(Command::new("cp").arg("-r").arg(library.join("share/doc/libtensorlend/c")).arg(&examples));
        let compile = |name: &str| {
            format!("gcc -std=c11 {INSIDE}/c/{name}.c -o {INSIDE}/{name} $(pkg-config --cflags --libs tensorlend)")
        };
        system.ok("sh", &["-ec", &format!("{}\n{}", compile("producer"), compile("consumer"))]);
        // The shared library is found without a variable.
        done(&mut system.command_as(USER, &format!("{INSIDE}/producer")));
        let said = done(&mut system.command_as(USER, &format!("{INSIDE}/consumer")));
        assert!(said.contains("480 x 640 x 3"), "{said}");
        assert!(user(&["ls"]).contains("camera/front"), "{}", user(&["ls"]));
    }
    for package in PACKAGES {
        system.ok("dpkg", &["--purge", package]);
    }
    assert!(!system.has("/usr/bin/tensorlend") && !system.has("/usr/lib/libtensorlend.so"));
}
