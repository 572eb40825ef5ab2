//! An honest client next to a liar. It uses everything that the liar publishes, and the tensors of honest clients, and
//! detects whether any of the latter was changed. It takes orders on its standard input, as an agent does.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tensorlend::{
    Client, DType, Draft, Error, History, Policy, Start, Stream, Subscription, Tensor, TrySendError, Value, Version,
};
use tensorlend_tests::board::Board;
use tensorlend_tests::orders::{self, Answer};
use xxhash_rust::xxh3::xxh3_64;

/// Number of names that every bystander keeps published.
const KEPT: u64 = 12;
const MOMENT: Duration = Duration::from_millis(1);

struct Bystander {
    socket: PathBuf,
    client: Client,
    me: usize,
    others: usize,
    open: Open,
    rounds: u64,
    operations: u64,
    damaged: u64,
    refused: u64,
    wrong: Vec<String>,
}

/// Objects that are opened again with each session.
#[derive(Default)]
struct Open {
    streams: Vec<Stream>,
    history: Option<History>,
    /// Subscriptions to honest streams.
    honest: Vec<(String, Subscription)>,
    /// The subscription to the liar's stream.
    liars: Option<Subscription>,
    held: Vec<Value>,
}

fn connect(socket: &Path) -> Result<Client, Error> {
    Client::builder().socket(socket).label("bystander").connect()
}

