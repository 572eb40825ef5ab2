//! The clients of a namespace, connected and disconnected, and their numbers.

mod announcers;
mod audience;
mod numbers;

use super::account::limit;
use super::chores::Chore;
use super::client::survey::Survey;
use super::client::{Client, ClientState};
use super::context::Context;
use super::effect::Effect;
use super::env::Env;
use super::event::{ConnId, MemId};
use super::outcome::Outcome;
use numbers::Numbers;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use tensorlend_layout::directory::{Bitmap, audience_bit};
use tensorlend_layout::leases::{LeaseTable, scan_fence};
use tensorlend_layout::number::{CellNo, ClientNo, SlotNo};
use tensorlend_layout::wake::news_fence;
use tensorlend_layout::wire::{LimitKind, Refusal, Reply};

/// Minimum pause between two surveys that requests cause when a limit is reached.
const COLLECT_PAUSE_NS: u64 = 100_000_000;

/// Pause before the second scan of the leases on memory that is otherwise out of use.
pub const LEASES_PAUSE_NS: u64 = 1_000_000_000;

/// The reason why the daemon ends a client.
pub type Fault = Cow<'static, str>;

/// The clients of a namespace.
#[derive(Debug)]
pub struct Members {
    clients: BTreeMap<ClientNo, Client>,
    /// Clients that may announce names.
    announcers: BTreeSet<ClientNo>,
    numbers: Numbers,
    /// Time of the last survey of disconnected clients that a request caused when a limit was reached.
    collected_ns: Option<u64>,
    /// Clients that broke a rule of shared memory, and the rules.
    faults: Vec<(ClientNo, Fault)>,
}

impl Members {
    /// Returns an empty set of clients.
    pub fn new() -> Self {
        Self {
            clients: BTreeMap::new(),
            announcers: BTreeSet::new(),
            numbers: Numbers::new(),
            collected_ns: None,
            faults: Vec::new(),
        }
    }

    /// Returns the clients of the previous daemon. `fresh` is above the greatest number ever used.
    pub fn restored(clients: BTreeMap<ClientNo, Client>, fresh: usize) -> Self {
        let numbers = Numbers::restored(fresh, |number| clients.contains_key(&number));
        Self { clients, numbers, ..Self::new() }
    }

