//! The SmartRedis interfaces of C++, C and Fortran: built as a user builds them, and a program of each language that makes
//! every call.

use super::built::Kit;
use crate::{cmake, ran};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tensorlend_tests::{Agent, Daemon, binary, budget, run, skip, skip_without};

/// The library and its programs, in a folder that ends with the test.
struct Programs {
    folder: tempfile::TempDir,
    kit: &'static Kit,
    fortran: bool,
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../bindings/smartredis").canonicalize().expect("the sources are there")
}

impl Programs {
    /// Builds and installs the library, then the programs, with these flags for C and C++. Returns `None` and records
    /// the reason if a compiler is missing.
    fn build(flags: &str, fortran: bool) -> Option<Self> {
        let kit = Kit::get()?;
        if skip_without("cmake") || skip_without("make") {
            return None;
        }
        let fortran = fortran && !skip_without("gfortran");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let programs = Self { folder, kit, fortran };
        let project = programs.folder.path().join("programs");
        std::fs::create_dir(&project).expect("a folder is made");
        std::fs::write(project.join("CMakeLists.txt"), PROJECT).expect("a project is written");
        for (mark, file) in [("\n```cpp\n", "guide.cpp"), ("\n```fortran\n", "guide.F90")] {
            let page = std::fs::read_to_string(sources().join("../../docs/smartredis.md")).expect("the page is there");
            let (_, block) = page.split_once(mark).expect("the page has a block");
            let (block, _) = block.split_once("```").expect("the block ends");
            std::fs::write(project.join(file), block).expect("a program is written");
        }
        let definitions = [
            format!("-DCMAKE_INSTALL_PREFIX={}", programs.prefix().display()),
            format!("-DTESTS={}", sources().join("tests").display()),
            format!("-DSMARTREDIS_FORTRAN={}", if fortran { "ON" } else { "OFF" }),
            format!("-DCMAKE_CXX_FLAGS={flags}"),
            format!("-DCMAKE_C_FLAGS={flags}"),
            "-DSMARTREDIS_WERROR=ON".into(),
            // Without optimization, which takes longer than the test.
            "-DCMAKE_BUILD_TYPE=None".into(),
            "-DCMAKE_INSTALL_LIBDIR=lib".into(),
        ];
        let given: Vec<&str> = definitions.iter().map(String::as_str).collect();
        let library = sources().display().to_string();
        programs.cmake(&[&["--no-warn-unused-cli", "-S", &library, "-B", "library"], &given[..]].concat());
        programs.cmake(&["--build", "library", "--target", "install", "--parallel", "2"]);
        programs.cmake(&[&["--no-warn-unused-cli", "-S", "programs", "-B", "built"], &given[..]].concat());
        programs.cmake(&["--build", "built", "--parallel", "2"]);
        Some(programs)
    }

    fn prefix(&self) -> PathBuf {
        self.folder.path().join("prefix")
    }

    fn cmake(&self, arguments: &[&str]) {
        let prefixes = format!("{}:{}", self.prefix().display(), self.kit.prefix().display());
        let (done, said) = cmake(arguments, self.folder.path(), Path::new(&prefixes));
        assert!(done, "cmake {arguments:?}: {said}");
    }

    /// Runs a program by a command, which may be a tool that checks it. Each has a daemon of its own.
    fn run(&self, tool: &[&str], program: &str, last_line: impl Into<Option<&'static str>>) {
        let daemon = Daemon::start("");
        let mut command = self.command(tool, program);
        let last_line: Option<&str> = last_line.into();
        assert_eq!(ran(&mut command, &daemon).lines().last(), last_line, "{program} {tool:?}");
    }

    fn command(&self, tool: &[&str], program: &str) -> Command {
        let program = self.folder.path().join("built").join(program);
        let mut command = match tool {
            [] => Command::new(&program),
            [tool, arguments @ ..] => {
                let mut command = Command::new(tool);
                command.args(arguments).arg(&program);
                command
            }
        };
        command.env(
            "LD_LIBRARY_PATH",
            format!("{}:{}", self.prefix().join("lib").display(), self.kit.libraries().display()),
        );
        for (name, value) in [
            ("SSDB", "127.0.0.1:6379"),
            ("SR_DB_TYPE", "Standalone"),
            ("SSKEYIN", "one,two"),
            ("SSKEYOUT", "one"),
            ("SR_LOG_LEVEL", "INFO"),
            ("SR_MODEL_TIMEOUT", "1"),
        ] {
            command.env(name, value);
        }
        command.env("SR_LOG_FILE", self.folder.path().join("log"));
        command
    }

