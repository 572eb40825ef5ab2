//! The versions of this build, and of the layouts that it understands.
//!
//! Within this range, a newer version differs from an older one only by added fields. An added field
//! takes words that were reserved or that no version of the range reads, and 0 in it means that its
//! writer does not say anything. So a
//! sheet of any version of the range serves clients and daemons of every other version. Only the
//! words of the directory need care, because the daemon that writes them may be replaced by an older
//! one: see [`crate::directory::Directory::renew_added`].

use crate::wire::PROTOCOL_VERSION;
use crate::{LAYOUT_HASH, LAYOUT_VERSION};
use std::sync::LazyLock;

/// Returns the version of this build: the release, the commit and its date, and the newest protocol and layout, such as
/// `0.1.0 (70404839e1c2 2026-11-29, protocol 8, layout 7)`.
///
/// A debug build of a clone has no commit. Two builds of one commit have the same version.
///
/// ```
/// assert!(tensorlend_layout::versions::build().starts_with(env!("CARGO_PKG_VERSION")));
/// ```
pub fn build() -> &'static str {
    static BUILD: LazyLock<String> = LazyLock::new(|| {
        let (release, commit) = (env!("CARGO_PKG_VERSION"), env!("TENSORLEND_COMMIT"));
        let separator = if commit.is_empty() { "" } else { ", " };
        format!("{release} ({commit}{separator}protocol {PROTOCOL_VERSION}, layout {LAYOUT_VERSION})")
    });
    &BUILD
}

/// A version of the layout, and its hash. Two programs agree on a version only if they agree on the
/// hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The version.
    pub version: u32,
    /// FNV-1a over every structure's fields and offsets: see [`crate::describe::hash`].
    pub hash: u64,
}

/// All layouts of the range, from the oldest to this build's own. `layouts/N.txt` records the fields
/// of version N.
pub const LAYOUTS: &[Layout] = &[
    Layout { version: 5, hash: 0x9ae5_aef2_4621_0595 },
    Layout { version: 6, hash: 0x5f1f_bc44_3ea1_7eb7 },
    Layout { version: 7, hash: 0x9cd4_bfd6_4230_4dd2 },
    #[cfg(feature = "next-layout-for-tests")]
    Layout { version: 8, hash: 0xfb56_da07_4af5_cfbf },
    Layout::CURRENT,
];

/// The oldest version that this build understands.
pub const LAYOUT_OLDEST: u32 = Layout::OLDEST.version;

impl Layout {
    /// The layout of this build.
    pub const CURRENT: Self = Self { version: LAYOUT_VERSION, hash: LAYOUT_HASH };

    /// The oldest layout that this build understands. Every sheet's header contains this layout, so
    /// that every build of the range accepts the sheet.
    pub const OLDEST: Self = LAYOUTS[0];

    /// Returns true if this build understands the layout.
    ///
    /// ```
    /// use tensorlend_layout::versions::Layout;
    ///
    /// assert!(Layout::OLDEST.is_known() && Layout::CURRENT.is_known());
    /// assert!(!Layout { hash: 1, ..Layout::CURRENT }.is_known());
    /// ```
    pub fn is_known(self) -> bool {
        LAYOUTS.contains(&self)
    }
}
