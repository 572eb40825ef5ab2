//! Descriptions of this machine's values, for listings.

use crate::wire::{Listed, ListedKind};
use tensorlend::{Client, Info, InfoKind, Spilled};

/// Describes the values of the names that match a glob. Does not read spilled values from their
/// files, as [`Listed`] describes.
///
/// # Errors
/// The errors of [`Client::overview`].
pub fn values(client: &Client, glob: &str) -> tensorlend::Result<Vec<Listed>> {
    let found = client.overview(glob)?;
    let mut listed: Vec<Listed> = found.infos.into_iter().map(of_info).collect();
    listed.extend(found.spilled.into_iter().map(of_spilled));
    Ok(listed)
}

fn of_info(info: Info) -> Listed {
    let (kind, dtype, shape) = match info.kind {
        InfoKind::Tensor(tensor) => {
            let shape = tensor.shape.iter().map(|&size| size as u64).collect();
            (ListedKind::Tensor, tensor.dtype.to_string(), shape)
        }
        InfoKind::Dataset(_) => (ListedKind::Dataset, String::new(), Vec::new()),
    };
    Listed { kind, name: info.name, dtype, shape, size: info.nbytes }
}

fn of_spilled(spilled: Spilled) -> Listed {
    let kind = if spilled.dtype.is_some() { ListedKind::Tensor } else { ListedKind::Dataset };
    // The shape is in the file, which a listing does not read. An element type without a shape
    // would mean a scalar, so leave both empty.
    let (dtype, shape) = (String::new(), Vec::new());
    Listed { kind, name: spilled.name, dtype, shape, size: spilled.bytes.unwrap_or(0) }
}
