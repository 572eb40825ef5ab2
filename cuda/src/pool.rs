//! Pools whose memory is allocated and freed in stream order. Another process imports the pool by a
//! descriptor, and each allocation by 64 bytes.
#![allow(unsafe_code)]

use crate::allocation::{DriverDescriptor, adopt};
use crate::api;
use crate::context::Context;
use crate::device::Device;
use crate::driver::Driver;
use crate::error::{Error, Result, check};
use crate::mapping::Access;
use crate::stream::StreamRef;
use cudarc::driver::sys::{self, CUmemPool_attribute as Attribute};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use tensorlend_layout::size;
use tensorlend_os::mutex::lock;

/// An exportable stream-ordered pool, or another process's pool. A clone is cheap.
///
/// The creating process allocates and frees memory. An importer can only import pointers. Every
/// importer must free its pointer before the exporter does. Believed: an exportable pool returns
/// memory to the device only in [`Pool::trim`] or at the pool's end, if at all.
///
/// Source: CUDA Driver API 13.0, section "Stream Ordered Memory Allocator".
#[derive(Clone, Debug)]
pub struct Pool {
    held: Arc<Held>,
}

#[derive(Debug)]
struct Held {
    raw: sys::CUmemoryPool,
    is_imported: bool,
}

// SAFETY: a pool is a handle that any thread may use.
unsafe impl Send for Held {}
// SAFETY: a pool is a handle that several threads may use at a time.
unsafe impl Sync for Held {}

/// The sizes of a pool, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Bytes taken from the device now.
    pub reserved_bytes: u64,
    /// Maximum of `reserved_bytes` so far.
    pub reserved_bytes_max: u64,
    /// Bytes allocated from the pool now.
    pub used_bytes: u64,
    /// Maximum of `used_bytes` so far.
    pub used_bytes_max: u64,
}

impl Pool {
    /// Creates a pool on a device. When streams are synchronized, the pool keeps up to
    /// `release_threshold_bytes`. The pool takes no more than about `bytes_max` from the device (0:
    /// no limit).
    ///
    /// # Errors
    /// [`Error::is_unsupported`]; otherwise the driver's error.
    pub fn create(device: &Device, release_threshold_bytes: u64, bytes_max: u64) -> Result<Self> {
        device.require_pools()?;
        let doing = || format!("making a pool of at most {bytes_max} bytes on {device}");
        let pools = Driver::pools()?;
        let properties = sys::CUmemPoolProps {
            allocType: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: api::POSIX,
            location: api::on(device.raw()),
            win32SecurityAttributes: std::ptr::null_mut(),
            maxSize: size::index(bytes_max),
            usage: 0,
            reserved: [0; 54],
        };
        let mut raw = std::ptr::null_mut();
        // SAFETY: the call reads the properties and writes one handle. The properties' reserved
        // bytes are zero, as required.
        let answer = unsafe { (pools.cuMemPoolCreate)(&raw mut raw, &raw const properties) };
        check(answer, "cuMemPoolCreate", doing)?;
        let pool = Self { held: Arc::new(Held { raw, is_imported: false }) };
        let mut threshold = release_threshold_bytes;
        let (attribute, value) = (Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, (&raw mut threshold).cast::<c_void>());
        // SAFETY: for this attribute the call reads a cuuint64_t, and `value` points to one.
        check(unsafe { (pools.cuMemPoolSetAttribute)(raw, attribute, value) }, "cuMemPoolSetAttribute", doing)?;
        Ok(pool)
    }

    /// Returns a close-on-exec descriptor of the pool. The descriptor's holder can import the pool,
    /// and then any pointer of the pool whose 64 bytes it knows.
    ///
    /// # Errors
    /// The driver's error, or the kernel's error if it cannot set close-on-exec.
    pub fn export(&self) -> Result<OwnedFd> {
        let (pools, mut fd) = (Driver::pools()?, -1);
        let to = (&raw mut fd).cast::<c_void>();
        // SAFETY: for this type of handle, the call writes one int. This value owns the pool's
        // handle.
        let answer = unsafe { (pools.cuMemPoolExportToShareableHandle)(to, self.held.raw, api::POSIX, 0) };
        check(answer, "cuMemPoolExportToShareableHandle", || "exporting a pool".into())?;
        adopt(fd, "exporting a pool")
    }