/// Returns the value that an honest tensor of this name holds.
fn value_of(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

fn draft(client: &Client, name: &str, length: u64) -> Result<Draft, Error> {
    let mut draft = client.create(DType::U64, &[length])?;
    draft.as_mut_slice::<u64>()?.fill(value_of(name));
    Ok(draft)
}

fn is_honest(tensor: &Tensor, name: &str) -> bool {
    tensor.as_slice::<u64>().is_ok_and(|words| !words.is_empty() && words.iter().all(|word| *word == value_of(name)))
}

/// Reads everything that a tensor claims to be.
fn touch(tensor: &Tensor) {
    let bytes = tensor.bytes();
    black_box(bytes.iter().step_by(64).chain(bytes.last()).fold(0u8, |all, byte| all ^ byte));
    black_box((tensor.shape(), tensor.strides(), tensor.dtype(), tensor.device(), tensor.timestamp()));
    black_box(tensor.metadata().iter().fold(0u8, |all, byte| all ^ byte));
    let length = tensor.nbytes();
    if length < 1 << 16 {
        black_box(tensor.copy_to(&mut vec![0; length]).is_ok());
    }
}

fn touch_value(value: &Value) {
    match value {
        Value::Tensor(lease) => touch(lease),
        Value::Dataset(dataset) => {
            black_box(dataset.metadata().len());
            for (name, tensor) in dataset {
                black_box(name.len());
                touch(tensor);
            }
        }
        // The client has checked the record's byte range against the segment: it can be read.
        Value::Device(lease) => {
            black_box((lease.shape(), lease.strides(), lease.dtype(), lease.timestamp(), lease.metadata().len()));
            if lease.nbytes() < 1 << 16 {
                let read = lease.copy_to_bytes(&mut vec![0; lease.nbytes()]);
                assert!(read.is_ok(), "{read:?} of {lease:?}");
            }
        }
        _ => {}
    }
}

impl Bystander {
    fn start(socket: &str, me: usize, others: usize) -> Result<Self, Box<dyn std::error::Error>> {
        let client = connect(Path::new(socket))?;
        for number in 0..KEPT {
            let name = format!("honest/{me}/{number}");
            draft(&client, &name, 64 << (number % 6))?.publish(&name)?;
        }
        for name in [format!("honest/{me}/drops"), format!("honest/{me}/blocks")] {
            // Opened before any bystander subscribes, in any order.
            client.stream(&name).capacity(8).policy(Policy::DropOldest).open()?;
        }
        let mut bystander = Self {
            socket: socket.into(),
            client,
            me,
            others,
            open: Open::default(),
            rounds: 0,
            operations: 0,
            damaged: 0,
            refused: 0,
            wrong: Vec::new(),
        };
        bystander.open()?;
        Ok(bystander)
    }

    fn open(&mut self) -> Result<(), Error> {
        let me = self.me;
        let stream = |name, policy| self.client.stream(name).capacity(8).policy(policy).open();
        self.open.streams = vec![
            stream(&format!("honest/{me}/drops"), Policy::DropOldest)?,
            stream(&format!("honest/{me}/blocks"), Policy::Block)?,
        ];
        self.open.history = Some(self.client.keep(&format!("honest/{me}/history"), 3)?);
        Ok(())
    }

    /// Opens everything again: a newcomer maps and reads while false values are in place.
    fn reconnect(&mut self) -> Result<(), Error> {
        self.open = Open::default();
        self.client = connect(&self.socket)?;
        self.open()
    }

    /// Counts an operation on objects of a client that writes false values. The operation may return an error, but it
    /// must not crash or hang.
    fn liars<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        self.operations += 1;
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.damaged += u64::from(matches!(error, Error::Damaged { .. }));
                None
            }
        }
    }

    /// Counts an operation on honest objects: it may fail for lack of memory, which a liar's leases may keep.
    fn honest<T>(&mut self, what: &str, result: Result<T, Error>) -> Option<T> {
        self.operations += 1;
        match result {
            Ok(value) => Some(value),
            Err(error) if error.is_limit() => {
                self.refused += 1;
                None
            }
            Err(error) => {
                self.wrong(format!("{what}: {error}"));
                None
            }
        }
    }

    fn wrong(&mut self, what: String) {
        if self.wrong.len() < 20 {
            self.wrong.push(what);
        }
    }

    fn round(&mut self) {
        let turn = self.rounds;
        self.rounds += 1;
        let names = ["plain", "strided", "dataset", "long", "scalar", "empty", "many", "fresh", "device", "labelled"];
        let name = format!("liar/{}", names[turn as usize % names.len()]);
        if let Some(value) = self.liars(self.client.get_value(&name)) {
            touch_value(&value);
            self.open.held.push(value);
        }
        if self.open.held.len() > 5 {
            self.open.held.clear();
        }
        self.read_honest(turn);
        self.follow_streams();
        match turn % 32 {
            0 => self.look_around(&name),
            4 => self.collections(),
            8 => self.make_names(),
            12 => self.send(),
            16 => drop(self.liars(self.client.wait_newer(&name, Version::NONE, Some(MOMENT)))),
            24 => self.keep(),
            28 if turn % 256 == 28 => {
                let again = self.reconnect();
                self.honest("a new session", again);
            }
            _ => self.overwrite(turn),
        }
    }

    fn read_honest(&mut self, turn: u64) {
        let whose = turn as usize % self.others;
        let name = format!("honest/{whose}/{}", (turn / 3) % KEPT);
        let lease = self.honest(&name, self.client.get(&name));
        if lease.is_some_and(|lease| !is_honest(&lease, &name)) {
            self.wrong(format!("{name} holds something else"));
        }
    }

    fn overwrite(&mut self, turn: u64) {
        let name = format!("honest/{}/{}", self.me, turn % KEPT);
        let put = draft(&self.client, &name, 64 << (turn % 5)).and_then(|draft| draft.publish(&name));
        self.honest(&name, put);
    }

    fn look_around(&mut self, name: &str) {
        self.liars(self.client.exists(name));
        self.liars(self.client.version(name));
        drop(self.liars(self.client.info(name)));
        self.liars(self.client.get_into(name, &mut [0; 256]));
        drop(self.liars(self.client.list("*")));
        let own = format!("honest/{}/*", self.me);
        let listed = self.honest("list", self.client.list(&own)).map_or(KEPT as usize, |names| names.len());
        if listed < KEPT as usize {
            self.wrong(format!("{own} lists {listed} names"));
        }
        drop(self.liars(self.client.streams("*")));
        drop(self.liars(self.client.lists("*")));
        let stat = self.client.stat();
        self.honest("stat", stat);
        let leased = self.client.instruments().leased();
        self.honest("leased", leased);
    }

    fn collections(&mut self) {
        for result in [self.client.get_all("liar/list"), self.client.versions("liar/history")] {
            for value in self.liars(result).unwrap_or_default() {
                touch_value(&value);
            }
        }
        let list = format!("honest/{}/list", self.me);
        let appended = draft(&self.client, &list, 64).and_then(|item| self.client.append(&list, item));
        self.honest(&list, appended);
        let items = self.client.get_all(&list);
        let items = self.honest(&list, items).unwrap_or_default();
        if !items.iter().all(|item| item.as_tensor().is_some_and(|tensor| is_honest(tensor, &list))) {
            self.wrong(format!("{list} holds something else"));
        }
        if items.len() > 8 {
            drop(items);
            let cleared = self.client.clear(&list);
            self.honest(&list, cleared);
        }
    }

    /// Publishing new names reads the liar's claims and announcements.
    fn make_names(&mut self) {
        let name = format!("honest/{}/new/{}", self.me, self.rounds);
        let put = draft(&self.client, &name, 8).and_then(|draft| draft.publish(&name));
        if self.honest(&name, put).is_some() {
            let lease = self.honest(&name, self.client.get(&name));
            if lease.is_some_and(|lease| !is_honest(&lease, &name)) {
                self.wrong(format!("{name} holds something else"));
            }
            let deleted = self.client.delete(&name);
            self.honest(&name, deleted);
        }
    }

    /// The liar subscribes to these streams, with false cursors.
    fn send(&mut self) {
        for index in 0..self.open.streams.len() {
            let name = self.open.streams[index].name().to_owned();
            let Some(message) = self.honest(&name, draft(&self.client, &name, 64)) else { continue };
            match self.open.streams[index].try_send(message) {
                Ok(_) | Err(TrySendError::Full(_)) => self.operations += 1,
                Err(TrySendError::Failed(error)) => drop(self.honest::<()>(&name, Err(error))),
            }
        }
    }

    fn follow_streams(&mut self) {
        if self.open.liars.is_none() && self.rounds.is_multiple_of(16) {
            self.open.liars = self.liars(self.client.subscription("liar/stream").start_at(Start::Oldest).open());
        }
        if let Some(mut messages) = self.open.liars.take() {
            let borrowed = messages.try_borrow().map(|message| {
                if let Some(message) = message {
                    drop(message.tensor().map(touch));
                }
            });
            self.liars(borrowed);
            let received = messages.try_recv();
            let ended = matches!(received, Err(Error::StreamEnded(_)));
            if let Some(Some(message)) = self.liars(received) {
                touch_value(message.value());
            }
            // A subscription to a stream with false values stays usable; one whose stream has ended does not.
            self.open.liars = (!ended).then_some(messages);
        }
        if self.open.honest.len() < 2 && self.rounds.is_multiple_of(64) {
            for kind in ["drops", "blocks"] {
                let name = format!("honest/{}/{kind}", (self.me + 1) % self.others);
                if let Ok(messages) = self.client.subscribe(&name) {
                    self.open.honest.push((name, messages));
                }
            }
        }
        let mut ended = false;
        for (name, messages) in &mut self.open.honest {
            self.operations += 1;
            match messages.try_recv() {
                Ok(Some(message)) if message.tensor().is_ok_and(|tensor| is_honest(tensor, name)) => {}
                Ok(None) => {}
                Ok(Some(_)) => self.wrong.push(format!("stream {name} carries something else")),
                Err(Error::StreamEnded(_)) => ended = true,
                Err(error) => self.wrong.push(format!("stream {name}: {error}")),
            }
        }
        if ended {
            self.open.honest.clear();
        }
    }

    fn keep(&mut self) {
        let name = format!("honest/{}/history", self.me);
        let Some(history) = self.open.history.take() else { return };
        let kept = draft(&self.client, &name, 16).and_then(|draft| history.publish(draft));
        self.honest(&name, kept);
        self.open.history = Some(history);
    }

    /// After the liar's end: checks that all of this client's names exist and can be deleted.
    fn finish(&mut self) -> Answer {
        for number in 0..KEPT {
            let name = format!("honest/{}/{number}", self.me);
            if !is_honest(&*self.client.get(&name)?, &name) {
                return Err(format!("{name} holds something else").into());
            }
            self.client.delete(&name)?;
        }
        self.open = Open::default();
        let me = self.me;
        self.client.delete(&format!("honest/{me}/history"))?;
        self.client.clear(&format!("honest/{me}/list"))?;
        for stream in ["drops", "blocks", "history"] {
            self.client.delete_stream(&format!("honest/{me}/{stream}"))?;
        }
        Ok(String::new())
    }
}

fn run(line: &str, bystander: &mut Option<Bystander>) -> Answer {
    let words: Vec<&str> = line.split_whitespace().collect();
    let started = bystander.as_mut().ok_or("not started");
    match words[..] {
        // start SOCKET ME OF: starts bystander ME of OF
        ["start", socket, me, of] => {
            *bystander = Some(Bystander::start(socket, me.parse()?, of.parse()?)?);
            Ok(String::new())
        }
        // run BOARD: runs rounds until the game is over
        ["run", board] => {
            let (board, it) = (Board::open(Path::new(board))?, started?);
            while !board.is_over() {
                it.round();
                board.round(it.me);
            }
            let Bystander { operations, damaged, refused, wrong, .. } = it;
            Ok(format!("{operations} {damaged} {refused} {wrong:?}"))
        }
        ["finish"] => started?.finish(),
        _ => Err(format!("no such order: {line}").into()),
    }
}

fn main() {
    orders::end_with_parent();
    let mut bystander = None;
    orders::obey(|line| run(line, &mut bystander));
}
