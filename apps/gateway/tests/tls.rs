//! A gateway with mutual TLS, among peers without a valid certificate: those that connect to it, and those that it could
//! find by multicast or by gossip.
#![cfg(feature = "zenoh")]

mod authority;

use authority::Authority;
use serde_json::{Value, json};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use tensorlend::Client;
use tensorlend_daemon::Embedded;
use tensorlend_gateway::Gateway;
use tensorlend_gateway::config::Config;
use tensorlend_gateway::settings::Settings;
use tensorlend_gateway::transport::Zenoh;
use tensorlend_gateway::wire::NodeName;
use tensorlend_tests::{PATIENCE, eventually, free_address};
use zenoh::Wait;

/// Returns an endpoint of the certificates' host with a free port.
fn tls_endpoint() -> String {
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    format!("quic/localhost:{port}")
}

/// A multicast group on the loopback device, for the peers of one test.
#[derive(Clone)]
struct Domain(Value);

impl Domain {
    fn new() -> Self {
        // The group has the number of the test's process, and the port is a free one, so no other test uses both.
        let process = std::process::id();
        let group = Ipv4Addr::new(239, 255, (process >> 8) as u8, process as u8);
        let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self(json!({ "address": format!("{group}:{port}"), "interface": "lo" }))
    }

    /// Returns zenoh's configuration of a peer in this domain. The switch of multicast keeps its default.
    fn peer(&self, more: Value) -> Value {
        let mut config = json!({
            "mode": "peer",
            "scouting": { "multicast": self.0, "delay": 2000 },
            "connect": { "timeout_ms": 0, "exit_on_failure": true },
        });
        merge(&mut config, more);
        config
    }

    /// Returns zenoh's configuration of a peer without TLS.
    fn plain(&self, more: Value) -> Value {
        let mut config = self.peer(json!({ "listen": { "endpoints": [format!("tcp/{}", free_address())] } }));
        merge(&mut config, more);
        config
    }
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            from.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, from) => *into = from,
    }
}

/// Returns zenoh's configuration of a listener and of TLS settings; without an endpoint, of the settings alone.
fn with_tls(settings: Value, listen: Option<&str>) -> Value {
    let mut config = json!({ "transport": { "link": { "tls": settings } } });
    if let Some(endpoint) = listen {
        config["listen"] = json!({ "endpoints": [endpoint] });
    }
    config
}

/// Opens a peer of zenoh directly, without the checks of a gateway.
fn stranger(config: Value) -> zenoh::Session {
    try_stranger(config).unwrap()
}

fn try_stranger(config: Value) -> zenoh::Result<zenoh::Session> {
    zenoh::open(zenoh::Config::from_json5(&config.to_string()).unwrap()).wait()
}

/// Returns the peers and routers to which a session has a link.
fn linked(session: &zenoh::Session) -> Vec<zenoh::config::ZenohId> {
    let info = session.info();
    info.peers_zid().wait().chain(info.routers_zid().wait()).collect()
}

/// Opens the transport of a gateway as its program does.
fn transport(config: &Value) -> Zenoh {
    try_transport(config).unwrap()
}

fn try_transport(config: &Value) -> Result<Zenoh, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("zenoh.json5");
    std::fs::write(&file, config.to_string()).unwrap();
    let config = Config { zenoh: Some(file), ..Config::default() };
    let options = config.zenoh_options().map_err(|error| error.to_string())?;
    Zenoh::open(options).map_err(|error| error.to_string())
}

/// A machine: its daemon, a client of it, its gateway.
struct Host {
    client: Client,
    _gateway: Gateway,
    _daemon: Embedded,
}

impl Host {
    fn new(name: &str, zenoh: &Value) -> Self {
        let daemon = tensorlend_daemon::embedded().unwrap();
        let client = Client::builder().socket(daemon.socket()).connect().unwrap();
        let settings = Settings {
            socket: Some(daemon.socket().to_owned()),
            answer_timeout: PATIENCE,
            ..Settings::of_node(NodeName::new(name).unwrap())
        };
        let gateway = Gateway::start(settings, Arc::new(transport(zenoh))).unwrap();
        client.put("x", name.as_bytes()).unwrap();
        Self { client, _gateway: gateway, _daemon: daemon }
    }

    fn reads(&self, node: &str) -> bool {
        self.client.get(&format!("{node}/x")).is_ok_and(|lease| lease.bytes() == node.as_bytes())
    }
}

