//! Models that name files, and the confinement of the worker processes that load models.

mod common;

use common::{LONG, Runner, broker, client, draft, models};
use rten_onnx::onnx::{DataLocation, DataType, GraphProto, StringStringEntryProto, TensorProto};
use std::os::unix::fs::OpenOptionsExt;
use tensorlend::{Client, Error};
use tensorlend_model::{ModelOptions, ModelRequest, Models};

const SECRET: &[u8] = b"a key that only the runner's user may read";

/// Publishes a model whose output is the contents of the file at `location`, as far as the engine returns them. Returns
/// the output, or the reason of the refusal.
fn read_by_model(client: &Client, location: &str) -> Result<Vec<u8>, String> {
    let entry = |key: &str, value: &str| StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) };
    let length = SECRET.len().to_string();
    let stolen = TensorProto {
        name: Some("stolen".into()),
        dims: vec![SECRET.len() as i64],
        data_type: Some(DataType::UINT8),
        data_location: Some(DataLocation::EXTERNAL),
        external_data: vec![entry("location", location), entry("offset", "0"), entry("length", &length)],
        ..TensorProto::default()
    };
    let file = models::file(GraphProto {
        node: vec![models::node("Identity", &["stolen"], &["y"]), models::node("Identity", &["x"], &["z"])],
        initializer: vec![stolen],
        input: vec![models::value("x", DataType::FLOAT, &[models::Of(1)])],
        output: vec![
            models::value("y", DataType::UINT8, &[models::Of(SECRET.len() as i64)]),
            models::value("z", DataType::FLOAT, &[models::Of(1)]),
        ],
        ..GraphProto::default()
    });
    let models = Models::new(client);
    models.put("thief", &file, &ModelOptions::default()).unwrap();
    let request = ModelRequest::new().input("x", draft(client, &[1], &[1.0f32])).output("y");
    match models.open("thief").unwrap().run(request, LONG) {
        Ok(answer) => Ok(answer.get("y").unwrap().as_slice::<u8>().unwrap().to_vec()),
        Err(Error::Answer { why, .. }) => Err(why),
        Err(other) => panic!("{other}"),
    }
}

fn secret_is_not_read(options: &[&str]) {
    let broker = broker();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&path).unwrap();
    std::io::Write::write_all(&mut file, SECRET).unwrap();
    let mut runner = Runner::start_in(&broker, options, &[], Some(folder.path()));
    let client = client(&broker);
    let upwards = format!("{}{}", "../".repeat(32), path.strip_prefix("/").unwrap().display());
    for location in ["secret", path.to_str().unwrap(), &upwards] {
        let why =
            read_by_model(&client, location).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_err();
        assert!(why.contains("external data") && why.contains("onnx.save"), "{location}: {why}");
    }
    assert!(runner.is_running());
}

#[test]
fn rten_gives_a_model_no_file() {
    secret_is_not_read(&[]);
}

#[test]
fn onnx_runtime_gives_a_model_no_file() {
    let Some(library) = common::onnxruntime() else { return };
    secret_is_not_read(&["--onnxruntime", library.to_str().unwrap()]);
}

/// The supervisor passes the name to the worker on its command line.
#[test]
fn a_name_of_a_model_is_no_option() {
    let broker = broker();
    let _runner = Runner::start(&broker, &[]);
    let client = client(&broker);
    let models = Models::new(&client);
    for name in ["--version", "--onnxruntime=/nowhere.so"] {
        if models.put(name, &models::affine(2.0), &ModelOptions::default()).is_err() {
            continue;
        }
        let request = ModelRequest::new().input("x", draft(&client, &[1, 3], &[1.0f32; 3]));
        let answer = models.open(name).unwrap().run(request, LONG).unwrap();
        assert_eq!(answer.get("y").unwrap().as_slice::<f32>().unwrap(), [3.0; 3]);
    }
}
