//! What memory is made of: the size of its pages and, for segments, the node of the machine on which they are.

use super::cgroup;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Once;
use tensorlend_layout::raw::View;
use tensorlend_os::map;
use tensorlend_os::memfd::{self, Access, HugePage};
use tensorlend_os::numa::{self, Numa};

/// Pages of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// Of 4 KiB.
    #[default]
    Ordinary,
    /// Huge ones where the kernel has some at hand and its settings allow it.
    Advised,
    /// For segments, huge ones that the administrator has reserved; ordinary ones, with a warning, when there are none left.
    Reserved(HugePage),
}

/// How memory is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backing {
    /// Of which pages.
    pub pages: Pages,
    /// On which node.
    pub numa: Numa,
}

const NAME: &str = "tensorlend-segment";

impl Backing {
    /// Asks for what pages a sheet shall have, before it has any.
    pub fn ask(self, sheet: &View) {
        if self.pages == Pages::Advised
            && let Err(error) = map::ask_for_huge(sheet)
        {
            tracing::debug!("huge pages cannot be asked for: {error}");
        }
    }

    /// Makes the pages of a part of a sheet that is mapped for writing.
    pub fn allocate(
        self,
        fd: BorrowedFd<'_>,
        sheet: &View,
        (at, bytes): (u64, u64),
        go_on: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        cgroup::make_room(bytes)?;
        // Through the mapping first, which alone can ask for huge pages; and from the file too, which alone can refuse.
        if self.pages == Pages::Advised
            && let Err(error) = map::populate(sheet, at, bytes)
        {
            tracing::debug!("a mapping's pages were not to be had: {error}");
        }
        memfd::allocate(fd, at, bytes, go_on)?;
        // Zeroed here, and not at the first store.
        map::populate(sheet, at, bytes)
    }

    /// A segment of zeroed bytes, whose pages all exist.
    pub fn make(self, bytes: u64, go_on: &dyn Fn() -> bool) -> io::Result<OwnedFd> {
        if let Pages::Reserved(page) = self.pages
            && bytes.is_multiple_of(page.bytes())
        {
            match self.make_reserved(bytes, page, go_on) {
                Err(error) if Errno::from_io_error(&error) != Some(Errno::CANCELED) => warn_once(bytes, &error),
                made => return made,
            }
        }
        cgroup::make_room(bytes)?;
        let fd = memfd::create_empty(NAME, bytes)?;
        if self.numa != Numa::Local || self.pages == Pages::Advised {
            let mapped = map::segment(&fd, bytes as usize, Access::Write, false)?;
            numa::place(&mapped, self.numa)?;
            // Only a mapping can ask for huge pages. Where it makes none, ordinary ones are made below.
            if self.pages == Pages::Advised
                && let Err(error) = mapped.populate_huge()
            {
                tracing::debug!("huge pages were not to be had: {error}");
            }
        }
        memfd::allocate(fd.as_fd(), 0, bytes, go_on)?;
        if self.pages != Pages::Advised {
            memfd::zero(fd.as_fd(), bytes, go_on)?;
        }
        Ok(fd)
    }

    fn make_reserved(self, bytes: u64, page: HugePage, go_on: &dyn Fn() -> bool) -> io::Result<OwnedFd> {
        let fd = memfd::create_huge(NAME, bytes, page)?;
        if self.numa != Numa::Local {
            numa::place(&map::segment(&fd, bytes as usize, Access::Write, false)?, self.numa)?;
        }
        memfd::allocate(fd.as_fd(), 0, bytes, go_on)?;
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
    fn segments_of_any_backing_are_whole_and_can_be_proven_quiet() {
        let pages = [Pages::Ordinary, Pages::Advised, Pages::Reserved(HugePage::Mib2), Pages::Reserved(HugePage::Gib1)];
        for pages in pages {
            for numa in [Numa::Local, Numa::Interleave, Numa::Node(0)] {
                // The second is no multiple of a huge page.
                for bytes in [4 << 20, (4 << 20) + 4096] {
                    let fd = Backing { pages, numa }.make(bytes, &|| true).unwrap();
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
                    assert!(!memfd::is_quiet(fd.as_fd()).unwrap());
                    drop(mapped);
                    assert!(memfd::is_quiet(fd.as_fd()).unwrap());
                }
            }
        }
    }

    #[test]
    fn an_order_is_called_off_with_every_backing() {
        for pages in [Pages::Ordinary, Pages::Advised, Pages::Reserved(HugePage::Mib2)] {
            let error = Backing { pages, numa: Numa::Local }.make(4 << 20, &|| false).unwrap_err();
            assert_eq!(Errno::from_io_error(&error), Some(Errno::CANCELED));
        }
    }
}
