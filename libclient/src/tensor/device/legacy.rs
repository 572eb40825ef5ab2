//! A copy for programs that know CUDA's older handles only.

use crate::error::Result;
use crate::gpu::{Gpu, trouble};
use crate::segment::map::DeviceRange;
use crate::tensor::device::staging;
use std::sync::Arc;
use tensorlend_cuda::ipc::PlainBlock;

/// A copy of a tensor in a plain block of device memory (`cuMemAlloc`), with its handle for other processes. The block is freed
/// when this is dropped: whoever has opened it closes it before.
pub struct LegacyExport {
    block: PlainBlock,
    handle: [u8; 64],
    /// Its context lasts as long.
    _gpu: Arc<Gpu>,
}

impl LegacyExport {
    pub(crate) fn new(gpu: &Arc<Gpu>, from: DeviceRange) -> Result<Self> {
        let doing = "export a tensor by an older handle";
        gpu.device.require_ipc().map_err(trouble(doing))?;
        let context = gpu.context(doing)?;
        let block = PlainBlock::allocate(&context, from.bytes.max(1)).map_err(trouble(doing))?;
        staging::copy_on(gpu, DeviceRange { ptr: block.ptr(), bytes: from.bytes }, from.ptr)?;
        let handle = block.ipc_handle().map_err(trouble(doing))?;
        Ok(Self { block, handle, _gpu: gpu.clone() })
    }

    /// A `CUipcMemHandle`: 64 bytes, which any process of this machine may open that may use the device.
    pub fn handle(&self) -> &[u8; 64] {
        &self.handle
    }

    /// Where the block is in this process.
    pub fn ptr(&self) -> u64 {
        self.block.ptr()
    }

    /// How long it is.
    pub fn nbytes(&self) -> u64 {
        self.block.bytes()
    }
}

impl std::fmt::Debug for LegacyExport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LegacyExport").field("nbytes", &self.nbytes()).finish_non_exhaustive()
    }
}
