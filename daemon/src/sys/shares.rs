//! The shares of users in a turn of the loop. With shares, the connections of one user delay other
//! users by at most one share, whatever their number. All uids of an owner count as one user: see
//! [`Owners`].
//!
//! In a turn the daemon takes the events that epoll reports, in batches. When a user has spent its
//! share, the further connections of this user wait in a queue, and epoll no longer reports them.
//! So the turn can take all batches, and reaches the connections of every other user. If the
//! batches take longer than [`BATCHES`], the next turn first handles the queues, and then takes the
//! remaining batches.
//!
//! The share covers requests, wakeup eventfds, replies that had to wait for a socket, and ends of
//! connections and processes. The core may also do work for other users in the same step, such as
//! retries of delayed requests. The user pays for that work too, because the core has no clock to
//! measure parts of a step. Such a user still has at least one event in each turn.
//!
//! The share does not cover:
//! - new connections: each batch accepts one.
//! - the exits of processes whose connections have already ended: each process exits only once.
//! - alarms of the core, and results of lanes: the core handles them in slices, for all
//!   users together.
//! - memory made for the next client: one piece of at most 512 KiB in a turn.

use crate::core::owners::Owners;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The share: time in one turn after which further connections of a user wait for the next turn.
const SHARE: Duration = Duration::from_millis(1);

/// Time after which a turn takes no further batch. The time is bounded because the daemon handles
/// waiting replies and the service manager's watchdog only once in each turn.
const BATCHES: Duration = Duration::from_millis(5);

/// Maximum number of events that epoll reports in one batch.
pub const BATCH: usize = 64;

/// A connection that waits for a later turn.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    uid: u32,
    token: u64,
}

/// The time that users have spent in this turn, and the connections that wait for a later turn.
#[derive(Debug, Default)]
pub struct Shares {
    owners: Arc<Owners>,
    /// Time spent in this turn, by owner.
    spent: BTreeMap<u32, Duration>,
    /// Waiting connections by owner, in the order of their turns. Tokens of ended connections may remain in the queues.
    queues: BTreeMap<u32, VecDeque<Waiting>>,
    /// Number of batches that this turn has taken.
    batches: usize,
}

impl Shares {
    /// Replaces the assignment of uids to owners. Waiting tokens move to the queues of their new owners.
    pub fn set_owners(&mut self, owners: Arc<Owners>) {
        self.owners = owners;
        for waiting in std::mem::take(&mut self.queues).into_values().flatten() {
            self.queues.entry(self.owners.of(waiting.uid)).or_default().push_back(waiting);
        }
    }

    /// Begins a turn. Every user then has a whole share.
    pub fn begin(&mut self) {
        self.spent.clear();
        self.batches = 0;
    }

    /// Returns true if the daemon may handle an event of this user's connection now. Otherwise adds
    /// the event's token to the user's queue.
    pub fn admits(&mut self, uid: u32, token: u64) -> bool {
        let owner = self.owners.of(uid);
        let is_admitted = !self.queues.contains_key(&owner) && self.has_share(owner);
        if !is_admitted {
            self.queues.entry(owner).or_default().push_back(Waiting { uid, token });
        }
        is_admitted
    }

    /// Adds the time that an event of one of the user's connections took.
    pub fn add(&mut self, uid: u32, took: Duration) {
        *self.spent.entry(self.owners.of(uid)).or_default() += took;
    }

