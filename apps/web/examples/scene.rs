//! A daemon with activity for the tests of the page: tensors and streams with hostile names, long-lived leases, a
//! subscriber that lags. It prints its socket, then executes commands: `put NAME`, `join LABEL`, `leave`, `crowd` (200
//! clients with 50 names each), `leaks` (five clients that keep old values of 200 names), `end`.

use std::io::BufRead;
use std::time::Duration;
use tensorlend::{Client, DType, Lease, Policy, Start};

/// Names that would break a page that interpreted them as more than text.
const HOSTILE: &[&str] = &[
    "<script>window.pwned = 1</script>",
    "<img src=x onerror=\"window.pwned=1\">",
    "\"><svg onload=window.pwned=1>",
    "'; DROP TABLE tensors; --",
    "javascript:window.pwned=1",
    "</script><!--",
    "\u{202E}reversed \u{2066}isolate",
    "{{constructor.constructor('window.pwned=1')()}}",
];

const STREAM: &str = "frames <script>window.pwned=1</script>";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let broker = tensorlend_daemon::embedded()?;
    let connect = |label: &str| Client::builder().socket(broker.socket()).label(label).connect();
    let camera = connect("camera driver")?;
    let model = connect("<b onmouseover=window.pwned=1>model</b>")?;
    let viewer = connect("viewer")?;

    for name in HOSTILE {
        camera.put(name, &[1.0f32, 2.0, 3.0])?;
    }
    camera.put(&"long/".repeat(51), &[0u8; 64])?;
    publish_picture(&camera)?;
    let mut held = publish_model(&model, &viewer)?;
    held.push(viewer.get(HOSTILE[0])?);
    stream_frames(&camera, &viewer)?;

    println!("{}", broker.socket().display());
    let (mut newcomer, mut crowd) = (None, Vec::new());
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ') {
            Some(("put", name)) => drop(camera.put(name, &[7u8; 4096])?),
            Some(("join", label)) => newcomer = Some(connect(label)?),
            _ if line == "leave" => newcomer = None,
            _ if line == "crowd" => {
                for number in 0..200 {
                    crowd.push(publish_crowd(connect(&format!("worker {number}"))?, number)?);
                }
            }
            _ if line == "leaks" => {
                for number in 1..=5 {
                    crowd.extend(leak(&camera, connect(&format!("leak {number}"))?, number)?);
                }
            }
            _ => break,
        }
        println!("done");
    }
    drop((newcomer, crowd, held));
    Ok(())
}

fn publish_picture(camera: &Client) -> tensorlend::Result<()> {
    let mut picture = camera.create(DType::U8, &[96, 128, 3])?;
    for (at, byte) in picture.bytes_mut().iter_mut().enumerate() {
        let (dot, channel) = (at / 3, at % 3);
        *byte = [dot % 128 * 2, dot / 128 * 2, 128][channel] as u8;
    }
    picture.publish("camera/front")?;
    Ok(())
}

/// Publishes the layers of a model, replaces some of them and deletes one. Returns the viewer's leases on old values.
fn publish_model(model: &Client, viewer: &Client) -> tensorlend::Result<Vec<Lease>> {
    let name = |layer: u32| format!("model/layer {layer:02}/weight");
    let mut held = Vec::new();
    for layer in 0..24 {
        let mut weights = model.create(DType::F32, &[256, 64 << (layer % 4)])?;
        let mut state = layer + 1;
        weights.as_mut_slice::<f32>()?.fill_with(|| bell(&mut state));
        weights.publish(&name(layer))?;
        if layer % 3 == 0 {
            held.push(viewer.get(&name(layer))?);
        }
    }
    // The old values stay leased after they are replaced.
    for layer in [3, 9, 12] {
        model.put(&name(layer), &[0.5f32; 64])?;
    }
    model.delete(&name(7))?;
    Ok(held)
}

/// Sums four numbers of a linear congruential generator (constants of Numerical Recipes): roughly a bell curve.
fn bell(state: &mut u32) -> f32 {
    let number = |_| {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (*state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..4).map(number).sum()
}

/// Starts a stream with a subscriber that lags.
fn stream_frames(camera: &Client, viewer: &Client) -> tensorlend::Result<()> {
    let frames = camera.stream(STREAM).capacity(16).policy(Policy::DropOldest).open()?;
    let mut slow = viewer.subscription(STREAM).start_at(Start::Oldest).open()?;
    let sender = camera.clone();
    std::thread::spawn(move || -> tensorlend::Result<()> {
        loop {
            frames.send(sender.create(DType::U8, &[64, 64])?)?;
            std::thread::sleep(Duration::from_millis(40));
        }
    });
    std::thread::spawn(move || {
        while slow.recv_timeout(Duration::from_secs(10)).is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    Ok(())
}

/// Publishes 40 layers, leases some of them in a client, and replaces these. Returns the client with its leases.
fn leak(producer: &Client, holder: Client, number: usize) -> tensorlend::Result<Vec<(Client, Lease)>> {
    let mut held = Vec::new();
    for layer in (number - 1) * 40..number * 40 {
        let name = format!("layer.{layer}.weight");
        producer.create(DType::F16, &[number as u64, 128, 3, 1024])?.publish(&name)?;
        if layer % 40 < number {
            held.push((holder.clone(), holder.get(&name)?));
            producer.put(&name, &[0u8; 64])?;
        }
    }
    Ok(held)
}

/// Publishes the names of one client of the crowd. Returns the client, and its lease on one of them.
fn publish_crowd(client: Client, number: usize) -> tensorlend::Result<(Client, Lease)> {
    for part in 0..50 {
        client.put(&format!("crowd/{number:03}/{part:02}"), &[0u8; 64])?;
    }
    let lease = client.get(&format!("crowd/{number:03}/00"))?;
    Ok((client, lease))
}