#[test]
fn only_nodes_with_a_certificate_read_names_though_others_share_the_multicast_domain() {
    let (ours, domain, endpoint) = (Authority::new(), Domain::new(), tls_endpoint());
    let plain = Host::new("plain", &domain.plain(json!({})));
    let mutual = || ours.mutual("node", &ours);
    let hub = Host::new("hub", &domain.peer(with_tls(mutual(), Some(&endpoint))));
    // This one has no listener: the default of zenoh is a plain one.
    let mut connects = domain.peer(with_tls(mutual(), None));
    merge(&mut connects, json!({ "connect": { "endpoints": [endpoint] } }));
    let friend = Host::new("friend", &connects);
    eventually("the right certificate", || friend.reads("hub") && hub.reads("friend"));
    // Two nodes without TLS find each other by multicast, after those with TLS have had the time for it.
    let control = Host::new("control", &domain.plain(json!({})));
    eventually("multicast works", || control.reads("plain") && plain.reads("control"));
    for stranger in [&plain, &control] {
        let nodes: Vec<String> = stranger.client.remote().nodes().unwrap().into_iter().map(|node| node.node).collect();
        assert!(!nodes.contains(&"hub".into()) && !nodes.contains(&"friend".into()), "{nodes:?}");
        assert!(!stranger.reads("hub") && !stranger.reads("friend"));
    }
    for member in [&hub, &friend] {
        let nodes: Vec<String> = member.client.remote().nodes().unwrap().into_iter().map(|node| node.node).collect();
        assert_eq!(nodes, ["friend", "hub"]);
    }
}

#[test]
fn large_values_pass_an_encrypted_link_in_both_directions_at_once() {
    const ROUNDS: usize = 4;
    const BYTES: usize = 16 << 20;
    let (ours, domain, endpoint) = (Authority::new(), Domain::new(), tls_endpoint());
    let left = Host::new("left", &domain.peer(with_tls(ours.mutual("node", &ours), Some(&endpoint))));
    let mut connects = domain.peer(with_tls(ours.mutual("node", &ours), None));
    merge(&mut connects, json!({ "connect": { "endpoints": [endpoint] } }));
    let right = Host::new("right", &connects);
    eventually("a link", || left.reads("right") && right.reads("left"));
    let value = |seed: u8, round: usize| -> Vec<u8> {
        (0..BYTES).map(|index| (index ^ (index >> 11)) as u8 ^ seed ^ round as u8).collect()
    };
    for round in 0..ROUNDS {
        // Another name in each round, because a copy of a name may be current only a moment later.
        let name = format!("large{round}");
        left.client.put(&name, &value(1, round)).unwrap();
        right.client.put(&name, &value(2, round)).unwrap();
        std::thread::scope(|scope| {
            for (reader, node, seed) in [(&left, "right", 2), (&right, "left", 1)] {
                let name = format!("{node}/{name}");
                scope.spawn(move || {
                    let lease = reader.client.get(&name).unwrap();
                    assert!(lease.bytes() == value(seed, round), "{name}, round {round}");
                });
            }
        });
    }
}

