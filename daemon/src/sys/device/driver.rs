//! Device memory from the CUDA driver.
//!
//! The allocators `pool` and `arena` create no context, because the driver's virtual memory
//! management needs none. So the daemon itself uses at most a few MiB of a device, and survives
//! faults that break a context. The allocator `async` needs a context, and creates it for its first
//! block.

use super::{Cards, DeviceMemory, Devices, MadeOnDevice};
use crate::config::CudaConfig;
use crate::core::Borrower;
use crate::core::device::UNIT;
use crate::core::settings::DeviceSettings;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tensorlend_cuda::pool::Pool;
use tensorlend_cuda::{Allocation, Block, Context, Device, Driver, Stream};
use tensorlend_layout::Uuid;
use tensorlend_layout::directory::DEVICES;
use tensorlend_layout::size::bytes_exact;
use tensorlend_layout::wire::{Allocator, Export};

pub fn open(config: &CudaConfig) -> Devices {
    let none = |why: String| Devices::none(format!("no device memory is lent: {why}"));
    let found = match Driver::get() {
        Ok(driver) => driver.devices(),
        Err(unavailable) => return none(unavailable.to_string()),
    };
    let found = match found {
        Ok(found) => found,
        Err(error) => return none(error.to_string()),
    };
    let (mut cards, mut settings, mut without) = (Vec::new(), Vec::new(), Vec::new());
    for device in chosen(config, found, &mut without) {
        match settings_of(config, &device) {
            Ok(_) if cards.len() == DEVICES => without.push(format!("{device} would be one more than {DEVICES}")),
            Ok(it) => {
                settings.push(it);
                cards.push(Card { device, pools: Mutex::default(), idle_bytes_max: config.idle_bytes_max.0 });
            }
            Err(why) => without.push(why),
        }
    }
    if cards.is_empty() {
        return none(without.join("; "));
    }
    for why in without {
        tracing::warn!("no memory is lent of a device that cuda.devices names: {why}");
    }
    // The numbers of pools start at the time since boot, so no daemon uses the numbers of a
    // previous daemon. Clients identify pools by their numbers, and continue with the next daemon.
    let first = tensorlend_os::clock::boottime_ns();
    let cards = All { allocator: config.allocator, cards, pools_ever: AtomicU64::new(first) };
    Devices { settings, why_none: String::new(), cards: Some(Arc::new(cards)) }
}

/// Returns the named devices, in the driver's order. Adds a message to `without` for each missing
/// device.
fn chosen(config: &CudaConfig, found: Vec<Device>, without: &mut Vec<String>) -> Vec<Device> {
    if config.devices.iter().any(|name| name == "all") {
        return found;
    }
    let named: Vec<Uuid> = config.devices.iter().filter_map(|name| name.parse().ok()).collect();
    for &missing in named.iter().filter(|&&it| !found.iter().any(|device| device.uuid() == it)) {
        let there: Vec<String> = found.iter().map(|device| device.uuid().to_string()).collect();
        without.push(format!(
            "cuda.devices names {missing}, and the driver shows this process {}: correct it, or check CUDA_VISIBLE_DEVICES and the devices that the unit may use",
            there.join(", ")
        ));
    }
    found.into_iter().filter(|device| named.contains(&device.uuid())).collect()
}

fn settings_of(config: &CudaConfig, device: &Device) -> Result<DeviceSettings, String> {
    if device.is_fake() && !config.allow_fake {
        return Err(format!(
            "{device} belongs to a driver that is a stand-in for tests: take it out of LD_LIBRARY_PATH, or start tensorlendd \
             with --allow-fake-cuda if it is meant"
        ));
    }
    let granularity = device.granularity().map_err(|error| error.to_string())?;
    if config.allocator == Allocator::Async {
        device.require_pools().map_err(|error| format!("{error}: use another cuda.allocator"))?;
    }
    let unit_bytes = granularity.bytes_min.max(UNIT);
    let bytes_max = config.bytes_max.map_or(device.bytes_total() / 2, |bytes| bytes.0).min(device.bytes_total());
    if bytes_max < unit_bytes {
        let (most, least) = (bytes_exact(bytes_max), bytes_exact(unit_bytes));
        return Err(format!("cuda.bytes_max allows {most} of {device}, which allocates {least} at least"));
    }
    let ordinary = config.segment_bytes().min(bytes_max);
    Ok(DeviceSettings {
        uuid: device.uuid(),
        name: device.name().to_owned(),
        allocator: config.allocator,
        segment_bytes: (ordinary / unit_bytes * unit_bytes).max(unit_bytes),
        unit_bytes,
        bytes_max,
        idle_bytes_max: config.idle_bytes_max.0,
    })
}

