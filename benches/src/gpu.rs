//! A CUDA device for measurements: its kernels, its memory by the driver's own calls, and copies.
//!
//! Callers must keep two rules. Rule 1: an address passed in is one of existing device memory, mapped or allocated in
//! this process, with the given number of bytes, until the requested work is done. Rule 2: freed memory was allocated
//! by the same kind of call, and is freed once.
#![allow(unsafe_code)]

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaContext, CudaStream, sys};
use serde::{Deserialize, Serialize};
use std::ffi::{CString, c_void};
use std::sync::Arc;
use tensorlend_cuda::{Device, Driver};

/// The kernels, for real devices and for the tests' fake device.
const KERNELS: &str = include_str!("../../tests/fakecuda/kernels.ptx");
/// Number of threads of a block.
const BLOCK: u64 = 256;
/// Maximum number of blocks: enough to keep the largest devices busy; each thread processes several elements.
const GRID_MAX: u64 = 132 * 8;

/// A device with its primary context and the kernels.
#[derive(Debug)]
pub struct Card {
    pub device: Device,
    context: Arc<CudaContext>,
    fill: Kernel,
    spin: Kernel,
    cast: Kernel,
    add: Kernel,
}

#[derive(Clone, Copy, Debug)]
struct Kernel(sys::CUfunction);

// SAFETY: a function of a module that is never unloaded is a handle that any thread may use.
unsafe impl Send for Kernel {}
// SAFETY: a function of a module that is never unloaded is a handle that several threads may use at once.
unsafe impl Sync for Kernel {}

/// Returns the first device that this process sees, without a context.
///
/// # Errors
/// The reason why there is none.
pub fn first_device() -> Result<Device, String> {
    let driver = Driver::get().map_err(ToString::to_string)?;
    driver.devices().map_err(|e| e.to_string())?.into_iter().next().ok_or_else(|| "the driver sees no device".into())
}

impl Card {
    /// Opens the first device that this process sees.
    ///
    /// # Errors
    /// The reason why there is none, or the driver's error.
    pub fn open() -> Result<Self, String> {
        let device = first_device()?;
        Self::load(device).map_err(|error| format!("the device's context and kernels: {error:?}"))
    }

    fn load(device: Device) -> Result<Self, DriverError> {
        let context = CudaContext::new(device.ordinal() as usize)?;
        context.bind_to_thread()?;
        let text = CString::new(KERNELS).expect("a text without a null");
        // SAFETY: the text ends with a null, and the driver copies the parts that it needs.
        let module = unsafe { result::module::load_data(text.as_ptr().cast::<c_void>()) }?;
        let find = |name: &str| {
            // SAFETY: the call above loaded the module, and no call unloads it.
            unsafe { result::module::get_function(module, CString::new(name).expect("a name")) }.map(Kernel)
        };
        Ok(Self {
            fill: find("tl_fill_u32")?,
            spin: find("tl_spin_fill_u32")?,
            cast: find("tl_cast_i32_f64")?,
            add: find("tl_add_i32")?,
            device,
            context,
        })
    }

