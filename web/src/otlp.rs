//! Export of the metrics of `/metrics`, under the same names, to an OpenTelemetry collector by JSON
//! over HTTP. The export reads the same samples and sends the daemon no requests of its own.

use crate::error::Error;
use crate::metrics::{METRICS, Samples, samples};
use crate::view::Snapshot;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, MeterProvider};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{MetricExporter, Protocol, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Default path of a collector's address.
const PATH: &str = "/v1/metrics";
/// Timeout of a collector's response.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of bytes to read of a collector's response.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// A collector's address, such as `http://127.0.0.1:4318`. It contains a path if the path is not
/// `/v1/metrics`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(String);

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no address of a collector, such as http://127.0.0.1:4318 (without TLS)");
        let uri: ureq::http::Uri = text.parse().map_err(|_| wrong())?;
        if uri.scheme_str() != Some("http") || uri.query().is_some() {
            return Err(wrong());
        }
        let text = text.trim_end_matches('/');
        Ok(Self(if uri.path() == "/" { format!("{text}{PATH}") } else { text.to_owned() }))
    }
}

/// Destination and interval of the export.
#[derive(Clone, Debug)]
pub struct Otlp {
    /// The address of the collector.
    pub endpoint: Endpoint,
    /// Time between two exports.
    pub interval: Duration,
}

/// Exports metrics from its own thread. Dropping this object ends the export.
pub struct Export {
    _provider: SdkMeterProvider,
}

impl Export {
    /// Starts the periodic export of the latest sample.
    pub fn start(to: &Otlp, snapshots: &watch::Receiver<Arc<Snapshot>>) -> Result<Self, Error> {
        let exporter = MetricExporter::builder()
            .with_http()
            .with_http_client(Http::new())
            .with_protocol(Protocol::HttpJson)
            .with_endpoint(&to.endpoint.0)
            .with_timeout(TIMEOUT)
            .build()
            .map_err(std::io::Error::other)?;
        let reader = PeriodicReader::builder(exporter).with_interval(to.interval).build();
        let resource = Resource::builder().with_service_name("tensorlend").build();
        let provider = SdkMeterProvider::builder().with_reader(reader).with_resource(resource).build();
        let meter = provider.meter("tensorlend");
        let latest = Arc::new(Latest { snapshots: snapshots.clone(), of: Mutex::default() });
        for &(name, kind, help) in METRICS {
            let latest = latest.clone();
            let observe = move |to: &dyn AsyncInstrument<f64>| latest.observe(name, to);
            // Do not store the instrument, because the provider keeps the callback.
            if kind == "counter" {
                meter.f64_observable_counter(name).with_description(help).with_callback(observe).build();
            } else {
                meter.f64_observable_gauge(name).with_description(help).with_callback(observe).build();
            }
        }
        Ok(Self { _provider: provider })
    }
}

/// The metrics of the latest sample, computed once for all metrics.
struct Latest {
    snapshots: watch::Receiver<Arc<Snapshot>>,
    of: Mutex<(u64, Samples)>,
}

impl Latest {
    fn observe(&self, name: &str, to: &dyn AsyncInstrument<f64>) {
        let snapshot = self.snapshots.borrow().clone();
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        if of.0 != snapshot.number {
            *of = (snapshot.number, samples(&snapshot));
        }
        for sample in of.1.iter().filter(|(of, _)| *of == name).flat_map(|(_, samples)| samples) {
            let labels = sample.labels.iter().map(|(label, text)| KeyValue::new(*label, text.clone()));
            to.observe(sample.value, &labels.collect::<Vec<_>>());
        }
    }
}

/// Blocking HTTP client, used in the exporter's own thread.
#[derive(Debug)]
struct Http(ureq::Agent);

impl Http {
    fn new() -> Self {
        let config = ureq::Agent::config_builder();
        // The exporter checks the status itself, so ureq must not turn a status into an error.
        // Ignore the environment's proxy, because it serves other networks.
        Self(config.timeout_global(Some(TIMEOUT)).http_status_as_error(false).proxy(None).build().into())
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let (parts, mut body) = self.0.run(Request::from_parts(parts, body.to_vec()))?.into_parts();
        let body = body.with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        Ok(Response::from_parts(parts, body.into()))
    }
}

impl HttpClient for Http {
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(std::future::ready(self.send(request)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_without_a_path_get_the_usual_one() {
        let of = |text: &str| text.parse::<Endpoint>().map(|endpoint| endpoint.0);
        for text in ["http://127.0.0.1:4318", "http://127.0.0.1:4318/"] {
            assert_eq!(of(text).unwrap(), "http://127.0.0.1:4318/v1/metrics");
        }
        assert_eq!(of("http://collector/otlp/v1/metrics").unwrap(), "http://collector/otlp/v1/metrics");
        for wrong in ["", "127.0.0.1:4318", "https://collector", "http://collector/?a=b"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
