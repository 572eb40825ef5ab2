//! Programs as users write them: common uses of the library that follow its documentation. No size needs a cast.
#![allow(clippy::float_cmp, reason = "the numbers are small integers")]

use ndarray::Array2;
use std::time::{Duration, Instant};
use tensorlend::{Client, DType, Error, Length, Lifetime, Policy, Result, Shaped, Start, Version};
use tensorlend_daemon::Embedded;

/// A timeout that only a failure reaches.
const LONG: Duration = Duration::from_mins(1);

fn daemon() -> Embedded {
    tensorlend_daemon::embedded().expect("an embedded daemon starts")
}

fn connect(daemon: &Embedded) -> Client {
    Client::builder().socket(daemon.socket()).connect().expect("a client connects")
}

/// Runs two programs, each with a client of its own.
fn both(one: impl FnOnce(Client) -> Result<()> + Send, other: impl FnOnce(Client) -> Result<()> + Send) {
    let daemon = daemon();
    let (first, second) = (connect(&daemon), connect(&daemon));
    std::thread::scope(|scope| {
        let running = scope.spawn(|| one(first));
        other(second).unwrap();
        running.join().unwrap().unwrap();
    });
}

#[test]
fn a_loader_feeds_a_trainer_with_batches() {
    const BATCHES: usize = 10;
    let (rows, width) = (32, 8);
    both(
        |client| {
            let batches = client.stream("batches").capacity(4).policy(Policy::Block).open()?;
            batches.wait_subscribers(1, LONG)?;
            for number in 0..BATCHES {
                let features = vec![number as f32; rows * width];
                let features = client.create_from(&Shaped::new(&features, (rows, width))?)?;
                let labels = client.create_from(&vec![number as i64; rows])?;
                batches.send(client.dataset().add("features", features)?.add("labels", labels)?)?;
            }
            Ok(())
        },
        |client| {
            let mut seen = 0;
            let mut batches = client.subscription("batches").start_at(Start::Oldest).wait(LONG).open()?;
            for batch in &mut batches {
                let batch = batch?;
                let batch = batch.dataset()?;
                let (features, labels) = (batch.tensor("features")?, batch.tensor("labels")?);
                let [rows, width] = *features.shape() else { panic!("{:?}", features.shape()) };
                for (row, label) in features.as_slice::<f32>()?.chunks(width).zip(labels.as_slice::<i64>()?) {
                    assert!(row.iter().all(|value| *value == *label as f32));
                }
                seen += rows;
            }
            assert_eq!(seen, BATCHES * rows);
            Ok(())
        },
    );
}

#[test]
fn a_camera_never_waits_for_its_viewer() {
    let (height, width) = (48u32, 64u32);
    both(
        |client| {
            let camera = client.stream("camera").capacity(2).policy(Policy::DropOldest).open()?;
            camera.wait_subscribers(1, LONG)?;
            for number in 0..=100 {
                let mut frame = client.create(DType::U8, (height, width, 3))?;
                frame.as_mut_slice::<u8>()?.fill(number);
                camera.send(frame)?;
            }
            Ok(())
        },
        |client| {
            let mut frames = client.subscription("camera").wait(LONG).open()?;
            loop {
                let frame = frames.recv_timeout(LONG)?;
                let image = frame.tensor()?;
                assert_eq!(image.shape(), [48, 64, 3]);
                let (rows, columns) = (image.shape()[0], image.shape()[1]);
                let middle = image.as_slice::<u8>()?[(rows / 2 * columns + columns / 2) * 3];
                assert_eq!(u64::from(middle), frame.sequence());
                if middle == 100 {
                    return Ok(());
                }
            }
        },
    );
}

#[test]
fn a_request_gets_its_response() {
    both(
        |client| {
            let mut server = client.serve("norm").open()?;
            for _ in 0..2 {
                let call = server.recv_timeout(LONG)?;
                let squares: f32 = call.tensor()?.as_slice::<f32>()?.iter().map(|x| x * x).sum();
                if squares == 0.0 {
                    call.fail("the vector is zero")?;
                } else {
                    call.respond(client.create_from(&[squares.sqrt()])?)?;
                }
            }
            Ok(())
        },
        |client| {
            let mut norm = client.caller("norm").open()?;
            let answer = norm.call(client.create_from(&[3.0f32, 4.0])?, LONG)?;
            assert_eq!(answer.tensor()?.as_slice::<f32>()?, [5.0]);
            let refused = norm.call(client.create_from(&[0.0f32])?, LONG).unwrap_err();
            assert!(matches!(&refused, Error::Answer { why, .. } if why == "the vector is zero"), "{refused}");
            Ok(())
        },
    );
}

