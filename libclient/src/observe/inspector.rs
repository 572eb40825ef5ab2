//! Observation of all namespaces by a user whom the daemon's configuration lists in `observers`. The daemon responds from
//! its own memory. An inspector joins no namespace and maps no memory.

use super::ages::Ages;
use super::collect::{add_up, lease_seen};
use super::display::natural;
use super::observation::{
    ClientSeen, ClientState, ListSeen, Observation, Origin, StreamSeen, SubscriberSeen, ValueSeen,
};
use crate::client::ClientBuilder;
use crate::control::Control;
use crate::error::{Error, Result};
use crate::tensor::dims::as_usize;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tensorlend_layout::DType;
use tensorlend_layout::number::{ClientNo, EntryNo, StreamLine};
use tensorlend_layout::wire::{
    Holds, Inspect, Inspected, InspectedClient, InspectedLease, InspectedName, InspectedStream, NamespaceUse,
    PROTOCOL_OLDEST, PROTOCOL_OWN_VIEW, PROTOCOL_VERSION, Refusal, Reply, Request, Stat, View,
};
use tensorlend_layout::word::LeaseWord;
use tensorlend_os::clock::boottime_ns;

const DOING: &str = "observe all namespaces";
const ASKING: &str = "ask for metrics";

/// Observes all namespaces of a daemon: names, sizes, clients, leases and streams, but never the values. The user must be
/// root, or be listed in `observers` of the daemon's configuration.
///
/// ```
/// let config = tensorlend_daemon::Config::parse(&format!("observers = [\"{}\"]", rustix::process::getuid().as_raw()))?;
/// let daemon = tensorlend_daemon::embedded_with(&config)?;
/// let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// client.put("numbers", &[0u8; 4096])?;
///
/// let mut inspector = tensorlend::Client::builder().socket(daemon.socket()).inspect()?;
/// let namespaces = inspector.namespaces()?;
/// assert_eq!(namespaces[0].name, client.namespace());
/// let seen = inspector.observe(&namespaces[0].name)?;
/// assert_eq!((seen.clients.len(), seen.values[0].bytes), (1, 4096));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Inspector {
    control: Arc<Control>,
    /// The ages of the leases of each namespace.
    ages: HashMap<String, Ages>,
}

impl std::fmt::Debug for Inspector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inspector").finish_non_exhaustive()
    }
}

impl ClientBuilder {
    /// Connects as an observer of all namespaces. The options `namespace`, `label` and `harden` have no effect.
    ///
    /// # Errors
    /// The errors of [`ClientBuilder::connect`], and [`Error::Refused`] with `NotObserver` if the daemon's configuration
    /// does not list the user in `observers`.
    pub fn inspect(self) -> Result<Inspector> {
        // An observer of no daemon has nothing to see.
        let this = self.autostart(false);
        let mut control = this.control()?;
        match ask_since(&control, PROTOCOL_OWN_VIEW, View::Daemon) {
            Ok(_) => control.set_protocol(PROTOCOL_OWN_VIEW),
            // An older daemon has closed the connection.
            Err(Error::Refused { refusal: Refusal::Protocol { .. }, .. }) => {
                control = this.control()?;
                ask(&control, View::Daemon)?;
            }
            Err(error) => return Err(error),
        }
        Ok(Inspector { control: Arc::new(control), ages: HashMap::new() })
    }

    /// Returns the daemon's metrics without joining a namespace, with the accounts of this user. The daemon responds also
    /// when a limit refuses a session to this user. The options `namespace`, `label` and `harden` have no effect.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// let stat = tensorlend::Client::builder().socket(daemon.socket()).stat()?;
    /// assert_eq!(stat.clients, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoDaemon`] and [`Error::Disconnected`]. The latter also if the daemon is older than this client library.
    pub fn stat(&self) -> Result<Stat> {
        own_stat(&self.clone().autostart(false).control()?)
    }
}

/// Requests a part of the daemon's state.
fn ask(control: &Control, view: View) -> Result<Inspected> {
    ask_since(control, PROTOCOL_OLDEST, view)
}