    /// Steers a client while threads share it, other clients come and go, and the daemon is killed. The next daemon does not
    /// know the client.
    fn is_treated_badly(&self, tool: &[&str]) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let place = folder.path().join("socket");
        let daemon = Daemon::start("");
        symlink(daemon.socket(), &place).expect("a link is made");
        let mut command = self.command(tool, "hostile");
        command.env("TENSORLEND_SOCKET", &place);
        let mut program = Agent::steer(command);
        assert_eq!(program.ok("ask"), "1");
        // A text that is no UTF-8 must not keep other programs from reading the dataset's fields.
        let state = daemon.client().get_dataset("one.{state}.meta").expect("the dataset is there");
        let fields = std::str::from_utf8(state.metadata()).expect("JSON is UTF-8");
        assert!(fields.contains(r"Orl\udce9ans"), "{fields}");
        assert_eq!(program.ok("threads"), "400");
        program.ok("clients");
        let next = Daemon::start("");
        std::fs::remove_file(&place).expect("the link is removed");
        symlink(next.socket(), &place).expect("a link is made");
        drop(daemon);
        let error = program.ask("ask").expect_err("the session has ended");
        assert!(error.starts_with("2 "), "no SRDatabaseError: {error}");
        assert_eq!(program.ok("ask"), "1");
        assert_eq!(program.ok("ask in a thread"), "2");
        program.exit();
    }
}

/// Runs the program that measures models, which checks the outputs, and a runner.
fn a_model_runs(programs: &Programs) {
    let daemon = Daemon::start("");
    let mut runner = Command::new(binary("tensorlend-runner"));
    runner.arg("--socket").arg(daemon.socket()).env_remove("ORT_DYLIB_PATH").stderr(Stdio::null());
    let mut runner = runner.spawn().expect("the runner starts");
    let mut program = programs.command(&[], "inference");
    program.args(["0", "1000"]).env("SR_MODEL_TIMEOUT", "60000").env("TENSORLEND_SOCKET", daemon.socket());
    let done = run(&mut program);
    runner.kill().and_then(|()| runner.wait()).expect("the runner ends");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    assert!(said.contains("| 1000 | 1 |"), "{said}");
}

/// A project of a user, which finds the library under the names of SmartRedis.
const PROJECT: &str = "cmake_minimum_required(VERSION 3.16)
project(programs C CXX)
# Programs use some of the enumerators that they include.
add_compile_options(-Wall -Wextra -Werror $<$<COMPILE_LANGUAGE:Fortran>:-Wno-unused-parameter>)
find_package(smartredis 0.6 REQUIRED)
add_executable(every_call_cpp ${TESTS}/every_call.cpp)
target_link_libraries(every_call_cpp smartredis)
add_executable(every_call_c ${TESTS}/every_call.c)
target_link_libraries(every_call_c smartredis)
add_executable(guide_cpp guide.cpp)
target_link_libraries(guide_cpp smartredis)
add_executable(inference ${TESTS}/../benches/inference.cpp)
target_link_libraries(inference smartredis)
find_package(Threads REQUIRED)
add_executable(hostile ${TESTS}/hostile.cpp)
target_link_libraries(hostile smartredis Threads::Threads)
if(SMARTREDIS_FORTRAN)
    enable_language(Fortran)
    find_package(smartredis-fortran REQUIRED)
    add_executable(every_call_fortran ${TESTS}/every_call.F90)
    # Copies must have equal elements.
    target_compile_options(every_call_fortran PRIVATE -ffree-line-length-none -Wno-compare-reals)
    target_link_libraries(every_call_fortran smartredis-fortran)
    add_executable(guide_fortran guide.F90)
    target_compile_options(guide_fortran PRIVATE -cpp)
    target_link_libraries(guide_fortran smartredis-fortran)
    add_executable(solver ${TESTS}/../../../examples/smartredis/solver.F90)
    target_link_libraries(solver smartredis-fortran)
