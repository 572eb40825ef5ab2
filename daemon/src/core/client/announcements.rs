//! The names that a client announces in shared memory, and the daemon's progress in absorbing them.

/// Time without a check after which a claim counts as a new one.
const CLAIM_GAP_NS: u64 = 100_000_000;

/// A turn that absorbed announcements.
#[derive(Clone, Copy, Debug, Default)]
pub struct Absorbing {
    turn: u64,
    /// The number of announcements that the predecessor absorbed.
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

    /// Counts announcements of the last turn.
    pub fn add(&mut self, count: u64) {
        self.count += count;
    }
}

/// A claim in shared memory: its client is publishing the name for the first time.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// The hash of the name.
    hash: u64,
    /// The time when the daemon saw the claim first.
    first_ns: u64,
    /// The time when the daemon saw the claim last.
    last_ns: u64,
}

/// The announcements of a client.
#[derive(Debug, Default)]
pub struct Announcements {
    /// Whether the client may announce names.
    announcer: bool,
    /// Number of new names that this daemon granted to the client's requests.
    requested: usize,
    /// Number of its announcements in the directory.
    absorbed: u64,
    /// The last turn that absorbed some of the client's announcements.
    absorbing: Absorbing,
    /// Number of names that the client had announced at `marked_ns`. When the directory has all these names, the daemon reads the
    /// number again.
    mark: u64,
    /// Time of the step that read `mark`.
    marked_ns: u64,
    /// The directory has all names that the client announced before the step of this time.
    absorbed_until_ns: u64,
    /// The claim that a request waits for.
    claim: Option<Claim>,
}

impl Announcements {
    /// Returns the announcements of a client of the daemon's predecessor. The predecessor had absorbed this number of
    /// announcements.
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

    /// Counts a new name that the client requested, and returns the number of such names.
    pub fn count_requested(&mut self) -> usize {
        self.requested = self.requested.saturating_add(1);
        self.requested
    }

    /// Returns the number of announcements in the directory.
    pub fn absorbed(&self) -> u64 {
        self.absorbed
    }

    /// Notes that the directory has the announcements up to this number.
    pub fn absorb_up_to(&mut self, index: u64) {
        self.absorbed = index;
    }

    /// Returns the turn that absorbed announcements of the client last.
    pub fn absorbing(&mut self) -> &mut Absorbing {
        &mut self.absorbing
    }

    /// Notes the number of announcements that the client reports, once the directory has those of the last mark.
    pub fn mark(&mut self, announced: u64, now_ns: u64) {
        if self.absorbed >= self.mark {
            self.absorbed_until_ns = self.marked_ns;
            (self.mark, self.marked_ns) = (announced, now_ns);
        }
    }

    /// Returns true if the directory has all names that the client announced before the step of `since_ns`. A mark that was read
    /// at that time may lack announcements that precede the request.
    pub fn are_absorbed_since(&self, since_ns: u64) -> bool {
        self.absorbed_until_ns > since_ns
    }

    /// Notes that a request waits for the client's claim of this hash. Returns the claim's age, which counts from the time when
    /// the daemon first saw the claim, for any requester. A claim does not become old because a request waited for other claims.
    pub fn claim_age_ns(&mut self, hash: u64, now_ns: u64) -> u64 {
        let first_ns = match self.claim {
            Some(claim) if claim.hash == hash && now_ns - claim.last_ns < CLAIM_GAP_NS => claim.first_ns,
            _ => now_ns,
        };
        self.claim = Some(Claim { hash, first_ns, last_ns: now_ns });
        now_ns - first_ns
    }
}
