//! Rows for connecting and for the first segment. These operations send requests to the daemon.

use std::path::Path;
use std::time::Duration;

use tensorlend::{Client, DType, Error};
use tensorlend_baselines::{BaselineError, Meter, floors, prepared};

use super::race::Group;
use super::setting::{FLOOR, OURS, Setting, entry};

/// Maximum number of simultaneous clients.
const CLIENTS_MAX: u64 = 16;

/// Name of the floor of a request to a sleeping process.
const ROUND_TRIP: &str = "unix_socket_round_trip";
/// Name of the floor of a connection.
const CONNECT: &str = "unix_connect";

pub fn groups(setting: &Setting) -> Vec<Group> {
    let cores = setting.cores;
    let [here, there, later, last] = std::array::from_fn(|_| setting.clone());
    let entries = vec![
        entry(ROUND_TRIP, FLOOR, None, move || floors::unix_socket(cores)),
        entry(CONNECT, FLOOR, None, move || floors::unix_connect(cores)),
        entry("connect", OURS, Some(CONNECT), move || connect(&here, Duration::ZERO)).at_most(CLIENTS_MAX),
        entry("first_slot", OURS, Some(ROUND_TRIP), move || Ok(first_slot(&there, Duration::ZERO)))
            .at_most(CLIENTS_MAX),
        entry("connect_after_pause", OURS, Some(CONNECT), move || connect(&later, PAUSE)).at_most(1),
        entry("first_slot_after_pause", OURS, Some(ROUND_TRIP), move || Ok(first_slot(&last, PAUSE))).at_most(1),
    ];
    vec![Group { doing: "sessions", entries }]
}

fn join(socket: &Path) -> Result<Client, Error> {
    Client::builder().socket(socket).label("bench").connect()
}

/// Pause in which the daemon can prepare for the next client, as it can when clients start one by one.
const PAUSE: Duration = Duration::from_millis(20);

/// Measures a client that connects to a namespace in which there is another client. The first client of a namespace also waits
/// until the daemon has made the namespace.
fn connect(setting: &Setting, pause: Duration) -> Result<Box<dyn Meter>, BaselineError> {
    let socket = setting.socket.clone();
    let other = join(&socket)?;
    Ok(Box::new(prepared(
        move |count| {
            std::thread::sleep(pause);
            Ok((0..count).collect())
        },
        move |_: u64| Ok(join(&socket)?),
        move |clients| {
            drop(clients);
            other.ping()?;
            Ok(())
        },
    )))
}

/// Measures the first draft of a client. For this draft the daemon lends a first segment, and the
/// client maps it.
fn first_slot(setting: &Setting, pause: Duration) -> Box<dyn Meter> {
    let socket = setting.socket.clone();
    let clients = move |count| {
        let clients = (0..count).map(|_| join(&socket).map_err(BaselineError::from)).collect();
        std::thread::sleep(pause);
        clients
    };
    let create = |client: Client| {
        let draft = client.create(DType::U8, &[64])?;
        Ok((draft, client))
    };
    Box::new(prepared(clients, create, |drafts| {
        drop(drafts);
        Ok(())
    }))
}
