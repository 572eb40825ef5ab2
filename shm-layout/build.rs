//! Passes the commit and its date to `versions.rs`.
//!
//! An archive of a commit contains both in `commit.txt`. In a clone, git knows them. A debug build does not ask git, because
//! each commit would then build the workspace again. Without a commit, `SOURCE_DATE_EPOCH` gives the date. No part of
//! the result depends on the time or the place of the build.

use std::path::Path;
use std::process::Command;

/// Digits of the commit's hash.
const HASH_DIGITS: usize = 12;

fn main() {
    for file in ["build.rs", "commit.txt"] {
        println!("cargo::rerun-if-changed={file}");
    }
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    let is_debug = std::env::var("PROFILE").is_ok_and(|profile| profile == "debug");
    let commit = archived().or_else(|| if is_debug { None } else { checked_out() });
    let epoch = commit.as_ref().map(|(_, epoch)| *epoch);
    let date = epoch.or_else(|| std::env::var("SOURCE_DATE_EPOCH").ok()?.trim().parse().ok()).map(date);
    let hash = commit.map(|(hash, _)| hash[..HASH_DIGITS].to_owned());
    let kind = (hash.is_none() && is_debug).then(|| "debug build".to_owned());
    let parts: Vec<String> = [hash, kind].into_iter().flatten().chain(date).collect();
    println!("cargo::rustc-env=TENSORLEND_COMMIT={}", parts.join(" "));
}

/// Returns the commit of an archive, and its time.
fn archived() -> Option<(String, u64)> {
    parsed(&std::fs::read_to_string("commit.txt").ok()?)
}

/// Returns the commit that is checked out, and its time. The program is then built again after each commit.
fn checked_out() -> Option<(String, u64)> {
    // Another repository may contain this folder, as a vendored copy.
    if git(&["rev-parse", "--show-prefix"])? != "shm-layout/" {
        return None;
    }
    // A commit, a reset and a checkout add a line to the log. Without it, a checkout writes HEAD, and a commit its branch.
    let branch = git(&["symbolic-ref", "--quiet", "HEAD"]).unwrap_or_default();
    for file in ["logs/HEAD", "HEAD", &branch, "packed-refs"] {
        // cargo would run this script each time for a file that does not exist.
        if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).is_file()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    parsed(&git(&["log", "-1", "--format=%H %ct"])?)
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

fn parsed(text: &str) -> Option<(String, u64)> {
    let (hash, epoch) = text.trim().split_once(' ')?;
    let is_hash = hash.len() >= HASH_DIGITS && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    Some((hash.to_owned(), epoch.parse().ok()?)).filter(|_| is_hash)
}

/// Returns the day in UTC of a time in seconds since 1970, by the algorithm `civil_from_days` of Howard Hinnant.
fn date(epoch: u64) -> String {
    let days = epoch / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}
