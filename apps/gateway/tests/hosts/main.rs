//! Several hosts, as network namespaces: daemons and gateways as real processes, over links that are slow, lossy or
//! cut.
#![cfg(feature = "zenoh")]

#[path = "../authority/mod.rs"]
mod authority;
mod rig;
mod weather;

use authority::Authority;
use rig::{Node, Rig, peers, skip_without_hosts, star};
use std::time::Duration;
use tensorlend::{Client, DType};
use tensorlend_tests::{budget, eventually};

/// Exports and imports everything, and accepts puts under `inbox/`.
const OPEN: &str = "[[namespace]]\nexport = [\"*\"]\nimport = [\"*\"]\naccept_put = [\"inbox/*\"]\n";

/// A timeout that only a failure reaches.
const LONG: Option<Duration> = Some(Duration::from_mins(1));

fn fill(client: &Client, name: &str, bytes: u64, with: u8) {
    let mut draft = client.create(DType::U8, &[bytes]).unwrap();
    draft.bytes_mut().fill(with);
    draft.publish(name).unwrap();
}

fn holds(client: &Client, name: &str, bytes: u64, with: u8) -> bool {
    client.get(name).is_ok_and(|lease| lease.nbytes() as u64 == bytes && lease.bytes().iter().all(|&byte| byte == with))
}

/// Checks that three nodes share names, however they are connected.
fn three_nodes_share(nodes: &[Node]) {
    let clients: Vec<Client> = nodes.iter().map(Node::client).collect();
    fill(&clients[1], "sim/pressure", 100_000, 7);
    for other in [0, 2] {
        assert!(holds(&clients[other], "n1/sim/pressure", 100_000, 7), "{}", nodes[other].log());
    }
    let seen = clients[2].get("n1/sim/pressure").unwrap().version();
    fill(&clients[1], "sim/pressure", 100_000, 8);
    let newer = clients[2].wait_newer("n1/sim/pressure", seen, LONG).unwrap();
    assert_eq!(newer.bytes()[0], 8);
    eventually("a change reaches those who have a copy", || holds(&clients[0], "n1/sim/pressure", 100_000, 8));
    assert!(clients[0].get("n1/nothing").unwrap_err().is_not_found());
    assert!(clients[0].get("n9/sim/pressure").unwrap_err().is_not_found());
}

#[test]
fn three_peers() {
    if skip_without_hosts() {
        return;
    }
    let rig = Rig::new(3);
    three_nodes_share(&peers(&rig, 3, OPEN));
}

#[test]
fn two_clients_of_a_router() {
    if skip_without_hosts() {
        return;
    }
    let rig = Rig::new(3);
    three_nodes_share(&star(&rig, 3, OPEN));
}

#[test]
fn a_node_that_is_cut_off_is_missed_and_rejoins_by_itself() {
    if skip_without_hosts() {
        return;
    }
    let rig = Rig::new(2);
    let nodes = peers(&rig, 2, OPEN);
    let (here, there) = (nodes[0].client(), nodes[1].client());
    fill(&there, "x", 1000, 1);
    fill(&there, "y", 1000, 1);
    assert!(holds(&here, "n1/x", 1000, 1));
    rig.cut(1);
    nodes[0].sees(&here, 1, false);
    assert!(holds(&here, "n1/x", 1000, 1), "what was fetched is readable");
    assert!(here.get("n1/y").is_err(), "what was not is unreachable");
    fill(&there, "x", 1000, 2);
    rig.heal(1);
    nodes[0].sees(&here, 1, true);
    eventually("what changed meanwhile is learnt", || holds(&here, "n1/x", 1000, 2));
    assert!(holds(&here, "n1/y", 1000, 1));
}

