//! `/metrics`: Prometheus' text format, version 0.0.4.
//!
//! The number of label values is bounded, because no label is the name of a tensor or a stream.
//! Series exist per namespace, per user, per client (at most 128), per stream number,
//! and per runner of a model (at most 32).

use crate::services::{Document, Runner, number};
use crate::view::{self, Namespace, Snapshot};
use std::fmt::Write;
use tensorlend::Stat;
use tensorlend::observe::{ClientState, Observation, States};
use tensorlend_shm::{Kind, Totals};

/// Maximum number of clients in a namespace with their own series: the first ones of [`view::clients`].
const CLIENTS: usize = 128;
/// Maximum number of streams in a namespace with their own series.
const STREAMS: usize = 256;

/// Name and help of every metric. Metrics that end in `_total` are counters, and all others gauges.
const METRICS: &str = "\
tensorlend_web_info Always 1. The label has the version of tensorlend web.
tensorlend_web_look_seconds Duration of the last sample of a namespace.
tensorlend_web_looks_total Samples that tensorlend web has taken.
tensorlend_shm_bytes Bytes of the machine's shared memory, of all programs, by kind.
tensorlend_shm_orphaned_bytes Bytes of shared memory that no process holds. Absent if tensorlend web may not read all processes.
tensorlend_up 1 if the daemon responds, else 0.
tensorlend_info Always 1. The labels have the daemon's version and mode.
tensorlend_uptime_seconds Time since the daemon started.
tensorlend_daemon_resident_bytes Bytes of the daemon's process in memory, without shared memory.
tensorlend_daemon_open_descriptors Open descriptors of the daemon's process, if they may be counted.
tensorlend_pool_max_bytes Limit of the pool in bytes.
tensorlend_pool_bytes Bytes of segments: in use by clients, spare, or idle.
tensorlend_sheets_bytes Bytes of tables: names, slot records, lease tables and stream rings.
tensorlend_daemon_clients Clients of all namespaces: connected, or gone while some of their values remain.
tensorlend_requests_total Requests that the daemon has handled.
tensorlend_refusals_total Requests that the daemon has refused, by reason.
tensorlend_wakeups_total Wakeups of the daemon.
tensorlend_names_expired_total Names whose time to live has ended.
tensorlend_names_ephemeral_gone_total Ephemeral names that have ended with their producers.
tensorlend_sessions_revoked_total Sessions that the daemon has ended, because their leases kept memory that was short.
tensorlend_spilled_bytes Bytes of segments that the daemon has spilled to files.
tensorlend_spill_failures_total Failures to write or read a file of a spilled segment.
tensorlend_spill_failing 1 from the first failed write of a spill file until a write succeeds, else 0.
tensorlend_fd_store_missing_descriptors Descriptors that the fd store does not have, so that a restart loses their memory.
tensorlend_restart_lost_names Names that were lost when the daemon started.
tensorlend_uid_bytes Bytes that the daemon charges to a user.
tensorlend_uid_max_bytes Bytes that a user may have now.
tensorlend_uid_sessions Sessions of a user.
tensorlend_uid_kept_by_leases_bytes Bytes of replaced values that only a user's leases keep, counted while memory is short.
tensorlend_uid_returned_and_held_bytes Bytes of memory that a user has returned, and that some process still holds.
tensorlend_device_bytes Bytes of device memory that the daemon has allocated.
tensorlend_device_max_bytes Bytes of device memory that the daemon may allocate.
tensorlend_namespace_up 1 if tensorlend web can sample the namespace, else 0.
tensorlend_namespace_lent_bytes Bytes of segments that clients of a namespace have.
tensorlend_namespace_max_bytes Limit of a namespace in bytes.
tensorlend_namespace_slots_bytes Bytes of slots: live, leased, free. Retired is the part of leased whose value was replaced or deleted.
tensorlend_namespace_names Names that have an owner.
tensorlend_namespace_clients Clients of a namespace by state.
tensorlend_namespace_segments Segments that clients of a namespace have.
tensorlend_namespace_leases Leases that clients of a namespace hold.
tensorlend_namespace_lease_age_max_seconds Time since tensorlend web first saw the oldest lease.
tensorlend_namespace_damaged_words Words of clients that contradict the daemon's state.
tensorlend_client_info Always 1. The labels have a client's process, user and label.
tensorlend_client_bytes Bytes of segments that a client has.
tensorlend_client_values_bytes Bytes of a client's values.
tensorlend_client_leases Leases that a client holds.
tensorlend_client_leased_bytes Bytes that a client's leases keep.
tensorlend_stream_messages_total Messages that the producer has sent.
tensorlend_stream_held_messages Messages in a stream's ring.
tensorlend_stream_capacity_messages Messages that a stream's ring can hold.
tensorlend_stream_subscribers Subscribers of a stream.
tensorlend_stream_lag_max_messages Messages that the slowest subscriber has not received yet.
tensorlend_stream_lost_messages_total Messages that subscribers have missed since tensorlend web started.
tensorlend_gateway_nodes_alive Other nodes that the gateway can reach.
tensorlend_gateway_fetched_total Values that the gateway fetched from other nodes.
tensorlend_gateway_fetched_bytes_total Bytes of these values.
tensorlend_gateway_sent_bytes_total Bytes of values that the gateway sent to other nodes.
tensorlend_gateway_cached_bytes Bytes of the gateway's copies of remote values.
tensorlend_gateway_faults_total Faults of the gateway's traffic, by kind.
tensorlend_model_requests_total Requests to which a runner responded.
tensorlend_model_failures_total Requests to which a runner responded with an error.
tensorlend_model_runs_total Runs of a model.
tensorlend_model_run_seconds Time of a model's last 1024 runs, by quantile.
tensorlend_model_queue_seconds Time from a request to its run, by quantile.
";

