//! Segments that the daemon wants out of memory, and that a process still has mapped.
//!
//! Daemon D cannot spill a segment that a reader has mapped, or that its living owner has not released.
//! So D sets the segment's bit in the directory, and rings the bell `wanted_out`. A client with such
//! a segment unmaps it if no lease of the client needs it, and an owner releases it if the owner will
//! not write it any more ([`Segments::release_for_spill`]). A client may ignore the bit. D relies only
//! on the kernel, as before.

use super::Segments;
use crate::core::client::{Client, Residence, Segment};
use crate::core::context::Context;
use crate::core::effect::Effect;
use crate::core::env::Env;
use crate::core::parts::Parts;
use crate::core::settings::{Payer, Role};
use tensorlend_layout::directory::{Directory, WANTED_OUT_SINCE};
use tensorlend_layout::number::ClientNo;

/// Maximum number of segments of living owners that the daemon asks for at a time.
const LIVING_MAX: usize = 4;
/// Time within which clients let go of a wanted segment. After that time the daemon assumes that they
/// keep the segment.
pub const WANTED_NS_MAX: u64 = 300_000_000;
/// Pause between two attempts to spill a wanted segment.
pub const WANTED_PAUSE_NS: u64 = 10_000_000;

/// Returns true for a segment whose memory the daemon wants, and that clients may still let go of.
pub fn is_awaited(wanted_ns: Option<u64>, now_ns: u64) -> bool {
    wanted_ns.is_some_and(|at| now_ns < at + WANTED_NS_MAX)
}

impl Segment {
    /// Returns true for a segment that the daemon has lent and that is in host memory.
    fn is_in_host_memory(&self) -> bool {
        self.device.is_none() && self.slots.acked && matches!(self.residence, Residence::Memory)
    }
}

impl Segments {
    /// Rings the bell of a new directory, if the daemon spills. So clients watch the bell.
    pub fn announce_spill(env: &Env, directory: &Directory) {
        let bell = &directory.head().wanted_out;
        if env.settings.spill.is_some() && bell.read() == 0 {
            bell.ring();
        }
    }

    /// Asks clients to let go of segments that could not be spilled, and some living owners to
    /// release segments, those lent first, unless it waits for others. `counts` selects by the owner's number and uid. An owner is
    /// not asked while `is_busy`, because it waits for a reply and cannot send a request. Returns
    /// true if clients may let go of a segment soon.
    pub fn want_out(
        parts: &mut Parts<'_>,
        counts: impl Fn(&Client) -> bool,
        is_busy: impl Fn(ClientNo) -> bool,
    ) -> bool {
        if parts.context.ledger.limits().payer == Payer::Client {
            return false;
        }
        let now_ns = parts.env.clock.now_ns();
        let (mut wanted, mut of_living, mut awaits) = (Vec::new(), Vec::new(), false);
        for (number, client) in parts.members.iter().filter(|(_, client)| counts(client)) {
            let asks = client.is_live()
                && client.role == Role::Writer
                && client.versions.layout >= WANTED_OUT_SINCE
                && !is_busy(number);
            // A segment without room in a file would not leave memory.
            let may_leave = |segment: &Segment| {
                segment.is_in_host_memory()
                    && parts.env.spills.has_room_for(&parts.env.settings, client.uid, segment.bytes)
            };
            for (&base, segment) in client.segments.iter().filter(|(_, segment)| may_leave(segment)) {
                let is_new = segment.wanted_ns.is_none();
                awaits |= is_awaited(segment.wanted_ns, now_ns);
                if client.is_frozen() || segment.released_ns.is_some() {
                    if is_new && segment.tried_ns.is_some() {
                        wanted.push((number, base));
                    }
                } else if is_new && asks {
                    let since_ns = parts.context.directory.segments[segment.line.index()].since_ns.peek();
                    of_living.push((since_ns, number, base));
                }
            }
        }
        // While owners may still release what the daemon has asked for, it asks for no more.
        if !awaits {
            of_living.sort_unstable();
            wanted.extend(of_living.into_iter().take(LIVING_MAX).map(|(_, number, base)| (number, base)));
        }
        if wanted.is_empty() {
            return awaits;
        }
        for (number, base) in wanted {
            let segment = parts.members.me(number).segments.get_mut(base).expect("found above");
            segment.wanted_ns = Some(now_ns);
            parts.context.directory.head().want_out(segment.line, true);
        }
        parts.context.directory.head().wanted_out.ring();
        parts.env.effects.push(Effect::WakeWanted { directory: parts.context.directory.mem() });
        true
    }

    /// Takes back the wish for a segment. A reader needs the segment, or its bytes are in a file.
    pub fn cancel_want_out(context: &Context, segment: &mut Segment) {
        if segment.wanted_ns.take().is_some() {
            context.directory.head().want_out(segment.line, false);
        }
    }
}
