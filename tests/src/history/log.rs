//! A thread's log of its operations, in its own file: written before the call and after its return, so that a kill
//! loses no call.

use super::{Answer, Call, Event, Value};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use tensorlend_os::clock::monotonic_ns;

/// Words of a record.
const WORDS: usize = 4;
pub const RECORD_BYTES: u64 = WORDS as u64 * 8;

/// A thread's notes.
pub struct Log(File);

impl Log {
    pub fn create(path: &Path) -> io::Result<Self> {
        File::create_new(path).map(Self)
    }

    fn write(&mut self, words: [u64; WORDS]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.0.write_all(&bytes).expect("a note is written");
    }

    /// Logs a call, makes it, and logs its response.
    pub fn call(&mut self, call: Call, make: impl FnOnce() -> Answer) -> Answer {
        let (kind, names, value) = match call {
            Call::Put(name, value) => (1, name.into(), value.0),
            Call::Get(name) => (2, name.into(), 0),
            Call::Exists(name) => (3, name.into(), 0),
            Call::Delete(name) => (4, name.into(), 0),
            Call::Rename(from, to) => (5, u64::from(from) | u64::from(to) << 8, 0),
            Call::Append(first, count) => (6, count.into(), first.0),
            Call::Take => (7, 0, 0),
            Call::Confirm(value) => (8, 0, value.0),
            Call::GiveBack(value) => (9, 0, value.0),
            Call::PutFor(name, value, ttl_us) => (10, u64::from(name) | u64::from(ttl_us) << 8, value.0),
            Call::Restart => (11, 0, 0),
        };
        self.write([kind, names, value, monotonic_ns()]);
        let answer = make();
        let at = monotonic_ns();
        let (kind, value) = match answer {
            Answer::Done(value) => (16, value),
            Answer::Absent => (17, 0),
            Answer::Unknown => (18, 0),
            Answer::Refused => (19, 0),
        };
        self.write([kind, 0, value, at]);
        answer
    }
}

/// Reads a thread's log. Leaves out a partly written record.
///
/// # Panics
/// If the log is invalid.
pub fn read(path: &Path) -> io::Result<Vec<Event>> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let records = bytes.chunks_exact(RECORD_BYTES as usize).map(|record| {
        let words: Vec<u64> = record.chunks_exact(8).map(word).collect();
        [words[0], words[1], words[2], words[3]]
    });
    let mut events: Vec<Event> = Vec::new();
    for [kind, names, value, at] in records {
        let name = names as u8;
        let call = match kind {
            1 => Call::Put(name, Value(value)),
            2 => Call::Get(name),
            3 => Call::Exists(name),
            4 => Call::Delete(name),
            5 => Call::Rename(name, (names >> 8) as u8),
            6 => Call::Append(Value(value), names as u8),
            7 => Call::Take,
            8 => Call::Confirm(Value(value)),
            9 => Call::GiveBack(Value(value)),
            10 => Call::PutFor(name, Value(value), (names >> 8) as u32),
            11 => Call::Restart,
            _ => {
                let answer = match kind {
                    16 => Answer::Done(value),
                    17 => Answer::Absent,
                    18 => Answer::Unknown,
                    19 => Answer::Refused,
                    _ => panic!("a record of kind {kind}"),
                };
                let last = events.last_mut().filter(|last| last.answer.is_none()).expect("an answer follows a call");
                last.answer = Some((at, answer));
                continue;
            }
        };
        events.push(Event { call, called_ns: at, answer: None });
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_read_and_what_was_cut_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        let mut log = Log::create(&path).unwrap();
        log.call(Call::Put(3, Value(77)), || Answer::Done(0));
        log.call(Call::Rename(1, 2), || Answer::Absent);
        log.call(Call::PutFor(2, Value(5), 30_000), || Answer::Refused);
        log.call(Call::Get(3), || Answer::Done(77));
        let whole = std::fs::read(&path).unwrap();
        // Cuts the last response.
        std::fs::write(&path, &whole[..whole.len() - 9]).unwrap();
        let events = read(&path).unwrap();
        let calls: Vec<Call> = events.iter().map(|event| event.call).collect();
        assert_eq!(
            calls,
            [Call::Put(3, Value(77)), Call::Rename(1, 2), Call::PutFor(2, Value(5), 30_000), Call::Get(3)]
        );
        assert!(events[1].called_ns >= events[0].answer.unwrap().0);
        assert_eq!(events[1].answer.unwrap().1, Answer::Absent);
        assert_eq!(events[3].answer, None);
    }
}
