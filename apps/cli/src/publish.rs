//! Publication of several names: all of them, or none.
//!
//! The daemon may refuse any name, for example because of a limit. So the publisher first publishes the new names, and
//! removes them again after an error. It then leases the values that it replaces, and puts them back after an error.
//! Readers may see some names earlier than others.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use tensorlend::{Client, Draft, Error, Lifetime, Tensor, TensorSpec, Value, ValueDraft, Version};

use crate::failure::{self, Failure};
use crate::interrupt::Hold;
use crate::save::in_host_memory;

/// Maximum number of names that an error message lists.
const LISTED: usize = 5;

/// The treatment of a name that exists already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    Replace,
    Keep,
}

/// A client that publishes several names.
pub struct Publisher<'a> {
    pub client: &'a Client,
    /// Opens another session of the same user in the same namespace. One session can lease 4096 values.
    pub open: &'a dyn Fn() -> Result<Client, Failure>,
    pub lifetime: Lifetime,
    pub existing: Existing,
}

/// A published name.
struct Step {
    name: String,
    version: Version,
    before: Before,
}

/// The state of a name before its publication.
enum Before {
    /// The name did not exist.
    Nothing,
    /// The leased value, and its lifetime at this time.
    Value(Value, Lifetime, Instant),
    /// A value that cannot be put back, and the reason.
    Lost(&'static str),
}

/// The error of one name.
struct Failed {
    name: String,
    cause: Box<Failure>,
}

impl Failed {
    fn new(name: String, cause: impl Into<Failure>) -> Self {
        Self { name, cause: Box::new(cause.into()) }
    }
}

impl Publisher<'_> {
    /// Fails if the namespace has no room for this number of new names.
    ///
    /// # Errors
    /// [`Failure::Limit`]. No error if the daemon's state at this moment may allow the names: then only
    /// [`Publisher::publish`] detects the limit.
    pub fn check_room(&self, new_names: usize) -> Result<(), Failure> {
        let stat = self.client.stat()?;
        let Some(namespace) = stat.namespaces.iter().find(|it| it.name == self.client.namespace()) else {
            return Ok(());
        };
        let (new_names, most) = (new_names as u64, u64::from(namespace.names_max));
        if namespace.names.saturating_add(new_names) <= most {
            return Ok(());
        }
        // The daemon also counts deleted names that their clients have not reported yet. A new publication may use
        // them, so count the names that exist.
        let present = self.client.names("*")?.len() as u64;
        if present.saturating_add(new_names) <= most {
            return Ok(());
        }
        Err(Failure::Limit(format!(
            "{} do not fit into namespace {:?}, which has {present} of at most {most} (names_max), and nothing was \
             published: delete names, publish fewer, or raise names_max in the daemon's configuration (docs/operations.md)",
            crate::text::count(new_names, "new name"),
            self.client.namespace(),
        )))
    }

    /// Publishes the drafts in any order. Returns the names that were kept because they exist already.
    ///
    /// # Errors
    /// After an error, every name has its former value. If this fails for some names, the error lists them. A signal
    /// that ends the program has the same effect as an error.
    pub fn publish(&self, drafts: Vec<(String, ValueDraft)>) -> Result<Vec<String>, Failure> {
        let hold = Hold::new().map_err(|error| Failure::Other(Box::new(error)))?;
        let published = self.publish_unless(drafts, &|_| hold.is_interrupted());
        if let (true, Err(failure)) = (hold.is_interrupted(), &published) {
            failure::tell(failure);
        }
        published
    }

    /// Publishes like [`Publisher::publish`]. Gives up before a name for which `is_interrupted` returns true.
    fn publish_unless(
        &self,
        drafts: Vec<(String, ValueDraft)>,
        is_interrupted: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<String>, Failure> {
        let mut attempt = Attempt { publisher: self, is_interrupted, steps: Vec::new(), kept: Vec::new() };
        match attempt.publish(drafts) {
            Ok(()) => Ok(attempt.kept),
            Err(failed) => Err(attempt.undo(failed)),
        }
    }
}

/// One publication of several names.
struct Attempt<'a> {
    publisher: &'a Publisher<'a>,
    is_interrupted: &'a dyn Fn(&str) -> bool,
    /// The published names, in the order of their publication.
    steps: Vec<Step>,
    kept: Vec<String>,
}

