//! Datasets with tensors on devices: limits, and the command line.

use serde_json::Value;
use std::process::Output;
use tensorlend::DType;
use tensorlend_tests::location::{Location, value_of};
use tensorlend_tests::machine::{config, on_machine, surround};
use tensorlend_tests::{Daemon, eventually, run};

const MB: u64 = 1 << 20;

#[test]
fn limits_count_the_members() {
    on_machine("limits_count_the_members", |machine| {
        let config = config("pool", "idle_bytes_max = 0\n").replace("256MiB", "64MiB");
        let daemon = machine.daemon(&format!("{config}[uid]\ndevice_bytes_max = \"24MiB\"\n"));
        let client = daemon.client();
        let location = Location::named("cuda", &client);
        let publish = |number: u64| {
            let dataset = location.dataset(&client, number, 4 * MB)?;
            dataset.publish(&format!("d{number}"))
        };
        let (count, error) = (0..).find_map(|number| publish(number).err().map(|error| (number, error))).unwrap();
        assert!(error.is_limit() && error.to_string().contains("uid.device_bytes_max"), "{error}");
        assert_eq!(count, 6, "{error}");
        let held = client.get_dataset("d0").unwrap();
        assert!(client.delete("d0").unwrap() && client.delete("d1").unwrap());
        publish(7).unwrap();
        assert!(publish(8).unwrap_err().is_limit(), "the lease keeps the members of the first");
        assert_eq!(value_of(&held).unwrap(), 0);
        drop(held);
        publish(9).unwrap();
        for number in [2, 3, 4, 5, 7, 9] {
            assert_eq!(value_of(&client.get_dataset(&format!("d{number}")).unwrap()).unwrap(), number);
            client.delete(&format!("d{number}")).unwrap();
        }
        drop(client);
        let watcher = daemon.client();
        eventually("the return of all", || location.lent_bytes(&watcher).unwrap() == 0);
    });
}

fn cli(daemon: &Daemon, arguments: &[&str]) -> Output {
    let folder = std::env::var_os("FAKECUDA_DIR").expect("on a machine");
    run(surround(&mut daemon.cli(arguments), folder.as_ref()))
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_command_line_shows_them_and_refuses_to_copy_them() {
    on_machine("the_command_line_shows_them_and_refuses_to_copy_them", |machine| {
        let daemon = machine.daemon(&config("pool", ""));
        let client = daemon.client();
        let location = Location::named("cuda", &client);
        location.dataset(&client, 3, 1000).unwrap().publish("set").unwrap();
        client.put("host", &[1u8]).unwrap();
        let Location::Device(uuid) = location else { panic!("a device") };
        let uuid = uuid.to_string();
        let info = json(&cli(&daemon, &["info", "set", "--json"]));
        let devices: Vec<Option<&str>> =
            info["tensors"].as_array().unwrap().iter().map(|tensor| tensor["device"].as_str()).collect();
        assert_eq!((devices, info["nbytes"].as_u64()), (vec![None, Some(uuid.as_str()), None], Some(1040)));
        let text = cli(&daemon, &["info", "set"]);
        assert!(String::from_utf8_lossy(&text.stdout).contains(&format!("1000 bytes on {uuid}")), "{text:?}");
        let listed = cli(&daemon, &["ls"]);
        assert!(String::from_utf8_lossy(&listed.stdout).contains("3 tensors"), "{listed:?}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("set.safetensors").display().to_string();
        for arguments in [&["get", "set", "-o", &path][..], &["save", "set", "-o", &path]] {
            let refused = cli(&daemon, arguments);
            let text = String::from_utf8_lossy(&refused.stderr);
            assert!(!refused.status.success() && text.contains("TL-0304") && text.contains("on a device"), "{text}");
            assert!(!std::path::Path::new(&path).exists());
        }
        // An item of a list, and a message.
        client.append("list", location.dataset(&client, 4, 1000).unwrap()).unwrap();
        let out = folder.path().join("items").display().to_string();
        let refused = cli(&daemon, &["list-get", "list", "-o", &out]);
        assert!(String::from_utf8_lossy(&refused.stderr).contains("on a device"), "{refused:?}");
        let copied = cli(&daemon, &["copy", "set", "copied"]);
        assert!(copied.status.success(), "{copied:?}");
        assert_eq!(value_of(&client.get_dataset("copied").unwrap()).unwrap(), 3);
        assert_eq!(client.info("host").unwrap().nbytes, DType::U8.item_bytes() as u64);
    });
}
