//! What there is, for others who ask.

use super::names::is_exported;
use crate::hub::Hub;
use crate::transport::{Body, Frame};
use crate::wire::{AboutNames, Listed, ListedKind, NamesAnswer, encode, words};
use tensorlend::{Client, InfoKind};

impl Hub {
    /// Another gateway asks what there is. The look at the broker is a worker's: it takes a while where there is much.
    pub fn on_names_question(&mut self, space: usize, about: AboutNames, answer: Box<dyn FnOnce(Frame) + Send>) {
        self.context.statistics.answered += 1;
        let (client, post) = (self.context.spaces[space].client.clone(), self.context.post.clone());
        self.context.senders.run(move || {
            let found = find(&client, &about.glob);
            post.run(move |hub, _| {
                let said = match found {
                    Ok(found) => hub.page(space, found, &about),
                    Err(error) => NamesAnswer::Refused(words(&error.to_string())),
                };
                hub.context.senders.run(move || answer(Frame { head: encode(&said), body: Body::default() }));
            });
        });
    }

    fn page(&self, space: usize, mut found: Vec<Listed>, about: &AboutNames) -> NamesAnswer {
        found.retain(|listed| is_exported(&self.context, &self.nodes, space, &listed.name));
        if let Some((kind, name)) = &about.after {
            found.retain(|listed| (listed.kind, &listed.name) > (*kind, name));
        }
        found.sort_by(|one, other| (one.kind, &one.name).cmp(&(other.kind, &other.name)));
        let more = found.len() > about.names as usize;
        found.truncate(about.names as usize);
        NamesAnswer::Names { names: found, more }
    }
}

fn find(client: &Client, glob: &str) -> tensorlend::Result<Vec<Listed>> {
    let mut found = Vec::new();
    for info in client.list(glob)? {
        let (kind, dtype, shape) = match info.kind {
            InfoKind::Tensor(tensor) => (ListedKind::Tensor, tensor.dtype.to_string(), tensor.shape),
            InfoKind::Dataset(_) => (ListedKind::Dataset, String::new(), Vec::new()),
        };
        found.push(Listed { kind, name: info.name, dtype, shape, size: info.nbytes });
    }
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
