//! Drafts on CUDA devices, and code that these drafts and leases on devices share.

pub mod copies;
pub mod draft;
pub mod legacy;
pub mod slice;

use crate::error::{DeviceTrouble, Error, Result};
use crate::session::Session;
use tensorlend_layout::Uuid;
use tensorlend_layout::wire::DeviceOffer;

/// Returns the parameters with which the daemon lends a device's memory.
pub fn offer<'s>(session: &'s Session, uuid: Uuid, doing: &str) -> Result<&'s DeviceOffer> {
    let offers = &session.welcome.devices;
    offers.iter().find(|offer| offer.uuid == uuid).ok_or_else(|| {
        let lent: Vec<String> = offers.iter().map(|offer| offer.uuid.to_string()).collect();
        let lent = if lent.is_empty() { "none".to_owned() } else { lent.join(", ") };
        Error::Device { doing: doing.to_owned(), cause: DeviceTrouble::NotLent { uuid, lent } }
    })
}
