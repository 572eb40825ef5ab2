//! NUMA placement of a segment's pages.
#![allow(unsafe_code)]

use crate::map::Segment;
use std::io;

/// A NUMA policy for new pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numa {
    /// The node of the thread that first touches a page.
    #[default]
    Local,
    /// All nodes in turn.
    Interleave,
    /// This node, and other nodes when it is full.
    Node(u32),
}

/// Returns the nodes of this machine.
pub fn nodes() -> io::Result<Vec<u32>> {
    let text = std::fs::read_to_string("/sys/devices/system/node/has_memory")?;
    parse(&text).ok_or_else(|| io::Error::other(format!("the kernel lists its nodes as {text:?}")))
}

fn parse(text: &str) -> Option<Vec<u32>> {
    let mut nodes = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        nodes.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(nodes)
}

/// Sets the placement of those pages of a mapped memfd that do not exist yet. The memfd stores the
/// placement, so it applies to all processes that touch these pages.
pub fn place(segment: &Segment, numa: Numa) -> io::Result<()> {
    // Values from <linux/mempolicy.h>.
    const PREFERRED: libc::c_int = 1;
    const INTERLEAVE: libc::c_int = 3;
    let (mode, nodes) = match numa {
        Numa::Local => return Ok(()),
        Numa::Interleave => (INTERLEAVE, nodes()?),
        Numa::Node(node) => (PREFERRED, vec![node]),
    };
    let mut mask = [0u64; 16];
    for node in nodes {
        let word = mask.get_mut(node as usize / 64);
        *word.ok_or_else(|| io::Error::other(format!("node {node} is out of range")))? |= 1 << (node % 64);
    }
    // SAFETY: mbind changes the policy of a mapping that `segment` keeps mapped, and accesses none
    // of its bytes. The kernel reads one bit less than the number that it gets, which is exactly
    // the length of the mask.
    let done = unsafe {
        libc::syscall(libc::SYS_mbind, segment.start(), segment.bytes(), mode, mask.as_ptr(), mask.len() * 64 + 1, 0u32)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map;
    use crate::memfd::{self, Access};

    #[test]
    fn lists_of_nodes_are_read() {
        assert_eq!(parse("0\n"), Some(vec![0]));
        assert_eq!(parse("0-1,4,6-7\n"), Some(vec![0, 1, 4, 6, 7]));
        assert_eq!(parse("\n"), None);
    }

    #[test]
    fn pages_are_made_where_there_are_nodes() {
        let Ok(nodes) = nodes() else { return crate::skip::skip("this machine tells no NUMA nodes") };
        let fd = memfd::create_empty("test", 1 << 20).unwrap();
        let segment = map::segment(&fd, 1 << 20, Access::Write, false).unwrap();
        for numa in [Numa::Local, Numa::Interleave, Numa::Node(nodes[0])] {
            place(&segment, numa).unwrap();
        }
        let missing = (0..1000).find(|node| !nodes.contains(node)).unwrap();
        assert!(place(&segment, Numa::Node(missing)).is_err());
        assert!(place(&segment, Numa::Node(5000)).is_err());
    }
}
