//! Device memory in a namespace: the devices that the directory lists, and the clients that may
//! have device memory mapped.

mod holders;

use super::context::Context;
use super::device::DeviceNumber;
use super::effect::Effect;
use super::env::Env;
use super::event::{ConnId, MemId};
use super::orders::Purpose;
use super::pool::Borrower;
use holders::Holders;
use tensorlend_layout::Uuid;
use tensorlend_layout::directory::DEVICES;
use tensorlend_layout::number::ClientNo;
use tensorlend_layout::wire::{Allocator, Export, LendingId};

/// Device memory in a namespace.
#[derive(Debug, Default)]
pub struct Devices {
    /// The devices in the directory's list, in the same order. `None` stands for a device whose
    /// memory the daemon no longer lends.
    listed: Vec<Option<DeviceNumber>>,
    holders: Holders,
}

impl Env {
    /// Orders a device segment of `bytes` for a request. The segment is one that this borrower
    /// returned, or a new one. Returns `None` if the device has no room.
    pub fn order_on_device(
        &mut self,
        conn: ConnId,
        borrower: Borrower,
        number: DeviceNumber,
        bytes: u64,
    ) -> Option<(MemId, Option<Export>)> {
        let pool = &mut self.devices[number].pool;
        if let Some(mem) = pool.take_idle(borrower, bytes) {
            return Some((mem, Some(Export::Allocation)));
        }
        for mem in pool.reserve(bytes)? {
            self.release(mem);
        }
        let mem = self.orders.order(Purpose::Request(conn));
        self.effects.push(Effect::CreateOnDevice { mem, device: number, borrower, bytes });
        Some((mem, None))
    }

    /// Reclaims device memory that no client has mapped any more.
    pub fn let_go(&mut self, number: DeviceNumber, mem: MemId, bytes: u64, borrower: Borrower) {
        let device = &mut self.devices[number];
        // The driver's pool keeps the memory of a block in any case, and allocates the memory again
        // in the same namespace.
        let idles = device.settings.allocator != Allocator::Async && self.accounts.is_open(borrower.namespace);
        if !idles {
            device.pool.forget(bytes);
            self.release(mem);
            return;
        }
        let released = device.pool.keep_idle(mem, bytes, borrower);
        if !released.contains(&mem) {
            self.effects.push(Effect::Forget { mem });
        }
        for mem in released {
            self.release(mem);
        }
    }
}

impl Devices {
    /// Records that a segment is lent to its owner or a reader. `None` stands for the clients of
    /// the previous daemon. Returns true if the daemon has lent the segment to this client for the first time.
    pub fn lent(&mut self, lending: LendingId, to: Option<ClientNo>) -> bool {
        self.holders.lent(lending, to)
    }

    /// Checks that every holder of device memory exists.
    ///
    /// # Panics
    /// Panics if a holder does not exist.
    pub fn check(&self, is_there: impl Fn(ClientNo) -> bool) {
        self.holders.check();
        for holder in self.holders.numbers() {
            assert!(is_there(holder), "client {holder} holds device memory and is gone");
        }
    }

    /// Records a client of the previous daemon.
    pub fn was_there(&mut self, number: ClientNo) {
        self.holders.was_there(number);
    }

    /// Returns true if a client may have device memory mapped.
    pub fn is_holder(&self, number: ClientNo) -> bool {
        self.holders.is_holder(number)
    }

    /// Removes a client from the holders of device memory.
    pub fn departed(&mut self, number: ClientNo) {
        self.holders.departed(number);
    }

    /// Performs this daemon's first step. Notifies the clients that the previous daemon may have
    /// failed to notify, and frees the memory that no client can hold.
    pub fn begin_again(&mut self, env: &mut Env, context: &mut Context) {
        context.directory.note_returned();
        self.settle_devices(env, context);
    }
}

impl Devices {
    /// Lists the devices in the directory. Devices that the directory already lists stay in the
    /// list, because entries of segments refer to them.
    pub fn list_devices(&mut self, env: &Env, context: &Context) {
        let words = &context.directory.head().devices;
        self.listed.clear();
        for index in 0..DEVICES {
            let uuid = Uuid::from_words([words[2 * index].peek(), words[2 * index + 1].peek()]);
            if uuid != Uuid([0; 16]) {
                self.listed.push(env.devices.number_of(uuid, &env.settings.no_device).ok());
            }
        }
        for number in 0..env.devices.len() {
            let index = self.listed.len();
            if index < DEVICES && !self.listed.contains(&Some(number)) {
                let [low, high] = env.devices[number].settings.uuid.words();
                words[2 * index].put(low);
                words[2 * index + 1].put(high);
                self.listed.push(Some(number));
            }
        }
    }

    /// Returns the device at an index of the directory's list, if the daemon still lends its memory.
    pub fn device_at(&self, index: u8) -> Option<DeviceNumber> {
        *self.listed.get(usize::from(index))?
    }

    pub fn index_of(&self, number: DeviceNumber) -> Option<u8> {
        (0..).zip(&self.listed).find(|(_, it)| **it == Some(number)).map(|(index, _)| index)
    }
}
