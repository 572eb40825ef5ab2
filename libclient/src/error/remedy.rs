//! Remedies of errors that depend on the error's values.

use rustix::io::Errno;
use std::io;
use tensorlend_layout::size::bytes_text;
use tensorlend_layout::versions;
use tensorlend_layout::wire::Refusal;

/// Returns the remedy for a daemon that does not respond.
pub fn silent(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("check its state (`ps -o stat= -p {pid}`: T is stopped) and its log, or restart it"),
        None => "check its process and its log, or restart it".to_owned(),
    }
}

/// Returns the remedy for a system call that failed. An error whose text this library wrote has a kind, but no error number.
pub fn system(cause: &io::Error) -> &'static str {
    match (cause.raw_os_error().map(Errno::from_raw_os_error), cause.kind()) {
        (Some(Errno::MFILE), _) => "close some files, or raise `ulimit -n`",
        (_, io::ErrorKind::PermissionDenied) => {
            "give this process's user the right, or use another file; in a container or sandbox, allow the system call"
        }
        (_, io::ErrorKind::StorageFull) => "free space on the file system, or use another one",
        (_, io::ErrorKind::NotFound) => "create what is missing, or name another path; /proc must be mounted",
        (_, io::ErrorKind::OutOfMemory) => {
            "end other programs, or raise the limits of memory and mappings (`ulimit -v`, sysctl vm.max_map_count)"
        }
        _ => "see `tensorlend doctor`",
    }
}

/// Returns the end of a refusal because of versions: this client's build, and the command that prints the daemon's.
pub fn build(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Protocol { .. } | Refusal::Layout { .. } => {
            format!(" (this client is {}; `tensorlendd --version` prints the daemon's version)", versions::build())
        }
        _ => String::new(),
    }
}

/// Formats a length in binary units. Uses bytes if the binary units would hide the difference from `other`.
pub fn length(bytes: u64, other: u64) -> String {
    let text = bytes_text(bytes);
    if text == bytes_text(other) { format!("{bytes} bytes") } else { text }
}

#[cfg(test)]
mod tests {
    use crate::Error;
    use std::io;

    #[test]
    fn a_failed_system_call_has_a_remedy() {
        let text = |errno: i32| {
            let cause = io::Error::from_raw_os_error(errno);
            Error::System { doing: "map a segment", cause }.to_string()
        };
        for (errno, remedy) in [
            (libc::EACCES, "user the right"),
            (libc::ENOSPC, "free space"),
            (libc::EMFILE, "`ulimit -n`"),
            (libc::ENOENT, "/proc"),
            (libc::ENOMEM, "vm.max_map_count"),
            (libc::EIO, "see `tensorlend doctor`"),
        ] {
            let text = text(errno);
            assert!(text.starts_with("map a segment: ") && text.contains(&format!("(os error {errno}): ")), "{text}");
            assert!(text.contains(remedy), "{text}");
        }
        // The library has given this cause a text with the path, so the cause has no number.
        let cause = io::Error::new(io::ErrorKind::StorageFull, "/var/log/x: no space left");
        assert!(Error::System { doing: "open the allocation log", cause }.to_string().contains("free space"));
    }

    #[test]
    fn lengths_have_binary_units_that_show_the_difference() {
        let text = |found, given| Error::Length { name: "x".into(), found, given }.to_string();
        assert!(text(4 << 20, 3 << 19).starts_with("\"x\" has 4 MiB, and the buffer has 1.5 MiB: "));
        let close = text(4 << 20, (4 << 20) + 1);
        assert!(close.starts_with("\"x\" has 4194304 bytes, and the buffer has 4194305 bytes: "), "{close}");
        assert!(text(48, 24).starts_with("\"x\" has 48 bytes, and the buffer has 24 bytes: "));
    }
}
