//! The C library: its header, its binary interface, and programs in C and C++ that are built with it and run against a
//! daemon: on their own, under the sanitizers and under valgrind.

mod capi {
    pub mod abi;
    pub mod built;
    pub mod guide;
    pub mod header;
    pub mod smartredis;
}

use capi::built::{Kit, Language, Link};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use tensorlend_tests::machine::{config, on_machine};
use tensorlend_tests::{Daemon, budget, eventually, is_full, run, skip, skip_without};

/// The programs that need no device.
const PROGRAMS: [(Language, &str); 3] =
    [(Language::C, "all.c"), (Language::C, "services.c"), (Language::Cpp, "all.cpp")];

/// Runs a program against a fresh daemon and returns its output; the program must succeed.
fn ran(program: &mut Command, daemon: &Daemon) -> String {
    program.env("TENSORLEND_SOCKET", daemon.socket());
    let done = run(program);
    let (out, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{program:?}: {}\n{out}\n{errors}", done.status);
    out.into_owned()
}

fn source(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/capi").join(name)
}

fn example(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name)
}

#[test]
fn the_header_has_every_source_file_and_describes_all_it_declares() {
    capi::header::is_whole();
    capi::header::is_described();
}

#[test]
fn the_header_compiles_as_c_and_as_cpp() {
    capi::header::compiles();
}

#[test]
fn the_interface_is_the_one_that_programs_rest_on() {
    capi::abi::compare();
}

#[test]
fn a_change_that_breaks_programs_is_noticed() {
    capi::abi::changes_are_noticed();
}

#[test]
fn each_call_of_c_has_a_method_in_cpp() {
    capi::abi::methods();
}

#[test]
fn the_shared_library_exports_what_c_may_call_and_nothing_else() {
    let Some(kit) = Kit::get() else { return };
    capi::abi::exported(kit);
}

#[test]
fn every_call_works_from_c() {
    let Some(kit) = Kit::get() else { return };
    let daemon = Daemon::start("");
    // Short enumerations, the default on some machines, must change nothing.
    for (link, flags) in [(Link::Shared, &[][..]), (Link::Static, &[]), (Link::Shared, &["-fshort-enums"])] {
        for name in ["all.c", "services.c"] {
            let program = kit.compile(Language::C, &[&source(name)], flags, link);
            assert_eq!(ran(&mut kit.command(&program), &daemon).lines().last(), Some("all is well"), "{name} {link:?}");
        }
    }
    // The program's clients hold no leases any more.
    assert_eq!(daemon.client().instruments().leased().unwrap(), 0);
}

#[test]
fn every_call_works_from_cpp() {
    let Some(kit) = Kit::get() else { return };
    let daemon = Daemon::start("");
    // The last one that is given counts. Newer standards have std::span and std::mdspan.
    for standard in ["-std=c++17", "-std=c++20", "-std=c++23"] {
        if !kit.can_link(&["-xc++", standard]) {
            skip(&format!("the compiler does not know {standard}"));
            continue;
        }
        let program = kit.compile(Language::Cpp, &[&source("all.cpp")], &[standard], Link::Shared);
        assert_eq!(ran(&mut kit.command(&program), &daemon).lines().last(), Some("all is well"), "{standard}");
    }
    assert_eq!(daemon.client().instruments().leased().unwrap(), 0);
}

#[test]
fn every_call_for_devices_works_from_c() {
    let Some(kit) = Kit::get() else { return };
    let program = kit.compile(Language::C, &[&source("devices.c")], &["-ldl"], Link::Shared);
    on_machine("every_call_for_devices_works_from_c", |machine| {
        let daemon = machine.daemon(&config("pool", ""));
        // The loader finds the library, and the stand-in for CUDA's driver.
        let driver = std::env::var("LD_LIBRARY_PATH").expect("the machine has a driver");
        let path = format!("{}:{driver}", kit.libraries().display());
        let mut command = Command::new(&program);
        assert_eq!(ran(command.env("LD_LIBRARY_PATH", path), &daemon).lines().last(), Some("all is well"));
        assert_eq!(machine.violations(), 0);
    });
}