struct Card {
    device: Device,
    /// The pools. Each user has one pool in each namespace in which it has blocks, so no pool has
    /// memory of two namespaces. A pool ends with its last block.
    pools: Mutex<BTreeMap<Borrower, Weak<Exported>>>,
    /// Maximum number of unused bytes that a pool may keep.
    idle_bytes_max: u64,
}

struct All {
    allocator: Allocator,
    cards: Vec<Card>,
    pools_ever: AtomicU64,
}

/// A pool of the driver, which clients import by its descriptor.
struct Exported {
    number: u64,
    fd: OwnedFd,
    pool: Pool,
    stream: Arc<Stream>,
}

impl Exported {
    /// Returns unused memory to the device, except `idle_bytes_max` bytes.
    fn trim(&self, idle_bytes_max: u64) {
        let Ok(figures) = self.pool.figures() else { return };
        if figures.reserved_bytes.saturating_sub(figures.used_bytes) > idle_bytes_max
            && let Err(error) = self.pool.trim(figures.used_bytes + idle_bytes_max)
        {
            tracing::warn!("the driver's pool keeps unused memory: {error}");
        }
    }
}

impl Card {
    fn trim(&self) {
        let pools: Vec<_> = {
            let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
            pools.values().filter_map(Weak::upgrade).collect()
        };
        for pool in pools {
            pool.trim(0);
        }
    }
}

/// A lent block, and the pool to which it returns when dropped.
struct Lent {
    block: Option<Block>,
    pool: Arc<Exported>,
    idle_bytes_max: u64,
}

impl Drop for Lent {
    fn drop(&mut self) {
        // This bounds the unused memory that the pool keeps, because no account counts it.
        drop(self.block.take());
        self.pool.trim(self.idle_bytes_max);
    }
}

impl Cards for All {
    fn make(&self, device: usize, borrower: Borrower, bytes: u64) -> MadeOnDevice {
        let card = self.cards.get(device).ok_or("there is no such device")?;
        match self.allocator {
            Allocator::Pool | Allocator::Arena => allocation(&card.device, bytes),
            Allocator::Async => self.block(card, borrower, bytes).or_else(|_| {
                // Other pools may have unused memory. This returns it to the device, and tries
                // again.
                card.trim();
                self.block(card, borrower, bytes)
            }),
        }
    }
}

fn allocation(device: &Device, bytes: u64) -> MadeOnDevice {
    let made = Allocation::create(device, bytes).map_err(|error| error.to_string())?;
    let fd = made.export().map_err(|error| error.to_string())?;
    Ok((DeviceMemory { fd, keeps: Some(Box::new(made)) }, Export::Allocation))
}

impl All {
    fn block(&self, card: &Card, borrower: Borrower, bytes: u64) -> MadeOnDevice {
        let pool = self.pool(card, borrower)?;
        let block = Block::allocate(&pool.pool, bytes, &pool.stream).map_err(|error| error.to_string())?;
        let data = block.export().map_err(|error| error.to_string())?;
        let fd = pool.fd.try_clone().map_err(|error| format!("copying a pool's descriptor: {error}"))?;
        let half = |at: usize| std::array::from_fn(|byte| data[at + byte]);
        let export = Export::Block { pool: pool.number, pointer: [half(0), half(32)] };
        let lent = Lent { block: Some(block), pool, idle_bytes_max: card.idle_bytes_max };
        Ok((DeviceMemory { fd, keeps: Some(Box::new(lent)) }, export))
    }

    fn pool(&self, card: &Card, borrower: Borrower) -> Result<Arc<Exported>, String> {
        let mut pools = card.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.get(&borrower).and_then(Weak::upgrade) {
            return Ok(pool);
        }
        pools.retain(|_, pool| pool.strong_count() > 0);
        let pool = Arc::new(self.export_pool(&card.device).map_err(|error| error.to_string())?);
        pools.insert(borrower, Arc::downgrade(&pool));
        Ok(pool)
    }

    fn export_pool(&self, device: &Device) -> tensorlend_cuda::Result<Exported> {
        let stream = Arc::new(Stream::new(&Context::primary(device)?)?);
        // The pool keeps all its memory (`u64::MAX`). Otherwise each synchronization would return
        // unused memory to the device, and importers would have to map memory again. The core
        // limits the lent memory, and `trim` limits the unused memory.
        let pool = Pool::create(device, u64::MAX, 0)?;
        let fd = pool.export()?;
        // The number is unique among all pools of this boot.
        let number = self.pools_ever.fetch_add(1, Ordering::Relaxed);
        Ok(Exported { number, fd, pool, stream })
    }
}