    /// Returns the context, which other threads must bind.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    pub fn stream(&self) -> Arc<CudaStream> {
        self.context.new_stream().expect("a stream can be made")
    }

    pub fn is_done(&self, stream: &CudaStream) -> bool {
        self.context.bind_to_thread().expect("the context lives");
        // SAFETY: a stream of this context, which lives as long as the reference.
        unsafe { sys::cuStreamQuery(stream.cu_stream()) == sys::CUresult::CUDA_SUCCESS }
    }

    fn launch(&self, kernel: Kernel, stream: &CudaStream, elements: u64, arguments: &mut [*mut c_void]) {
        self.try_launch(kernel, stream, elements, arguments).expect("a kernel can be launched");
    }

    fn try_launch(
        &self,
        kernel: Kernel,
        stream: &CudaStream,
        elements: u64,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DriverError> {
        self.context.bind_to_thread()?;
        let grid = elements.div_ceil(BLOCK).clamp(1, GRID_MAX) as u32;
        // SAFETY: the kernel is a function of `KERNELS`, and `arguments` are its parameters. By rule 1, the addresses
        // are valid until the kernel has ended.
        unsafe { result::launch_kernel(kernel.0, (grid, 1, 1), (BLOCK as u32, 1, 1), 0, stream.cu_stream(), arguments) }
    }

    /// Stores `value` in this many 32-bit elements.
    pub fn fill(&self, stream: &CudaStream, mut to: u64, mut elements: u64, mut value: u32) {
        let arguments = &mut [argument(&mut to), argument(&mut elements), argument(&mut value)];
        self.launch(self.fill, stream, elements, arguments);
    }

    /// Stores values like [`Card::fill`], and waits until they are stored.
    ///
    /// # Errors
    /// The driver's error, of the call or of the work.
    pub fn try_fill(
        &self,
        stream: &CudaStream,
        mut to: u64,
        mut elements: u64,
        mut value: u32,
    ) -> Result<(), DriverError> {
        let arguments = &mut [argument(&mut to), argument(&mut elements), argument(&mut value)];
        self.try_launch(self.fill, stream, elements, arguments)?;
        stream.synchronize()
    }

    /// Stores values like [`Card::fill`], after this many nanoseconds on the device.
    pub fn spin_fill(&self, stream: &CudaStream, mut to: u64, mut elements: u64, mut value: u32, mut spin_ns: u64) {
        let arguments = &mut [argument(&mut to), argument(&mut elements), argument(&mut value), argument(&mut spin_ns)];
        self.launch(self.spin, stream, elements, arguments);
    }

    /// Converts int32 to float64.
    pub fn cast(&self, stream: &CudaStream, mut to: u64, mut from: u64, mut elements: u64) {
        let arguments = &mut [argument(&mut to), argument(&mut from), argument(&mut elements)];
        self.launch(self.cast, stream, elements, arguments);
    }

    /// Adds int32 to int32.
    pub fn add(&self, stream: &CudaStream, mut to: u64, (mut one, mut other): (u64, u64), mut elements: u64) {
        let arguments = &mut [argument(&mut to), argument(&mut one), argument(&mut other), argument(&mut elements)];
        self.launch(self.add, stream, elements, arguments);
    }

    /// Allocates device memory with `cuMemAlloc`.
    pub fn allocate(&self, bytes: u64) -> u64 {
        self.context.bind_to_thread().expect("the context lives");
        // SAFETY: the memory is uninitialized, and the program fills the memory before reading it.
        unsafe { result::malloc_sync(bytes as usize) }.expect("the device has room")
    }

    /// Allocates device memory with `cuMemAlloc`, which may fail.
    ///
    /// # Errors
    /// The driver's error.
    pub fn try_allocate(&self, bytes: u64) -> Result<u64, DriverError> {
        self.context.bind_to_thread()?;
        // SAFETY: the memory is uninitialized, and the program fills the memory before reading it.
        unsafe { result::malloc_sync(bytes as usize) }
    }

    /// Frees device memory with `cuMemFree`, which waits for the device.
    pub fn free(&self, ptr: u64) {
        self.context.bind_to_thread().expect("the context lives");
        // SAFETY: by rule 2, the memory was allocated by the counterpart of this call, and is freed once.
        unsafe { result::free_sync(ptr) }.expect("it can be freed");
    }

    /// Allocates device memory with `cuMemAllocAsync`.
    pub fn allocate_async(&self, stream: &CudaStream, bytes: u64) -> u64 {
        self.context.bind_to_thread().expect("the context lives");
        // SAFETY: the memory is uninitialized, and the program fills the memory before reading it. Only this
        // stream uses the memory.
        unsafe { result::malloc_async(stream.cu_stream(), bytes as usize) }.expect("the device has room")
    }

    /// Frees device memory with `cuMemFreeAsync`.
    pub fn free_async(&self, stream: &CudaStream, ptr: u64) {
        // SAFETY: by rule 2, the memory was allocated by the counterpart of this call, and is freed once. Only
        // this stream uses the memory.
        unsafe { result::free_async(ptr, stream.cu_stream()) }.expect("it can be freed");
    }

    fn default_pool(&self) -> sys::CUmemoryPool {
        // SAFETY: the driver has returned this device.
        unsafe { result::device::get_default_mem_pool(self.context.cu_device()) }.expect("the device has a pool")
    }

    /// Makes the device's own pool keep freed memory, as a program that needs speed would: by default the pool releases
    /// everything at each synchronization.
    pub fn keep_freed(&self) {
        let mut all = u64::MAX;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: this attribute is a cuuint64_t, and the driver reads one from `all`.
        unsafe { result::mem_pool::set_attribute(self.default_pool(), attribute, (&raw mut all).cast()) }
            .expect("it has a threshold");
    }

    /// Returns the maximum memory of the device's own pool since the last call.
    pub fn pool_peak(&self) -> u64 {
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
        let (pool, mut bytes, mut zero) = (self.default_pool(), 0_u64, 0_u64);
        // SAFETY: this attribute is a cuuint64_t, and the driver writes one to `bytes`.
        let asked = unsafe { result::mem_pool::get_attribute(pool, attribute, (&raw mut bytes).cast()) };
        asked.expect("it has figures");
        // SAFETY: this attribute is a cuuint64_t, and the driver reads one from `zero`. The value 0 resets the maximum.
        unsafe { result::mem_pool::set_attribute(pool, attribute, (&raw mut zero).cast()) }.expect("it can be reset");
        bytes
    }

    /// Releases the memory that the device's own pool keeps.
    pub fn trim_pool(&self) {
        // SAFETY: the pool is the device's own, which exists as long as the device.
        unsafe { result::mem_pool::trim_to(self.default_pool(), 0) }.expect("it can be trimmed");
    }

    pub fn free_bytes(&self) -> u64 {
        self.context.bind_to_thread().expect("the context lives");
        result::mem_get_info().expect("the device tells").0 as u64
    }

    /// Copies from the host, on a stream. The bytes must stay until the stream is synchronized.
    pub fn copy_in(&self, stream: &CudaStream, to: u64, from: &[u8]) {
        self.context.bind_to_thread().expect("the context lives");
        // SAFETY: by rule 1, the device memory is valid until the work is done. The caller keeps `from` as long.
        unsafe { result::memcpy_htod_async(to, from, stream.cu_stream()) }.expect("a copy");
    }

    /// Copies like [`Card::copy_in`], and waits until the copy has ended.
    ///
    /// # Errors
    /// The driver's error, of the call or of the work.
    pub fn try_copy_in(&self, stream: &CudaStream, to: u64, from: &[u8]) -> Result<(), DriverError> {
        self.context.bind_to_thread()?;
        // SAFETY: by rule 1, `to` is valid. `from` is borrowed until the copy has ended.
        unsafe { result::memcpy_htod_async(to, from, stream.cu_stream()) }?;
        stream.synchronize()
    }

    /// Copies to the host, on a stream. The bytes must stay until the stream is synchronized.
    pub fn copy_out(&self, stream: &CudaStream, to: &mut [u8], from: u64) {
        self.context.bind_to_thread().expect("the context lives");
        // SAFETY: by rule 1, the device memory is valid until the work is done. The caller keeps `to` as long.
        unsafe { result::memcpy_dtoh_async(to, from, stream.cu_stream()) }.expect("a copy");
    }

    /// Copies on the device, on a stream.
    pub fn copy_on(&self, stream: &CudaStream, to: u64, from: u64, bytes: u64) {
        self.context.bind_to_thread().expect("the context lives");
        // SAFETY: by rule 1, both addresses are valid until the work is done.
        unsafe { result::memcpy_dtod_async(to, from, bytes as usize, stream.cu_stream()) }.expect("a copy");
    }

    /// Returns bytes of device memory, after the stream's present work.
    ///
    /// # Errors
    /// The driver's error, also of earlier work.
    pub fn try_read(&self, stream: &CudaStream, from: u64, bytes: u64) -> Result<Vec<u8>, DriverError> {
        let mut found = vec![0xa7_u8; bytes as usize];
        self.context.bind_to_thread()?;
        // SAFETY: by rule 1, `from` is valid. The bytes live until the copy has ended.
        unsafe { result::memcpy_dtoh_async(&mut found, from, stream.cu_stream()) }?;
        stream.synchronize()?;
        Ok(found)
    }

    /// Returns one 32-bit element, after the stream's present work.
    pub fn element(&self, stream: &CudaStream, at: u64) -> u32 {
        self.try_element(stream, at).expect("the device answers")
    }

    /// Returns an element like [`Card::element`].
    ///
    /// # Errors
    /// The driver's error, also of earlier work.
    pub fn try_element(&self, stream: &CudaStream, at: u64) -> Result<u32, DriverError> {
        let found = self.try_read(stream, at, 4)?;
        Ok(u32::from_le_bytes([found[0], found[1], found[2], found[3]]))
    }
}

