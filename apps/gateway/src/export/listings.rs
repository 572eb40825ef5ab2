//! Responses to other nodes' requests for the names of this machine.

use crate::context::Context;
use crate::local;
use crate::runtime::EventSender;
use crate::transport::Answer;
use crate::wire::{AboutNames, Listed, ListedKind, NamesAnswer, words};
use tensorlend::Client;

/// The names that a worker has received from the daemon, and the request that asked for them.
pub struct Event {
    space: usize,
    about: AboutNames,
    found: tensorlend::Result<Vec<Listed>>,
    answer: Answer,
}

/// Handles another gateway's request for the names that match a glob. A worker lists the names,
/// because a long listing takes time.
pub fn on_question(
    context: &mut Context,
    events: &EventSender<Event>,
    space: usize,
    about: AboutNames,
    answer: Answer,
) {
    context.statistics.answered += 1;
    let (client, events) = (context.client(space).clone(), events.clone());
    context.senders.run(move || {
        let found = find(&client, &about.glob);
        events.post(Event { space, about, found, answer });
    });
}

/// Sends one page of the exported names.
pub fn on_event(context: &Context, event: Event) {
    let Event { space, about, found, answer } = event;
    let page = match found {
        Ok(found) => page(context, space, found, &about),
        Err(error) => NamesAnswer::Refused(words(&error.to_string())),
    };
    context.reply(answer, page);
}

fn page(context: &Context, space: usize, mut found: Vec<Listed>, about: &AboutNames) -> NamesAnswer {
    found.retain(|listed| context.is_exported(space, &listed.name));
    if let Some((kind, name)) = &about.after {
        found.retain(|listed| (listed.kind, &listed.name) > (*kind, name));
    }
    found.sort_by(|one, other| (one.kind, &one.name).cmp(&(other.kind, &other.name)));
    let more = found.len() > about.names as usize;
    found.truncate(about.names as usize);
    NamesAnswer::Names { names: found, more }
}

fn find(client: &Client, glob: &str) -> tensorlend::Result<Vec<Listed>> {
    let mut found = local::values(client, glob)?;
    let collections = [(ListedKind::List, client.lists(glob)?), (ListedKind::Stream, client.streams(glob)?)];
    for (kind, all) in collections {
        let listed = all.into_iter().map(|one| Listed {
            kind,
            name: one.name,
            dtype: String::new(),
            shape: Vec::new(),
            size: one.count,
        });
        found.extend(listed);
    }
    Ok(found)
}
