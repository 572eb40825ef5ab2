//! Renaming and copying of names.

use crate::alloc::homes::{Arrival, Home};
use crate::error::{Error, Result};
use crate::lease::assemble;
use crate::lease::by_name::lease_key;
use crate::lease::by_name::peek;
use crate::lease::copies;
use crate::names::publish::Publication;
use crate::names::version::Version;
use crate::session::Session;
use std::sync::Arc;
use tensorlend_layout::wire::{Refusal, Request};
use tensorlend_layout::word::OwnerWord;

/// Moves the value of `from` to `to` and deletes `from`. Readers may see both names for a moment, but never neither.
pub fn rename(session: &Arc<Session>, from: &str, to: &str) -> Result<()> {
    session.check()?;
    if from == to {
        return if peek(session, from.as_bytes())?.exists { Ok(()) } else { Err(Error::NotFound(from.to_owned())) };
    }
    let Some(leased) = lease_key(session, from.as_bytes(), from)? else {
        return Err(Error::NotFound(from.to_owned()));
    };
    let held = leased.held();
    if held.owner == session.me() {
        // This client's own value: `to` takes over the slot, which has two holders in the meantime. The lease keeps
        // the slot from being freed.
        let value = held.cell;
        let home = Home { hash: session.directory.hash(from.as_bytes()), cell: OwnerWord(held.owner_word).cell() };
        let Some(arrival) = session.alloc().hold_moved(value, home, session.directory.hash(to.as_bytes())) else {
            drop(leased);
            return rename(session, from, to);
        };
        let names = session.names();
        let Some(lifetime) = names.lifetime_with(from.as_bytes(), held.owner_word) else {
            session.alloc().retire(value);
            drop(leased);
            return rename(session, from, to);
        };
        let published = match arrival {
            Arrival::First => {
                names.publish_held(to, &Publication { sealed: value.into(), lifetime, keeps_lifetime: false })
            }
            Arrival::Bound { barred } => names.bind_elsewhere(to, &value.into(), lifetime, barred),
        };
        if let Err(e) = published {
            // After an uncertain error, `to` may refer to the slot, so the slot stays in use.
            if e.is_certain() {
                session.alloc().retire(value);
            }
            return Err(e);
        }
        tensorlend_layout::crash_point!("rename: both names lead there");
        session.names().delete(from)?;
        return Ok(());
    }
    drop(leased);
    let request = Request::Rename { from: from.to_owned(), to: to.to_owned() };
    match session.control.call(&request, "rename", from) {
        Ok(_) => Ok(()),
        Err(Error::Refused { refusal: Refusal::NotQuiet(_), .. }) => {
            copy(session, from, to)?;
            session.names().delete(from)?;
            Ok(())
        }
        Err(Error::Refused { refusal: Refusal::NotFound(_), .. }) => Err(Error::NotFound(from.to_owned())),
        Err(e) => Err(e),
    }
}

/// Copies the value of `from` into a slot of this client, and publishes the copy as `to`.
pub fn copy(session: &Arc<Session>, from: &str, to: &str) -> Result<Version> {
    let Some(leased) = lease_key(session, from.as_bytes(), from)? else {
        return Err(Error::NotFound(from.to_owned()));
    };
    let sealed = copies::copy(session, &assemble::value(session, leased, from)?)?;
    session.names().publish(to, &sealed.into())
}