    /// Returns true if no client exists or is joining.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.numbers.joining().len() == 0
    }

    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Returns a client, connected or not. Returns `None` if the client does not exist.
    pub fn get(&self, number: ClientNo) -> Option<&Client> {
        self.clients.get(&number)
    }

    /// Returns a mutable reference to a client. Returns `None` if the client does not exist.
    pub fn get_mut(&mut self, number: ClientNo) -> Option<&mut Client> {
        self.clients.get_mut(&number)
    }

    /// Returns a client, connected or not, or a refusal if the client does not exist.
    pub fn client(&self, number: ClientNo) -> Result<&Client, Refusal> {
        self.get(number).ok_or_else(|| Refusal::NotFound(format!("client {number}")))
    }

    /// Returns the client that makes a request. The client exists.
    pub fn me(&mut self, number: ClientNo) -> &mut Client {
        self.get_mut(number).expect("the requester is a client")
    }

    pub fn iter(&self) -> impl Iterator<Item = (ClientNo, &Client)> {
        self.clients.iter().map(|(&number, client)| (number, client))
    }

    pub fn values(&self) -> impl Iterator<Item = &Client> {
        self.clients.values()
    }

    pub fn numbers(&self) -> Vec<ClientNo> {
        self.clients.keys().copied().collect()
    }

    /// Returns the first client whose number is at least `number`.
    pub fn first_from(&self, number: ClientNo) -> Option<(ClientNo, &Client)> {
        self.clients.range(number..).next().map(|(&number, client)| (number, client))
    }

    /// Returns the uid of a client, connected or not.
    pub fn uid_of(&self, number: ClientNo) -> Option<u32> {
        self.get(number).map(|client| client.uid)
    }

    /// Returns the uids of the used entries in the directory's table of members. Clients and
    /// requests to join use entries.
    pub fn lines(&self) -> impl Iterator<Item = Option<u32>> {
        self.values().map(|client| client.uid).chain(self.numbers.joining()).map(Some)
    }

    /// Returns a number for a joining client. The directory has more entries than `members_max`.
    /// The surplus is for clients that join `beyond` the limits.
    pub fn number(&mut self, context: &Context, beyond: bool) -> Result<ClientNo, Refusal> {
        let (most, lines) = (context.ledger.limits().members_max as usize, context.directory.members.len());
        let taken = self.clients.len() + self.numbers.joining().len();
        if !beyond && taken >= most {
            return Err(Self::full(context));
        }
        let end = if beyond { lines } else { lines.min(most + 1) };
        self.numbers.next(end).ok_or_else(|| Self::full(context))
    }

    /// Returns the refusal for a full table of members.
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

    /// Assigns a number to a uid's request to join.
    pub fn joining(&mut self, number: ClientNo, uid: u32) {
        self.numbers.begin_join(number, uid);
    }

    /// Frees the number of a failed request to join.
    pub fn unjoin(&mut self, number: ClientNo) {
        self.numbers.free(number);
    }

    /// Adds a client that has joined.
    pub fn insert(&mut self, number: ClientNo, client: Client) {
        self.numbers.end_join(number);
        let before = self.clients.insert(number, client);
        assert!(before.is_none(), "a number is one client's at a time");
    }

    /// Surveys the disconnected clients of this namespace for a request that met a limit. Returns
    /// true if the survey may have freed memory. A survey reads all memory of these clients, so not
    /// every request starts a survey.
    pub fn collect_for_room(&mut self, env: &mut Env, context: &Context) -> bool {
        if self.collected_ns.is_some_and(|at| env.clock.now_ns() < at + COLLECT_PAUSE_NS) {
            return false;
        }
        let catalogues = self.collectable();
        if !catalogues.is_empty() {
            self.collected_ns = Some(env.clock.now_ns());
        }
        for &number in &catalogues {
            self.collect(env, context, number);
        }
        !catalogues.is_empty()
    }

    /// Refuses device memory to a client whose end the daemon would not detect. The client's work
    /// on the device could continue unnoticed.
    pub fn check_watched(&self, number: ClientNo) -> Result<(), Refusal> {
        if self.client(number)?.watched {
            return Ok(());
        }
        let why = "device memory is lent to processes that the daemon can watch: this one is in a pid namespace that it \
                   does not see, or had ended when it connected";
        Err(Refusal::Bad(why.into()))
    }

    /// Returns the uid of each segment.
    pub fn segment_uids(&self) -> impl Iterator<Item = Option<u32>> {
        self.values().flat_map(|client| client.segments.values().map(|_| Some(client.uid)))
    }

    /// Checks that each number belongs to a client or a request, or is free. Also checks that the
    /// directory counts the clients.
    ///
    /// # Panics
    /// Panics if a check fails.
    pub fn check(&self, context: &Context) {
        self.numbers.check(self.clients.keys().copied());
        let head = context.directory.head();
        let live = self.values().filter(|client| client.is_live()).count();
        assert_eq!(head.clients.peek(), live as u64, "the directory counts the connected clients");
        let waiters = self.values().filter(|client| client.waits).count();
        assert_eq!(head.waiters_count.peek(), waiters as u64, "the directory counts the clients that may sleep");
        for number in &self.announcers {
            assert!(
                self.get(*number).is_some_and(|client| client.announcements.is_announcer()),
                "{number} may announce"
            );
        }
        for (number, client) in self.iter() {
            // An owner reuses memory after it has scanned the leases of its audience alone.
            let is_there = |owner, epoch| self.get(owner).is_some_and(|client| client.member.epoch() == epoch);
            for (&owner, _) in client.shown.iter().flatten().filter(|&(&owner, &epoch)| is_there(owner, epoch)) {
                let (word, bit) = audience_bit(number);
                let audience = context.directory.entry(owner).audience[word].peek();
                assert!(audience & bit != 0, "{number} is in the audience of {owner}");
            }
            assert_eq!(context.directory.entry(number).member.peek(), client.member.0, "the directory names {number}");
            let has_left = !client.is_live() && client.draining.is_none();
            assert!(!has_left || client.sheets.leases().is_none(), "leases of {number}, which has left, do not count");
            let listed = Bitmap(&head.announcers).has(number);
            assert_eq!(self.announcers.contains(&number), listed, "the directory lists the announcers, {number}");
        }
    }

    /// Records that a client broke a rule of shared memory. The daemon ends the client at the end
    /// of this step.
    pub fn fault(&mut self, number: ClientNo, why: impl Into<Fault>) {
        self.faults.push((number, why.into()));
    }

    /// Ends the client of a sheet that the kernel cannot read.
    pub fn fault_sheet(&mut self, mem: MemId) {
        let has = |client: &Client| {
            client.sheets.memories().chain(client.sheets.leases().map(|it| it.mem)).any(|it| it == mem)
        };
        let owner = self.iter().find(|(_, client)| has(client)).map(|(number, _)| number);
        if let Some(number) = owner {
            self.fault(number, "the kernel cannot read its memory");
        }
    }

    /// Returns the clients that broke a rule since the last call, and the rules.
    pub fn take_faults(&mut self) -> Vec<(ClientNo, Fault)> {
        std::mem::take(&mut self.faults)
    }

    /// Returns a client's connection. Returns `None` if the client is not connected.
    pub fn conn(&self, number: ClientNo) -> Option<ConnId> {
        self.get(number)?.conn()
    }

    /// Removes a client that has no memory any more, and frees its number.
    pub fn remove(&mut self, number: ClientNo) -> Client {
        let client = self.clients.remove(&number).expect("it is dropped once");
        self.numbers.free(number);
        client
    }

    /// Returns the slots of `catalogue` on which live clients have leases.
    pub fn leased(&self, number: ClientNo) -> Vec<SlotNo> {
        // A change was stored before this fence: an owner word moved, or an owner marked a slot as
        // dead. Consider a reader R that leased a slot by the old route. Either daemon D sees the
        // lease here, or R sees the change.
        scan_fence();
        let mut slots = Vec::new();
        for table in self.values().filter_map(Client::lease_table) {
            LeaseTable::scan_view(table, |lease| {
                if lease.owner() == number {
                    slots.push(lease.slot());
                }
            });
        }
        slots
    }

    /// Returns true if a client has made an announcement that is not in the directory yet.
    pub fn has_announcements(&self) -> bool {
        self.announcing().any(|(_, client)| client.has_announced())
    }

    /// Rings the bell if a client that the step's changes affect may be asleep.
    pub fn wake(&self, env: &mut Env, context: &mut Context) {
        let news = context.directory.take_news();
        let head = context.directory.head();
        if news == 0 || head.waiters_count.peek() == 0 {
            return;
        }
        news_fence();
        let asleep = |c: &Client| c.waits && c.parked() & news != 0;
        if self.values().any(asleep) {
            head.bell.ring();
            env.effects.push(Effect::Wake { directory: context.directory.mem() });
        }
    }

    /// Returns the frozen clients whose memory may be out of use.
    pub fn collectable(&self) -> Vec<ClientNo> {
        let may = |c: &Client| match &c.state {
            ClientState::Frozen { lease_held, due_ns, survey, .. } => {
                survey.is_none() && (*lease_held || due_ns.is_some())
            }
            _ => false,
        };
        self.iter().filter(|(_, c)| may(c)).map(|(n, _)| n).collect()
    }

    /// Returns true if a survey is in progress.
    pub fn is_surveying(&self) -> bool {
        self.values().any(|client| matches!(client.state, ClientState::Frozen { survey: Some(_), .. }))
    }
}

