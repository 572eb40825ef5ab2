//! The page size of memory and, for segments, the NUMA policy.

use super::room::{Claim, make_room};
use crate::core::settings::Payer;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Once;
use tensorlend_layout::raw::View;
use tensorlend_layout::size;
use tensorlend_os::map;
use tensorlend_os::memfd::{self, Access, HugePage};
use tensorlend_os::numa::{self, Numa};

/// The kind of pages of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB pages.
    #[default]
    Ordinary,
    /// Transparent huge pages, where the kernel's settings allow them.
    Advised,
    /// For segments, huge pages that the administrator has reserved. If none remain, ordinary pages
    /// and a warning in the log.
    Reserved(HugePage),
}

/// Page size and NUMA placement of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backing {
    pub pages: Pages,
    pub numa: Numa,
}

const NAME: &str = "tensorlend-segment";

/// A range of a sheet that the daemon has mapped writable.
pub struct SheetRange<'a> {
    pub fd: BorrowedFd<'a>,
    pub sheet: &'a View,
    /// Offset of the range.
    pub at: u64,
    pub bytes: u64,
}

impl Backing {
    /// Requests the kind of pages for a sheet, before any of its pages exists.
    pub fn ask(self, sheet: &View) {
        if self.pages == Pages::Advised
            && let Err(error) = map::ask_for_huge(sheet)
        {
            tracing::debug!("huge pages cannot be asked for: {error}");
        }
    }

    /// Allocates the pages of a range of a sheet.
    pub fn allocate(
        self,
        SheetRange { fd, sheet, at, bytes }: SheetRange<'_>,
        claim: Claim,
        may_continue: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        make_room(bytes, claim)?;
        // The mapping is populated first, because only a mapping can request huge pages. The file
        // is allocated afterwards, because only fallocate reports a lack of memory.
        if self.pages == Pages::Advised
            && let Err(error) = map::populate(sheet, at, bytes)
        {
            tracing::debug!("a mapping's pages were not to be had: {error}");
        }
        memfd::allocate(fd, at, bytes, may_continue)?;
        // The kernel zeroes the pages now, and not at the first store.
        map::populate(sheet, at, bytes)
    }

    /// Allocates and zeroes the pages of a new sheet, into which nothing has been written.
    pub fn allocate_new(
        self,
        fd: &OwnedFd,
        bytes: u64,
        claim: Claim,
        may_continue: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        if self.pages == Pages::Advised {
            let sheet = map::sheet(fd, size::index(bytes), Access::Write)?;
            self.ask(&sheet);
            return self.allocate(SheetRange { fd: fd.as_fd(), sheet: &sheet, at: 0, bytes }, claim, may_continue);
        }
        make_room(bytes, claim)?;
        memfd::allocate(fd.as_fd(), 0, bytes, may_continue)?;
        // A write zeroes the pages faster than the faults of a mapping, which the daemon soon unmaps.
        Ok(memfd::zero(fd.as_fd(), bytes, may_continue)?)
    }

    /// Creates a segment of zeroed bytes. Allocates all its pages if the daemon pays for them, or if
    /// they are reserved huge pages, which the kernel charges to no memory cgroup.
    pub fn make(self, bytes: u64, payer: Payer, may_continue: &dyn Fn() -> bool) -> io::Result<OwnedFd> {
        if let Pages::Reserved(page) = self.pages
            && bytes.is_multiple_of(page.bytes())
        {
            match self.make_reserved(bytes, page, may_continue) {
                Err(error) if Errno::from_io_error(&error) != Some(Errno::CANCELED) => warn_once(bytes, &error),
                made => return made,
            }
        }
        if payer == Payer::Client {
            return self.make_without_pages(bytes);
        }
        make_room(bytes, Claim::Users)?;
        let fd = memfd::create_empty(NAME, bytes)?;
        if self.numa != Numa::Local || self.pages == Pages::Advised {
            let mapped = map::segment(&fd, size::index(bytes), Access::Write, false)?;
            numa::place(&mapped, self.numa)?;
            // Only a mapping can request huge pages. If the request fails, the code below allocates ordinary pages.
            if self.pages == Pages::Advised
                && let Err(error) = mapped.populate_huge()
            {
                tracing::debug!("huge pages were not to be had: {error}");
            }
        }
        memfd::allocate(fd.as_fd(), 0, bytes, may_continue)?;
        if self.pages != Pages::Advised {
            memfd::zero(fd.as_fd(), bytes, may_continue)?;
        }
        Ok(fd)
    }