impl Attempt<'_> {
    fn publish(&mut self, drafts: Vec<(String, ValueDraft)>) -> Result<(), Failed> {
        let mut replacing = Vec::new();
        for (name, draft) in drafts {
            match self.publisher.client.exists(&name) {
                Ok(false) => self.step(name, draft, Before::Nothing)?,
                Ok(true) if self.publisher.existing == Existing::Keep => self.kept.push(name),
                Ok(true) => replacing.push((name, draft)),
                Err(cause) => return Err(Failed::new(name, cause)),
            }
        }
        // After the last name, nothing can fail. So a single name needs no lease on its former value.
        let is_single = replacing.len() == 1;
        let (mut leased, mut lost) = (Vec::new(), Vec::new());
        let mut leases = Leases { publisher: self.publisher, more: Vec::new() };
        for (name, draft) in replacing {
            let before = if is_single { Ok(Before::Lost("it was not leased")) } else { leases.before(&name) };
            match before {
                Ok(before @ Before::Lost(_)) => lost.push((name, draft, before)),
                Ok(before) => leased.push((name, draft, before)),
                Err(cause) => return Err(Failed::new(name, cause)),
            }
        }
        // Values that cannot be put back are replaced last: an error before them loses nothing.
        for (name, draft, before) in leased.into_iter().chain(lost) {
            self.step(name, draft, before)?;
        }
        Ok(())
    }

    fn step(&mut self, name: String, draft: ValueDraft, before: Before) -> Result<(), Failed> {
        if (self.is_interrupted)(&name) {
            return Err(Failed::new(name, Failure::Other("a signal ended the command".into())));
        }
        match draft.publish_for(&name, self.publisher.lifetime) {
            Ok(version) => {
                self.steps.push(Step { name, version, before });
                Ok(())
            }
            Err(cause) => Err(Failed::new(name, cause)),
        }
    }

    /// Undoes all steps, the last first. Returns the error of the command.
    fn undo(self, Failed { name, cause }: Failed) -> Failure {
        let client = self.publisher.client;
        let mut stuck = Vec::new();
        for step in self.steps.into_iter().rev() {
            let name = step.name.clone();
            if let Err(why) = undo(client, step) {
                stuck.push(format!("{name:?} ({why})"));
            }
        }
        let (count, more) = (crate::text::count(stuck.len() as u64, "name"), stuck.len() > LISTED);
        let names = match &stuck[..] {
            [] => ", so all names have their former values".to_owned(),
            _ => format!(
                "; {count} could not be put back and may have new values: {}{}",
                stuck[..stuck.len().min(LISTED)].join(", "),
                if more { ", ..." } else { "" }
            ),
        };
        let itself =
            if is_uncertain(&cause) { format!("; {name:?} itself may have its new value") } else { String::new() };
        cause.context(format!("cannot publish {name:?}{names}{itself}"))
    }
}

/// Returns true if the daemon may have carried out the request that failed.
fn is_uncertain(cause: &Failure) -> bool {
    let asked = |error: &Error| {
        matches!(error, Error::Disconnected { asked: true, .. } | Error::NotAnswering { asked: true, .. })
    };
    matches!(cause, Failure::Client(error) if asked(error))
}

/// Restores the former state of a name. A name that another client has changed in the meantime stays as it is.
fn undo(client: &Client, step: Step) -> Result<(), String> {
    let now = client.version(&step.name).map_err(|error| error.to_string())?;
    if now != Some(step.version) {
        return Ok(());
    }
    let undone = match step.before {
        Before::Nothing => client.delete(&step.name).map(drop),
        Before::Lost(why) => return Err(why.to_owned()),
        Before::Value(value, mut lifetime, since) => {
            // A lifetime that has ended in the meantime becomes the minimum.
            let left = |ttl: Duration| ttl.saturating_sub(since.elapsed()).max(Duration::from_nanos(1));
            lifetime.ttl = lifetime.ttl.map(left);
            copy(client, &value).and_then(|draft| draft.publish_for(&step.name, lifetime)).map(drop)
        }
    };
    undone.map_err(|error| error.to_string())
}

/// Copies a leased value, which is in host memory, into a draft.
fn copy(client: &Client, value: &Value) -> tensorlend::Result<ValueDraft> {
    if let Some(dataset) = value.as_dataset() {
        let mut copies = client.dataset().metadata(dataset.metadata())?.timestamp(dataset.timestamp());
        for (name, tensor) in dataset {
            copies = copies.add(name, copy_tensor(client, tensor)?)?;
        }
        return Ok(copies.into());
    }
    Ok(copy_tensor(client, value.tensor()?)?.into())
}

