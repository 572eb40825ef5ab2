//! The devices that a daemon lends memory of.

use crate::client::Client;
use tensorlend_layout::wire::DeviceOffer;

impl Client {
    /// The devices of which the daemon lends memory, whether or not this process sees them; empty where it lends host memory
    /// alone.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// for device in client.devices() {
    ///     println!("{} {}: {}", device.uuid, device.name, device.allocator);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn devices(&self) -> Vec<DeviceOffer> {
        self.session().welcome.devices.clone()
    }

    /// Whether there are any.
    pub fn lends_devices(&self) -> bool {
        !self.session().welcome.devices.is_empty()
    }
}
