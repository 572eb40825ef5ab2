//! The check of the kernel's version.

/// The oldest usable kernel: 5.16 added `futex_waitv`. (`F_SEAL_FUTURE_WRITE` came with 5.1,
/// `pidfd_open` with 5.3.)
pub const KERNEL_MIN: (u32, u32) = (5, 16);

/// The error for a running kernel that is too old.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this kernel is {found}; tensorlend needs Linux {}.{} or newer, for futex_waitv: update the kernel", KERNEL_MIN.0, KERNEL_MIN.1)]
pub struct KernelTooOld {
    found: String,
}

/// Checks the version of the running kernel.
pub fn check() -> Result<(), KernelTooOld> {
    let found = rustix::system::uname().release().to_string_lossy().into_owned();
    match parse(&found) {
        Some(version) if version >= KERNEL_MIN => Ok(()),
        _ => Err(KernelTooOld { found }),
    }
}

fn parse(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        assert_eq!(parse("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(parse("5.4.0-150-generic"), Some((5, 4)));
        assert!(parse("5.16.0") >= Some(KERNEL_MIN) && parse("5.15.99") < Some(KERNEL_MIN));
        assert_eq!(parse("weird"), None);
        assert!(check().is_ok());
    }
}
