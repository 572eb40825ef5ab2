//! The driver's library, which this crate loads at most once and never requires.
#![allow(unsafe_code)]

use crate::api::{self, Api, ExchangeCaptureMode, Ipc, Pools, Texts, WholeUuid};
use crate::error::{Answer, Error, Result, number};
use cudarc::driver::sys;
use std::sync::OnceLock;
use tensorlend_os::fork;

/// The minimum version of the driver, that of CUDA 12.2. It is the first version with a maximum
/// size of pools (`CUmemPoolProps::maxSize`). An older driver has reserved bytes in place of this
/// field, so its pools would be unbounded.
const VERSION_MIN: Version = Version { major: 12, minor: 2 };

/// The CUDA driver of this process, initialized.
pub struct Driver {
    api: Api,
    pools: Result<Pools, &'static str>,
    ipc: Result<Ipc, &'static str>,
    whole_uuid: Option<WholeUuid>,
    exchange_capture_mode: Option<ExchangeCaptureMode>,
    version: Version,
    forks: u64,
}

/// The version of CUDA that a driver supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The major version: 13 for CUDA 13.0.
    pub major: u32,
    /// The minor version: 0 for CUDA 13.0.
    pub minor: u32,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The reason why this process cannot use CUDA, for the administrator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The library is missing, or cannot be loaded.
    #[error(
        "no libcuda.so.1: install the NVIDIA driver, or where it is installed, name its folder in ldconfig's list or in \
         LD_LIBRARY_PATH; in a container, run it with the NVIDIA container toolkit"
    )]
    NoLibrary,
    /// The library lacks a function.
    #[error("the NVIDIA driver is too old: its libcuda lacks {0}; CUDA {VERSION_MIN} or newer is needed")]
    NoSymbol(&'static str),
    /// The library is the stub that the toolkit provides for linking without a driver.
    #[error(
        "the libcuda that was found is the stub of the CUDA toolkit: install the NVIDIA driver, or take the toolkit's \
         folder \"stubs\" out of LD_LIBRARY_PATH"
    )]
    Stub,
    /// `cuInit` failed for another reason.
    #[error("cuInit returned {0}: see nvidia-smi and the kernel's log")]
    Init(Answer),
    /// The driver is older than the minimum version of this crate.
    #[error("the NVIDIA driver supports CUDA {0}, and tensorlend needs {VERSION_MIN} or newer: install a newer driver")]
    TooOld(Version),
    /// The driver has no device.
    #[error(
        "the NVIDIA driver finds no device: check nvidia-smi, CUDA_VISIBLE_DEVICES, and this user's access to /dev/nvidia*"
    )]
    NoDevice,
    /// The process was forked from a process that had initialized the driver.
    #[error(
        "CUDA does not survive a fork: use it in a process that was not forked (exec, or Python's start method \"spawn\")"
    )]
    Forked,
}

/// The texts of the driver's error numbers. They are loaded before the other functions, so that a
/// failed initialization has a name.
static TEXTS: OnceLock<Texts> = OnceLock::new();
static DRIVER: OnceLock<Result<Driver, Unavailable>> = OnceLock::new();

impl Driver {
    /// Returns the driver of this process. The first call loads and initializes the driver, which
    /// takes up to some seconds on a machine with many devices. Later calls return the same result
    /// at once.
    ///
    /// The library stays loaded. Initialization creates no context and takes no device memory.
    ///
    /// Source: CUDA Driver API 13.0, sections "Initialization" and "Version Management".
    ///
    /// ```
    /// match tensorlend_cuda::Driver::get() {
    ///     Ok(driver) => println!("CUDA {}, {} devices", driver.version(), driver.devices()?.len()),
    ///     Err(unavailable) => println!("no CUDA: {unavailable}"),
    /// }
    /// # Ok::<(), tensorlend_cuda::Error>(())
    /// ```
    #[inline]
    pub fn get() -> Result<&'static Self, &'static Unavailable> {
        match DRIVER.get_or_init(Self::find) {
            Ok(driver) if driver.forks == fork::generation() => Ok(driver),
            Ok(_) => Err(&Unavailable::Forked),
            Err(unavailable) => Err(unavailable),
        }
    }