/// A draft has one owner, and the compiler says what to type.
#[test]
fn a_draft_that_is_published_without_a_move_does_not_compile() {
    let Some(kit) = Kit::get() else { return };
    let draft = "auto draft = client.create<float>({2}); ";
    assert_eq!(kit.errors(&format!("{draft} std::move(draft).publish(\"x\");")), "");
    for (call, advice) in [
        ("draft.publish(\"x\");", "write std::move(draft).publish(name)"),
        ("draft.publish(\"x\", tensorlend::Lifetime{});", "write std::move(draft).publish(name)"),
        ("client.append(\"x\", draft);", "a handle has one owner: pass it by std::move"),
    ] {
        let errors = kit.errors(&format!("{draft}{call}"));
        assert!(errors.contains(advice), "{call} {errors}");
    }
}

#[test]
fn an_exception_that_leaves_a_callback_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    let Some(kit) = Kit::get() else { return };
    let daemon = Daemon::start("");
    let program = kit.compile(Language::Cpp, &[&source("throws.cpp")], &[], Link::Shared);
    let done = run(kit.command(&program).env("TENSORLEND_SOCKET", daemon.socket()));
    assert_eq!((done.status.signal(), &*done.stdout), (Some(libc::SIGABRT), &b"connected\n"[..]), "{done:?}");
}

