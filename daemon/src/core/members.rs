//! The clients of a namespace, live and gone, and the numbers that they have.

mod announcers;
mod audience;

use super::account::limit;
use super::answer::Outcome;
use super::chores::Chore;
use super::client::survey::Survey;
use super::client::{Client, Life};
use super::context::Context;
use super::effect::Effect;
use super::env::Env;
use super::event::ConnId;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tensorlend_layout::leases::scan_fence;
use tensorlend_layout::wake::news_fence;
use tensorlend_layout::wire::{LimitKind, Refusal, Reply};

/// How seldom a limit makes the daemon look for memory that is in use no more.
const COLLECT_PAUSE_NS: u64 = 100_000_000;

/// Pause before the second look at leases that alone keep memory.
pub const LEASES_PAUSE_NS: u64 = 1_000_000_000;

/// Why a client is ended.
pub type Fault = Cow<'static, str>;

/// The clients of a namespace.
///
/// Each number up to the greatest that was ever given out is one client's, that of a request to join, or free.
#[derive(Debug)]
pub struct Members {
    clients: BTreeMap<u16, Client>,
    /// Those of them that may announce names.
    announcers: BTreeSet<u16>,
    /// Numbers used before; the one that came back first is used first.
    numbers: VecDeque<u16>,
    /// The least number never used.
    number_fresh: u32,
    /// Numbers of the requests to join that are under way, and whose.
    joining: BTreeMap<u16, u32>,
    /// When the memory of disconnected clients was last looked through for a request that met a limit.
    collected_ns: Option<u64>,
    /// Clients that broke a rule of shared memory, and how.
    faults: Vec<(u16, Fault)>,
}

impl Members {
    /// Nobody yet.
    pub fn new() -> Self {
        Self {
            clients: BTreeMap::new(),
            announcers: BTreeSet::new(),
            numbers: VecDeque::new(),
            number_fresh: 1,
            joining: BTreeMap::new(),
            collected_ns: None,
            faults: Vec::new(),
        }
    }

    /// These clients of a daemon before, of which the greatest number ever used is below `number_fresh`.
    pub fn restored(clients: BTreeMap<u16, Client>, number_fresh: u32) -> Self {
        let free = (1..number_fresh).map(|number| number as u16).filter(|number| !clients.contains_key(number));
        Self { numbers: free.collect(), clients, number_fresh, ..Self::new() }
    }

