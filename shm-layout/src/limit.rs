//! Kinds of limits. Programs use the kind to decide how to handle a refusal; the texts of errors
//! are for people.

use serde::{Deserialize, Serialize};
use std::ffi::CStr;
use std::fmt;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident = $number:literal, $name:literal;)+) => {
        /// The limit that an operation has reached. The numbers and the names are stable. Later
        /// versions may add kinds.
        ///
        /// The daemon reports the limits of its configuration. The client library has limits of its
        /// own, and itself detects the limits of the process and the machine: see
        /// `tensorlend::Error::limit_kind`.
        ///
        /// ```
        /// use tensorlend_layout::wire::LimitKind;
        ///
        /// assert_eq!(LimitKind::PoolShare.to_string(), "pool-share");
        /// assert!(LimitKind::PoolShare.is_share() && LimitKind::PoolShare.is_tensor_memory());
        /// assert!(!LimitKind::Names.is_share() && LimitKind::Names.is_names());
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum LimitKind {
            $($(#[doc = $doc])+ $kind = $number,)+
        }

        impl LimitKind {
            /// All kinds of limits, by number.
            pub const ALL: &[Self] = &[$(Self::$kind),+];

            /// Returns the limit's name, such as "pool-bytes".
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)+ }
            }

            /// Returns [`LimitKind::name`] as a C string.
            pub const fn c_name(self) -> &'static CStr {
                const fn text(name: &'static str) -> &'static CStr {
                    match CStr::from_bytes_with_nul(name.as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name has no zero byte"),
                    }
                }
                match self { $(Self::$kind => const { text(concat!($name, "\0")) },)+ }
            }
        }
    };
}

kinds! {
    /// `pool.bytes_max`: bytes of segments that all users together may have.
    PoolBytes = 1, "pool-bytes";
    /// A user's share of `pool.bytes_max`.
    PoolShare = 2, "pool-share";
    /// `pool.sheet_bytes_max`: bytes of names and descriptors that all users together may have.
    SheetBytes = 3, "sheet-bytes";
    /// A user's share of `pool.sheet_bytes_max`.
    SheetShare = 4, "sheet-share";
    /// `bytes_max` of a namespace: its segments, names and descriptors.
    NamespaceBytes = 5, "namespace-bytes";
    /// `uid.bytes_max`: a user's segments, names and descriptors.
    UserBytes = 6, "user-bytes";
    /// `cuda.bytes_max`: bytes of one device's memory that the daemon may lend.
    DeviceBytes = 7, "device-bytes";
    /// A user's share of the memory of all devices.
    DeviceShare = 8, "device-share";
    /// `device_bytes_max` of a namespace.
    NamespaceDeviceBytes = 9, "namespace-device-bytes";
    /// `uid.device_bytes_max`.
    UserDeviceBytes = 10, "user-device-bytes";
    /// Descriptors that the daemon's process may have open (`LimitNOFILE` of its unit).
    Descriptors = 11, "descriptors";
    /// A user's share of the daemon's descriptors.
    DescriptorShare = 12, "descriptor-share";
    /// `uid.sessions_max`: clients of one user that are connected.
    Sessions = 13, "sessions";
    /// `names_max` of a namespace.
    Names = 14, "names";
    /// A user's share of a namespace's names.
    NameShare = 15, "name-share";
    /// Names of a namespace longer than 96 bytes: an eighth of its `names_max`.
    LongNames = 16, "long-names";
    /// Cells of one client, by `names_max` of its namespace.
    Cells = 17, "cells";
    /// `members_max` of a namespace: clients, and ended clients whose tensors still exist.
    Members = 18, "members";
    /// A user's share of a namespace's members.
    MemberShare = 19, "member-share";
    /// `segments_max` of a namespace.
    Segments = 20, "segments";
    /// A user's share of a namespace's segments.
    SegmentShare = 21, "segment-share";
    /// `streams_max` of a namespace.
    Streams = 22, "streams";
    /// A user's share of a namespace's streams.
    StreamShare = 23, "stream-share";
    /// `lists_max` of a namespace.
    Lists = 24, "lists";
    /// A user's share of a namespace's lists.
    ListShare = 25, "list-share";
    /// A user's share of a stream's subscribers.
    SubscriberShare = 26, "subscriber-share";
    /// The daemon spills nothing: `[spill]` has no directory.
    Spill = 27, "spill";
    /// The client's own `memory_limit`.
    ClientBytes = 28, "client-bytes";
    /// Leases that one client may hold.
    Leases = 29, "leases";
    /// Subscriptions, callers and servers that one client may have open.
    Cursors = 30, "cursors";
    /// Files that the client's process may have open (`ulimit -n`).
    OpenFiles = 31, "open-files";
    /// Memory of the machine.
    MachineMemory = 32, "machine-memory";
    /// Memory of a device: the device has none left.
    DeviceMemory = 33, "device-memory";
}

impl LimitKind {
    /// Returns the limit's number.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Returns true if the limit is a user's share of a common resource. Other users may still get
    /// more of the resource.
    pub const fn is_share(self) -> bool {
        matches!(
            self,
            Self::PoolShare
                | Self::SheetShare
                | Self::DeviceShare
                | Self::DescriptorShare
                | Self::NameShare
                | Self::MemberShare
                | Self::SegmentShare
                | Self::StreamShare
                | Self::ListShare
                | Self::SubscriberShare
        )
    }

    /// Returns true if tensors in host memory count against the limit. Spilling some of them makes
    /// room.
    pub const fn is_tensor_memory(self) -> bool {
        matches!(self, Self::PoolBytes | Self::PoolShare | Self::NamespaceBytes | Self::UserBytes)
    }

    /// Returns true if the tensors of a program count against the limit, in host memory or on devices.
    pub(crate) const fn is_of_tensors(self) -> bool {
        self.is_tensor_memory()
            || matches!(
                self,
                Self::DeviceBytes | Self::DeviceShare | Self::NamespaceDeviceBytes | Self::UserDeviceBytes
            )
    }

    /// Returns true if names and list items count against the limit. Deleting some of them makes
    /// room.
    pub const fn is_names(self) -> bool {
        matches!(self, Self::Names | Self::NameShare | Self::LongNames | Self::Cells)
    }
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_kind_has_a_number_and_a_name_of_its_own() {
        let names: HashSet<_> = LimitKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), LimitKind::ALL.len());
        assert!(LimitKind::ALL.iter().zip(1..).all(|(kind, number)| kind.number() == number));
        assert!(LimitKind::ALL.iter().all(|kind| kind.is_share() == kind.name().ends_with("share")));
    }
}
