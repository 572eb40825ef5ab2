//! Models that are added, run, replaced and removed while a runner runs.

#![allow(clippy::float_cmp, reason = "whole numbers and halves of this size are exact")]

mod common;

use common::{LONG, Runner, broker, client, draft, eventually, models, put};
use std::time::Duration;
use tensorlend::{DType, Error};
use tensorlend_model::{ModelAnswer, ModelOptions, ModelRequest, Models, Step};

fn why(error: Error) -> String {
    match error {
        Error::Answer { why, .. } => why,
        other => panic!("{other}"),
    }
}

#[test]
fn inputs_are_brought_along_or_named_and_outputs_answered_or_published() {
    let broker = broker();
    let _runner = Runner::start(&broker, &[]);
    let client = client(&broker);
    let models = Models::new(&client);
    models.put("pair", &models::pair(), &ModelOptions::default()).unwrap();
    put(&client, "left", &[2], &[5.0f32, 7.0]);
    put(&client, "count", &[1], &[21i64]);

    let mut model = models.open("pair").unwrap();
    let mixed = || {
        let right = draft(&client, &[2], &[1.0f32, 2.0]);
        ModelRequest::new().input_from("a", "left").input("b", right).input_from("count", "count")
    };
    let answer = model.run(mixed(), LONG).unwrap();
    let names: Vec<&str> = answer.iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["sum", "difference", "twice"]);
    assert_eq!(answer.get("sum").unwrap().as_slice::<f32>().unwrap(), [6.0, 9.0]);
    assert_eq!(answer.get("twice").unwrap().as_slice::<i64>().unwrap(), [42]);
    assert!(ModelAnswer::of(&answer).unwrap().versions.is_empty());

    let request = mixed().output("sum").output_to("difference", "between").output_to("twice", "count");
    let answer = model.run(request, LONG).unwrap();
    assert!(answer.get("difference").is_none() && answer.get("sum").is_some());
    let ModelAnswer { versions, run, queue } = ModelAnswer::of(&answer).unwrap();
    assert!(!run.is_zero() && !queue.is_zero());
    let between = client.get("between").unwrap();
    assert_eq!((between.as_slice::<f32>().unwrap(), between.version()), (&[4.0, 5.0][..], versions["difference"]));
    // State in a cycle: each output is the next run's input.
    assert_eq!(client.get("count").unwrap().as_slice::<i64>().unwrap(), [42]);

    put(&client, "right", &[2], &[0.0f32, 0.0]);
    let inputs = [("a", "left"), ("b", "right"), ("count", "count")];
    models.run("pair", &inputs, &[("sum", "total")], LONG).unwrap();
    assert_eq!(client.get("total").unwrap().as_slice::<f32>().unwrap(), [5.0, 7.0]);
}

