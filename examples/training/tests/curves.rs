//! A producer and trainers, as processes: training on lent data gives the same result as on the same samples in a
//! trainer's own memory.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tensorlend::{Client, DType};
use tensorlend_daemon::Embedded;
use tensorlend_training::training::Outcome;

fn broker() -> Embedded {
    tensorlend_daemon::embedded().expect("a broker starts")
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../data")
}

fn produce(broker: &Embedded, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_training-producer"));
    command.arg("--socket").arg(broker.socket()).args(arguments);
    tensorlend_tests::run(&mut command)
}

fn mlp(arguments: &[&str]) -> Output {
    tensorlend_tests::run(Command::new(env!("CARGO_BIN_EXE_training-mlp")).args(arguments))
}

fn outcome(arguments: &[&str]) -> Outcome {
    let done = mlp(&[arguments, &["--json"]].concat());
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).expect("an outcome")
}

/// Runs the same training on lent data and on the files in the trainer's own memory.
fn both(broker: &Embedded, folder: &Path, arguments: &[&str]) -> [Outcome; 2] {
    let socket = broker.socket().to_str().unwrap();
    let lent = outcome(&[&["--from", "lent", "--socket", socket], arguments].concat());
    let owned = outcome(&[&["--from", "owned", "--folder", folder.to_str().unwrap()], arguments].concat());
    assert_eq!(lent.losses, owned.losses, "{arguments:?}");
    assert_eq!(lent.known, owned.known, "{arguments:?}");
    [lent, owned]
}

#[test]
fn irises_teach_the_same_from_lent_memory() {
    let broker = broker();
    let done = produce(&broker, &["--data", data().to_str().unwrap(), "--batch", "32,64"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let iris = ["--set", "iris", "--hidden", "5", "--rate", "0.05"];
    let [whole, _] = both(&broker, &data(), &[&iris[..], &["--epochs", "1000"]].concat());
    assert_eq!(whole.losses.len(), 1000);
    assert!(whole.losses[999] < whole.losses[0] / 2.0, "{} to {}", whole.losses[0], whole.losses[999]);
    assert!(whole.known.1 == 30 && whole.known.0 >= 25, "{:?}", whole.known);
    // The order of batches follows from the seed, and the last batch has fewer rows.
    let [cut, _] = both(&broker, &data(), &[&iris[..], &["--epochs", "20", "--batch", "32"]].concat());
    assert_eq!(cut.losses.len(), 20 * 4);
    let [other, _] = both(&broker, &data(), &[&iris[..], &["--epochs", "20", "--batch", "32", "--seed", "2"]].concat());
    assert_ne!(cut.losses, other.losses);
}

#[test]
fn digits_teach_the_same_however_weights_begin() {
    let broker = broker();
    assert!(produce(&broker, &["--data", data().to_str().unwrap()]).status.success());
    let mut known = Vec::new();
    for init in ["kaiming", "xavier", "normal"] {
        let arguments = ["--set", "digits", "--epochs", "10", "--batch", "64", "--init", init];
        known.push(both(&broker, &data(), &arguments)[0].known);
    }
    assert!(known.iter().all(|known| known.1 == 297), "{known:?}");
    assert!(known[0].0 > 240 && known[1].0 > 240, "{known:?}");
}

#[test]
fn files_of_mnists_format_teach_the_same() {
    let broker = broker();
    let folder = tempfile::tempdir().unwrap();
    write_idx(folder.path());
    let folder = folder.path().to_str().unwrap();
    assert!(produce(&broker, &["--mnist", folder, "--batch", "128"]).status.success());
    let [lent, _] = both(&broker, Path::new(folder), &["--epochs", "8", "--batch", "128"]);
    assert!(lent.known.1 == 297 && lent.known.0 > 220, "{:?}", lent.known);
}

/// Writes the digits of `examples/data` as MNIST's files.
fn write_idx(folder: &Path) {
    let set = tensorlend_training::files::digits(&data()).unwrap();
    for (prefix, samples) in [("train", &set.train), ("t10k", &set.test)] {
        let count = samples.len() as u32;
        let (features, labels) = samples.rows(0, samples.len());
        let idx = |shape: &[u32], bytes: Vec<u8>| {
            let sizes = shape.iter().flat_map(|size| size.to_be_bytes());
            [0, 0, 8, shape.len() as u8].into_iter().chain(sizes).chain(bytes).collect::<Vec<u8>>()
        };
        let pictures = idx(&[count, 8, 8], features.iter().map(|ink| (ink * 255.0) as u8).collect());
        let labels = idx(&[count], labels.iter().map(|&label| label as u8).collect());
        std::fs::write(folder.join(format!("{prefix}-images-idx3-ubyte")), pictures).unwrap();
        std::fs::write(folder.join(format!("{prefix}-labels-idx1-ubyte")), labels).unwrap();
    }
}

#[test]
fn the_whole_of_mnist_teaches_the_same() {
    let Some(folder) = std::env::var_os("TENSORLEND_MNIST").map(PathBuf::from) else {
        return tensorlend_tests::skip(
            "TENSORLEND_MNIST names no folder with MNIST's files (examples/training/README.md says where they are)",
        );
    };
    let broker = broker();
    let done = produce(&broker, &["--mnist", folder.to_str().unwrap(), "--batch", "1024"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let [lent, _] = both(&broker, &folder, &["--epochs", "1", "--batch", "1024"]);
    assert!(lent.known.1 == 10_000 && lent.known.0 > 8_000, "{:?}", lent.known);
}

#[test]
fn what_is_missing_or_strange_is_said() {
    let broker = broker();
    let socket = broker.socket().to_str().unwrap();
    let fails = |arguments: &[&str], why: &str| {
        let done = mlp(arguments);
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.code() == Some(1) && said.contains(why), "{arguments:?}: {said}");
    };
    fails(&["--socket", socket, "--wait-s", "0"], "mnist/train");
    fails(&["--from", "owned"], "--folder");
    fails(&["--from", "owned", "--folder", "/nowhere"], "train-images-idx3-ubyte");
    fails(&["--from", "owned", "--set", "roses", "--folder", "/nowhere"], "roses");
    // Other clients may write to the namespace.
    let client = Client::builder().socket(broker.socket()).connect().unwrap();
    let put = |name: &str, features: &[u64], labels: &[u64]| {
        let features = client.create(DType::F32, features).unwrap();
        let labels = client.create(DType::I64, labels).unwrap();
        let dataset = client.dataset().add("features", features).unwrap().add("labels", labels).unwrap();
        dataset.publish(name).unwrap();
    };
    let lent = ["--socket", socket, "--epochs", "1"];
    put("mnist/train", &[4, 2], &[3]);
    fails(&lent, "one label for each row");
    put("mnist/train", &[4, 2, 2], &[4]);
    fails(&lent, "two dimensions");
    put("mnist/train", &[4, 2], &[4]);
    put("mnist/test", &[4, 2], &[4]);
    fails(&[&lent[..], &["--batch", "2"]].concat(), "mnist/train/2/");
    put("mnist/train/2/0", &[2, 2], &[2]);
    put("mnist/train/2/1", &[2, 3], &[2]);
    fails(&[&lent[..], &["--batch", "2"]].concat(), "mnist/train/2/1");
    put("mnist/test", &[4, 3], &[4]);
    fails(&lent, "rows of");
    let done = produce(&broker, &["--mnist", "/nowhere"]);
    assert!(done.status.code() == Some(1) && String::from_utf8_lossy(&done.stderr).contains("/nowhere"));
}