fn copy_tensor(client: &Client, tensor: &Tensor) -> tensorlend::Result<Draft> {
    let mut spec = TensorSpec::new(tensor.dtype(), tensor.shape());
    if !tensor.is_row_major() {
        spec.strides = Some(tensor.strides().to_vec());
        spec.byte_offset = tensor.byte_offset();
    }
    let mut draft = client.create_spec(spec)?;
    let bytes = draft.bytes_mut();
    bytes.copy_from_slice(&tensor.bytes()[..bytes.len()]);
    draft.set_metadata(tensor.metadata())?.set_timestamp(tensor.timestamp());
    Ok(draft)
}

/// The sessions that lease the former values.
struct Leases<'a> {
    publisher: &'a Publisher<'a>,
    /// Further sessions, after the leases of the former ones were used up.
    more: Vec<Client>,
}

impl Leases<'_> {
    /// Leases the value of a name.
    fn before(&mut self, name: &str) -> Result<Before, Failure> {
        let client = self.more.last().unwrap_or(self.publisher.client);
        let found = match lease(client, name) {
            Err(Error::Leases(_)) => match (self.publisher.open)() {
                Ok(client) => {
                    let found = lease(&client, name);
                    self.more.push(client);
                    found
                }
                Err(_) => return Ok(Before::Lost("no session had a lease left for its former value")),
            },
            found => found,
        };
        match found {
            Err(Error::NotFound(_)) => Ok(Before::Nothing),
            Err(Error::Damaged { .. }) => Ok(Before::Lost("its former value is damaged")),
            Err(Error::Leases(_)) => Ok(Before::Lost("no session had a lease left for its former value")),
            Err(error) if error.is_limit() => Ok(Before::Lost("there was no memory to keep its former value")),
            Err(error) => Err(error.into()),
            Ok(before) => Ok(before),
        }
    }
}

fn lease(client: &Client, name: &str) -> tensorlend::Result<Before> {
    let lifetime = client.info(name)?.lifetime;
    if lifetime.ephemeral {
        return Ok(Before::Lost("its former lifetime was that of another client"));
    }
    let since = Instant::now();
    let value = client.get_value(name)?;
    let is_on_host = match &value {
        Value::Tensor(_) => true,
        Value::Dataset(dataset) => in_host_memory(name, dataset).is_ok(),
        _ => false,
    };
    if is_on_host {
        Ok(Before::Value(value, lifetime, since))
    } else {
        Ok(Before::Lost("its former value is on a device"))
    }
}