#[test]
fn inputs_that_are_brought_along_may_be_said_by_their_places() {
    let broker = broker();
    let _runner = Runner::start(&broker, &[]);
    let client = client(&broker);
    let models = Models::new(&client);
    models.put("pair", &models::pair(), &ModelOptions::default()).unwrap();
    put(&client, "count", &[1], &[21i64]);
    let two = |a: f32, b: f32| draft(&client, &[2], &[a, b]);
    let mut model = models.open("pair").unwrap();
    let request = ModelRequest::new().input("#1", two(1.0, 2.0)).input("a", two(5.0, 7.0)).input_from("#2", "count");
    let answer = model.run(request.output("#1"), LONG).unwrap();
    assert_eq!(answer.get("#1").unwrap().as_slice::<f32>().unwrap(), [4.0, 5.0]);

    let request = ModelRequest::new().input("#0", two(1.0, 2.0)).input("a", two(5.0, 7.0));
    let twice = why(model.run(request, LONG).unwrap_err());
    assert!(twice.contains("are one input"), "{twice}");
    let request = ModelRequest::new().input("#2", draft(&client, &[1], &[1i64])).input_from("count", "count");
    let both = why(model.run(request, LONG).unwrap_err());
    assert!(both.contains(r##""#2" is brought along, and named"##), "{both}");
    let request = ModelRequest::new().input("#3", two(1.0, 2.0));
    let beyond = why(model.run(request, LONG).unwrap_err());
    assert!(beyond.contains(r##"no input "#3""##), "{beyond}");
}

#[test]
fn a_request_without_the_library_is_a_dataset_of_inputs() {
    let broker = broker();
    let _runner = Runner::start(&broker, &[]);
    let client = client(&broker);
    let models = Models::new(&client);
    models.put("affine", &models::affine(2.0), &ModelOptions::default()).unwrap();
    let mut caller = client.caller("model/affine").open().unwrap();
    let request = client.dataset().add("x", draft(&client, &[1, 3], &[1.0f32, 2.0, 3.0])).unwrap();
    let answer = caller.call(request, LONG).unwrap();
    assert_eq!(answer.as_dataset().unwrap().get("y").unwrap().as_slice::<f32>().unwrap(), [3.0, 5.0, 7.0]);
    // With one input, a tensor alone will do.
    let answer = caller.call(draft(&client, &[2, 3], &[0.0f32; 6]), LONG).unwrap();
    assert_eq!(answer.as_dataset().unwrap().get("y").unwrap().shape(), [2, 3]);
}

#[test]
fn what_does_not_fit_is_refused_with_both_shapes() {
    let broker = broker();
    let _runner = Runner::start(&broker, &[]);
    let client = client(&broker);
    let models = Models::new(&client);
    models.put("pair", &models::pair(), &ModelOptions::default()).unwrap();
    put(&client, "two", &[2], &[1.0f32; 2]);
    put(&client, "three", &[3], &[1.0f32; 3]);
    put(&client, "double", &[2], &[1.0f64; 2]);
    put(&client, "count", &[1], &[1i64 << 40]);
    let mut model = models.open("pair").unwrap();
    let mut refused = |a: &str, b: &str, count: &str| {
        let request = ModelRequest::new().input_from("a", a).input_from("b", b).input_from("count", count);
        why(model.run(request, LONG).unwrap_err())
    };
    let uneven = refused("two", "three", "count");
    assert!(uneven.contains("the model takes f32 [size], and f32 [3] was given"), "{uneven}");
    let dtype = refused("two", "double", "count");
    assert!(dtype.contains("the model takes f32 [size], and f64 [2] was given"), "{dtype}");
    let missing = refused("two", "nothing", "count");
    assert!(missing.contains(r#"input "b""#) && missing.contains(r#""nothing""#), "{missing}");
    let large = refused("two", "two", "count");
    assert!(large.contains("1099511627776") && large.contains("32 bits"), "{large}");

    let unknown = model.run(ModelRequest::new().input_from("c", "two"), LONG);
    assert!(why(unknown.unwrap_err()).contains(r#"it has ["a", "b", "count"]"#));
    let less = model.run(ModelRequest::new().input_from("a", "two"), LONG);
    assert!(why(less.unwrap_err()).contains(r#"input "b" is missing"#));
    let twice = ModelRequest::new().input("a", draft(&client, &[2], &[1.0f32; 2])).input_from("a", "two");
    assert!(why(model.run(twice, LONG).unwrap_err()).contains("too"));
    let output = ModelRequest::new().input_from("a", "two").input_from("b", "two").input_from("count", "count");
    assert!(why(model.run(output.output("y"), LONG).unwrap_err()).contains("no output"));
}

#[test]
fn models_are_replaced_and_removed() {
    let broker = broker();
    let _runner = Runner::start(&broker, &["--model", "a*"]);
    let client = client(&broker);
    let models = Models::new(&client);
    put(&client, "x", &[1, 3], &[1.0f32, 2.0, 3.0]);
    let run = |name: &str, timeout| {
        let answer = models.run(name, &[("x", "x")], &[], timeout)?;
        Ok::<f32, Error>(answer.get("y").unwrap().as_slice::<f32>()?[0])
    };
    assert!(run("affine", LONG).unwrap_err().is_not_found());
    models.put("affine", &models::affine(2.0), &ModelOptions::default()).unwrap();
    assert_eq!(run("affine", LONG).unwrap(), 3.0);
    models.put("affine", &models::affine(10.0), &ModelOptions::default()).unwrap();
    eventually("the new model", || run("affine", LONG).unwrap() == 11.0);

    // One that is kept finds the next runner by itself.
    let mut kept = models.open("affine").unwrap();
    for factor in [3.0, 4.0] {
        models.put("affine", &models::affine(factor), &ModelOptions::default()).unwrap();
        eventually("the next model", || {
            let answer = kept.run(ModelRequest::new().input_from("x", "x"), LONG).unwrap();
            answer.get("y").unwrap().as_slice::<f32>().unwrap()[0] == factor + 1.0
        });
    }
    models.put("other", &models::affine(2.0), &ModelOptions::default()).unwrap();
    assert!(run("other", Some(Duration::from_millis(600))).unwrap_err().is_timeout());

    assert!(models.delete("affine").unwrap());
    eventually("its end", || client.list("model/affine/*").unwrap().is_empty());
    assert!(run("affine", LONG).unwrap_err().is_not_found());
    assert_eq!(models.list("*").unwrap().iter().map(|m| m.name.as_str()).collect::<Vec<_>>(), ["other"]);
}

#[test]
fn requests_of_many_are_run_together_and_each_gets_its_own() {
    let broker = broker();
    let _runner = Runner::start(&broker, &[]);
    let client = client(&broker);
    let models = Models::new(&client);
    let options = ModelOptions { batch_max: 16, batch_wait_ms: 500.0, ..ModelOptions::default() };
    models.put("affine", &models::affine(2.0), &options).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (broker, barrier) = (&broker, &client);
            scope.spawn(move || {
                let client = common::client(broker);
                let mut model = Models::new(&client).open("affine").unwrap();
                for round in 0..6u32 {
                    let rows = 1 + (thread + round) as usize % 3;
                    let value = (thread * 100 + round) as f32;
                    let x = draft(&client, &[rows as u64, 3], &vec![value; rows * 3]);
                    let answer = model.run(ModelRequest::new().input("x", x), LONG).unwrap();
                    let y = answer.get("y").unwrap();
                    assert_eq!(y.shape(), [rows, 3]);
                    assert!(y.as_slice::<f32>().unwrap().iter().all(|&y| y == 2.0 * value + 1.0));
                }
                let _ = barrier;
            });
        }
    });
    eventually("statistics", || {
        models.statistics("affine").unwrap().iter().any(|of| {
            of.requests == 24 && of.failures == 0 && of.runs < 24 && of.batches.iter().skip(1).any(|&count| count > 0)
        })
    });
}

#[test]
fn two_runners_share_a_model_and_one_goes_on_alone() {
    let broker = broker();
    let mut runners = [Runner::start(&broker, &[]), Runner::start(&broker, &[])];
    let client = client(&broker);
    let models = Models::new(&client);
    models.put("affine", &models::affine(2.0), &ModelOptions::default()).unwrap();
    put(&client, "x", &[1, 3], &[1.0f32; 3]);
    eventually("two servers", || client.list("model/affine/.server/*").unwrap().len() == 2);
    let mut handles: Vec<_> = (0..4).map(|_| models.open("affine").unwrap()).collect();
    let mut all = || {
        for model in &mut handles {
            let answer = model.run(ModelRequest::new().input_from("x", "x"), LONG).unwrap();
            assert_eq!(answer.get("y").unwrap().as_slice::<f32>().unwrap(), [3.0; 3]);
        }
    };
    all();
    eventually("statistics of both", || {
        models.statistics("affine").unwrap().iter().filter(|of| of.requests == 2).count() == 2
    });
    runners[0].kill();
    all();
    all();
    // The worker of a runner that has ended ends by itself.
    eventually("one server", || client.list("model/affine/.server/*").unwrap().len() == 1);
    all();
}

#[test]
fn steps_before_a_model_are_named_in_the_request() {
    let broker = broker();
    let _runner = Runner::start(&broker, &[]);
    let client = client(&broker);
    let models = Models::new(&client);
    models.put("affine", &models::affine(1.0), &ModelOptions::default()).unwrap();
    // Two pixels of three channels.
    put(&client, "image", &[1, 2, 3], &[0u8, 51, 102, 255, 204, 153]);
    let mut model = models.open("affine").unwrap();
    let steps = [Step::CenterCrop { width: 1, height: 1 }, Step::Scale(1.0 / 51.0)];
    let request = || ModelRequest::new().input_from("x", "image");
    // An image has three dimensions, and the model takes two.
    let wrong = why(model.run(request().prepare("x", &steps), LONG).unwrap_err());
    assert!(wrong.contains("the model takes f32 [N, 3], and f32 [1, 1, 3] was given"), "{wrong}");
    let wrong = why(model.run(request().prepare("x", &[Step::Chw, Step::Chw]), LONG).unwrap_err());
    assert!(wrong.contains("step 2"), "{wrong}");
    let wrong = why(model.run(request().prepare("z", &steps), LONG).unwrap_err());
    assert!(wrong.contains(r#"no input "z""#), "{wrong}");
}

#[test]
fn a_tensor_with_strides_is_put_in_order() {
    let broker = broker();
    let _runner = Runner::start(&broker, &[]);
    let client = client(&broker);
    let models = Models::new(&client);
    models.put("affine", &models::affine(1.0), &ModelOptions::default()).unwrap();
    let spec = tensorlend::TensorSpec { strides: Some(vec![1, 2]), ..tensorlend::TensorSpec::new(DType::F32, &[2, 3]) };
    let mut turned = client.create_spec(spec).unwrap();
    turned.as_mut_slice::<f32>().unwrap().copy_from_slice(&[0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
    turned.publish("turned").unwrap();
    // One row, said a thousand million times.
    let spec = tensorlend::TensorSpec {
        strides: Some(vec![0, 1]),
        ..tensorlend::TensorSpec::new(DType::F32, &[1_000_000_000, 3])
    };
    client.create_spec(spec).unwrap().publish("repeated").unwrap();
    let large = models.run("affine", &[("x", "repeated")], &[], LONG).unwrap_err();
    assert!(why(large).contains("row-major"));
    let answer = models.run("affine", &[("x", "turned")], &[], LONG).unwrap();
    assert_eq!(answer.get("y").unwrap().as_slice::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
}

/// Operators of old networks, which the engine that is built in has not: they are put together from those that it has.
#[test]
fn dropout_and_local_response_normalization() {
    const CHANNELS: usize = 5;
    const REST: usize = 2;
    let broker = broker();
    let _runner = Runner::start(&broker, &[]);
    let client = client(&broker);
    let models = Models::new(&client);
    let x: Vec<f32> = (0..2 * CHANNELS * REST).map(|i| (i * 7 % 11) as f32 - 4.0).collect();
    for (name, size, alpha, beta, bias) in
        [("odd", 3, 0.5, 0.75, 2.0), ("even", 4, 1.5, 0.5, 1.0), ("one", 1, 1e-4, 0.75, 1.0)]
    {
        models.put(name, &models::normalized(size as i64, alpha, beta, bias), &ModelOptions::default()).unwrap();
        let input = draft(&client, &[2, CHANNELS as u64, REST as u64], &x);
        let answer = models.open(name).unwrap().run(ModelRequest::new().input("x", input), LONG).unwrap();
        let y = answer.get("y").unwrap();
        assert_eq!(y.shape(), [2, CHANNELS, REST]);
        // As the operator is defined.
        let wanted = (0..x.len()).map(|at| {
            let (first, channel, place) = (at / (CHANNELS * REST), at / REST % CHANNELS, at % REST);
            let near = channel.saturating_sub((size - 1) / 2)..=(channel + size / 2).min(CHANNELS - 1);
            let squares: f32 = near.map(|near| x[first * CHANNELS * REST + near * REST + place].powi(2)).sum();
            x[at] / (bias + alpha / size as f32 * squares).powf(beta)
        });
        for (found, wanted) in y.as_slice::<f32>().unwrap().iter().zip(wanted) {
            assert!((found - wanted).abs() < 1e-5, "{name}: {found} is not {wanted}");
        }
    }
}

/// Before opset 13, Softmax and LogSoftmax normalize over all dimensions from `axis` (default 1) on; since then, over `axis`
/// (default -1) alone.
#[test]
fn softmax_of_both_definitions() {
    let broker = broker();
    let _runner = Runner::start(&broker, &[]);
    let client = client(&broker);
    let models = Models::new(&client);
    let mut count = 0;
    let mut check = |op: &str, opset: i64, axis: Option<i64>, shape: &[u64], wanted: &[f32]| {
        count += 1;
        let name = format!("model{count}");
        models.put(&name, &models::softmax(op, opset, axis, shape.len()), &ModelOptions::default()).unwrap();
        // The exponentials are 1, 2, 3 and so forth.
        let x: Vec<f32> = (1..=wanted.len()).map(|number| (number as f32).ln()).collect();
        let request = ModelRequest::new().input("x", draft(&client, shape, &x));
        let answer = models.open(&name).unwrap().run(request, LONG).unwrap();
        let y = answer.get("y").unwrap();
        assert!(y.shape().iter().map(|&size| size as u64).eq(shape.iter().copied()), "{:?}", y.shape());
        for (found, wanted) in y.as_slice::<f32>().unwrap().iter().zip(wanted) {
            assert!((found - wanted).abs() < 1e-5, "{op} {opset} {axis:?} {shape:?}: {found} is not {wanted}");
        }
    };
    let all = [0.1, 0.2, 0.3, 0.4];
    let rows = [1.0 / 3.0, 2.0 / 3.0, 3.0 / 7.0, 4.0 / 7.0];
    let columns = [1.0 / 4.0, 2.0 / 6.0, 3.0 / 4.0, 4.0 / 6.0];
    check("Softmax", 9, None, &[1, 3, 1, 1], &[1.0 / 6.0, 2.0 / 6.0, 3.0 / 6.0]);
    check("Softmax", 9, Some(1), &[1, 2, 2], &all);
    check("Softmax", 9, Some(0), &[2, 2], &all);
    check("Softmax", 12, Some(2), &[1, 2, 2], &rows);
    check("Softmax", 11, Some(-1), &[1, 2, 2], &rows);
    let two = [0.1, 0.2, 0.3, 0.4, 5.0 / 26.0, 6.0 / 26.0, 7.0 / 26.0, 8.0 / 26.0];
    check("Softmax", 11, Some(-2), &[2, 2, 2], &two);
    check("LogSoftmax", 9, None, &[1, 2, 2], &all.map(f32::ln));
    check("Softmax", 13, Some(1), &[1, 2, 2], &columns);
    check("Softmax", 13, None, &[1, 2, 2], &rows);
    check("LogSoftmax", 13, None, &[1, 2, 2], &rows.map(f32::ln));
}
