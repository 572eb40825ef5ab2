//! Processes that the tests start in numbers, and kill. The first argument selects the work; each dies with its parent.

use std::io::{BufRead, Write};
use tensorlend_tests::history::work::Work;

fn main() -> std::process::ExitCode {
    tensorlend_tests::orders::end_with_parent();
    #[cfg(feature = "crash-points")]
    tensorlend_os::crash::arm();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let known = match arguments.split_first() {
        Some((what, rest)) => match what.as_str() {
            "across" => tensorlend_tests::across::run(rest),
            "history" => Work::parse(rest).map(|work| work.run(wait_for_a_word)),
            "everything" => tensorlend_tests::everything::run(rest),
            "children" => tensorlend_tests::everything::children(rest),
            "start" => tensorlend_tests::background::run_worker(rest),
            "cold" => tensorlend_tests::cold::run(rest),
            "bystander" => tensorlend_tests::witness::run(rest),
            "chaos" => tensorlend_tests::chaos::run(rest),
            "sharer" => tensorlend_tests::sharer::run(rest),
            "queue" => tensorlend_tests::queued::run(rest),
            "points" => {
                points();
                Some(())
            }
            _ => None,
        },
        None => None,
    };
    if known.is_some() {
        return std::process::ExitCode::SUCCESS;
    }
    eprintln!("tensorlend-worker: no such work: {arguments:?}");
    std::process::ExitCode::from(2)
}

/// Prints that it is ready, and waits for the order to begin.
fn wait_for_a_word() {
    println!("ready");
    let _ = std::io::stdout().flush();
    let _ = std::io::stdin().lock().lines().next();
}

/// Prints the crash points of this build, one per line; none in an ordinary build.
fn points() {
    #[cfg(feature = "crash-points")]
    for point in tensorlend_layout::crash::POINTS {
        println!("{point}");
    }
}