    /// Imports the pool of a descriptor. The caller may close the descriptor afterwards. Before a
    /// device uses imports from the pool, this process calls [`Pool::set_access`].
    ///
    /// # Errors
    /// The driver's error, also for a descriptor that does not represent a pool.
    pub fn import(fd: BorrowedFd<'_>) -> Result<Self> {
        let (pools, mut raw) = (Driver::pools()?, std::ptr::null_mut());
        let given = DriverDescriptor::of(fd, "importing a pool")?;
        // SAFETY: for this type of handle, the pointer argument is the descriptor's number, and the
        // driver does not follow it. The descriptor is borrowed, so it is open. The call writes one
        // handle.
        let answer =
            unsafe { (pools.cuMemPoolImportFromShareableHandle)(&raw mut raw, given.pointer(), api::POSIX, 0) };
        check(answer, "cuMemPoolImportFromShareableHandle", || "importing a pool".into())?;
        Ok(Self { held: Arc::new(Held { raw, is_imported: true }) })
    }

    /// Allocates memory in stream order. Later work in the stream may use the memory. Other work
    /// may use the memory only after an event.
    ///
    /// # Errors
    /// [`Error::is_out_of_memory`], also if the pool is at its maximum. The driver's error for an
    /// imported pool.
    pub fn allocate<'s>(&self, bytes: u64, stream: impl Into<StreamRef<'s>>) -> Result<u64> {
        let doing = || format!("allocating {bytes} bytes from a pool");
        if self.held.is_imported {
            return Err(Error::refused("only the process that made a pool can allocate from it", doing()));
        }
        let (pools, mut ptr) = (Driver::pools()?, 0);
        // SAFETY: the call writes one address. This value owns the pool's handle, and the stream is
        // borrowed.
        let answer = unsafe {
            (pools.cuMemAllocFromPoolAsync)(&raw mut ptr, size::index(bytes), self.held.raw, stream.into().raw())
        };
        check(answer, "cuMemAllocFromPoolAsync", doing)?;
        Ok(ptr)
    }

    /// Frees memory in stream order.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// 1. `ptr` came from [`Pool::allocate`] of this pool, and was not freed.
    /// 2. In stream order, all uses of `ptr` in this process precede this call. Every importer has
    ///    freed its import.
    pub unsafe fn free<'s>(&self, ptr: u64, stream: impl Into<StreamRef<'s>>) -> Result<()> {
        // SAFETY: the caller guarantees that `ptr` was allocated from the pool and not freed, and
        // that all its uses precede this call.
        unsafe { free(ptr, stream.into()) }
    }

    /// Returns the 64 bytes that identify an allocation to a process that has imported the pool.
    /// That process imports the allocation with them. The caller must have exported the pool before.
    ///
    /// # Errors
    /// The driver's error, if the address does not belong to an exportable pool, or if the pool was
    /// never exported (seen with driver 580.159).
    pub fn export_pointer(&self, ptr: u64) -> Result<[u8; 64]> {
        let (pools, mut data) = (Driver::pools()?, sys::CUmemPoolPtrExportData { reserved: [0; 64] });
        // SAFETY: the call writes 64 bytes. The driver only looks the address up.
        let answer = unsafe { (pools.cuMemPoolExportPointer)(&raw mut data, ptr) };
        check(answer, "cuMemPoolExportPointer", || "exporting an allocation of a pool".into())?;
        Ok(data.reserved)
    }

    /// Imports an allocation of the process that created this imported pool. The allocation's
    /// memory may not exist until the exporter's event for it has fired.
    ///
    /// # Errors
    /// The driver's error, also for bytes that are not an export.
    pub fn import_pointer(&self, context: &Context, data: &[u8; 64]) -> Result<Imported> {
        let pools = Driver::pools()?;
        let _current = context.enter()?;
        let mut imports = lock(&IMPORTS);
        let (mut ptr, mut data) = (0, sys::CUmemPoolPtrExportData { reserved: *data });
        // SAFETY: the call reads 64 bytes and checks them. It writes one address.
        let answer = unsafe { (pools.cuMemPoolImportPointer)(&raw mut ptr, self.held.raw, &raw mut data) };
        check(answer, "cuMemPoolImportPointer", || "importing an allocation of a pool".into())?;
        *imports.entry(ptr).or_default() += 1;
        Ok(Imported { ptr, context: context.clone(), _pool: self.clone() })
    }

    /// Lets a device use all present and future allocations and imports of this pool. The pool's own device may always use
    /// them.
    ///
    /// # Errors
    /// The driver's error, if that device cannot reach the pool's memory.
    pub fn set_access(&self, device: &Device, access: Access) -> Result<()> {
        let (pools, wish) = (Driver::pools()?, access.on(device));
        // SAFETY: the call reads one access descriptor. This value owns the pool's handle.
        let answer = unsafe { (pools.cuMemPoolSetAccess)(self.held.raw, &raw const wish, 1) };
        check(answer, "cuMemPoolSetAccess", || format!("letting {device} use a pool"))
    }

    /// Returns unallocated memory to the device, down to `bytes_keep`.
    ///
    /// # Errors
    /// The driver's error.
    pub fn trim(&self, bytes_keep: u64) -> Result<()> {
        let pools = Driver::pools()?;
        // SAFETY: this value owns the pool's handle.
        let answer = unsafe { (pools.cuMemPoolTrimTo)(self.held.raw, size::index(bytes_keep)) };
        check(answer, "cuMemPoolTrimTo", || format!("trimming a pool to {bytes_keep} bytes"))
    }

    /// Returns the pool's sizes.
    ///
    /// # Errors
    /// The driver's error. The driver may not know the sizes of an imported pool.
    pub fn figures(&self) -> Result<Figures> {
        let pools = Driver::pools()?;
        let ask = |attribute| {
            let mut bytes = 0_u64;
            // SAFETY: the call writes a cuuint64_t for each attribute requested below.
            let answer =
                unsafe { (pools.cuMemPoolGetAttribute)(self.held.raw, attribute, (&raw mut bytes).cast::<c_void>()) };
            check(answer, "cuMemPoolGetAttribute", || "asking for a pool's figures".into())?;
            Ok::<_, Error>(bytes)
        };
        Ok(Figures {
            reserved_bytes: ask(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
            reserved_bytes_max: ask(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?,
            used_bytes: ask(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
            used_bytes_max: ask(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Ok(pools) = Driver::pools() {
            // SAFETY: `create` or `import` made the handle, and this line destroys it once.
            // Remaining allocations stay valid until they are freed.
            unsafe { (pools.cuMemPoolDestroy)(self.raw) };
        }
    }
}

/// The number of imports of each address. The driver gives all imports of one allocation in a
/// process the same address, and the first free ends all of them (seen with driver 580.159).
pub(crate) static IMPORTS: Mutex<BTreeMap<u64, usize>> = Mutex::new(BTreeMap::new());

/// An import of another process's allocation, from [`Pool::import_pointer`]. A drop of the last
/// import of the allocation frees the address, and waits for the device's work on it.
#[derive(Debug)]
pub struct Imported {
    ptr: u64,
    context: Context,
    _pool: Pool,
}

impl Imported {
    /// Returns the address in this process. All imports of one allocation have the same address.
    pub fn ptr(&self) -> u64 {
        self.ptr
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        // Before the lock: in a forked child, another thread of the parent may have held it.
        let Ok(api) = Driver::api() else { return };
        // Hold the lock during the call: an import in between would get the address that this call
        // frees.
        let mut imports = lock(&IMPORTS);
        let count = imports.get_mut(&self.ptr).expect("each import is counted");
        *count -= 1;
        if *count > 0 {
            return;
        }
        imports.remove(&self.ptr);
        let Ok(_current) = self.context.enter() else { return };
        // SAFETY: this was the last import of the address, which is freed once, here. The driver
        // waits for all uses.
        unsafe { (api.cuMemFree_v2)(self.ptr) };
    }
}

/// Frees memory of a pool in stream order.
///
/// # Safety
/// 1. `ptr` was allocated from a pool, or imported, in this process, and not freed.
/// 2. In stream order, all uses of `ptr` precede this call.
unsafe fn free(ptr: u64, stream: StreamRef<'_>) -> Result<()> {
    let pools = Driver::pools()?;
    // SAFETY: the caller guarantees that `ptr` was not freed, and that all its uses precede this
    // call. The stream is borrowed.
    let answer = unsafe { (pools.cuMemFreeAsync)(ptr, stream.raw()) };
    check(answer, "cuMemFreeAsync", || "freeing memory of a pool".into())
}
