//! One suite for three kinds of memory: host memory, the fake device with each of the allocators, and a real device if
//! there is one.

use tensorlend_tests::machine::{config, on_machine};
use tensorlend_tests::scenarios::Scene;
use tensorlend_tests::{Daemon, skip};

#[test]
fn in_host_memory() {
    let daemon = Daemon::start("[pool]\nsegment_bytes = \"4MiB\"\n");
    Scene::new(&daemon, "host").run_all();
}

#[test]
fn on_a_device_with_pool() {
    on_machine("on_a_device_with_pool", |machine| {
        let daemon = machine.daemon(&config("pool", ""));
        Scene::new(&daemon, "cuda").run_all();
        assert!(!machine.calls().contains("Ctx"), "the daemon made a context:\n{}", machine.calls());
    });
}

#[test]
fn on_a_device_with_arena() {
    on_machine("on_a_device_with_arena", |machine| {
        let daemon = machine.daemon(&config("arena", ""));
        Scene::new(&daemon, "cuda").run_all();
        assert!(!machine.calls().contains("Ctx"), "the daemon made a context:\n{}", machine.calls());
    });
}

#[test]
fn on_a_device_with_async() {
    on_machine("on_a_device_with_async", |machine| {
        let daemon = machine.daemon(&config("async", ""));
        Scene::new(&daemon, "cuda").run_all();
    });
}

/// Returns the reason why there is no real device.
fn no_device() -> Option<String> {
    let wanted = std::env::var("TENSORLEND_GPU").unwrap_or_default();
    if wanted == "0" {
        return Some("TENSORLEND_GPU is 0".into());
    }
    let found = match tensorlend_cuda::Driver::get() {
        Ok(driver) => driver.devices().map_err(|error| error.to_string()),
        Err(unavailable) => Err(unavailable.to_string()),
    };
    let why = match found {
        Ok(devices) if devices.iter().any(|device| !device.is_fake()) => return None,
        Ok(_) => "the driver shows no device".to_owned(),
        Err(why) => why,
    };
    assert!(wanted != "1", "TENSORLEND_GPU is 1, and there is no device: {why}");
    Some(why)
}

#[test]
fn on_a_real_device() {
    if let Some(why) = no_device() {
        return skip(&format!("needs a CUDA device: {why}"));
    }
    for allocator in ["pool", "arena", "async"] {
        println!("{allocator}");
        let daemon = Daemon::start(&config(allocator, ""));
        Scene::new(&daemon, "cuda").run_all();
    }
}