/// Requests a part of the state of a daemon that speaks this version of the protocol.
fn ask_since(control: &Control, protocol_min: u16, view: View) -> Result<Inspected> {
    let inspect = Inspect { protocol_min, protocol_max: PROTOCOL_VERSION, view };
    let doing = if matches!(inspect.view, View::Health) { ASKING } else { DOING };
    match control.call(&Request::Inspect(inspect), doing, "")? {
        Reply::Inspected(shown) => Ok(shown),
        _ => Err(Error::Protocol { doing }),
    }
}

/// Requests the daemon's metrics, as an observer sees them.
pub(super) fn stat(control: &Control) -> Result<Stat> {
    let Inspected::Daemon(mut stat) = ask(control, View::Daemon)? else { return Err(Error::Protocol { doing: DOING }) };
    if control.needs_protocol(PROTOCOL_OWN_VIEW, DOING, "").is_ok() {
        stat.health = own_stat(control)?.health;
    }
    Ok(*stat)
}

/// Requests the daemon's metrics, with the accounts of this user.
pub fn own_stat(control: &Control) -> Result<Stat> {
    match ask_since(control, PROTOCOL_OWN_VIEW, View::Health)? {
        Inspected::Health { stat, health } => Ok(Stat { health: Some(*health), ..*stat }),
        _ => Err(Error::Protocol { doing: ASKING }),
    }
}

impl Inspector {
    /// Returns the connection, for a thread that requests the metrics at the same time.
    pub(super) fn control(&self) -> Arc<Control> {
        self.control.clone()
    }

    /// Returns the daemon's metrics, with all users and namespaces (at most 128 of each).
    ///
    /// # Errors
    /// [`Error::Disconnected`] if the connection is lost. Then open another inspector.
    pub fn stat(&self) -> Result<Stat> {
        stat(&self.control)
    }

    /// Returns the usage and the limits of all namespaces, sorted by name.
    ///
    /// # Errors
    /// The errors of [`Inspector::stat`].
    pub fn namespaces(&self) -> Result<Vec<NamespaceUse>> {
        let mut all: Vec<NamespaceUse> = Vec::new();
        loop {
            let after = all.last().map_or_else(String::new, |last| last.name.clone());
            match ask(&self.control, View::Namespaces { after })? {
                Inspected::Namespaces(some) if some.is_empty() => return Ok(all),
                Inspected::Namespaces(some) => all.extend(some),
                _ => return Err(Error::Protocol { doing: DOING }),
            }
        }
    }

    /// Observes a namespace. The observation has no segments, no list items and no stream messages. It is empty if the
    /// namespace has no client and no value.
    ///
    /// # Errors
    /// The errors of [`Inspector::stat`].
    pub fn observe(&mut self, namespace: &str) -> Result<Observation> {
        let begun = Instant::now();
        let now_ns = boottime_ns();
        let uses = self.namespaces()?;
        // Remove the ages of namespaces that no longer exist.
        self.ages.retain(|name, _| uses.iter().any(|it| it.name == *name));
        let own = uses.into_iter().find(|it| it.name == namespace).unwrap_or_default();
        let mut seen = Observation {
            namespace: namespace.to_owned(),
            at_ns: now_ns,
            bytes_lent: own.bytes,
            bytes_max: own.bytes_max,
            names_live: own.names,
            ..Observation::default()
        };
        let mut values: HashMap<u64, usize> = HashMap::new();
        self.clients(&mut seen)?;
        self.names(&mut seen, &mut values)?;
        seen.lists.sort_by(|a, b| natural(&a.name, &b.name));
        self.leases(&mut seen, &values)?;
        self.streams(&mut seen)?;
        add_up(&mut seen);
        seen.took = begun.elapsed();
        Ok(seen)
    }

    fn clients(&self, seen: &mut Observation) -> Result<()> {
        let mut from = Some(ClientNo::default());
        while let Some(at) = from {
            let view = View::Clients { namespace: seen.namespace.clone(), from: at };
            let Inspected::Clients { clients, next } = ask(&self.control, view)? else {
                return Err(Error::Protocol { doing: DOING });
            };
            seen.clients.extend(clients.into_iter().map(|it| client(it, seen.at_ns)));
            from = next.filter(|&next| next > at);
        }
        Ok(())
    }