fn argument<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

/// Pinned host memory by the driver, freed when it is dropped.
#[derive(Debug)]
pub struct Pinned {
    start: *mut u8,
    bytes: usize,
    context: Arc<CudaContext>,
}

impl Pinned {
    /// Allocates this many bytes and writes all of them.
    pub fn new(card: &Card, bytes: usize) -> Self {
        card.context.bind_to_thread().expect("the context lives");
        // SAFETY: the next call writes all of this memory, before any access reads it.
        let start = unsafe { result::malloc_host(bytes, 0) }.expect("pinned memory").cast::<u8>();
        // SAFETY: the call above allocated `bytes` bytes at `start`.
        unsafe { start.write_bytes(1, bytes) };
        Self { start, bytes, context: card.context.clone() }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: this value owns `bytes` bytes at `start`. They are initialized, and borrowed
        // together with this value.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: `new` allocated the memory, and only this drop frees it. All copies have ended.
            let _ = unsafe { result::free_host(self.start.cast::<c_void>()) };
        }
    }
}

/// Returns a table's header: the device, and whether it is real.
pub fn about(device: &Device) -> String {
    let fake = if device.is_fake() { ": a stand-in on the host, whose times mean nothing" } else { "" };
    let version = Driver::get().map_or_else(|_| "?".to_owned(), |driver| driver.version().to_string());
    format!("{}, CUDA {version}{fake}", device.name())
}