#[test]
fn changes_of_several_settings_are_watched() {
    both(
        |client| {
            client.put("settings/gain", &[2.0f32])?;
            client.put("settings/mode", &[1u8])?;
            Ok(())
        },
        |client| {
            let watch = client.watch();
            for name in ["settings/gain", "settings/mode"] {
                watch.add(name, None);
            }
            while !watch.is_empty() {
                for (name, version) in watch.wait(LONG)? {
                    assert!(version.is_some() && client.exists(&name)?);
                }
            }
            assert_eq!(client.get("settings/gain")?.as_slice::<f32>()?, [2.0]);
            Ok(())
        },
    );
}

#[test]
fn workers_collect_results_in_a_list() {
    both(
        |client| {
            for episode in 0..5 {
                client.append("returns", client.create_from(&[f64::from(episode), 0.5])?)?;
            }
            Ok(())
        },
        |client| {
            client.wait_length("returns", Length::AtLeast(5), LONG)?;
            let mut sum = 0.0;
            for value in client.get_all("returns")? {
                sum += value.tensor()?.as_slice::<f64>()?[0];
            }
            assert_eq!(sum, 10.0);
            Ok(())
        },
    );
}

#[test]
fn a_tensor_is_saved_and_comes_back_with_its_shape() {
    let (daemon, folder) = (daemon(), tempfile::tempdir().unwrap());
    let (client, file) = (connect(&daemon), folder.path().join("weights.f32"));
    client.put("weights", &Shaped::new(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], (2, 3)).unwrap()).unwrap();

    let weights = client.get("weights").unwrap();
    let mut bytes = vec![0; weights.nbytes()];
    weights.copy_to(&mut bytes).unwrap();
    std::fs::write(&file, &bytes).unwrap();

    let bytes = std::fs::read(&file).unwrap();
    let mut restored = client.create(weights.dtype(), weights.shape()).unwrap();
    restored.copy_from(&bytes).unwrap();
    restored.publish("restored").unwrap();
    assert_eq!(client.get("restored").unwrap().as_slice::<f32>().unwrap(), weights.as_slice::<f32>().unwrap());
}

#[test]
fn actors_take_new_weights_until_a_deadline() {
    both(
        |client| {
            for step in 1..=3 {
                client.put("weights", &[step as f32; 16])?;
            }
            Ok(())
        },
        |client| {
            let deadline = Instant::now() + LONG;
            let mut seen = Version::NONE;
            loop {
                let weights = client.wait_newer("weights", seen, deadline)?;
                seen = weights.version();
                if weights.as_slice::<f32>()? == [3.0; 16] {
                    break;
                }
            }
            let none = client.wait_newer("weights", seen, Duration::from_millis(20)).unwrap_err();
            assert!(none.is_timeout() && none.to_string().contains("after 20 ms"), "{none}");
            Ok(())
        },
    );
}

#[test]
fn arrays_of_ndarray_go_in_and_come_out() {
    let daemon = daemon();
    let client = connect(&daemon);
    let grid = Array2::from_shape_fn((3, 4), |(row, column)| (row * 4 + column) as f64);
    client.put("grid", &grid).unwrap();
    let lease = client.get("grid").unwrap();
    let view = lease.ndarray::<f64>().unwrap();
    assert_eq!(view, grid.clone().into_dyn());
    assert_eq!(lease.shape(), grid.shape());

    let mut doubled = client.create(DType::F64, grid.shape()).unwrap();
    doubled.ndarray_mut::<f64>().unwrap().assign(&(&view * 2.0));
    doubled.publish("doubled").unwrap();
    assert_eq!(client.get("doubled").unwrap().ndarray::<f64>().unwrap()[[2, 3]], 22.0);
}

#[test]
fn the_last_poses_of_a_robot_stay_readable() {
    let daemon = daemon();
    let client = connect(&daemon);
    let poses = client.keep("pose", 4).unwrap();
    for step in 0..10 {
        poses.publish(client.create_from(&[step as f32, 0.0, 0.0]).unwrap()).unwrap();
    }
    let kept = client.versions("pose").unwrap();
    let steps: Vec<f32> = kept.iter().map(|pose| pose.tensor().unwrap().as_slice::<f32>().unwrap()[0]).collect();
    assert_eq!(steps, [6.0, 7.0, 8.0, 9.0]);
}

#[test]
fn robots_appear_in_a_listing_while_they_live() {
    let daemon = daemon();
    let (viewer, robot) = (connect(&daemon), connect(&daemon));
    robot.put_for("robot/3/state", &[0.0f32; 6], Lifetime::EPHEMERAL).unwrap();
    let found = viewer.list("robot/*/state").unwrap();
    assert_eq!((found.len(), found[0].name.as_str(), found[0].lifetime.ephemeral), (1, "robot/3/state", true));
    let state = viewer.wait_for("robot/3/state", LONG).unwrap();
    drop(robot);
    while viewer.exists("robot/3/state").unwrap() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(state.as_slice::<f32>().unwrap(), [0.0; 6]); // the lease outlives the robot
}
