//! `tensorlend-runner`: runs ONNX models on the machine of the tensors.

fn main() -> std::process::ExitCode {
    tensorlend_runner::main()
}