impl Members {
    /// Checks a cell to which its client requests to bind a name.
    pub fn check_cell(&self, number: ClientNo, cell: CellNo) -> Result<(), Refusal> {
        let granted = self.client(number)?.sheets.granted();
        if cell.get() < granted {
            Ok(())
        } else {
            Err(Refusal::Bad(format!("cell {cell} is not among the {granted} cells of this client")))
        }
    }

    /// Returns the numbers of the cells that the daemon took from a client.
    pub fn notices(&mut self, number: ClientNo) -> Outcome {
        let notices = &mut self.me(number).notices;
        let cells: Vec<CellNo> = std::iter::from_fn(|| notices.pop_first()).take(4096).collect();
        Outcome::Reply(Reply::Notices { cells, more: !notices.is_empty() })
    }

    /// Marks a client in the directory as one that may sleep. Responds to the client's request.
    pub fn wait(&mut self, context: &Context, number: ClientNo) -> Outcome {
        let client = self.me(number);
        if !std::mem::replace(&mut client.waits, true) {
            let head = context.directory.head();
            Bitmap(&head.waiters).set(number);
            head.waiters_count.add(1);
        }
        Outcome::Reply(Reply::Done)
    }

    /// Removes the directory's mark that a client may sleep.
    pub fn end_wait(&mut self, context: &Context, number: ClientNo) {
        if std::mem::take(&mut self.me(number).waits) {
            let head = context.directory.head();
            Bitmap(&head.waiters).clear(number);
            head.waiters_count.set(head.waiters_count.peek() - 1);
        }
    }
}

impl Members {
    /// Begins a survey of a frozen client's memory. The survey removes the names that the client
    /// deleted, and frees the segments that nothing leads to. If no memory remains, the survey
    /// drops the client.
    pub fn collect(&mut self, env: &mut Env, context: &Context, number: ClientNo) {
        let id = context.ledger.id();
        let Some(Client { state: ClientState::Frozen { due_ns, survey, .. }, .. }) = self.get_mut(number) else {
            return;
        };
        if survey.is_none() {
            *due_ns = None;
            *survey = Some(Box::new(Survey::new()));
            env.chores.take_on(&mut env.clock, id, Chore::Survey(number));
        } else {
            // The change may affect an object that the survey has already passed, so another survey
            // follows.
            *due_ns = Some(env.clock.now_ns());
        }
    }

    /// Adds a cell of a disconnected client to the survey in progress. An owner word now leads to
    /// the cell.
    pub fn surveyed(&mut self, number: ClientNo, cell: CellNo) {
        // Check the state first: reading the value takes system calls.
        let is_surveyed = |client: &Client| matches!(client.state, ClientState::Frozen { survey: Some(_), .. });
        let Some(client) = self.get_mut(number).filter(|client| is_surveyed(client)) else { return };
        let value = client.value(cell).filter(|value| value.is_value());
        if let (Some(value), ClientState::Frozen { survey: Some(survey), .. }) = (value, &mut client.state) {
            survey.in_use = true;
            if survey.is_at_names() {
                survey.roots.push((value.slot(), Some(value.generation())));
            }
        }
    }
}

impl std::ops::Index<ClientNo> for Members {
    type Output = Client;

    fn index(&self, number: ClientNo) -> &Client {
        &self.clients[&number]
    }
}
