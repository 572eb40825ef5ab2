//! Copies for programs that only know CUDA's older IPC handles.

use crate::error::Result;
use crate::gpu::{Gpu, trouble};
use crate::segment::map::DeviceRange;
use crate::tensor::device::copies;
use std::sync::Arc;
use tensorlend_cuda::ipc::PlainBlock;
use tensorlend_layout::size;

/// A copy of a tensor in a plain block of device memory (`cuMemAlloc`), with a handle for other processes. Dropping
/// this value frees the block. Processes that have opened the block must close it before.
///
/// [`crate::DeviceTensor::legacy_export`] creates one:
///
/// ```no_run
/// let client = tensorlend::Client::connect()?;
/// let image = client.get_device("camera/front")?;
/// let export = image.legacy_export()?;
/// println!("{:02x?}: {} bytes", export.handle(), export.nbytes());
/// # Ok::<(), tensorlend::Error>(())
/// ```
pub struct LegacyExport {
    block: PlainBlock,
    handle: [u8; 64],
    /// Keeps the block's context until the block is freed.
    _gpu: Arc<Gpu>,
}

impl LegacyExport {
    pub(crate) fn new(gpu: &Arc<Gpu>, from: DeviceRange) -> Result<Self> {
        let doing = "export a tensor by an older handle";
        gpu.device.require_ipc().map_err(trouble(doing))?;
        let context = gpu.context(doing)?;
        let block = PlainBlock::allocate(&context, from.bytes.max(1)).map_err(trouble(doing))?;
        copies::copy_on(gpu, DeviceRange { ptr: block.ptr(), bytes: from.bytes }, from.ptr)?;
        let handle = block.ipc_handle().map_err(trouble(doing))?;
        Ok(Self { block, handle, _gpu: gpu.clone() })
    }

    /// Returns the `CUipcMemHandle`: 64 bytes, which any process of this machine that may use the device can open.
    pub fn handle(&self) -> &[u8; 64] {
        &self.handle
    }

    /// Returns the address of the block in this process.
    pub fn ptr(&self) -> u64 {
        self.block.ptr()
    }

    /// Returns the length of the block in bytes.
    pub fn nbytes(&self) -> usize {
        size::index(self.block.bytes())
    }
}

impl std::fmt::Debug for LegacyExport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LegacyExport").field("nbytes", &self.nbytes()).finish_non_exhaustive()
    }
}
