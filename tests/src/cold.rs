//! A process that publishes more than the pool holds and lives on: its first values are spilled to files.

use std::path::Path;
use tensorlend::{Client, DType, Error, Lease};

/// Number of names that the process publishes.
pub const NAMES: u8 = 48;
const BYTES: u64 = 1 << 20;

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

/// Returns true if the lease holds the value that [`put`] published.
pub fn is_whole(lease: &Lease, number: u8) -> bool {
    lease.bytes().len() as u64 == BYTES && lease.bytes().iter().all(|&byte| byte == number)
}

/// `SOCKET`: publishes all names, publishes some again, and reads them.
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