endif()
";

/// Programs as in a checkout of SmartRedis, one for each outcome.
const CHECKOUT: &[(&str, &str)] = &[
    ("tests/c/beside", ""),
    ("tests/c/passes.c", PASSES),
    ("tests/c/fails.c", "int main(void) { return 1; }"),
    ("tests/c/internal.c", "#include \"only_in_redis.h\""),
    ("examples/serial/c/beside", ""),
    ("examples/serial/c/example.c", PASSES),
    ("examples/common/data", ""),
    ("examples/serial/cpp/example.cpp", READS_DATA),
    (
        "tests/fortran/some_utils.F90",
        "module some_utils\ncharacter(len=*), parameter :: device = \"CPU\"\nend module some_utils\n",
    ),
    (
        "tests/fortran/client_test_refused.F90",
        "program main
use smartredis_client, only : client_type
use some_utils, only : device
type(client_type) :: client
if (client%initialize(\"refused\") /= 0) error stop
if (client%set_script(\"script\", device, \"text\") /= 0) error stop
end program main
",
    ),
];

/// Looks for a file by a path that is relative to the program's source.
const PASSES: &str = "#include \"c_client.h\"
#include <stdio.h>
int main(void) {
    void* client = NULL;
    return fopen(\"beside\", \"r\") == NULL || SimpleCreateClient(\"passes\", 6, &client) != SRNoError;
}
";

/// Looks for a file by a path that is relative to the folder of its build.
const READS_DATA: &str = "#include <client.h>
int main() {
    return std::ifstream(\"../../../../../examples/common/data\") ? 0 : 1;
}
";

/// Runs the script that runs SmartRedis's own programs.
fn conformance_is_counted(programs: &Programs) {
    if skip_without("python3") {
        return;
    }
    let checkout = programs.folder.path().join("checkout");
    for (name, text) in CHECKOUT {
        let path = checkout.join(name);
        std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("a folder is made");
        std::fs::write(path, text).expect("a program is written");
    }
    let mut command = Command::new("python3");
    command.arg(sources().join("../../scripts/smartredis-native-conformance")).arg(&checkout).arg(programs.prefix());
    command.env("TENSORLEND_BIN_DIR", binary("tensorlendd").parent().expect("a program has a folder"));
    command.env("LD_LIBRARY_PATH", programs.kit.libraries());
    let done = run(&mut command);
    let said = String::from_utf8_lossy(&done.stdout);
    assert_eq!(done.status.code(), Some(1), "{said}{}", String::from_utf8_lossy(&done.stderr));
    let row = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let rows: Vec<String> = said.lines().map(row).collect();
    let mut expected = vec![
        "programs passed failed refused allowed internal",
        "C 1 1 0 0 1",
        "C examples 1 0 0 0 0",
        "C++ examples 1 0 0 0 0",
    ];
    if programs.fortran {
        expected.push("Fortran 0 0 1 0 0");
    }
    for expected in expected {
        assert!(rows.iter().any(|row| row == expected), "no \"{expected}\" in {said}");
    }
    all_languages_are_counted(programs);
}

/// Runs the script that runs the tests in Python, too, on a checkout with one test in C.
fn all_languages_are_counted(programs: &Programs) {
    if skip_without("pkg-config") {
        return;
    }
    let checkout = programs.folder.path().join("only_c");
    std::fs::create_dir_all(checkout.join("tests/c")).expect("a folder is made");
    std::fs::write(checkout.join("tests/c/beside"), "").expect("a file is written");
    std::fs::write(checkout.join("tests/c/passes.c"), PASSES).expect("a program is written");
    let python = format!("not run: Python: there is no tests/python in {}", checkout.display());
    let missing = "not run: C++, C, Fortran: no PREFIX was given, and pkg-config finds no smartredis";
    let installed = programs.prefix().join("lib/pkgconfig");
    for (folder, status, lines) in [
        (&installed, 0, [&*python, "C 1 0 0 0 0 0", "not run: tests in C++: the checkout has no tests/cpp"]),
        (&checkout, 1, [&*python, missing, "programs passed failed refused allowed internal skipped"]),
    ] {
        let mut command = Command::new("python3");
        command.arg(sources().join("../../scripts/smartredis-conformance")).arg(&checkout);
        command.env("TENSORLEND_BIN_DIR", binary("tensorlendd").parent().expect("a program has a folder"));
        command.env("LD_LIBRARY_PATH", programs.kit.libraries()).env_remove("PKG_CONFIG_PATH");
        let tensorlend = programs.kit.libraries().join("pkgconfig");
        command.env("PKG_CONFIG_LIBDIR", format!("{}:{}", folder.display(), tensorlend.display()));
        let done = run(&mut command);
        let said = String::from_utf8_lossy(&done.stdout);
        assert_eq!(done.status.code(), Some(status), "{said}{}", String::from_utf8_lossy(&done.stderr));
        let rows: Vec<String> =
            said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        for line in lines {
            assert!(rows.iter().any(|row| row.starts_with(line)), "no \"{line}\" in {said}");
        }
    }
}

#[test]
fn clang_warns_of_nothing_in_smartredis() {
    if budget(0, 1) == 0 {
        return skip("a second compiler takes ten seconds: TENSORLEND_TEST=full runs it");
    }
    let Some(kit) = Kit::get() else { return };
    if skip_without("clang") || skip_without("clang++") {
        return;
    }
    let files = |folder: &str| std::fs::read_dir(sources().join(folder)).expect("the sources are there");
    for file in files("src").chain(files("tests")).map(|entry| entry.expect("the sources are there").path()) {
        let (compiler, standard) = match file.extension().and_then(|suffix| suffix.to_str()) {
            Some("cpp") => ("clang++", "-std=c++17"),
            Some("c") => ("clang", "-std=gnu11"),
            _ => continue,
        };
        let mut command = Command::new(compiler);
        command.args([standard, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]).arg(sources().join("include"));
        let done = run(command.arg("-I").arg(kit.prefix().join("include")).arg(&file));
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

#[test]
fn every_call_of_smartredis_works_from_cpp_c_and_fortran() {
    let Some(programs) = Programs::build("", true) else { return };
    conformance_is_counted(&programs);
    programs.run(&[], "every_call_cpp", "every call of C++ worked");
    programs.run(&[], "every_call_c", "every call of C worked");
    programs.run(&[], "guide_cpp", None);
    a_model_runs(&programs);
    programs.is_treated_badly(&[]);
    if programs.fortran {
        programs.run(&[], "every_call_fortran", "every call of Fortran worked");
        programs.run(&[], "guide_fortran", None);
        programs.run(&[], "solver", "published 10 states");
    }
    if skip_without("pkg-config") {
        return;
    }
    // Compiled in one line, with the original's names.
    let folder = programs.prefix().join("lib/pkgconfig");
    let mut command = Command::new("sh");
    command.args(["-c", "gcc -std=gnu11 $0 -o built/every_call_pc $(pkg-config --cflags --libs smartredis)"]);
    command.arg(sources().join("tests/every_call.c")).current_dir(programs.folder.path());
    command.env(
        "PKG_CONFIG_PATH",
        format!("{}:{}", folder.display(), programs.kit.libraries().join("pkgconfig").display()),
    );
    let done = run(&mut command);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    programs.run(&[], "every_call_pc", "every call of C worked");
}

#[test]
fn the_sanitizers_and_valgrind_find_nothing_in_smartredis() {
    if budget(0, 1) == 0 {
        return skip("the sanitizers' build takes half a minute: TENSORLEND_TEST=full runs it");
    }
    let flags = "-fsanitize=address,undefined -fno-sanitize-recover=all -g -Wno-maybe-uninitialized";
    let Some(programs) = Programs::build(flags, false) else { return };
    programs.run(&[], "every_call_cpp", "every call of C++ worked");
    programs.run(&[], "every_call_c", "every call of C worked");
    programs.is_treated_badly(&[]);
    if skip_without("valgrind") {
        return;
    }
    let Some(programs) = Programs::build("-g", false) else { return };
    let valgrind =
        ["valgrind", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite", "--quiet"];
    programs.run(&valgrind, "every_call_cpp", "every call of C++ worked");
    programs.run(&valgrind, "every_call_c", "every call of C worked");
    programs.is_treated_badly(&valgrind);
}
