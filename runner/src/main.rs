//! `tensorlend-runner`: runs ONNX models beside the tensors that a broker lends.

fn main() -> std::process::ExitCode {
    tensorlend_runner::main()
}
