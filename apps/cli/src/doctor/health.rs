//! Checks of the faults that the daemon reports: of spilling, of the fd store, and the losses of the last restart.

use tensorlend::{FdStoreState, Stat};

use super::report::Report;
use crate::text::{count, loss_text};

pub fn check(report: &mut Report, stat: &Stat) {
    let Some(health) = &stat.health else { return };
    match &health.spill {
        Some(fault) => {
            let found = format!(
                "the daemon cannot write spill files, so memory runs out ({} failed): {}",
                count(fault.failures, "file"),
                fault.reason
            );
            let fix = "free space in the folder, or set [spill] directory to a folder of another file system";
            report.fail("spilling", found, fix);
        }
        None if stat.spill_failures > 0 => {
            let found = format!(
                "{} failed since the daemon's start; the last one did not",
                count(stat.spill_failures, "spill file")
            );
            report.ok("spilling", found);
        }
        None => report.ok("spilling", "no spill file has failed"),
    }
    match &health.lost {
        Some(lost) => {
            let fix = "see the check `descriptor store`, and publish the tensors again";
            report.warn("last restart", format!("the daemon {}", loss_text(lost)), fix);
        }
        None => report.ok("last restart", "the daemon lost no names and no streams when it started"),
    }
}

/// Returns the finding if the fd store lacks descriptors, or soon will.
pub fn crowded(store: &FdStoreState) -> Option<String> {
    let FdStoreState { needed, missing, capacity } = *store;
    let room = capacity.map_or_else(String::new, |most| format!(", and has room for {most}"));
    if missing > 0 {
        return Some(format!(
            "the fd store lacks {missing} of {needed} descriptors{room}: a restart loses the tensors in them"
        ));
    }
    let is_close = capacity.is_some_and(|most| needed.saturating_mul(10) >= most.saturating_mul(9));
    is_close.then(|| format!("the fd store has {needed} descriptors{room}: soon a restart will lose tensors"))
}
