//! Page locks without the feature `cuda`: there are none.

use tensorlend_os::map::Segment;

/// As with the feature `cuda`; never locked.
#[derive(Clone, Default)]
pub struct PageLock;

impl PageLock {
    /// As with the feature `cuda`.
    pub fn of_mapped(_: &Segment, _: bool, _: bool) -> Self {
        Self
    }

    /// As with the feature `cuda`.
    #[expect(clippy::unused_self, reason = "as with the feature")]
    pub fn is_locked(&self) -> bool {
        false
    }
}
