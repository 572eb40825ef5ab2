//! The devices whose memory the daemon lends.

use crate::client::Client;
use tensorlend_layout::wire::DeviceOffer;

impl Client {
    /// Returns the devices whose memory the daemon lends, whether or not this process can use them. Empty if the daemon only
    /// lends host memory.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// for device in client.devices() {
    ///     println!("{} {}: {}", device.uuid, device.name, device.allocator);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn devices(&self) -> Vec<DeviceOffer> {
        self.session().welcome.devices.clone()
    }

    /// Returns whether the daemon lends memory of any device.
    pub fn lends_devices(&self) -> bool {
        !self.session().welcome.devices.is_empty()
    }
}