#[test]
fn a_fault_in_lent_memory_is_explained() {
    use std::os::unix::process::ExitStatusExt;
    const READ_ONLY: &str = "which is leased read-only: write to a copy (tensorlend_get_into, tensorlend_lease_copy), or publish a new \
                             value\n";
    let Some(kit) = Kit::get() else { return };
    let daemon = Daemon::start("");
    let died = |program: &mut Command| {
        let done = run(program.env("TENSORLEND_SOCKET", daemon.socket()));
        (done.status.code(), done.status.signal(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let says = |what: &str| format!("tensorlend: Segmentation fault: this process {what}");
    let (in_c, in_cpp) = (source("faults.c"), source("faults.cpp"));
    let program = kit.compile(Language::C, &[&in_c], &[], Link::Shared);
    let (tensor, member) =
        (format!("wrote to tensor \"weights\", {READ_ONLY}"), format!("wrote to tensor \"batch[y]\", {READ_ONLY}"));
    let draft = "used a draft of its parent process, which is not mapped after a fork: create it in the child\n";
    for (what, line) in [("lease", &*tensor), ("member", &member), ("draft", draft)] {
        assert_eq!(died(kit.command(&program).arg(what)), (None, Some(libc::SIGSEGV), says(line)), "{what}");
    }
    // The former handler ends the process.
    assert_eq!(died(kit.command(&program).arg("own handler")), (Some(100 + libc::SIGSEGV), None, says(&tensor)));
    // Memory that is no lease's is not explained, and neither is a fault without the call.
    for what in ["freed", "off"] {
        assert_eq!(died(kit.command(&program).arg(what)), (None, Some(libc::SIGSEGV), String::new()), "{what}");
    }
    let program = kit.compile(Language::Cpp, &[&in_cpp], &[], Link::Shared);
    assert_eq!(died(&mut kit.command(&program)), (None, Some(libc::SIGSEGV), says(&tensor)));
}

/// Runs CMake, which finds the library below a prefix; returns whether it succeeded, and its output.
fn cmake(arguments: &[&str], folder: &Path, prefix: &Path) -> (bool, String) {
    let done = run(Command::new("cmake").args(arguments).current_dir(folder).env("CMAKE_PREFIX_PATH", prefix));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (done.status.success(), text(&done.stdout) + &text(&done.stderr))
}

#[test]
fn the_examples_build_with_cmake() {
    let Some(kit) = Kit::get() else { return };
    if skip_without("cmake") || skip_without("make") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let examples = example("").display().to_string();
    let (done, said) = cmake(&["-S", &examples, "-B", "build"], folder.path(), kit.prefix());
    assert!(done, "{said}");
    for line in said.lines().filter(|line| line.contains("is left out")) {
        skip(line.trim_start_matches("-- "));
    }
    let (done, said) = cmake(&["--build", "build"], folder.path(), kit.prefix());
    assert!(done, "{said}");
}

#[test]
fn the_examples_for_ros_2_convert_images() {
    let Some(kit) = Kit::get() else { return };
    let daemon = Daemon::start("");
    let program = kit.compile(Language::Cpp, &[&source("ros2.cpp")], &[], Link::Shared);
    assert_eq!(ran(&mut kit.command(&program), &daemon), "all is well\n");
}

#[test]
fn a_prefix_that_cannot_be_written_is_refused_before_the_build() {
    let script = example("../scripts/capi");
    // PATH contains no `cargo`, so a call of it would fail.
    let done = Command::new(script).args(["--prefix", "/proc/self/none"]).env("PATH", "/usr/bin:/bin").output();
    let done = done.expect("the script runs");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(
        !done.status.success() && said.contains("cannot write to /proc/") && said.contains("--prefix ~/.local"),
        "{said}"
    );
}

/// The code of the guide for ROS 2 is the example's, line by line.
#[test]
fn the_guide_for_ros_2_shows_the_example() {
    let page = std::fs::read_to_string(example("../docs/migrate/ros2.md")).expect("the guide is there");
    let read = |name: &str| std::fs::read_to_string(example("ros2").join(name)).expect("the example is there");
    for (mark, file) in [("\n```cpp\n", "bridge.cpp"), ("\n```cmake\n", "CMakeLists.txt")] {
        let example = read(file);
        let lines: Vec<&str> = example.lines().map(str::trim).collect();
        let blocks = page.split(mark).skip(1).filter_map(|rest| rest.split("\n```").next());
        let shown: Vec<&str> = blocks.flat_map(str::lines).map(str::trim).collect();
        let gone: Vec<&&str> = shown.iter().filter(|line| !lines.contains(*line)).collect();
        assert!(
            shown.len() > 1 && gone.is_empty(),
            "docs/migrate/ros2.md shows lines that {file} does not have: {gone:?}"
        );
    }
}

/// The node itself, with a stand-in for ROS 2: one process copies images to a stream, another one from it.
#[test]
fn the_node_for_ros_2_copies_images_in_both_directions() {
    let Some(kit) = Kit::get() else { return };
    let daemon = Daemon::start("");
    let stand_in = format!("-I{}", source("ros2").display());
    let program = kit.compile(Language::Cpp, &[&example("ros2/bridge.cpp")], &[&stand_in, "-pthread"], Link::Shared);
    let node = |direction: &str| {
        let mut node = kit.command(&program);
        node.env("TENSORLEND_SOCKET", daemon.socket()).env("ROS_direction", direction).env("ROS_stream", "front");
        node.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the node starts")
    };
    let (mut from, mut to) = (node("in"), node("out"));
    let mut images = from.stdin.take().expect("a pipe");
    // An image for each line, until the other node has one of them.
    eventually("a node publishes an image", || {
        images.write_all(b"image\n").expect("the node reads");
        to.try_wait().expect("the node can be asked").is_some()
    });
    drop(images);
    let done = to.wait_with_output().expect("the node ends");
    assert!(done.status.success(), "{done:?}");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "published 2 x 2 bgr8\n");
    assert!(from.wait().expect("the node ends").success());
}

/// Returns the compiler's flags for OpenCV's core; `None`, with a recorded reason, if it is not installed.
fn opencv() -> Option<Vec<String>> {
    let asked = Command::new("pkg-config").args(["--cflags-only-I", "opencv4"]).output();
    let includes = match asked {
        Ok(done) if done.status.success() => String::from_utf8_lossy(&done.stdout).into_owned(),
        // Debian has the file for pkg-config in a package of its own.
        _ if Path::new("/usr/include/opencv4/opencv2/core.hpp").exists() => "-I/usr/include/opencv4".into(),
        _ => {
            skip("OpenCV is not installed (apt-get install libopencv-core-dev)");
            return None;
        }
    };
    // Ignores warnings of OpenCV's headers. The library precedes the program's source.
    let includes = includes.split_whitespace().map(|flag| flag.replacen("-I", "-isystem", 1));
    Some(includes.chain(["-Wl,--no-as-needed", "-lopencv_core"].map(String::from)).collect())
}

#[test]
fn the_examples_for_opencv_view_images_in_place() {
    let Some(kit) = Kit::get() else { return };
    let Some(flags) = opencv() else { return };
    let daemon = Daemon::start("");
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let program = kit.compile(Language::Cpp, &[&source("opencv.cpp")], &flags, Link::Shared);
    assert_eq!(ran(&mut kit.command(&program), &daemon), "all is well\n");
    assert_eq!(daemon.client().instruments().leased().unwrap(), 0);
}

#[test]
fn a_project_of_cmake_finds_the_library() {
    let Some(kit) = Kit::get() else { return };
    if skip_without("cmake") || skip_without("make") {
        return;
    }
    let daemon = Daemon::start("");
    let folder = tempfile::tempdir().expect("a temporary folder");
    // Moved as a whole, and reached by a link.
    let (moved, link) = (folder.path().join("moved"), folder.path().join("link"));
    let copied = Command::new("cp").arg("-r").arg(kit.prefix()).arg(&moved).status();
    assert!(copied.expect("cp runs").success());
    std::os::unix::fs::symlink(&moved, &link).expect("a link is made");
    let project = "cmake_minimum_required(VERSION 3.16)
        project(programs LANGUAGES)
        find_package(tensorlend 0.1 CONFIG REQUIRED)
        find_package(tensorlend 0.1 CONFIG REQUIRED)
        if(NOT tensorlend_VERSION VERSION_GREATER_EQUAL 0.1)
            message(FATAL_ERROR \"version ${tensorlend_VERSION}\")
        endif()
        foreach(library tensorlend static)
            add_executable(with_${library} program)
            target_link_libraries(with_${library} PRIVATE tensorlend::${library})
        endforeach()
    ";
    for (languages, of, extension) in [("C", "c/producer.c", "c"), ("C CXX", "cpp/producer.cpp", "cpp")] {
        let source = folder.path().join(extension);
        std::fs::create_dir(&source).expect("a folder is made");
        let text = project.replace("LANGUAGES)", &format!("LANGUAGES {languages})"));
        let text = text.replace(" program)", &format!(" program.{extension})"));
        std::fs::write(source.join("CMakeLists.txt"), &text).expect("a project is written");
        std::fs::copy(example(of), source.join(format!("program.{extension}"))).expect("a program is copied");
        let (done, said) = cmake(&["-B", "build"], &source, &link);
        assert!(done, "{languages}: {said}");
        let (done, said) = cmake(&["--build", "build"], &source, &link);
        assert!(done, "{languages}: {said}");
        for library in ["tensorlend", "static"] {
            // CMake gives the program the path of the shared library.
            let mut program = Command::new(source.join("build").join(format!("with_{library}")));
            assert_eq!(ran(&mut program, &daemon), "published camera/front\n", "{languages} {library}");
        }
        for version in ["0.99", "1.0"] {
            std::fs::write(source.join("CMakeLists.txt"), text.replace("0.1 CONFIG", &format!("{version} CONFIG")))
                .expect("a project is written");
            let (done, said) = cmake(&["-B", "other"], &source, &link);
            assert!(!done && said.contains("tensorlend-config.cmake, version: 0.1"), "{version}: {said}");
        }
    }
}

#[test]
fn the_sanitizers_find_nothing() {
    let Some(kit) = Kit::get() else { return };
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];
    if !kit.can_link(&flags) {
        return skip("the compiler has no AddressSanitizer (apt-get install libgcc-12-dev)");
    }
    let daemon = Daemon::start("");
    for (language, name) in PROGRAMS {
        for &link in budget(&[Link::Shared][..], &[Link::Shared, Link::Static]) {
            let program = kit.compile(language, &[&source(name)], &flags, link);
            let mut command = kit.command(&program);
            command.env("ASAN_OPTIONS", "detect_leaks=1").env("UBSAN_OPTIONS", "print_stacktrace=1");
            assert_eq!(ran(&mut command, &daemon).lines().last(), Some("all is well"), "{name} {link:?}");
        }
    }
    // The sanitizers would find a leak.
    let program = kit.compile(Language::C, &[&source("leak.c")], &flags, Link::Shared);
    let done = run(kit.command(&program).env("TENSORLEND_SOCKET", daemon.socket()));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("LeakSanitizer"), "{said}");
}

#[test]
fn valgrind_finds_nothing() {
    let Some(kit) = Kit::get() else { return };
    if skip_without("valgrind") {
        return;
    }
    let daemon = Daemon::start("");
    let checked = |program: &Path| {
        let mut command = kit.command(program);
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite", "--quiet"]);
        valgrind.arg(program).env("LD_LIBRARY_PATH", kit.libraries()).env("TENSORLEND_SOCKET", daemon.socket());
        valgrind.args(command.get_args());
        command = valgrind;
        command
    };
    // The program in C++ makes the same calls, in headers that the sanitizers check.
    for (language, name) in PROGRAMS.into_iter().filter(|(language, _)| is_full() || *language == Language::C) {
        let program = kit.compile(language, &[&source(name)], &["-g"], Link::Shared);
        let done = run(&mut checked(&program));
        let (out, said) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success() && out.ends_with("all is well\n"), "{name}: {out}\n{said}");
    }
    let program = kit.compile(Language::C, &[&source("leak.c")], &["-g"], Link::Shared);
    let done = run(&mut checked(&program));
    assert_eq!(done.status.code(), Some(9), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn the_examples_do_what_they_say() {
    let Some(kit) = Kit::get() else { return };
    let daemon = Daemon::start("");
    for (language, folder, extension) in [(Language::C, "c", "c"), (Language::Cpp, "cpp", "cpp")] {
        let built = |name: &str| {
            let file = example(&format!("{folder}/{name}.{extension}"));
            kit.compile(language, &[&file], &[], Link::Shared)
        };
        let (producer, consumer) = (built("producer"), built("consumer"));
        let (stream, queue) = (built("stream"), built("queue"));
        let started = std::thread::scope(|threads| {
            // The consumer waits for a tensor that is not published yet.
            let waiting = threads.spawn(|| ran(&mut kit.command(&consumer), &daemon));
            assert_eq!(ran(&mut kit.command(&producer), &daemon), "published camera/front\n", "{folder}");
            waiting.join().expect("the consumer's thread ends")
        });
        assert_eq!(started, "480 x 640 x 3 u8, first 128\n", "{folder}");
        daemon.client().delete("camera/front").unwrap();
        let expected: String =
            (0..5).map(|n| format!("frame {n}: {n}\n")).chain(["the stream has ended\n".into()]).collect();
        assert_eq!(ran(&mut kit.command(&stream), &daemon), expected, "{folder}");
        let expected: String = (0..3)
            .map(|n| format!("job {n}: {n} squared is {}\n", n * n))
            .chain(["the queue is empty\n".into()])
            .collect();
        assert_eq!(ran(&mut kit.command(&queue), &daemon), expected, "{folder}");
        daemon.client().clear("jobs").unwrap();
    }
}

#[test]
fn the_guides_code_compiles_and_runs() {
    let Some(kit) = Kit::get() else { return };
    let daemon = Daemon::start("");
    for (number, program) in capi::guide::programs(kit).into_iter().enumerate() {
        ran(&mut kit.command(&program), &daemon);
        println!("block {number} ran");
    }
}
