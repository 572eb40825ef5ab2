//! A process that publishes more than the pool has and lives on: what it has published first goes to files.

use std::path::Path;
use tensorlend::{Client, DType, Error, Lease};

/// Names that it publishes.
pub const NAMES: u8 = 48;
/// Bytes of each.
const BYTES: u64 = 1 << 20;

/// The name with this number.
pub fn name(number: u8) -> String {
    format!("cold/{number}")
}

/// Publishes this number under its name.
///
/// # Errors
/// As [`tensorlend::Draft::publish`].
pub fn put(client: &Client, number: u8) -> Result<(), Error> {
    let mut draft = client.create(DType::U8, &[BYTES])?;
    draft.bytes_mut().fill(number);
    draft.publish(&name(number)).map(|_| ())
}

/// Whether this is what [`put`] has published.
pub fn is_whole(lease: &Lease, number: u8) -> bool {
    lease.bytes().len() as u64 == BYTES && lease.bytes().iter().all(|&byte| byte == number)
}

/// `SOCKET`: publishes all of them, some of them again, and reads them.
///
/// # Panics
/// On a torn tensor, and on every error.
pub fn run(arguments: &[String]) -> Option<()> {
    let [socket] = arguments else { return None };
    let client = Client::builder().socket(Path::new(socket)).label("cold").connect().expect("the daemon is there");
    for number in (0..NAMES).chain((0..NAMES).step_by(7)) {
        put(&client, number).expect("there is room in files");
    }
    for number in 0..NAMES {
        let lease = client.get(&name(number)).expect("it was published");
        assert!(is_whole(&lease, number), "{number} is torn");
    }
    Some(())
}
