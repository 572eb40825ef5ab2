//! Page locks without the feature `cuda`. They never lock pages.

use tensorlend_os::map::Segment;

/// The page lock of a library without the feature `cuda`, which never locks pages.
#[derive(Clone, Default)]
pub struct PageLock(());

impl PageLock {
    /// Returns a page lock without effect.
    pub fn of_mapped(_: &Segment, _: bool, _: bool) -> Self {
        Self(())
    }

    /// Returns false: without the feature `cuda`, no segment is locked.
    #[expect(clippy::unused_self, reason = "as with the feature")]
    pub fn is_locked(&self) -> bool {
        false
    }
}