    /// Returns true if nobody is there or about to join.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.joining.is_empty()
    }

    /// The number of clients.
    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// A client that may be there, live or gone.
    pub fn get(&self, catalogue: u16) -> Option<&Client> {
        self.clients.get(&catalogue)
    }

    /// As [`Members::get`], to be changed.
    pub fn get_mut(&mut self, catalogue: u16) -> Option<&mut Client> {
        self.clients.get_mut(&catalogue)
    }

    /// A client that is there, live or gone.
    pub fn client(&self, catalogue: u16) -> Result<&Client, Refusal> {
        self.get(catalogue).ok_or_else(|| Refusal::NotFound(format!("client {catalogue}")))
    }

    /// A client that makes requests.
    pub fn me(&mut self, catalogue: u16) -> &mut Client {
        self.get_mut(catalogue).expect("who asks is a client")
    }

    /// All clients, and their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &Client)> {
        self.clients.iter().map(|(&number, client)| (number, client))
    }

    /// All clients.
    pub fn values(&self) -> impl Iterator<Item = &Client> {
        self.clients.values()
    }

    /// The numbers of all clients.
    pub fn numbers(&self) -> Vec<u16> {
        self.clients.keys().copied().collect()
    }

    /// The first client from this number on.
    pub fn first_from(&self, number: u16) -> Option<(u16, &Client)> {
        self.clients.range(number..).next().map(|(&number, client)| (number, client))
    }

    /// The user of a client, be it there or gone.
    pub fn uid_of(&self, catalogue: u16) -> Option<u32> {
        self.get(catalogue).map(|client| client.uid)
    }

    /// Who has lines of the directory's table of members: clients, and requests to join.
    pub fn lines(&self) -> impl Iterator<Item = Option<u32>> {
        self.values().map(|client| client.uid).chain(self.joining.values().copied()).map(Some)
    }

    /// A number for somebody who joins. The directory has more lines than `members_max` says: the rest is for those who come
    /// in `beyond` the limits.
    pub fn number(&mut self, context: &Context, beyond: bool) -> Result<u16, Refusal> {
        let (most, lines) = (context.ledger.limits().members_max, context.directory.members.len() as u32);
        let taken = (self.clients.len() + self.joining.len()) as u64;
        if !beyond && taken >= u64::from(most) {
            return Err(Self::full(context));
        }
        if self.number_fresh < if beyond { lines } else { lines.min(most + 1) } {
            self.number_fresh += 1;
            return Ok(u16::try_from(self.number_fresh - 1).expect("a directory has at most 65536 members"));
        }
        self.numbers.pop_front().ok_or_else(|| Self::full(context))
    }

    /// The refusal for a table without a free line.
    fn full(context: &Context) -> Refusal {
        let what = format!(
            "the number of clients of namespace {:?} (those gone that left tensors too)",
            context.ledger.name()
        );
        limit(
            LimitKind::Members,
            what,
            format!("{}.members_max", context.ledger.setting()),
            context.ledger.limits().members_max.to_string(),
        )
    }

    /// Notes whose request to join has this number.
    pub fn joining(&mut self, number: u16, uid: u32) {
        self.joining.insert(number, uid);
    }

    /// A client that was to join will not.
    pub fn unjoin(&mut self, number: u16) {
        self.joining.remove(&number);
        self.numbers.push_back(number);
    }

    /// A client has joined.
    pub fn insert(&mut self, number: u16, client: Client) {
        self.joining.remove(&number);
        let before = self.clients.insert(number, client);
        assert!(before.is_none(), "a number is one client's at a time");
    }

    /// Looks through the memory of those of this namespace who are gone, for somebody who hit a limit; whether that may
    /// have freed some. Each look goes over all of it: so not at every request.
    pub fn collect_for_room(&mut self, env: &mut Env, context: &Context) -> bool {
        if self.collected_ns.is_some_and(|at| env.now_ns < at + COLLECT_PAUSE_NS) {
            return false;
        }
        let catalogues = self.collectable();
        if !catalogues.is_empty() {
            self.collected_ns = Some(env.now_ns);
        }
        for &catalogue in &catalogues {
            self.collect(env, context, catalogue);
        }
        !catalogues.is_empty()
    }

    /// A client whose end nobody would hear of may have no device memory: its work there could go on unseen.
    pub fn check_watched(&self, catalogue: u16) -> Result<(), Refusal> {
        if self.client(catalogue)?.watched {
            return Ok(());
        }
        let why = "device memory is lent to processes that the daemon can watch: this one is in a pid namespace that it \
                   does not see, or had ended when it connected";
        Err(Refusal::Bad(why.into()))
    }

    /// Whose each segment is.
    pub fn segment_uids(&self) -> impl Iterator<Item = Option<u32>> {
        self.values().flat_map(|client| client.segments.values().map(|_| Some(client.uid)))
    }

    /// Checks that each number is one client's, one request's or free, and that the directory counts the clients.
    ///
    /// # Panics
    /// They are not so.
    pub fn check(&self, context: &Context) {
        let free: BTreeSet<u16> = self.numbers.iter().copied().collect();
        assert_eq!(free.len(), self.numbers.len(), "a number is free once");
        let taken = self.clients.len() + self.joining.len() + free.len();
        assert_eq!(taken as u32 + 1, self.number_fresh, "each number that was ever given out is in one place");
        for number in self.clients.keys().chain(self.joining.keys()) {
            assert!(!free.contains(number) && u32::from(*number) < self.number_fresh, "number {number} is given out");
        }
        let head = context.directory.head();
        let live = self.values().filter(|client| client.is_live()).count();
        assert_eq!(head.clients.peek(), live as u64, "the directory counts those who are there");
        let waiters = self.values().filter(|client| client.waits).count();
        assert_eq!(head.waiters_count.peek(), waiters as u64, "the directory counts those who may sleep");
        for number in &self.announcers {
            assert!(self.get(*number).is_some_and(|client| client.announcer), "{number} may announce");
        }
        for (number, client) in self.iter() {
            assert_eq!(context.directory.entry(number).member.peek(), client.member.0, "the directory names {number}");
            let has_left = !client.is_live() && client.departing.is_none();
            assert!(!has_left || client.leases.is_none(), "leases of {number}, which has left, do not count");
            let listed = head.announcers[usize::from(number) / 64].peek() & 1 << (number % 64) != 0;
            assert_eq!(self.announcers.contains(&number), listed, "the directory lists the announcers, {number}");
        }
    }

    /// Notes that a client broke a rule of shared memory: it is ended at the end of this step.
    pub fn fault(&mut self, catalogue: u16, why: impl Into<Fault>) {
        self.faults.push((catalogue, why.into()));
    }

    /// The clients that broke a rule since this was asked last, and the rules.
    pub fn take_faults(&mut self) -> Vec<(u16, Fault)> {
        std::mem::take(&mut self.faults)
    }

    /// A client's connection, while it is there.
    pub fn conn(&self, catalogue: u16) -> Option<ConnId> {
        self.get(catalogue)?.conn()
    }

    /// Takes out a client of which nothing is left: its number can be given out again.
    pub fn remove(&mut self, catalogue: u16) -> Client {
        let client = self.clients.remove(&catalogue).expect("it is dropped once");
        self.numbers.push_back(catalogue);
        client
    }

    /// Slots of `catalogue` on which leases of live clients lie.
    pub fn leased(&self, catalogue: u16) -> Vec<u32> {
        // The news (a home moved, an owner's word that a slot is dead) was stored before: whoever leased a slot by the
        // old route either is seen here or sees the news.
        scan_fence();
        let mut slots = Vec::new();
        for table in self.values().filter_map(Client::lease_table) {
            table.scan(|lease| {
                if lease.catalogue() == catalogue {
                    slots.push(lease.slot());
                }
            });
        }
        slots
    }

    /// Returns true if somebody has announced something that is not in the directory yet.
    pub fn has_announcements(&self) -> bool {
        self.announcing().any(|(_, client)| client.has_announced())
    }

    /// Rings the bell if one of those whom the step's news concerns may be asleep.
    pub fn wake(&self, env: &mut Env, context: &mut Context) {
        let news = context.directory.take_news();
        let head = context.directory.head();
        if news == 0 || head.waiters_count.peek() == 0 {
            return;
        }
        news_fence();
        let asleep = |c: &Client| c.waits && c.lease_table().is_some_and(|table| table.parked.peek() & news != 0);
        if self.values().any(asleep) {
            head.bell.ring();
            env.effects.push(Effect::Wake { directory: context.directory.mem() });
        }
    }

    /// Frozen clients whose memory may be in use no more.
    pub fn collectable(&self) -> Vec<u16> {
        let may = |c: &Client| match &c.life {
            Life::Frozen { lease_held, due_ns, survey, .. } => survey.is_none() && (*lease_held || due_ns.is_some()),
            _ => false,
        };
        self.iter().filter(|(_, c)| may(c)).map(|(n, _)| n).collect()
    }

    /// Whether the memory of somebody who is gone is being looked through.
    pub fn is_surveying(&self) -> bool {
        self.values().any(|client| matches!(client.life, Life::Frozen { survey: Some(_), .. }))
    }
}