#[test]
fn a_gateway_that_was_killed_comes_back() {
    if skip_without_hosts() {
        return;
    }
    let rig = Rig::new(2);
    let mut nodes = peers(&rig, 2, OPEN);
    let (here, there) = (nodes[0].client(), nodes[1].client());
    fill(&there, "x", 1000, 1);
    assert!(holds(&here, "n1/x", 1000, 1));
    nodes[1].kill_gateway();
    nodes[0].sees(&here, 1, false);
    fill(&there, "x", 1000, 2);
    nodes[1].start_gateway(&rig);
    nodes[0].sees(&here, 1, true);
    eventually("its names are learnt again", || holds(&here, "n1/x", 1000, 2));
    // The same holds for the gateway of the node that has the copies.
    nodes[0].kill_gateway();
    nodes[0].start_gateway(&rig);
    nodes[0].sees(&here, 1, true);
    eventually("its copies are fetched again", || holds(&here, "n1/x", 1000, 2));
}

#[test]
fn a_gibibyte_gets_there() {
    if skip_without_hosts() {
        return;
    }
    let rig = Rig::new(2);
    let nodes = peers(&rig, 2, OPEN);
    let (here, there) = (nodes[0].client(), nodes[1].client());
    if let Err(error) = there.create(DType::U64, &[1 << 27]) {
        tensorlend_tests::skip(&format!("no memory for a gibibyte: {error}"));
        return;
    }
    let mut draft = there.create(DType::U64, &[1 << 27]).unwrap();
    draft.as_mut_slice::<u64>().unwrap().iter_mut().enumerate().for_each(|(at, number)| *number = at as u64);
    draft.publish("large").unwrap();
    let lease = match here.get("n1/large") {
        Ok(lease) => lease,
        Err(error) => panic!("{error}\n{}", nodes[0].log()),
    };
    assert!(lease.as_slice::<u64>().unwrap().iter().enumerate().all(|(at, &number)| number == at as u64));
}

#[test]
fn thousands_of_names() {
    if skip_without_hosts() {
        return;
    }
    let count: u64 = budget(2_000, 10_000);
    let rig = Rig::new(2);
    let nodes = peers(&rig, 2, OPEN);
    let (here, there) = (nodes[0].client(), nodes[1].client());
    for number in 0..count {
        there.put(&format!("many/{number}"), &[number]).unwrap();
    }
    for number in 0..count {
        let lease = here.get(&format!("n1/many/{number}")).unwrap_or_else(|error| panic!("{number}: {error}"));
        assert_eq!(lease.as_slice::<u64>().unwrap(), [number]);
    }
    for number in (0..count).step_by(100) {
        there.put(&format!("many/{number}"), &[number + 1]).unwrap();
    }
    for number in (0..count).step_by(100) {
        eventually("changes of many names are learnt", || {
            here.get(&format!("n1/many/{number}")).is_ok_and(|lease| lease.as_slice::<u64>().unwrap() == [number + 1])
        });
    }
}

#[test]
fn who_shows_a_wrong_certificate_sees_nothing() {
    if skip_without_hosts() {
        return;
    }
    let rig = Rig::new(3);
    let (ours, theirs) = (authority(&rig), authority(&rig));
    let tls = |authority: &Authority| [("transport/link/tls".to_owned(), authority.mutual("node", authority))];
    let hub = format!("quic/{}:7447", rig.address(0));
    let listens = format!("mode = \"router\"\nlisten = [\"{hub}\"]\n{OPEN}");
    let connects = format!("mode = \"client\"\nconnect = [\"{hub}\"]\n{OPEN}");
    let here = Node::start(&rig, 0, &listens, &tls(&ours));
    let right = Node::start(&rig, 1, &connects, &tls(&ours));
    let wrong = Node::start(&rig, 2, &connects, &tls(&theirs));
    let client = here.client();
    here.sees(&client, 1, true);
    fill(&client, "x", 10, 1);
    let (friend, stranger) = (right.client(), wrong.client());
    right.sees(&friend, 0, true);
    assert!(holds(&friend, "n0/x", 10, 1));
    assert!(stranger.get("n0/x").is_err());
    assert!(client.get(&tensorlend::remote::node_name("n2")).is_err(), "nobody has heard of it");
}

/// Creates a certificate authority, and a certificate of all hosts of a rig.
fn authority(rig: &Rig) -> Authority {
    let authority = Authority::new();
    authority.issue_for("node", (0..3).map(|host| rig.address(host).to_string()), false);
    authority
}
