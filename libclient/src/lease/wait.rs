//! Waiting for names.

use crate::error::Result;
use crate::lease::by_name::{Peeked, Polled, peek};
use crate::lease::waiter::EventState;
use crate::names::version::Version;
use crate::session::Session;
use crate::wait::{Deadline, not_published, spin};
use tensorlend_layout::word::{PARKED_ANY, parked_bit};
use tensorlend_os::futex;

/// Sleeps until `done` returns true for the name's state. Returns false after the deadline.
fn wait_until(
    session: &Session,
    name: &mut Polled<'_>,
    deadline: Deadline,
    done: impl Fn(&Peeked) -> bool,
) -> Result<bool> {
    session.check()?;
    if spin(|| Ok(done(&name.peek()?).then_some(())))?.is_some() {
        return Ok(true);
    }
    session.waiter().enlist(deadline)?;
    let bell = &session.directory.head().bell;
    loop {
        // Sample the bells before the deciding check. Sample the owner's bell only if the name has an owner.
        let news = bell.read();
        let owner = name.peek()?.owner;
        let owned = match owner {
            Some(owner) => session.peers().with_bell(owner, |sheet| (sheet.clone(), sheet.bell.read()))?,
            None => None,
        };
        let parked = session.waiter().park(owner.map_or(0, parked_bit) | PARKED_ANY);
        let now = name.peek()?;
        if done(&now) {
            return Ok(true);
        }
        if now.owner != owner {
            continue;
        }
        session.control.check_daemon("wait for a name")?;
        let Some(nap) = deadline.nap() else { return Ok(false) };
        match &owned {
            Some((sheet, sample)) => futex::wait_any(&[(&sheet.bell, *sample), (bell, news)], nap),
            None => futex::wait(bell, news, nap),
        }
        drop(parked);
    }
}

/// Polls for a value of the key other than `seen`.
pub fn newer(session: &Session, key: &[u8], seen: Version) -> Result<EventState> {
    let now = peek(session, key)?;
    Ok(EventState { is_over: now.exists && now.seen != Some(seen), owners: [now.owner, None] })
}

/// Waits for a value of `name` other than `seen`. Returns the name, to lease that value.
pub fn wait_newer<'a>(session: &'a Session, name: &'a str, seen: Version, deadline: Deadline) -> Result<Polled<'a>> {
    let newer = |now: &Peeked| now.exists && now.seen != Some(seen);
    let mut polled = Polled::new(session, name.as_bytes());
    if wait_until(session, &mut polled, deadline, newer)? {
        return Ok(polled);
    }
    let what = match peek(session, name.as_bytes()) {
        Ok(now) if !now.exists => not_published(name),
        _ => format!("a new value of {name:?}: no process has published one (see `tensorlend trace`)"),
    };
    Err(deadline.error(what))
}

/// Waits until the directory has a live entry for `key`. `awaited` describes this event in the error of the timeout.
pub fn wait_entry(session: &Session, key: &[u8], deadline: Deadline, awaited: impl Fn() -> String) -> Result<()> {
    session.waiter().enlist(deadline)?;
    let bell = &session.directory.head().bell;
    loop {
        let sample = bell.read();
        let _parked = session.waiter().park(PARKED_ANY);
        if session.find(key).is_some_and(|f| f.owner_word.is_live()) {
            return Ok(());
        }
        session.control.check_daemon("wait for a name")?;
        let nap = deadline.nap().ok_or_else(|| deadline.error(awaited()))?;
        futex::wait(bell, sample, nap);
    }
}
