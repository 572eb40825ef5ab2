//! The program `tensorlendd`: where this process finds it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::inherited::has_raised_rights;
use crate::user_folder::is_trusted;

const NAME: &str = "tensorlendd";

static COMMAND: OnceLock<Vec<OsString>> = OnceLock::new();

/// Sets the command that runs the daemon, for programs that contain it, such as Python's package. Later calls have no
/// effect.
pub fn set_daemon(command: Vec<OsString>) {
    let _ = COMMAND.set(command);
}

/// Returns the command that runs the daemon: the one that was set, or the `tensorlendd` near this library, or the first in
/// `PATH`. Returns `None` if there is none.
pub fn daemon() -> Option<Vec<OsString>> {
    if let Some(command) = COMMAND.get() {
        return Some(command.clone());
    }
    // Unlike PATH, the place of a program is not this user's choice: another user may own it.
    let near = object().into_iter().flat_map(|object| near(&object)).filter(|program| is_trusted(program));
    let path = std::env::var_os("PATH").unwrap_or_default();
    // A relative folder would lead to a program that depends on the working directory.
    let in_path = std::env::split_paths(&path).filter(|folder| folder.is_absolute()).map(|folder| folder.join(NAME));
    let program = near.chain(in_path).find(|program| is_program(program))?;
    Some(vec![program.into()])
}

/// Returns an error with the reason if the environment forbids the start of a daemon, or if this program has more rights than
/// its caller, who could choose the daemon's program by `PATH`.
///
/// # Errors
/// The reason, as a clause.
pub fn may_start() -> Result<(), &'static str> {
    let is_off = |value: OsString| {
        let value = value.to_ascii_lowercase();
        ["0", "false", "no", "off"].iter().any(|off| value == *off)
    };
    let is_caller = rustix::process::getuid() == rustix::process::geteuid()
        && rustix::process::getgid() == rustix::process::getegid();
    if std::env::var_os("TENSORLEND_AUTOSTART").is_some_and(is_off) {
        return Err("TENSORLEND_AUTOSTART forbids it");
    }
    if !is_caller || has_raised_rights() {
        return Err("a program that is setuid, setgid or has capabilities starts none");
    }
    Ok(())
}

/// Returns the path of the log of a daemon in the background, from the path of its socket.
pub fn daemon_log(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".log");
    path.into()
}

/// Returns the places of the daemon for a library or program at `object`: the same folder, and the folder `bin` next to a
/// folder of libraries (`lib`, or `lib` and the machine's triplet).
fn near(object: &Path) -> Vec<PathBuf> {
    let mut places = Vec::from_iter(object.parent().map(|folder| folder.join(NAME)));
    let is_lib = |folder: &&Path| folder.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"lib"));
    let lib = object.ancestors().skip(1).take(2).find(is_lib);
    places.extend(lib.and_then(Path::parent).map(|prefix| prefix.join("bin").join(NAME)));
    places
}

/// Returns true for a file that this user may execute.
fn is_program(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Returns the path of the file that contains this code: the program, or a library that it has loaded.
fn object() -> Option<PathBuf> {
    let own = object as fn() -> Option<PathBuf> as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps.lines().find_map(|line| path_at(line, own))?;
    Some(path.into())
}

/// Returns the file of a line of `/proc/self/maps` if the line's range contains `address`. Format: proc_pid_maps(5).
fn path_at(line: &str, address: usize) -> Option<&str> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let path = &rest[rest.find('/')?..];
    (number(start)?..number(end)?).contains(&address).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_code_is_in_this_program() {
        assert_eq!(object(), std::env::current_exe().ok());
    }

    #[test]
    fn a_line_of_maps_leads_to_its_file() {
        let line = "7f10-7f20 r-xp 00002000 08:01 99  /usr/lib/x y.so";
        assert_eq!(path_at(line, 0x7f10), Some("/usr/lib/x y.so"));
        assert_eq!((path_at(line, 0x7f20), path_at("7f10-7f20 rw-p 0 0:0 0", 0x7f10)), (None, None));
    }

    #[test]
    fn the_daemon_lies_next_to_a_program_and_below_the_prefix_of_a_library() {
        let places = near(Path::new("/opt/t/lib/x86_64-linux-gnu/libtensorlend.so"));
        assert_eq!(places, ["/opt/t/lib/x86_64-linux-gnu/tensorlendd", "/opt/t/bin/tensorlendd"].map(PathBuf::from));
        assert_eq!(near(Path::new("/opt/t/lib64/x.so"))[1], Path::new("/opt/t/bin/tensorlendd"));
        assert_eq!(near(Path::new("/tmp/me/a.out")), [Path::new("/tmp/me/tensorlendd")]);
    }
}