    fn names(&self, seen: &mut Observation, values: &mut HashMap<u64, usize>) -> Result<()> {
        let mut from = Some(EntryNo::default());
        while let Some(at) = from {
            let view = View::Names { namespace: seen.namespace.clone(), from: at };
            let Inspected::Names { names, next } = ask(&self.control, view)? else {
                return Err(Error::Protocol { doing: DOING });
            };
            for InspectedName { name, holds } in names {
                match holds {
                    Holds::List(items) => seen.lists.push(ListSeen { name, items }),
                    value @ Holds::Value { .. } => {
                        if let Some((lease, value)) = value_seen(name, value) {
                            values.insert(lease, seen.values.len());
                            seen.values.push(value);
                        }
                    }
                }
            }
            from = next.filter(|&next| next > at);
        }
        Ok(())
    }

    fn leases(&mut self, seen: &mut Observation, values: &HashMap<u64, usize>) -> Result<()> {
        let epochs: HashMap<ClientNo, u32> = seen.clients.iter().map(|it| (it.number, it.epoch)).collect();
        let ages = self.ages.entry(seen.namespace.clone()).or_default();
        ages.begin();
        let mut from = Some(ClientNo::default());
        while let Some(at) = from {
            let view = View::Leases { namespace: seen.namespace.clone(), from: at };
            let Inspected::Leases { leases, next, truncated } = ask(&self.control, view)? else {
                return Err(Error::Protocol { doing: DOING });
            };
            seen.truncated |= truncated;
            for InspectedLease { holder, lease, count } in leases {
                let key = (holder, epochs.get(&holder).copied().unwrap_or(0), lease);
                let (age, lease, count) = (ages.of(key, seen.at_ns), LeaseWord(lease), u64::from(count));
                let value = values.get(&lease.0).copied();
                let bytes = value.map_or(0, |at| {
                    seen.values[at].leases += count;
                    seen.values[at].bytes
                });
                seen.leases.push(lease_seen(holder, lease, count, (bytes, value), age));
            }
            from = next.filter(|&next| next > at);
        }
        ages.end();
        Ok(())
    }

    fn streams(&self, seen: &mut Observation) -> Result<()> {
        let mut from = Some(StreamLine::default());
        while let Some(at) = from {
            let view = View::Streams { namespace: seen.namespace.clone(), from: at };
            let Inspected::Streams { streams, next } = ask(&self.control, view)? else {
                return Err(Error::Protocol { doing: DOING });
            };
            seen.streams.extend(streams.into_iter().map(stream));
            from = next.filter(|&next| next > at);
        }
        seen.streams.sort_by(|a, b| natural(&a.name, &b.name));
        Ok(())
    }
}

fn client(it: InspectedClient, now_ns: u64) -> ClientSeen {
    ClientSeen {
        number: it.number,
        epoch: it.epoch,
        state: if it.connected { ClientState::Alive } else { ClientState::Ended },
        pid: it.pid,
        uid: it.uid,
        label: it.label,
        age: Duration::from_nanos(now_ns.saturating_sub(it.since_ns)),
        bytes: it.bytes,
        command: Some(it.command).filter(|command| !command.is_empty()),
        ..ClientSeen::default()
    }
}

/// Returns a value, and the lease word of a lease on it.
fn value_seen(name: String, holds: Holds) -> Option<(u64, ValueSeen)> {
    let Holds::Value { client, lease, dtype, is_dataset, shape, bytes, timestamp_ns, in_file: _ } = holds else {
        return None;
    };
    let value = ValueSeen {
        origin: Origin::Name(name),
        owner: client,
        slot: LeaseWord(lease).slot(),
        generation: u64::from(LeaseWord(lease).generation_low()),
        bytes,
        is_dataset,
        dtype: dtype.and_then(DType::unpack),
        shape: shape.map(|shape| as_usize(&shape).to_vec()),
        timestamp_ns,
        leases: 0,
    };
    Some((lease, value))
}

fn stream(it: InspectedStream) -> StreamSeen {
    let subscribers = it.subscribers.into_iter().map(|it| SubscriberSeen {
        client: it.client,
        cursor: it.cursor,
        lag: it.lag,
        lost: it.lost,
    });
    StreamSeen {
        name: it.name,
        index: it.index,
        id: it.id,
        producer: it.producer,
        capacity: it.capacity.into(),
        policy: it.policy,
        sent: Some(it.sent),
        held: it.held,
        is_closed: it.is_closed,
        subscribers: subscribers.collect(),
    }
}
