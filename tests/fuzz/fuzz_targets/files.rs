//! Readers of npy, npz and safetensors files with arbitrary contents.
#![no_main]
#![allow(dead_code)]

#[path = "../../../apps/cli/src/files/mod.rs"]
mod files;
#[path = "../../../apps/cli/src/interrupt.rs"]
mod interrupt;
#[path = "../../../apps/cli/src/meminfo.rs"]
mod meminfo;
/// The tool counts bytes for its progress bars. This target has none.
mod progress {
    pub fn count(_: usize) {}
}

use libfuzzer_sys::fuzz_target;
use std::cell::OnceCell;

/// Longer tensors are opened but not read: decompression can expand a small file to a large tensor.
const BYTES_MAX: u64 = 1 << 24;

thread_local! {
    static FOLDER: OnceCell<tempfile::TempDir> = const { OnceCell::new() };
}

fuzz_target!(|data: &[u8]| {
    let Some((&which, data)) = data.split_first() else { return };
    let name = ["x.npy", "x.npz", "x.safetensors"][usize::from(which) % 3];
    let path = FOLDER.with(|folder| {
        folder.get_or_init(|| tempfile::tempdir_in("/dev/shm").expect("a folder in memory")).path().join(name)
    });
    std::fs::write(&path, data).expect("memory for a small file");
    let Ok(entries) = files::open(&path, None) else { return };
    for entry in entries {
        let elements: u128 = entry.shape.iter().map(|&d| u128::from(d)).product();
        assert_eq!(elements * entry.dtype.item_bytes() as u128, u128::from(entry.bytes));
        if entry.bytes <= BYTES_MAX {
            let mut out = vec![0; entry.bytes as usize];
            let read = entry.read_into(&mut out);
            if name != "x.npz" {
                assert!(read.is_ok() || entry.dtype == tensorlend::DType::BOOL, "{:?}", read.err());
            }
        }
    }
});