    /// Creates a segment whose pages the client allocates. The kernel takes the placement from the
    /// file, and the client takes the kind of pages from the file's time.
    fn make_without_pages(self, bytes: u64) -> io::Result<OwnedFd> {
        make_room(bytes, Claim::Clients)?;
        let fd = memfd::create_empty(NAME, bytes)?;
        if self.numa != Numa::Local {
            numa::place(&map::segment(&fd, size::index(bytes), Access::Write, false)?, self.numa)?;
        }
        if self.pages == Pages::Advised {
            memfd::mark_for_huge_pages(fd.as_fd())?;
        }
        Ok(fd)
    }

    fn make_reserved(self, bytes: u64, page: HugePage, may_continue: &dyn Fn() -> bool) -> io::Result<OwnedFd> {
        let fd = memfd::create_huge(NAME, bytes, page)?;
        if self.numa != Numa::Local {
            numa::place(&map::segment(&fd, size::index(bytes), Access::Write, false)?, self.numa)?;
        }
        memfd::allocate(fd.as_fd(), 0, bytes, may_continue)?;
        Ok(fd)
    }
}

fn warn_once(bytes: u64, error: &io::Error) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            "no reserved huge pages for a segment of {bytes} bytes ({error}): ordinary ones are used. Reserve some in \
             /sys/kernel/mm/hugepages, or set pool.huge_pages to \"never\""
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::fstat;

    #[test]
    fn segments_of_any_backing_are_whole_and_can_be_proven_quiescent() {
        let pages = [Pages::Ordinary, Pages::Advised, Pages::Reserved(HugePage::Mib2), Pages::Reserved(HugePage::Gib1)];
        for pages in pages {
            for numa in [Numa::Local, Numa::Interleave, Numa::Node(0)] {
                // The second length is not a multiple of a huge page.
                for bytes in [4 << 20, (4 << 20) + 4096] {
                    let fd = Backing { pages, numa }.make(bytes, Payer::Daemon, &|| true).unwrap();
                    let stat = fstat(&fd).unwrap();
                    assert_eq!(
                        (stat.st_size as u64, stat.st_blocks as u64 * 512),
                        (bytes, bytes),
                        "{pages:?} {numa:?}"
                    );
                    let lent = memfd::reopen(fd.as_fd(), Access::Write).unwrap();
                    let mapped = map::segment(&lent, bytes as usize, Access::Write, false).unwrap();
                    memfd::seal_writers(fd.as_fd()).unwrap();
                    drop(lent);
                    assert!(!memfd::is_quiescent(fd.as_fd()).unwrap());
                    drop(mapped);
                    assert!(memfd::is_quiescent(fd.as_fd()).unwrap());
                }
            }
        }
    }

    #[test]
    fn a_segment_for_which_the_client_pays_has_no_pages_of_the_daemon() {
        for pages in [Pages::Ordinary, Pages::Advised] {
            for numa in [Numa::Local, Numa::Interleave, Numa::Node(0)] {
                let fd = Backing { pages, numa }.make(4 << 20, Payer::Client, &|| true).unwrap();
                let stat = fstat(&fd).unwrap();
                assert_eq!((stat.st_size, stat.st_blocks), (4 << 20, 0), "{pages:?} {numa:?}");
                assert_eq!(stat.st_mode & 0o6000, 0, "systemd's RestrictSUIDSGID forbids these bits");
                assert_eq!(memfd::is_marked_for_huge_pages(fd.as_fd()).unwrap(), pages == Pages::Advised);
            }
        }
        let error = Backing::default().make(1 << 60, Payer::Client, &|| true).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
    }

    #[test]
    fn an_order_is_called_off_with_every_backing() {
        for pages in [Pages::Ordinary, Pages::Advised, Pages::Reserved(HugePage::Mib2)] {
            let error = Backing { pages, numa: Numa::Local }.make(4 << 20, Payer::Daemon, &|| false).unwrap_err();
            assert_eq!(Errno::from_io_error(&error), Some(Errno::CANCELED));
        }
    }
}
