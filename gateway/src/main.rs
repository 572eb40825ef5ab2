//! `tensorlend-gateway`: tensors of other machines' brokers.

fn main() -> std::process::ExitCode {
    tensorlend_gateway::main()
}