/// Returns the name, type and help of every metric.
fn metrics() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let kind = |name: &str| if name.ends_with("_total") { "counter" } else { "gauge" };
    METRICS.lines().filter_map(|line| line.split_once(' ')).map(move |(name, help)| (name, kind(name), help))
}

/// The samples of each metric as lines of text, by its name.
struct Page(Vec<(&'static str, String)>);

impl Page {
    /// Adds a limit, if there is one.
    fn put_limit(&mut self, name: &str, labels: &[(&str, &str)], most: u64) {
        if most < u64::MAX {
            self.put(name, labels, most as f64);
        }
    }

    /// Adds a sample to a metric.
    fn put(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let Some((_, lines)) = self.0.iter_mut().find(|(known, _)| *known == name) else {
            debug_assert!(false, "{name} has no help");
            return;
        };
        lines.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            let _ = write!(lines, "{}{label}=\"{}\"", if at == 0 { '{' } else { ',' }, escaped(text));
        }
        let _ = writeln!(lines, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// Adds the numbers of a document that has them.
    fn put_fields(&mut self, document: &Document, labels: &[(&str, &str)], fields: &[(&str, &str)]) {
        for (metric, field) in fields {
            if let Some(value) = number(document, field) {
                self.put(metric, labels, value);
            }
        }
    }
}

/// Escapes backslash, quote and line feed in a label's value.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Returns the text of the page, with the metrics in the order of [`METRICS`].
pub fn page(snapshot: &Snapshot, shm: &Totals) -> String {
    let mut page = Page(metrics().map(|(name, ..)| (name, String::new())).collect());
    page.put("tensorlend_web_info", &[("version", tensorlend::build())], 1.0);
    page.put("tensorlend_web_looks_total", &[], snapshot.number as f64);
    page.put("tensorlend_up", &[], f64::from(u8::from(snapshot.stat.is_some())));
    for kind in Kind::ALL {
        let bytes = shm.bytes_by_kind.get(&kind).copied().unwrap_or(0);
        page.put("tensorlend_shm_bytes", &[("kind", kind.word())], bytes as f64);
    }
    if let Some(bytes) = shm.orphaned_bytes {
        page.put("tensorlend_shm_orphaned_bytes", &[], bytes as f64);
    }
    if let Some(stat) = &snapshot.stat {
        daemon(&mut page, stat);
    }
    if let Some(bytes) = snapshot.process.resident_bytes {
        page.put("tensorlend_daemon_resident_bytes", &[], bytes as f64);
    }
    if let Some(number) = snapshot.process.descriptors {
        page.put("tensorlend_daemon_open_descriptors", &[], number as f64);
    }
    for ns in &snapshot.namespaces {
        namespace(&mut page, ns);
        services(&mut page, ns);
    }
    let mut text = String::new();
    for ((name, kind, help), (_, lines)) in metrics().zip(page.0) {
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
    }
    text
}

fn daemon(page: &mut Page, stat: &Stat) {
    page.put("tensorlend_info", &[("version", &stat.version), ("mode", &stat.mode)], 1.0);
    page.put("tensorlend_uptime_seconds", &[], stat.uptime_ns as f64 / 1e9);
    page.put_limit("tensorlend_pool_max_bytes", &[], stat.pool_bytes_max);
    let idle = stat.pool_bytes.saturating_sub(stat.bytes_in_use).saturating_sub(stat.bytes_spare);
    for (state, bytes) in [("in_use", stat.bytes_in_use), ("spare", stat.bytes_spare), ("idle", idle)] {
        page.put("tensorlend_pool_bytes", &[("state", state)], bytes as f64);
    }
    page.put("tensorlend_sheets_bytes", &[], stat.bytes_sheets as f64);
    page.put("tensorlend_daemon_clients", &[("state", "connected")], f64::from(stat.clients));
    page.put("tensorlend_daemon_clients", &[("state", "gone")], f64::from(stat.frozen));
    page.put("tensorlend_requests_total", &[], stat.requests as f64);
    for (reason, number) in stat.refusals.by_reason() {
        page.put("tensorlend_refusals_total", &[("reason", reason)], number as f64);
    }
    page.put("tensorlend_wakeups_total", &[], stat.wakeups as f64);
    page.put("tensorlend_names_expired_total", &[], stat.names_expired as f64);
    page.put("tensorlend_names_ephemeral_gone_total", &[], stat.names_ephemeral_gone as f64);
    page.put("tensorlend_sessions_revoked_total", &[], stat.sessions_revoked as f64);
    page.put("tensorlend_spilled_bytes", &[], stat.bytes_spilled as f64);
    page.put("tensorlend_spill_failures_total", &[], stat.spill_failures as f64);
    if let Some(health) = &stat.health {
        page.put("tensorlend_spill_failing", &[], f64::from(u8::from(health.spill.is_some())));
        if let Some(store) = &health.fd_store {
            page.put("tensorlend_fd_store_missing_descriptors", &[], store.missing as f64);
        }
        page.put("tensorlend_restart_lost_names", &[], health.lost.as_ref().map_or(0, |lost| lost.names) as f64);
    }
    for user in &stat.uids {
        let uid = user.uid.to_string();
        let labels = [("uid", uid.as_str())];
        page.put("tensorlend_uid_bytes", &labels, user.bytes as f64);
        page.put_limit("tensorlend_uid_max_bytes", &labels, user.bytes_max);
        page.put("tensorlend_uid_sessions", &labels, f64::from(user.sessions));
        page.put("tensorlend_uid_kept_by_leases_bytes", &labels, user.bytes_kept_by_leases as f64);
        page.put("tensorlend_uid_returned_and_held_bytes", &labels, user.bytes_returned_and_held as f64);
    }
    for device in &stat.devices {
        let uuid = device.offer.uuid.to_string();
        page.put("tensorlend_device_bytes", &[("device", &uuid)], device.bytes as f64);
        page.put_limit("tensorlend_device_max_bytes", &[("device", &uuid)], device.bytes_max);
    }
}

fn namespace(page: &mut Page, ns: &Namespace) {
    let seen = &ns.sampled.seen;
    let name = seen.namespace.as_str();
    let labels = [("namespace", name)];
    page.put("tensorlend_namespace_up", &labels, f64::from(u8::from(ns.error.is_none())));
    page.put("tensorlend_web_look_seconds", &labels, seen.took.as_secs_f64());
    page.put("tensorlend_namespace_lent_bytes", &labels, seen.bytes_lent as f64);
    page.put_limit("tensorlend_namespace_max_bytes", &labels, seen.bytes_max);
    let States { live, leased, retired, free } = ns.sampled.states;
    for (state, bytes) in [("live", Some(live)), ("leased", Some(leased)), ("retired", Some(retired)), ("free", free)] {
        if let Some(bytes) = bytes {
            page.put("tensorlend_namespace_slots_bytes", &[labels[0], ("state", state)], bytes as f64);
        }
    }
    page.put("tensorlend_namespace_names", &labels, seen.names_live as f64);
    for state in ClientState::ALL {
        let count = seen.clients.iter().filter(|client| client.state == state).count();
        page.put("tensorlend_namespace_clients", &[labels[0], ("state", state.word())], count as f64);
    }
    page.put("tensorlend_namespace_segments", &labels, seen.segments.len() as f64);
    page.put("tensorlend_namespace_leases", &labels, seen.lease_count() as f64);
    let oldest = seen.lease_age_max().unwrap_or_default().as_secs_f64();
    page.put("tensorlend_namespace_lease_age_max_seconds", &labels, oldest);
    page.put("tensorlend_namespace_damaged_words", &labels, seen.damaged as f64);
    clients(page, name, seen);
    streams(page, ns, name);
}

/// Adds the metrics that the gateway and the runners publish about themselves.
fn services(page: &mut Page, ns: &Namespace) {
    let namespace = ("namespace", ns.sampled.seen.namespace.as_str());
    if let Some(gateway) = &ns.services.gateway {
        let fields = [
            ("tensorlend_gateway_nodes_alive", "nodes_alive"),
            ("tensorlend_gateway_fetched_total", "fetched"),
            ("tensorlend_gateway_fetched_bytes_total", "fetched_bytes"),
            ("tensorlend_gateway_sent_bytes_total", "sent_bytes"),
            ("tensorlend_gateway_cached_bytes", "cached_bytes"),
        ];
        page.put_fields(gateway, &[namespace], &fields);
        for (kind, field) in [("trouble", "troubles"), ("damaged", "damaged"), ("dropped", "messages_dropped")] {
            page.put_fields(gateway, &[namespace, ("kind", kind)], &[("tensorlend_gateway_faults_total", field)]);
        }
    }
    for Runner { model, number: runner, metrics } in &ns.services.runners {
        let runner = runner.to_string();
        let labels = [namespace, ("model", model.as_str()), ("runner", runner.as_str())];
        let fields = [
            ("tensorlend_model_requests_total", "requests"),
            ("tensorlend_model_failures_total", "failures"),
            ("tensorlend_model_runs_total", "runs"),
        ];
        page.put_fields(metrics, &labels, &fields);
        for (metric, field) in
            [("tensorlend_model_run_seconds", "run_us"), ("tensorlend_model_queue_seconds", "queue_us")]
        {
            let Some(quantiles) = metrics.get(field).and_then(serde_json::Value::as_object) else { continue };
            for (quantile, field) in [("0.5", "p50"), ("0.99", "p99")] {
                if let Some(value) = number(quantiles, field) {
                    page.put(metric, &[labels[0], labels[1], labels[2], ("quantile", quantile)], value / 1e6);
                }
            }
        }
    }
}

fn clients(page: &mut Page, namespace: &str, seen: &Observation) {
    for client in view::clients(seen).into_iter().take(CLIENTS) {
        let number = format!("{}.{}", client.number, client.epoch);
        let (pid, uid) = (client.pid.to_string(), client.uid.to_string());
        let labels = [("namespace", namespace), ("client", number.as_str())];
        let info = [labels[0], labels[1], ("pid", &pid), ("uid", &uid), ("label", &client.label)];
        page.put("tensorlend_client_info", &info, 1.0);
        page.put("tensorlend_client_bytes", &labels, client.bytes as f64);
        page.put("tensorlend_client_values_bytes", &labels, client.value_bytes as f64);
        page.put("tensorlend_client_leases", &labels, client.leases as f64);
        page.put("tensorlend_client_leased_bytes", &labels, client.leased_bytes as f64);
    }
}

fn streams(page: &mut Page, ns: &Namespace, namespace: &str) {
    for stream in ns.sampled.seen.streams.iter().take(STREAMS) {
        let number = format!("{}.{}", stream.index, stream.id);
        let labels = [("namespace", namespace), ("stream", number.as_str()), ("policy", stream.policy_word())];
        if let Some(sent) = stream.sent {
            page.put("tensorlend_stream_messages_total", &labels, sent as f64);
        }
        page.put("tensorlend_stream_held_messages", &labels, stream.held as f64);
        page.put("tensorlend_stream_capacity_messages", &labels, stream.capacity as f64);
        page.put("tensorlend_stream_subscribers", &labels, stream.subscribers.len() as f64);
        page.put("tensorlend_stream_lag_max_messages", &labels, stream.lag_max().unwrap_or(0) as f64);
        page.put("tensorlend_stream_lost_messages_total", &labels, ns.sampled.lost(stream) as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cannot_break_out() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }

    #[test]
    fn orphans_are_absent_if_processes_are_unreadable() {
        let page = |orphaned_bytes| page(&Snapshot::default(), &Totals { orphaned_bytes, ..Totals::default() });
        assert!(page(Some(5)).contains("\ntensorlend_shm_orphaned_bytes 5\n"));
        assert!(!page(None).contains("\ntensorlend_shm_orphaned_bytes "));
        assert!(page(None).contains("\ntensorlend_shm_bytes{kind=\"memfd\"} 0\n"));
    }

    /// Returns the queries of the dashboard for Grafana.
    fn queries() -> Vec<String> {
        fn of_panels(panels: &serde_json::Value, asked: &mut Vec<String>) {
            for panel in panels.as_array().into_iter().flatten() {
                for target in panel["targets"].as_array().into_iter().flatten() {
                    asked.push(target["expr"].as_str().unwrap().to_owned());
                }
                // Panels nest in a row.
                of_panels(&panel["panels"], asked);
            }
        }
        let text = include_str!("../../../packaging/grafana/tensorlend.json");
        let board: serde_json::Value = serde_json::from_str(text).unwrap();
        let mut asked = Vec::new();
        of_panels(&board["panels"], &mut asked);
        let variables = board["templating"]["list"].as_array().unwrap();
        asked.extend(variables.iter().filter_map(|variable| Some(variable["query"].as_str()?.to_owned())));
        asked
    }

    /// Returns the labels by which the joins of a query match: each `on (...)` and `ignoring (...)`.
    fn joins<'q>(query: &'q str, word: &'q str) -> impl Iterator<Item = Vec<&'q str>> {
        let is_whole = move |at: usize| {
            let before = query[..at].chars().next_back();
            before.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_')
        };
        query.match_indices(word).filter(move |(at, _)| is_whole(*at)).filter_map(move |(at, _)| {
            let list = query[at + word.len()..].trim_start().strip_prefix('(')?;
            Some(list.split(')').next()?.split(',').map(str::trim).collect())
        })
    }

    /// Two targets of Prometheus can have namespaces and clients with equal names and numbers: a join that matches by
    /// these alone fails with "found duplicate series".
    #[test]
    fn the_grafana_dashboard_joins_series_of_one_target_only() {
        let target = ["instance", "job"];
        let mut joined = 0;
        for query in queries() {
            for labels in joins(&query, "on") {
                joined += 1;
                assert!(target.iter().all(|label| labels.contains(label)), "{query}");
            }
            for labels in joins(&query, "ignoring") {
                joined += 1;
                assert!(!target.iter().any(|label| labels.contains(label)), "{query}");
            }
        }
        assert!(joined >= 3, "the joins were found");
        assert_eq!(joins("a * on(x, y) version (z)", "on").collect::<Vec<_>>(), [["x", "y"]]);
    }

    /// The dashboard shows a fleet: each query selects the machines that the viewer has chosen.
    #[test]
    fn the_grafana_dashboard_selects_machines() {
        for query in queries() {
            let selectors = query.match_indices("tensorlend_").map(|(at, _)| &query[at..]);
            for selector in selectors.filter(|_| query != "label_values(tensorlend_up, instance)") {
                let name = selector.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(selector.len());
                assert!(selector[name..].starts_with("{instance=~\"$instance\""), "{query}");
            }
        }
    }

    /// Returns the expressions of the alerts for Prometheus.
    fn alerts() -> Vec<String> {
        let text = include_str!("../../../packaging/prometheus/tensorlend.rules.yaml");
        text.lines().filter_map(|line| Some(line.trim().strip_prefix("expr: ")?.to_owned())).collect()
    }

    fn metrics_of(expressions: &[String]) -> Vec<&str> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = expressions.iter().flat_map(|expression| expression.split(move |c| !is_word(c)));
        let mut used: Vec<&str> = words.filter(|word| word.starts_with("tensorlend_")).collect();
        used.sort_unstable();
        used.dedup();
        used
    }

    /// Each metric in the dashboard for Grafana and in the alerts exists in [`METRICS`].
    #[test]
    fn dashboard_and_alerts_ask_for_what_there_is() {
        let (asked, alerts) = (queries(), alerts());
        let (shown, watched) = (metrics_of(&asked), metrics_of(&alerts));
        assert!(shown.len() > 20 && watched.len() > 12, "{shown:?} {watched:?}");
        for name in shown.into_iter().chain(watched) {
            assert!(metrics().any(|(known, ..)| known == name), "{name}");
        }
    }
}