    /// Returns the driver if this process uses it already, through this crate or another library.
    /// Neither loads the library nor initializes the driver, because an initialized driver would
    /// make CUDA unusable in children that the process forks.
    ///
    /// ```
    /// assert!(tensorlend_cuda::Driver::in_use().is_none(), "this program has not used CUDA");
    /// ```
    pub fn in_use() -> Option<&'static Self> {
        if DRIVER.get().is_none() && !Self::is_initialized() {
            return None;
        }
        Self::get().ok()
    }

    /// Returns true if another library of this process has loaded and initialized the driver.
    fn is_initialized() -> bool {
        // SAFETY: the name is a C string. With RTLD_NOLOAD the call loads nothing and only adds a reference to a
        // loaded library. The handle is never closed, so the library is never unloaded afterwards.
        let loaded = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        if loaded.is_null() {
            return false;
        }
        // SAFETY: `dlopen` above found the library.
        let Ok(api) = (unsafe { Api::load() }) else { return false };
        let mut devices = 0;
        // SAFETY: the call writes one int. Without an initialized driver, it returns an error.
        unsafe { (api.cuDeviceGetCount)(&raw mut devices) == number::SUCCESS && devices > 0 }
    }

    fn find() -> Result<Self, Unavailable> {
        fork::watch();
        let forks = fork::generation();
        // SAFETY: the call loads the installed library and unloads it again. That runs only the
        // library's own initializers, like every later load.
        if !unsafe { sys::is_culib_present() } {
            return Err(Unavailable::NoLibrary);
        }
        // SAFETY: `is_culib_present` above found the library.
        let (texts, api) = unsafe { (Texts::load(), Api::load()) };
        let (texts, api) = (texts.map_err(Unavailable::NoSymbol)?, api.map_err(Unavailable::NoSymbol)?);
        TEXTS.get_or_init(|| texts);
        // SAFETY: 0 is the only valid flag. Any thread may call this function at any time, and
        // repeatedly.
        let initialized = unsafe { (api.cuInit)(0) };
        match initialized {
            number::SUCCESS => {}
            number::STUB_LIBRARY => return Err(Unavailable::Stub),
            number::NO_DEVICE => return Err(Unavailable::NoDevice),
            other => return Err(Unavailable::Init(Answer::of(other))),
        }
        let (mut version, mut devices) = (0, 0);
        // SAFETY: each call writes one int to the given address.
        let (said, counted) =
            unsafe { ((api.cuDriverGetVersion)(&raw mut version), (api.cuDeviceGetCount)(&raw mut devices)) };
        let version = if said == number::SUCCESS { Version::from_number(version) } else { Version::from_number(0) };
        if version < VERSION_MIN {
            return Err(Unavailable::TooOld(version));
        }
        if counted != number::SUCCESS || devices < 1 {
            return Err(Unavailable::NoDevice);
        }
        // SAFETY: `is_culib_present` above found the library.
        let (pools, ipc, whole_uuid) = unsafe { (Pools::load(), Ipc::load(), api::whole_uuid()) };
        // SAFETY: `is_culib_present` above found the library.
        let exchange_capture_mode = unsafe { api::exchange_capture_mode() };
        Ok(Self { api, pools, ipc, whole_uuid, exchange_capture_mode, version, forks })
    }

    /// Returns the newest CUDA version that this driver supports.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns true if the library has exportable stream-ordered pools. A device must support them
    /// too.
    pub fn has_pools(&self) -> bool {
        self.pools.is_ok()
    }

    /// Returns true if the library has the older inter-process handles. A device must support them
    /// too.
    pub fn has_ipc(&self) -> bool {
        self.ipc.is_ok()
    }

    /// Returns the driver's functions, for the rest of this crate.
    #[inline]
    pub(crate) fn api() -> Result<&'static Api> {
        Ok(&Self::get()?.api)
    }

    pub(crate) fn pools() -> Result<&'static Pools> {
        Self::get()?.pools.as_ref().map_err(|_| Error::lacking(&"this NVIDIA driver", "exportable memory pools"))
    }

    pub(crate) fn ipc() -> Result<&'static Ipc> {
        Self::get()?.ipc.as_ref().map_err(|_| Error::lacking(&"this NVIDIA driver", "inter-process handles"))
    }

    pub(crate) fn exchange_capture_mode(&self) -> Option<ExchangeCaptureMode> {
        self.exchange_capture_mode
    }

    pub(crate) fn whole_uuid(&self) -> Option<WholeUuid> {
        self.whole_uuid
    }

    pub(crate) fn texts() -> Option<&'static Texts> {
        TEXTS.get()
    }
}

impl Version {
    /// Converts the driver's number, which is 1000 times the major version plus 10 times the minor
    /// version.
    fn from_number(number: i32) -> Self {
        let number = u32::try_from(number).unwrap_or(0);
        Self { major: number / 1000, minor: number % 1000 / 10 }
    }
}

#[cfg(test)]
mod tests;
