//! Arbitrary packets to the core, for a fuzzer.

use crate::Plan;
use crate::sim::{Packet, Sim};
use tensorlend_layout::wire::{Hello, Request};

/// Number of connections that send packets.
const CONNECTIONS: usize = 3;

/// Sends packets over connections of which all but one have joined already. The first byte of each packet selects its
/// connection and its number of descriptors, the second its length. Responses are acknowledged where required. Then all
/// clients leave, and nothing may be left.
///
/// # Panics
/// If an invariant does not hold.
pub fn packets(data: &[u8]) {
    let mut sim = Sim::new(Plan::new(u64::from(data.first().copied().unwrap_or(0) >> 5)));
    sim.poor = 0;
    sim.prompt = true;
    for at in 0..CONNECTIONS {
        let actor = sim.dial(1 + (at as u32 & 1), false);
        // The last connection must send its own hello, if any.
        if at + 1 < CONNECTIONS {
            let hello = Hello { namespace: Some("lab".into()), ..crate::steps::hello() };
            for request in [Request::Hello(hello), Request::Ack] {
                sim.tell(actor, &request);
                sim.deliver(actor);
                sim.make_all();
            }
            sim.actors[actor].owes = false;
        }
    }
    let mut rest = data;
    while let Some((&[who, bytes], after)) = rest.split_first_chunk() {
        let (bytes, after) = after.split_at(usize::from(bytes).min(after.len()));
        rest = after;
        let actor = usize::from(who) % CONNECTIONS;
        if !sim.actors[actor].connected {
            continue;
        }
        sim.step += 1;
        sim.now_ns += 1000 << (who >> 4);
        sim.make_all();
        let it = &mut sim.actors[actor];
        if !it.read {
            continue;
        }
        let descriptors = usize::from(who >> 2) % 3;
        it.outbox.push_back(Packet { bytes: bytes.to_vec(), descriptors, truncated: false });
        sim.deliver(actor);
        sim.make_all();
        if sim.actors[actor].connected && std::mem::take(&mut sim.actors[actor].owes) {
            sim.tell(actor, &Request::Ack);
            sim.deliver(actor);
        }
        sim.check();
    }
    sim.faults_stop();
    sim.clean_up();
}
