//! Metrics of a namespace's gateway and runners. They publish their own metrics as JSON under names
//! of the namespace.
//!
//! Any member may write to these names. So the documents are untrusted. Their length is bounded,
//! and the server shows only known numbers of a document.

use serde_json::{Map, Value, json};
use tensorlend::Client;
use tensorlend::observe::{Observation, Origin};

/// The name of the gateway's document.
const GATEWAY: &str = ".gateway/stat";
const BYTES_MAX: u64 = 64 << 10;
/// Maximum number of runners whose documents are read.
const RUNNERS_MAX: usize = 32;

/// The metrics of a service, as it publishes them.
pub type Document = Map<String, Value>;

/// The documents of the gateway and of the runners.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Services {
    /// The gateway's counters.
    pub gateway: Option<Document>,
    pub runners: Vec<Runner>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Runner {
    pub model: String,
    /// The runner's pid, which is a part of its document's name.
    pub number: u32,
    pub metrics: Document,
}

impl Services {
    /// Reads the documents whose names an observation has found. Leases each document only for the
    /// time of a copy.
    pub fn read(client: &Client, seen: &Observation) -> Self {
        let names = seen.values.iter().filter(|value| value.bytes <= BYTES_MAX);
        let names = names.filter_map(|value| match &value.origin {
            Origin::Name(name) => Some(name.as_str()),
            _ => None,
        });
        let mut it = Self::default();
        for name in names {
            if name == GATEWAY {
                it.gateway = document(client, name);
            } else if let Some((model, runner)) = runner_of(name).filter(|_| it.runners.len() < RUNNERS_MAX)
                && let Some(metrics) = document(client, name)
            {
                it.runners.push(Runner { model: model.to_owned(), number: runner, metrics });
            }
        }
        it.runners.sort_by(|a, b| (&a.model, a.number).cmp(&(&b.model, b.number)));
        it
    }

    /// Returns the documents for the page.
    pub fn json(&self) -> Value {
        let runner = |it: &Runner| json!({ "model": it.model, "runner": it.number, "metrics": it.metrics });
        json!({ "gateway": self.gateway, "runners": self.runners.iter().map(runner).collect::<Vec<_>>() })
    }
}

pub fn number(document: &Document, field: &str) -> Option<f64> {
    document.get(field).and_then(Value::as_f64).filter(|number| number.is_finite() && *number >= 0.0)
}

/// Returns the model and the runner from a document's name, `model/NAME/.stat/PID`.
fn runner_of(name: &str) -> Option<(&str, u32)> {
    let (model, runner) = name.strip_prefix("model/")?.split_once("/.stat/")?;
    Some((model, runner.parse().ok()?)).filter(|(model, _)| !model.is_empty())
}

fn document(client: &Client, name: &str) -> Option<Document> {
    let lease = client.get(name).ok()?;
    let bytes = lease.as_slice::<u8>().ok().filter(|bytes| bytes.len() as u64 <= BYTES_MAX)?;
    serde_json::from_slice(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_read_and_nonsense_is_left_out() {
        let broker = tensorlend_daemon::embedded().unwrap();
        let client = Client::builder().socket(broker.socket()).connect().unwrap();
        client.put(GATEWAY, br#"{"v":1,"node":"a","nodes_alive":2,"fetched":-1}"#.as_slice()).unwrap();
        client.put("model/resnet/.stat/42", br#"{"requests":7,"run_us":{"p50":1.5,"p99":2.5}}"#.as_slice()).unwrap();
        client.put("model/other/.stat/7", b"nonsense".as_slice()).unwrap();
        client.put("model//.stat/7", b"{}".as_slice()).unwrap();
        let seen = client.observe().unwrap();
        let services = Services::read(&client, &seen);
        let gateway = services.gateway.as_ref().unwrap();
        assert_eq!(
            (number(gateway, "nodes_alive"), number(gateway, "fetched"), number(gateway, "node")),
            (Some(2.0), None, None)
        );
        let runners: Vec<_> = services.runners.iter().map(|it| (it.model.as_str(), it.number)).collect();
        assert_eq!(runners, [("resnet", 42)]);
        assert_eq!(services.json()["runners"][0]["metrics"]["requests"], 7);
    }
}
