//! A client that writes false values into its sheets. It first publishes one object of each kind, as any client does;
//! then it replaces the words of its sheets while others use them.

use crate::calls;
use std::any::Any;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use tensorlend::{Client, DType, History, Lease, Stream, Subscription, TensorSpec};
use tensorlend_layout::raw::View;
use tensorlend_layout::word::Word;
use tensorlend_tests::board::Board;
use tensorlend_tests::location::{Location, pattern};

use tensorlend_tests::orders::Answer;

/// A pseudorandom generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// Number of kinds of false values for a word.
const LIES: usize = 12;

/// Returns the false value of this kind for a word that contains `truth`; `stale` is another word's value.
fn lie_of(kind: usize, truth: u64, stale: u64, random: &mut Random) -> u64 {
    match kind {
        0 => 0,
        1 => u64::MAX,
        2 => truth.wrapping_add(1),
        3 => truth.wrapping_sub(1),
        4 => truth ^ 1 << random.below(64),
        5 => 1 << 63,
        6 => i64::MAX as u64,
        7 => stale,
        8 => truth | 0xFF_FFFF,
        9 => truth.rotate_left(8),
        10 => u64::from(u32::MAX),
        _ => random.next(),
    }
}

/// One session of this client.
struct Life {
    client: Client,
    sheets: Vec<View>,
    /// Kept open for the session's duration.
    _things: (Vec<Lease>, Stream, History, Vec<Subscription>),
}

fn tensor(client: &Client, name: &str, dtype: DType, shape: &[u64]) -> Answer<()> {
    let mut draft = client.create(dtype, shape)?;
    draft.bytes_mut().fill(0x11);
    draft.publish(name)?;
    Ok(())
}

impl Life {
    fn begin(socket: &Path, known: &mut HashSet<u64>) -> Answer<Self> {
        let client = Client::builder().socket(socket).label("liar").connect()?;
        tensor(&client, "liar/plain", DType::F32, &[16, 16])?;
        tensor(&client, "liar/long", DType::U8, &[300_000])?;
        tensor(&client, "liar/scalar", DType::F64, &[])?;
        tensor(&client, "liar/empty", DType::I16, &[0, 5])?;
        tensor(&client, "liar/many", DType::U8, &[2, 3, 2, 3, 2, 3])?;
        let spec = TensorSpec { strides: Some(vec![8, 1]), ..TensorSpec::new(DType::I32, &[4, 4]) };
        let mut strided = client.create_spec(spec)?;
        strided.set_metadata(&[7; 200])?.set_timestamp(5);
        strided.publish("liar/strided")?;
        let mut dataset = client.dataset().metadata(&[1; 100])?;
        for member in ["a", "b", "c"] {
            dataset = dataset.add(member, client.create(DType::U16, &[100])?)?;
        }
        dataset.publish("liar/dataset")?;
        for _ in 0..4 {
            client.append("liar/list", client.create(DType::U8, &[9])?)?;
        }
        // The previous session may still exist, with these streams.
        for stream in ["liar/stream", "liar/history"] {
            client.delete_stream(stream)?;
        }
        let history = client.keep("liar/history", 4)?;
        let stream = client.stream("liar/stream").capacity(8).policy(tensorlend::Policy::DropOldest).open()?;
        for _ in 0..12 {
            history.publish(client.create(DType::U8, &[20])?)?;
            stream.send(client.create(DType::U64, &[20])?)?;
        }
        // Also reads honest tensors and streams, to falsify its leases and cursors.
        let mut leases = Vec::new();
        let mut subscriptions = Vec::new();
        for whose in 0..2 {
            for number in 0..4 {
                leases.extend(client.get(&format!("honest/{whose}/{number}")));
            }
            subscriptions.extend(client.subscribe(&format!("honest/{whose}/drops")));
            subscriptions.extend(client.subscription(&format!("honest/{whose}/blocks")).pollable().open());
        }
        tensor(&client, "liar/fresh", DType::U8, &[50])?;
        if let Some(device) = client.devices().first() {
            client.put_on(device, "liar/device", &[7u32; 500])?;
            let spec = TensorSpec { strides: Some(vec![8, 1]), ..TensorSpec::new(DType::I32, &[4, 4]) };
            let mut labelled = client.create_spec_on(device, spec)?;
            labelled.set_metadata(&[7; 200])?.set_timestamp(5);
            labelled.publish("liar/labelled")?;
        }
        let keep: Arc<dyn Any + Send + Sync> = Arc::new(client.clone());
        let all = calls::own_sheets(&keep)?;
        let sheets: Vec<View> =
            all.into_iter().filter(|(inode, _)| known.insert(*inode)).map(|(_, view)| view).collect();
        if sheets.len() < 5 {
            return Err(format!("{} sheets: catalogue, leases, slots and two rings are expected", sheets.len()).into());
        }
        Ok(Self { client, sheets, _things: (leases, stream, history, subscriptions) })
    }

    fn words(&self) -> Vec<&Word> {
        let words = |view: &View| (0..view.bytes()).step_by(8);
        self.sheets.iter().flat_map(|view| words(view).filter_map(|at| view.at::<Word>(at))).collect()
    }