/// Returns a peer's settings of TLS by the fault of its certificate.
fn faulty(ours: &Authority, theirs: &Authority) -> [(&'static str, Value); 2] {
    ours.issue_for("expired", ["localhost".to_owned()], true);
    [("of another authority", theirs.mutual("node", ours)), ("expired", ours.mutual("expired", ours))]
}

#[test]
fn a_peer_that_connects_without_a_valid_certificate_is_refused() {
    let (ours, theirs, domain, endpoint) = (Authority::new(), Authority::new(), Domain::new(), tls_endpoint());
    let here = transport(&domain.peer(with_tls(ours.mutual("node", &ours), Some(&endpoint))));
    let connects = |endpoint: &str, tls: Value| {
        let mut config = domain.peer(with_tls(tls, None));
        let more = json!({
            "mode": "client",
            "scouting": { "multicast": { "enabled": false } },
            "connect": { "endpoints": [endpoint] },
        });
        merge(&mut config, more);
        try_stranger(config)
    };
    assert!(connects(&endpoint.replace("quic/", "tcp/"), json!({})).is_err(), "no TLS");
    assert!(connects(&endpoint, json!({ "root_ca_certificate": ours.path("ca.pem") })).is_err(), "no certificate");
    for (fault, tls) in faulty(&ours, &theirs) {
        assert!(connects(&endpoint, tls).is_err(), "{fault}");
    }
    connects(&endpoint, ours.mutual("node", &ours)).unwrap();
    assert_eq!(here.links(), 0, "clients are no peers");
}

#[test]
fn a_gateway_connects_to_no_peer_without_a_valid_certificate() {
    let (ours, theirs, domain) = (Authority::new(), Authority::new(), Domain::new());
    let mutual = || ours.mutual("node", &ours);
    let silent = json!({ "scouting": { "multicast": { "autoconnect": [] }, "gossip": { "autoconnect": [] } } });
    // Peers that wait until others find them.
    let mut strangers = vec![stranger(domain.plain(silent.clone()))];
    for (fault, tls) in faulty(&ours, &theirs) {
        let endpoint = tls_endpoint();
        let mut config = domain.peer(with_tls(tls, Some(&endpoint)));
        merge(&mut config, silent.clone());
        strangers.push(stranger(config));
        let mut connects = domain.peer(with_tls(mutual(), None));
        merge(&mut connects, json!({ "connect": { "endpoints": [endpoint] } }));
        assert!(try_transport(&connects).is_err(), "{fault}");
    }
    let endpoint = tls_endpoint();
    let here = transport(&domain.peer(with_tls(mutual(), Some(&endpoint))));
    // This one finds the plain peer, after the gateway has had the time for it.
    let control = stranger(domain.plain(json!({ "scouting": { "gossip": { "autoconnect": [] } } })));
    eventually("multicast works", || linked(&control).contains(&strangers[0].zid()));
    assert_eq!(here.links(), 0);
    for (number, stranger) in strangers.iter().enumerate() {
        assert!(linked(stranger).iter().all(|&peer| peer == control.zid()), "{number}");
    }
    let mut connects = domain.peer(with_tls(mutual(), None));
    merge(&mut connects, json!({ "connect": { "endpoints": [endpoint] } }));
    let friend = transport(&connects);
    eventually("the right certificate", || here.links() == 1);
    assert_eq!(friend.links(), 1);
}

#[test]
fn gossip_of_a_careless_member_connects_a_gateway_to_no_plain_peer() {
    let (ours, domain, endpoint) = (Authority::new(), Domain::new(), tls_endpoint());
    let mutual = || ours.mutual("node", &ours);
    let no_multicast = json!({ "scouting": { "multicast": { "enabled": false } } });
    // A member with a valid certificate that also has a plain listener. No gateway, which would refuse to start.
    let plain_endpoint = format!("tcp/{}", free_address());
    let mut config = domain.peer(with_tls(mutual(), None));
    merge(&mut config, no_multicast.clone());
    merge(&mut config, json!({ "listen": { "endpoints": [endpoint, plain_endpoint] } }));
    let member = stranger(config);
    let connects = |to: &str, more: Value| {
        let mut config = domain.peer(json!({ "connect": { "endpoints": [to] } }));
        merge(&mut config, no_multicast.clone());
        merge(&mut config, more);
        config
    };
    let own = || json!({ "listen": { "endpoints": [format!("tcp/{}", free_address())] } });
    let plain = stranger(connects(&plain_endpoint, own()));
    eventually("a link", || linked(&plain).contains(&member.zid()));
    // Gossip names the plain peer's endpoint to the gateway, and the gateway's to the plain peer.
    let here = transport(&connects(&endpoint, with_tls(mutual(), None)));
    eventually("a link", || here.links() > 0);
    let control = stranger(connects(&plain_endpoint, own()));
    eventually("gossip works", || linked(&control).contains(&plain.zid()));
    assert_eq!(here.links(), 1);
    let peers = linked(&plain);
    assert!(peers.iter().all(|&peer| peer == member.zid() || peer == control.zid()), "{peers:?}");
}

#[test]
fn settings_that_contradict_tls_are_refused_with_their_names() {
    let (ours, domain, endpoint) = (Authority::new(), Domain::new(), tls_endpoint());
    let config = |more: Value| {
        let mut config = domain.peer(with_tls(ours.mutual("node", &ours), Some(&endpoint)));
        merge(&mut config, more);
        config
    };
    let tcp = format!("tcp/{}", free_address());
    for (more, setting) in [
        (json!({ "listen": { "endpoints": [endpoint, tcp] } }), "listen/endpoints"),
        (json!({ "connect": { "endpoints": [tcp] } }), "connect/endpoints"),
        (json!({ "scouting": { "multicast": { "enabled": true } } }), "scouting/multicast/enabled"),
        (json!({ "transport": { "link": { "protocols": ["quic", "tcp"] } } }), "transport/link/protocols"),
        (
            json!({ "transport": { "link": { "tls": { "verify_name_on_connect": false } } } }),
            "transport/link/tls/verify_name_on_connect",
        ),
        (json!({ "transport": { "link": { "tls": { "enable_mtls": null } } } }), "transport/link/tls/enable_mtls"),
    ] {
        let error = try_transport(&config(more)).err().expect(setting);
        assert!(error.starts_with(&format!("{setting}: ")), "{error}");
    }
    let options = Config { listen: vec![tcp.clone()], connect: vec![endpoint.clone()], ..Config::default() };
    let error = options.zenoh_options().unwrap_err().to_string();
    assert!(error.starts_with("listen: ") && error.contains(&tcp) && error.contains(&endpoint), "{error}");
}
