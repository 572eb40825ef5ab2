//! The library, built and installed by `scripts/capi`, and programs that are compiled with it as a user would do it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use tensorlend_tests::{run, skip};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    C,
    Cpp,
}

/// The library that a program is linked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    Shared,
    Static,
}

/// An installed library and the compilers.
pub struct Kit {
    folder: PathBuf,
    programs: AtomicU32,
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the workspace is there")
}

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|done| done.status.success())
}

/// Runs a command that may take minutes.
fn done(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(done.status.success(), "{command:?}\n{}\n{}", text(&done.stdout), text(&done.stderr));
    text(&done.stdout)
}

impl Kit {
    /// Returns the installation of this test run. Without compilers, records the reason and returns `None`.
    pub fn get() -> Option<&'static Self> {
        static KIT: OnceLock<Option<Kit>> = OnceLock::new();
        if let Some(missing) = ["gcc", "g++", "cargo"].into_iter().find(|program| !has(program)) {
            skip(&format!("{missing} is not installed (apt-get install gcc g++; https://rustup.rs)"));
            return None;
        }
        KIT.get_or_init(|| {
            // All processes of a run share the folder, and each installs again. They do not run at the same time.
            let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi");
            let mut script = Command::new(workspace().join("scripts/capi"));
            script.args(["--debug", "--prefix"]).arg(&folder);
            // Cargo sets these variables for this test, and they would mislead the inner cargo.
            for (name, _) in std::env::vars_os() {
                let name = name.to_string_lossy();
                if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "CARGO" {
                    script.env_remove(&*name);
                }
            }
            done(&mut script);
            Some(Self { folder, programs: AtomicU32::new(0) })
        })
        .as_ref()
    }

    /// Returns the installation prefix.
    pub fn prefix(&self) -> &Path {
        &self.folder
    }

    /// Returns the folder of the libraries.
    pub fn libraries(&self) -> PathBuf {
        self.prefix().join("lib")
    }

    /// Returns the flags of pkg-config, or the same flags where it is not installed.
    fn pkg_config(&self, static_link: bool) -> Vec<String> {
        if !has("pkg-config") {
            skip("pkg-config is not installed (apt-get install pkg-config): the paths are given by hand");
            let (include, lib) = (self.prefix().join("include"), self.libraries());
            let mut flags = vec![format!("-I{}", include.display()), format!("-L{}", lib.display())];
            flags.push("-ltensorlend".into());
            if static_link {
                flags.extend(["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"].map(String::from));
            }
            return flags;
        }
        let mut command = Command::new("pkg-config");
        command.args(["--cflags", "--libs"]).env("PKG_CONFIG_PATH", self.libraries().join("pkgconfig"));
        if static_link {
            command.arg("--static");
        }
        done(command.arg("tensorlend")).split_whitespace().map(String::from).collect()
    }

    /// Compiles a program with `-Werror`.
    pub fn compile(&self, language: Language, sources: &[&Path], flags: &[&str], link: Link) -> PathBuf {
        let number = self.programs.fetch_add(1, Ordering::Relaxed);
        let name = sources[0].file_stem().expect("a source file").to_string_lossy();
        let program = self.prefix().join(format!("{name}-{number}"));
        let (compiler, standard) = match language {
            Language::C => ("gcc", "-std=c11"),
            Language::Cpp => ("g++", "-std=c++17"),
        };
        let (libraries, includes): (Vec<_>, Vec<_>) = self
            .pkg_config(link == Link::Static)
            .into_iter()
            .partition(|flag| flag.starts_with("-l") || flag.starts_with("-L"));
        let mut linker = Command::new(compiler);
        linker.arg("-o").arg(&program);
        // A command for each source: ccache keeps no result of a command that also links.
        for (index, source) in sources.iter().enumerate() {
            let object = program.with_extension(format!("{index}.o"));
            let mut command = Command::new(compiler);
            command.args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"]).args(flags).args(&includes);
            done(command.arg("-c").arg(source).arg("-o").arg(&object));
            linker.arg(object);
        }
        linker.args(flags);
        for flag in &libraries {
            // Otherwise the linker would use the shared library in the same folder.
            linker.arg(if flag == "-ltensorlend" && link == Link::Static { "-l:libtensorlend.a" } else { flag });
        }
        done(&mut linker);
        program
    }

    /// Returns the compiler's errors for the body of a function of C++, or nothing if it compiles.
    pub fn errors(&self, body: &str) -> String {
        let source = self.prefix().join(format!("body-{}.cpp", self.programs.fetch_add(1, Ordering::Relaxed)));
        let text = format!("#include <tensorlend.hpp>\nvoid body(tensorlend::Client &client) {{ {body} }}\n");
        std::fs::write(&source, text).expect("a source file is written");
        let mut command = Command::new("g++");
        let includes = self.pkg_config(false).into_iter().filter(|flag| flag.starts_with("-I"));
        let done = run(command.args(["-std=c++17", "-fsyntax-only"]).args(includes).arg(&source));
        String::from_utf8_lossy(&done.stderr).into_owned()
    }

    /// Returns true if programs can be linked with these flags here.
    pub fn can_link(&self, flags: &[&str]) -> bool {
        let source = self.prefix().join("empty.c");
        std::fs::write(&source, "int main(void) { return 0; }\n").expect("a source file is written");
        let mut command = Command::new("gcc");
        command.args(flags).arg(&source).arg("-o").arg(self.prefix().join("empty"));
        command.output().is_ok_and(|done| done.status.success())
    }

    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.libraries());
        command
    }
}
