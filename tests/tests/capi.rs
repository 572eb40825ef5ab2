//! The C library: its header, its binary interface, and programs in C and C++ that are built with it and run against a
//! daemon: on their own, under the sanitizers and under valgrind.

mod capi {
    pub mod abi;
    pub mod built;
    pub mod guide;
    pub mod header;
}

use capi::built::{Kit, Language, Link};
use std::path::Path;
use std::process::Command;
use tensorlend_tests::{Daemon, run, skip_without};

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
fn the_header_is_what_the_code_says_and_what_programs_rest_on() {
    capi::header::compare();
    capi::abi::compare();
}

#[test]
fn a_change_that_breaks_programs_is_noticed() {
    capi::abi::changes_are_noticed();
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
        let program = kit.compile(Language::C, &[&source("all.c")], flags, link);
        assert_eq!(ran(&mut kit.command(&program), &daemon).lines().last(), Some("all is well"), "{link:?}");
    }
    // The program's clients hold no leases any more.
    assert_eq!(daemon.client().leased().unwrap(), 0);
}

#[test]
fn every_call_works_from_cpp() {
    let Some(kit) = Kit::get() else { return };
    let daemon = Daemon::start("");
    let program = kit.compile(Language::Cpp, &[&source("all.cpp")], &[], Link::Shared);
    assert_eq!(ran(&mut kit.command(&program), &daemon).lines().last(), Some("all is well"));
}

#[test]
fn the_sanitizers_find_nothing() {
    let Some(kit) = Kit::get() else { return };
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];
    if !kit.can_link(&flags) {
        return tensorlend_tests::skip("the compiler has no AddressSanitizer (apt-get install libgcc-12-dev)");
    }
    let daemon = Daemon::start("");
    for (language, name) in [(Language::C, "all.c"), (Language::Cpp, "all.cpp")] {
        for link in [Link::Shared, Link::Static] {
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
    let program = kit.compile(Language::C, &[&source("all.c")], &["-g"], Link::Shared);
    let done = run(&mut checked(&program));
    let (out, said) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && out.ends_with("all is well\n"), "{out}\n{said}");
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
        let (producer, consumer, stream) = (built("producer"), built("consumer"), built("stream"));
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