impl Members {
    /// Checks a name and a cell that its client wants to bind.
    pub fn check_cell(&self, catalogue: u16, cell: u32) -> Result<(), Refusal> {
        let granted = self.client(catalogue)?.granted();
        if cell < granted {
            Ok(())
        } else {
            Err(Refusal::Bad(format!("cell {cell} is not among the {granted} cells of this client")))
        }
    }

    /// What the daemon took from a client.
    pub fn notices(&mut self, catalogue: u16) -> Outcome {
        let notices = &mut self.me(catalogue).notices;
        let cells: Vec<u32> = std::iter::from_fn(|| notices.pop_first()).take(4096).collect();
        Outcome::Reply(Reply::Notices { cells, more: !notices.is_empty() })
    }

    /// Lists a client among those who may sleep.
    pub fn wait(&mut self, context: &Context, catalogue: u16) -> Outcome {
        let client = self.me(catalogue);
        if !std::mem::replace(&mut client.waits, true) {
            let head = context.directory.head();
            head.waiters[usize::from(catalogue) / 64].set_bits(1 << (catalogue % 64));
            head.waiters_count.add(1);
        }
        Outcome::Reply(Reply::Done)
    }

    /// Takes a client off that list.
    pub fn wait_no_more(&mut self, context: &Context, catalogue: u16) {
        if std::mem::take(&mut self.me(catalogue).waits) {
            let head = context.directory.head();
            head.waiters[usize::from(catalogue) / 64].clear_bits(1 << (catalogue % 64));
            head.waiters_count.set(head.waiters_count.peek() - 1);
        }
    }
}

impl Members {
    /// Has a frozen client's memory looked through: buries the names that it deleted, frees the segments that nothing leads
    /// to, and drops it altogether when nothing is left.
    pub fn collect(&mut self, env: &mut Env, context: &Context, catalogue: u16) {
        let id = context.ledger.id();
        let Some(Client { life: Life::Frozen { due_ns, survey, .. }, .. }) = self.get_mut(catalogue) else {
            return;
        };
        if survey.is_none() {
            *due_ns = None;
            *survey = Some(Box::new(Survey::new()));
            env.take_on(id, Chore::Survey(catalogue));
        } else {
            // What has happened since may be behind the place that it has come to.
            *due_ns = Some(env.now_ns);
        }
    }

    /// A home has come to lead to a cell of a client that is gone.
    pub fn surveyed(&mut self, catalogue: u16, cell: u32) {
        let Some(client) = self.get_mut(catalogue) else { return };
        let value = client.value(cell).filter(|value| value.is_value());
        if let (Some(value), Life::Frozen { survey: Some(survey), .. }) = (value, &mut client.life) {
            survey.in_use = true;
            if survey.is_at_names() {
                survey.roots.push((value.slot(), Some(value.generation())));
            }
        }
    }
}

impl std::ops::Index<u16> for Members {
    type Output = Client;

    fn index(&self, catalogue: u16) -> &Client {
        &self.clients[&catalogue]
    }
}
