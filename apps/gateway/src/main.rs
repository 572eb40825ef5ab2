//! `tensorlend-gateway`: tensors of other machines' daemons.

fn main() -> std::process::ExitCode {
    tensorlend_gateway::main()
}
