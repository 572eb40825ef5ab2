//! Checks of devices, which compare the devices that the driver shows to this process with those
//! that the daemon reports.

use tensorlend::Stat;
use tensorlend_cuda::{Driver, Unavailable};

use super::report::Report;
use crate::text::{bytes_text, count};

pub fn check(report: &mut Report, daemon: Option<&Stat>) {
    let lent = daemon.map_or(0, |stat| stat.devices.len());
    let seen = match Driver::get() {
        Ok(driver) => devices(report, driver),
        Err(Unavailable::NoLibrary) if lent == 0 => {
            report.ok("CUDA", "there is no driver on this machine: tensors are in host memory");
            0
        }
        Err(unavailable) => {
            report.warn(
                "CUDA",
                unavailable.to_string(),
                "nvidia-smi shows whether the driver works; on a machine without a GPU, remove the driver's library",
            );
            0
        }
    };
    let Some(stat) = daemon else { return };
    if lent > 0 {
        let of = |it: &tensorlend::DeviceUse| {
            format!("{} ({} of {})", it.offer.name, bytes_text(it.bytes), bytes_text(it.bytes_max))
        };
        let names: Vec<String> = stat.devices.iter().map(of).collect();
        report
            .ok("daemon's CUDA", format!("it lends memory of {}: {}", count(lent as u64, "device"), names.join(", ")));
    } else if seen > 0 {
        let found = format!("this process sees {}, and the daemon lends none: {}", count(seen, "device"), stat.device);
        let fix = "name the devices in the daemon's configuration ([cuda] devices = [\"all\"]); under systemd, allow them in the daemon's unit";
        report.warn("daemon's CUDA", found, fix);
    } else {
        report.ok("daemon's CUDA", format!("it lends no device memory: {}", stat.device));
    }
}

fn devices(report: &mut Report, driver: &Driver) -> u64 {
    match driver.devices() {
        Ok(devices) => {
            let names = devices.iter().map(|it| {
                let fake = if it.is_fake() { ", a stand-in for tests" } else { "" };
                format!("{} ({}{fake})", it.name(), bytes_text(it.bytes_total()))
            });
            let names: Vec<String> = names.collect();
            let number = devices.len() as u64;
            report.ok(
                "CUDA",
                format!(
                    "the driver speaks CUDA {}; {}: {}",
                    driver.version(),
                    count(number, "device"),
                    names.join(", ")
                ),
            );
            for device in &devices {
                if let Err(error) = device.require_sharing() {
                    let fix = "the allocators `pool` and `arena` cannot lend this device's memory: remove the device from [cuda] devices";
                    report.warn("CUDA", format!("{}: {error}", device.name()), fix);
                }
            }
            number
        }
        Err(error) => {
            report.warn(
                "CUDA",
                format!("the driver cannot list its devices: {error}"),
                "nvidia-smi and the kernel's log may say more",
            );
            0
        }
    }
}
