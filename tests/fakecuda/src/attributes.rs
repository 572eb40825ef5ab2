//! Attributes of the fake card: approximately those of a card of compute capability 9.0, as far as the fake driver
//! implements them.

/// Returns the value of a `CUdevice_attribute`. Returns `None` for numbers that CUDA 13.0 does not know. The arms are
/// grouped by meaning, not by value.
// The arms are grouped by what they mean, not by their values.
#[allow(clippy::match_same_arms)]
pub fn get(attribute: i32, device: u32) -> Option<i32> {
    Some(match attribute {
        // Threads per block and per dimension, grids.
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65535,
        // Shared memory per block, constant memory, warp, pitch, registers per block.
        8 => 48 << 10,
        9 => 64 << 10,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => 65536,
        // Clocks in kHz, bus in bits, L2 in bytes.
        13 => 1_000_000,
        36 => 1_000_000,
        37 => 1024,
        38 => 1 << 20,
        14 | 30 => 512,
        51 => 32,
        // Copy engines.
        15 => 1,
        40 => 2,
        16 => 4,
        // Host memory can be mapped, kernels run side by side.
        19 | 31 => 1,
        33 => 0xFA + device as i32,
        34 | 50 => 0,
        39 => 2048,
        106 => 32,
        // Unified addressing.
        41 => 1,
        // Compute capability.
        75 => 9,
        76 => 0,
        // Stream priorities, L1 caches, managed memory, cooperative launches.
        78..=80 | 83 | 95 => 1,
        // Shared memory per multiprocessor and, opted in, per block.
        81 => 228 << 10,
        97 => 227 << 10,
        111 => 1024,
        84..=86 => 0,
        87 => 2,
        // Registered host memory has the same address on the device; 64-bit stream memory operations; NOR waits.
        91 | 99 | 122 | 123 => 1,
        // Virtual memory management, shared by POSIX descriptors.
        102 | 103 => 1,
        // Read-only registration of host memory.
        113 => 1,
        // Pools, shared by POSIX descriptors.
        115 | 119 => 1,
        // Events between processes.
        125 => 1,
        126 => 1,
        // No NUMA node.
        130 => 0,
        131 | 134 => -1,
        17
        | 18
        | 20..=29
        | 32
        | 35
        | 42..=49
        | 52..=74
        | 77
        | 88..=94
        | 96
        | 98
        | 100
        | 101
        | 104
        | 105
        | 107..=110
        | 112 => 0,
        114 | 116..=118 | 120 | 121 | 124 | 127..=129 | 132 | 133 | 135..=148 => 0,
        _ => return None,
    })
}