    /// Returns the words in use, and all words of the headers.
    fn telling(&self) -> Vec<&Word> {
        let mut telling = Vec::new();
        for view in &self.sheets {
            for at in (0..view.bytes()).step_by(8) {
                let word: &Word = view.at(at).expect("inside");
                if word.read() != 0 || (64..256).contains(&at) {
                    telling.push(word);
                }
            }
        }
        telling
    }
}

/// Counts of the false values.
#[derive(Default)]
struct Told {
    words: u64,
    lies: u64,
    lives: u64,
}

/// Falsifies these words, a few at a time, each until all bystanders have read it; then restores the true values.
fn tell(
    board: &Board,
    words: &[&Word],
    kind: usize,
    at_once: usize,
    random: &mut Random,
    told: &mut Told,
) -> Answer<()> {
    for batch in words.chunks(at_once) {
        let truths: Vec<u64> = batch.iter().map(|word| word.read()).collect();
        for (word, truth) in batch.iter().zip(&truths) {
            let stale = words[random.below(words.len())].read();
            word.set(lie_of(kind, *truth, stale, random));
            told.lies += 1;
        }
        if !board.wait(1) {
            return Err("a bystander stands still".into());
        }
        for (word, truth) in batch.iter().zip(&truths) {
            word.set(*truth);
        }
    }
    Ok(())
}

/// Falsifies every word in `kinds` ways, then all words at once, for `rounds` rounds in each of four sessions. Returns
/// the numbers of words, false values and sessions.
pub fn lie(socket: &Path, board: &Path, seed: u64, kinds: usize, rounds: usize) -> Answer {
    let board = Board::open(board)?;
    let mut random = Random(seed | 1);
    let (mut told, mut known) = (Told::default(), HashSet::new());
    let mut life = Life::begin(socket, &mut known)?;
    told.words = life.words().len() as u64;
    for kind in (seed as usize..).map(|kind| kind % LIES).take(kinds) {
        // The daemon disconnects a client that claims a name for long, or sends impossible announcements; then a new
        // session begins. The mappings of old sessions stay writable until this process ends.
        if life.client.ping().is_err() {
            std::mem::forget(std::mem::replace(&mut life, Life::begin(socket, &mut known)?));
            told.lives += 1;
        }
        let mut telling = life.telling();
        for at in (1..telling.len()).rev() {
            telling.swap(at, random.below(at + 1));
        }
        tell(&board, &telling, kind, 4, &mut random, &mut told)?;
        tell(&board, &life.words(), kind, 2048, &mut random, &mut told)?;
    }
    // From here on the true values are not restored.
    for _ in 0..4 {
        std::mem::forget(std::mem::replace(&mut life, Life::begin(socket, &mut known)?));
        told.lives += 1;
        let (all, telling) = (life.words(), life.telling());
        for _ in 0..rounds {
            for words in [&all, &telling] {
                for _ in 0..500 {
                    let word = words[random.below(words.len())];
                    let (kind, stale) = (random.below(LIES), words[random.below(words.len())].read());
                    word.set(lie_of(kind, word.read(), stale, &mut random));
                    told.lies += 1;
                }
            }
            if !board.wait(1) {
                return Err("a bystander stands still".into());
            }
        }
    }
    std::mem::forget(life);
    Ok(format!("{} {} {}", told.words, told.lies, told.lives))
}

/// The timestamp that identifies the record.
const MARK: u64 = 0x6D61_726B_6564_2121;
/// Index of the timestamp's word in a record.
const TIMESTAMP: usize = 6;

/// A tensor whose record its owner can write, bypassing its own client library.
pub struct Marked {
    _client: Client,
    slots: View,
    /// Index of the record's first word.
    at: usize,
}

impl Marked {
    /// Publishes a tensor of shape (4, 6).
    pub fn publish(socket: &Path, location: &str, name: &str) -> Answer<Self> {
        let client = Client::builder().socket(socket).label("liar").connect()?;
        let location = Location::named(location, &client);
        let mut draft = location.create(&client, TensorSpec::new(DType::U32, &[4, 6]))?;
        draft.write(&pattern(1, 96))?;
        draft.label(b"marked", MARK)?;
        draft.publish(name)?;
        let keep: Arc<dyn Any + Send + Sync> = Arc::new(client.clone());
        for (_, slots) in calls::own_sheets(&keep)? {
            let found =
                (0..slots.bytes()).step_by(8).find(|at| slots.at::<Word>(*at).is_some_and(|it| it.read() == MARK));
            if let Some(found) = found {
                return Ok(Self { _client: client, slots, at: found - TIMESTAMP * 8 });
            }
        }
        Err("its record is not found".into())
    }

    /// Writes one of the record's sixteen words; returns the previous value.
    pub fn twist(&self, word: usize, value: u64) -> Answer<u64> {
        let word: &Word = self.slots.at(self.at + word * 8).ok_or("no such word")?;
        let before = word.read();
        word.set(value);
        Ok(before)
    }
}
