//! Streams: their messages, and the progress of each subscriber.

use super::MESSAGES_MAX;
use super::observation::{StreamSeen, SubscriberSeen};
use super::sheets::Sheets;
use crate::error::Result;
use crate::session::Session;
use tensorlend_layout::leases::CURSORS;
use tensorlend_layout::number::{ClientNo, StreamLine};
use tensorlend_layout::size;
use tensorlend_layout::wire::Policy;
use tensorlend_layout::word::{Cell, Member, SubscriberWord, Word};

/// Observes one stream, and calls `found` with the number and the cell of each message in it. Returns `None` if the
/// stream ended.
pub fn sample(
    session: &Session,
    sheets: &mut Sheets,
    name: &str,
    index: StreamLine,
    left: &mut usize,
    mut found: impl FnMut(u64, ClientNo, Cell),
) -> Result<Option<StreamSeen>> {
    let Some(entry) = session.directory.streams.get(index.index()) else { return Ok(None) };
    let id = entry.id.read();
    let (producer, capacity) = (ClientNo::low(entry.catalogue.peek()), entry.capacity.peek());
    let policy = match entry.policy.peek() {
        0 => Policy::Block,
        1 => Policy::DropOldest,
        _ => Policy::Error,
    };
    let words: Vec<u64> = entry.subscribers.iter().map(Word::read).filter(|&word| word != 0).collect();
    if id == 0 || entry.id.read() != id {
        return Ok(None);
    }
    sheets.fetch_ring(session, name, id)?;
    let mut it = StreamSeen {
        name: name.to_owned(),
        index,
        id,
        producer,
        capacity,
        policy,
        sent: None,
        held: 0,
        is_closed: false,
        subscribers: Vec::new(),
    };
    if let Some((head, entries)) = sheets.ring(id) {
        let (tail, sent) = (head.tail.read(), head.head.read());
        (it.sent, it.is_closed) = (Some(sent), head.closed.read() != 0);
        it.held = sent.saturating_sub(tail).min(capacity);
        for entry in entries.iter().take(size::index(it.held).min(MESSAGES_MAX)) {
            if *left == 0 {
                sheets.incomplete = true;
                break;
            }
            *left -= 1;
            let (cell, number) = (Cell(entry.cell.read()), entry.number.read());
            if cell.is_value() && entry.cell.peek() == cell.0 && number >= tail {
                found(number, producer, cell);
            }
        }
    }
    for word in words.into_iter().map(SubscriberWord) {
        it.subscribers.extend(subscriber(session, sheets, word, id, it.sent)?);
    }
    Ok(Some(it))
}

/// Returns the progress of a subscriber. Returns `None` if the subscriber has left.
fn subscriber(
    session: &Session,
    sheets: &mut Sheets,
    word: SubscriberWord,
    stream: u64,
    sent: Option<u64>,
) -> Result<Option<SubscriberSeen>> {
    let (client, cursor) = (word.client(), word.cursor());
    let Some(member) = session.directory.members.get(client.index()) else { return Ok(None) };
    if Member(member.member.read()).epoch() != word.epoch() {
        return Ok(None);
    }
    if cursor.index() >= CURSORS || !sheets.fetch_leases(session, client) {
        return Ok(None);
    }
    let words = session.peers().with_leases(client, |table| {
        let cursor = &table.cursors[cursor.index()];
        (cursor.stream.read(), cursor.next.read(), cursor.lost.read())
    })?;
    Ok(words.map(|(in_stream, next, lost)| {
        let begun = in_stream == stream && next != u64::MAX;
        let lag = sent.filter(|_| begun).map(|sent| sent.saturating_sub(next));
        SubscriberSeen { client, cursor, lag, lost: if begun { lost } else { 0 } }
    }))
}