/// Returns the names that are not in `kept`, in their order.
pub fn without(names: Vec<String>, kept: &[String]) -> Vec<String> {
    let kept: HashSet<&String> = kept.iter().collect();
    names.into_iter().filter(|name| !kept.contains(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlend::DType;
    use tensorlend_daemon::{Config, Embedded, embedded_with};

    fn client(daemon: &Embedded) -> Client {
        Client::builder().socket(daemon.socket()).connect().unwrap()
    }

    fn drafts(client: &Client, names: impl Iterator<Item = String>) -> Vec<(String, ValueDraft)> {
        names.map(|name| (name, client.create_from(&[9u8]).unwrap().into())).collect()
    }

    fn publisher<'a>(client: &'a Client, open: &'a dyn Fn() -> Result<Client, Failure>) -> Publisher<'a> {
        Publisher { client, open, lifetime: Lifetime::default(), existing: Existing::Replace }
    }

    /// Bytes, strides, metadata and timestamp of a value's tensors.
    fn contents(value: &Value) -> Vec<String> {
        let of = |t: &Tensor| format!("{:?} {:?} {:?} {}", t.bytes(), t.strides(), t.metadata(), t.timestamp());
        match value.as_dataset() {
            Some(set) => set.iter().map(|(_, tensor)| of(tensor)).collect(),
            None => vec![of(value.tensor().unwrap())],
        }
    }

    /// The publication fails at every possible name, and each time all names are as before.
    #[test]
    fn a_failure_at_any_name_changes_nothing() {
        let daemon = tensorlend_daemon::embedded().unwrap();
        let producer = client(&daemon);
        let spec = TensorSpec { dtype: DType::U8, shape: vec![3, 2], strides: Some(vec![1, 3]), byte_offset: 0 };
        let mut columns = producer.create_spec(spec).unwrap();
        columns.bytes_mut().copy_from_slice(&[1, 2, 3, 4, 5, 6]);
        columns.set_metadata(b"old").unwrap().set_timestamp(5);
        columns.publish("columns").unwrap();
        let member = producer.create_from(&[7u8, 8]).unwrap();
        producer.dataset().metadata(b"set").unwrap().timestamp(6).add("m", member).unwrap().publish("set").unwrap();
        producer.put_for("short", &[1u8], Lifetime::ttl(Duration::from_secs(1000))).unwrap();
        let names = ["columns", "new/1", "set", "new/2", "short"];
        let open = || Ok(client(&daemon));
        let before: Vec<_> = names.iter().map(|name| producer.get_value(name).ok().map(|it| contents(&it))).collect();
        for failing in names {
            let client = client(&daemon);
            let drafts = drafts(&client, names.iter().map(|name| (*name).to_owned()));
            let failed = publisher(&client, &open).publish_unless(drafts, &|name| name == failing);
            let text = failed.unwrap_err().to_string();
            assert!(text.contains(failing) && text.contains("all names have their former values"), "{text}");
            let after: Vec<_> = names.iter().map(|name| client.get_value(name).ok().map(|it| contents(&it))).collect();
            assert_eq!(after, before, "{failing}");
            assert_eq!(client.get_dataset("set").unwrap().metadata(), b"set");
            let ttl = client.info("short").unwrap().lifetime.ttl.unwrap();
            assert!(ttl > Duration::from_secs(100) && ttl <= Duration::from_secs(1000), "{ttl:?}");
        }
        let client = client(&daemon);
        let drafts = drafts(&client, names.iter().map(|name| (*name).to_owned()));
        assert!(publisher(&client, &open).publish_unless(drafts, &|_| false).unwrap().is_empty());
        assert!(names.iter().all(|name| client.get(name).unwrap().as_slice::<u8>().unwrap() == [9]));
        assert_eq!(client.info("short").unwrap().lifetime, Lifetime::default());
    }

    /// One session can lease 4096 values.
    #[test]
    fn more_values_than_leases_are_put_back() {
        let daemon = embedded_with(&Config::default()).unwrap();
        let producer = client(&daemon);
        let names: Vec<String> = (0..5000).map(|number| format!("n/{number:04}")).collect();
        for name in &names {
            producer.put(name, &[1u8]).unwrap();
        }
        let (client, open) = (client(&daemon), || Ok(client(&daemon)));
        let drafts = drafts(&client, names.iter().cloned());
        let failed = publisher(&client, &open).publish_unless(drafts, &|name| name == "n/4999");
        assert!(failed.unwrap_err().to_string().contains("all names have their former values"));
        assert!(names.iter().all(|name| producer.get(name).unwrap().as_slice::<u8>().unwrap() == [1]));
    }

    #[test]
    fn values_that_cannot_be_put_back_are_replaced_last_and_named() {
        let daemon = tensorlend_daemon::embedded().unwrap();
        let producer = client(&daemon);
        for name in ["a", "b"] {
            producer.put_for(name, &[1u8], Lifetime::EPHEMERAL).unwrap();
        }
        producer.put("c", &[1u8]).unwrap();
        let (client, open) = (client(&daemon), || Ok(client(&daemon)));
        let value = |name: &str| producer.get(name).unwrap().as_slice::<u8>().unwrap()[0];
        let attempt = |failing: &str| {
            let drafts = drafts(&client, ["a", "b", "c"].map(str::to_owned).into_iter());
            publisher(&client, &open).publish_unless(drafts, &|name| name == failing).unwrap_err().to_string()
        };
        for failing in ["c", "a"] {
            assert!(attempt(failing).contains("all names have their former values"), "{failing}");
            assert_eq!(["a", "b", "c"].map(value), [1, 1, 1], "{failing}");
        }
        let text = attempt("b");
        assert!(text.contains("1 name could not be put back") && text.contains("\"a\" (its former lifetime"), "{text}");
        assert_eq!(["a", "b", "c"].map(value), [9, 1, 1]);
    }

    /// The publisher does not undo what another client publishes in the meantime.
    #[test]
    fn values_of_other_clients_stay() {
        let daemon = tensorlend_daemon::embedded().unwrap();
        let other = client(&daemon);
        let (client, open) = (client(&daemon), || Ok(client(&daemon)));
        let drafts = drafts(&client, ["a", "b"].map(str::to_owned).into_iter());
        let interrupt = |name: &str| {
            name == "b" && {
                other.put("a", &[5u8]).unwrap();
                true
            }
        };
        publisher(&client, &open).publish_unless(drafts, &interrupt).unwrap_err();
        assert_eq!(other.get("a").unwrap().as_slice::<u8>().unwrap(), [5]);
        assert!(!other.exists("b").unwrap());
    }
}
