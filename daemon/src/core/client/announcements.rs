//! The names that a client announces in shared memory, and the daemon's progress in absorbing them.

/// Time without a check after which a first-publication claim counts as a new claim.
const CLAIM_GAP_NS: u64 = 100_000_000;

/// A turn that absorbed announcements.
#[derive(Clone, Copy, Debug, Default)]
pub struct Absorbing {
    turn: u64,
    /// The number of announcements that the turn has absorbed.
    count: u64,
}

impl Absorbing {
    /// Returns the number of announcements that this turn has absorbed.
    pub fn count_in(&mut self, turn: u64) -> u64 {
        if self.turn != turn {
            *self = Self { turn, count: 0 };
        }
        self.count
    }

    /// Adds to the number of announcements of the last turn.
    pub fn add(&mut self, count: u64) {
        self.count += count;
    }
}

/// A first-publication claim, in shared memory. The client is publishing the name for the first time.
#[derive(Clone, Copy, Debug)]
struct Claim {
    hash: u64,
    /// The time when the daemon first saw the claim.
    first_ns: u64,
    /// The time when the daemon last saw the claim.
    last_ns: u64,
}

#[derive(Debug, Default)]
pub struct Announcements {
    /// Whether the client may announce names.
    announcer: bool,
    /// Number of new names that the daemon granted to the client in response to requests.
    requested: usize,
    /// Number of the client's announcements that are in the directory.
    absorbed: u64,
    /// The last turn that absorbed some of the client's announcements.
    absorbing: Absorbing,
    /// Number of names that the client had announced at `marked_ns`. When the directory has all
    /// these names, the daemon reads the client's number again.
    mark: u64,
    /// Time of the step that read `mark`.
    marked_ns: u64,
    /// A time. The directory has all names that the client announced before the step of this time.
    absorbed_until_ns: u64,
    claim: Option<Claim>,
}

impl Announcements {
    /// Returns the announcements of a client of the previous daemon. `absorbed` is the number that
    /// the previous daemon had absorbed.
    pub fn restored(announcer: bool, absorbed: u64) -> Self {
        Self { announcer, absorbed, ..Self::default() }
    }

    /// Returns true if the client may announce names.
    pub fn is_announcer(&self) -> bool {
        self.announcer
    }

    /// Permits the client to announce names.
    pub fn permit(&mut self) {
        self.announcer = true;
    }

    /// Counts a new name that the client requested. Returns the number of such names.
    pub fn count_requested(&mut self) -> usize {
        self.requested = self.requested.saturating_add(1);
        self.requested
    }

    /// Returns the number of announcements in the directory.
    pub fn absorbed(&self) -> u64 {
        self.absorbed
    }

    /// Records that the directory has the announcements up to this number.
    pub fn absorb_up_to(&mut self, index: u64) {
        self.absorbed = index;
    }

    /// Returns the last turn that absorbed announcements of the client.
    pub fn absorbing(&mut self) -> &mut Absorbing {
        &mut self.absorbing
    }

    /// Records the number of announcements that the client reports, if the directory has all
    /// announcements of the last mark.
    pub fn mark(&mut self, announced: u64, now_ns: u64) {
        if self.absorbed >= self.mark {
            self.absorbed_until_ns = self.marked_ns;
            (self.mark, self.marked_ns) = (announced, now_ns);
        }
    }

    /// Returns true if the directory has all names that the client announced before the step of
    /// `since_ns`. A mark of the same time does not suffice, because announcements may have
    /// followed the mark and preceded the request.
    pub fn are_absorbed_since(&self, since_ns: u64) -> bool {
        self.absorbed_until_ns > since_ns
    }

    /// Records that a request waits for the client's claim of this hash. Returns the claim's age.
    /// The age counts from the moment when the daemon first saw the claim, for any requester. Waits
    /// for other claims do not add to the age.
    pub fn claim_age_ns(&mut self, hash: u64, now_ns: u64) -> u64 {
        let first_ns = match self.claim {
            Some(claim) if claim.hash == hash && now_ns - claim.last_ns < CLAIM_GAP_NS => claim.first_ns,
            _ => now_ns,
        };
        self.claim = Some(Claim { hash, first_ns, last_ns: now_ns });
        now_ns - first_ns
    }
}
