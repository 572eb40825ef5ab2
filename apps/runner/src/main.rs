//! The program `tensorlend-runner`.

fn main() -> std::process::ExitCode {
    tensorlend_runner::main()
}