    /// Takes a token from the queue of a user that has not spent its share.
    pub fn next(&mut self) -> Option<u64> {
        let owner = *self.queues.keys().find(|owner| self.has_share(**owner))?;
        let queue = self.queues.get_mut(&owner)?;
        let token = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&owner);
        }
        token.map(|waiting| waiting.token)
    }

    /// Returns true if tokens wait, so that the next turn must begin at once.
    pub fn any_wait(&self) -> bool {
        !self.queues.is_empty()
    }

    /// Counts a batch of events. Returns true if this turn should take another batch, because epoll
    /// may have more events of other users to report. `took` is the time of this turn's batches.
    ///
    /// The number of descriptors bounds the batches of a turn, because processes can write to their
    /// wakeup eventfds without a pause.
    pub fn takes_more(&mut self, reported: usize, descriptors: usize, took: Duration) -> bool {
        self.batches += 1;
        reported >= BATCH && self.batches <= descriptors / BATCH && took < BATCHES
    }

    fn has_share(&self, owner: u32) -> bool {
        self.spent.get(&owner).is_none_or(|&spent| spent < SHARE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections that always have a packet, and epoll's list of those that are ready, as (uid, token).
    struct Model {
        shares: Shares,
        ready: VecDeque<(u32, u64)>,
        uids: BTreeMap<u64, u32>,
        took: Duration,
    }

    impl Model {
        fn new(connections: impl IntoIterator<Item = (u32, u64)>, took: Duration) -> Self {
            let ready: VecDeque<_> = connections.into_iter().collect();
            let uids = ready.iter().map(|&(uid, token)| (token, uid)).collect();
            Self { shares: Shares::default(), ready, uids, took }
        }

        /// Runs a turn as the loop does. Returns the tokens that it handles.
        fn turn(&mut self) -> Vec<u64> {
            let mut handled = Vec::new();
            self.shares.begin();
            while let Some(token) = self.shares.next() {
                self.handle(token, &mut handled);
            }
            loop {
                let batch: Vec<_> = self.ready.drain(..self.ready.len().min(BATCH)).collect();
                for &(uid, token) in &batch {
                    if self.shares.admits(uid, token) {
                        self.handle(token, &mut handled);
                    }
                }
                if !self.shares.takes_more(batch.len(), self.uids.len(), Duration::ZERO) {
                    return handled;
                }
            }
        }

        fn handle(&mut self, token: u64, handled: &mut Vec<u64>) {
            let uid = self.uids[&token];
            self.shares.add(uid, self.took);
            handled.push(token);
            self.ready.push_back((uid, token));
        }
    }

    #[test]
    fn cheap_requests_are_all_handled_at_once() {
        let mut model = Model::new((0..40).map(|token| (1000, token)), SHARE / 50);
        assert!(model.turn().len() >= 40);
    }

    #[test]
    fn slow_connections_of_one_user_take_turns_and_another_user_is_in_each() {
        let mut model = Model::new([(1, 10), (1, 11), (1, 12), (2, 20)], SHARE);
        let turns: Vec<_> = (0..6).map(|_| model.turn()).collect();
        let of_one: Vec<u64> = turns.iter().flatten().copied().filter(|&token| token < 20).collect();
        assert_eq!(of_one, [10, 11, 12, 10, 11, 12]);
        assert!(turns.iter().all(|turn| turn.contains(&20)), "{turns:?}");
    }

    /// Epoll reports the connections in 16 batches.
    #[test]
    fn a_thousand_connections_of_one_user_keep_no_other_user_waiting_for_turns() {
        let mut model = Model::new((0..1000).map(|token| (1, token)).chain([(2, 2000)]), SHARE);
        let mut last = [0; 1000];
        for turn in 1..=3000 {
            let handled = model.turn();
            assert!(handled.contains(&2000), "turn {turn}: {handled:?}");
            assert!(handled.len() <= 3, "a share each: {handled:?}");
            handled.iter().filter(|&&token| token < 1000).for_each(|&token| last[token as usize] = turn);
        }
        assert!(
            last.iter().all(|&turn| turn > 3000 - 1001),
            "each of the thousand is handled again and again: {last:?}"
        );
    }

    #[test]
    fn uids_of_a_range_share_with_their_owner() {
        let mut shares = Shares::default();
        shares.set_owners(Arc::new(Owners::new([(100_000, 65_536, Some(1000))])));
        shares.add(100_001, SHARE);
        assert!(!shares.admits(100_002, 10) && !shares.admits(1000, 11) && shares.admits(1001, 12));
        shares.begin();
        assert_eq!([shares.next(), shares.next(), shares.next()], [Some(10), Some(11), None]);
        assert!(!shares.any_wait());
    }

    #[test]
    fn waiting_connections_move_to_their_new_owner() {
        let mut shares = Shares::default();
        shares.add(100_001, SHARE);
        assert!(!shares.admits(100_001, 10) && !shares.admits(100_001, 11));
        shares.set_owners(Arc::new(Owners::new([(100_000, 65_536, Some(1000))])));
        shares.begin();
        assert_eq!(shares.next(), Some(10));
        shares.add(100_001, SHARE);
        assert_eq!(shares.next(), None, "the owner has spent its share");
        shares.begin();
        assert_eq!((shares.next(), shares.any_wait()), (Some(11), false));
    }

    #[test]
    fn a_turn_ends_although_descriptors_are_ready_without_a_pause() {
        let mut shares = Shares::default();
        shares.begin();
        let batches = 1 + (0..100).take_while(|_| shares.takes_more(BATCH, 1000, Duration::ZERO)).count();
        assert_eq!(batches, 1000 / BATCH + 1);
        shares.begin();
        assert!(!shares.takes_more(BATCH, 1000, BATCHES));
    }
}