/// Returns the number of driver calls of this process in the fake driver's log, if it writes one.
pub fn driver_calls() -> Option<u64> {
    calls().map(|calls| calls.all)
}

/// Numbers of driver calls, by their effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    /// Device memory and pools: `cuMemAlloc`, `cuMemCreate`, `cuMemAllocAsync`, `cuMemAllocFromPoolAsync`.
    pub allocate: u64,
    /// Calls that free device memory and pools.
    pub free: u64,
    /// Calls that wait on the host for a stream, an event or a context. `cuMemFree` waits, too, but does not
    /// count here.
    pub synchronize: u64,
    /// Calls for addresses, mappings, access rights, and memory of other processes.
    pub map: u64,
    /// Calls that record an event, query an event, or make a stream wait for an event.
    pub event: u64,
    pub all: u64,
}

impl Calls {
    fn add(&mut self, name: &str) {
        let name = name.split("_v").next().unwrap_or(name);
        self.all += 1;
        match name {
            "cuMemAlloc" | "cuMemCreate" | "cuMemAllocAsync" | "cuMemAllocFromPoolAsync" => self.allocate += 1,
            "cuMemFree" | "cuMemRelease" | "cuMemFreeAsync" => self.free += 1,
            "cuStreamSynchronize" | "cuCtxSynchronize" | "cuEventSynchronize" => self.synchronize += 1,
            "cuMemMap" | "cuMemUnmap" | "cuMemSetAccess" | "cuMemAddressReserve" | "cuMemAddressFree" => self.map += 1,
            _ if name.contains("Import") || name.contains("Export") => self.map += 1,
            "cuEventRecord" | "cuEventQuery" | "cuStreamWaitEvent" => self.event += 1,
            _ => {}
        }
    }

    pub fn since(self, before: Self) -> Self {
        self.with(before, |after, before| after - before)
    }

    /// Returns the sums of both numbers of each kind.
    pub fn plus(self, other: Self) -> Self {
        self.with(other, |one, other| one + other)
    }

    fn with(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            allocate: of(self.allocate, other.allocate),
            free: of(self.free, other.free),
            synchronize: of(self.synchronize, other.synchronize),
            map: of(self.map, other.map),
            event: of(self.event, other.event),
            all: of(self.all, other.all),
        }
    }
}

/// Returns the driver calls of this process in the fake driver's log, if it writes one.
pub fn calls() -> Option<Calls> {
    let text = std::fs::read_to_string(std::env::var_os("FAKECUDA_LOG")?).ok()?;
    let mine = format!("{} ", std::process::id());
    let mut calls = Calls::default();
    // A line with more words is a note about a call, and does not count.
    let names = text.lines().filter_map(|line| line.strip_prefix(&mine)).filter(|name| !name.contains(' '));
    names.for_each(|name| calls.add(name));
    Some(calls)
}
