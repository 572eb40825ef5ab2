//! Options that several commands have, and their parsers.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use tensorlend::observe::Inspector;
use tensorlend::{Client, ClientBuilder, DType, Lifetime, Stat};

use crate::failure::Failure;
use crate::files::RawSpec;

const NDIM_MAX: usize = 16;

/// The commands that start the user's daemon if none listens. The others would find no names in a new daemon.
const STARTS: [&str; 8] = ["append", "model", "put", "recv", "replay", "restore", "send", "watch"];

#[derive(clap::Args, Debug)]
pub struct Connection {
    /// The daemon's socket; default: the user's daemon, then the system's.
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "TENSORLEND_SOCKET",
        hide_env_values = true,
        help_heading = "Connection"
    )]
    #[arg(value_parser = OsStringValueParser::new().map(PathBuf::from))]
    socket: Option<PathBuf>,
    /// The namespace to join; default: this user's private one. `web` takes several.
    #[arg(long, global = true, value_name = "NAME", help_heading = "Connection")]
    namespace: Vec<String>,
    /// Timeout in seconds of the daemon's responses; after it the command fails with exit status 3.
    #[arg(
        long,
        global = true,
        value_name = "SECONDS",
        env = "TENSORLEND_DAEMON_TIMEOUT",
        hide_env_values = true,
        default_value = "5",
        value_parser = seconds,
        help_heading = "Connection"
    )]
    daemon_timeout: Duration,
}

/// The result of a connection that needs only the daemon's metrics.
pub enum Reached {
    Session(Client),
    /// The metrics, because a limit has refused a session.
    Metrics {
        stat: Box<Stat>,
        refused: tensorlend::Error,
    },
}

impl Connection {
    pub fn daemon_timeout(&self) -> Duration {
        self.daemon_timeout
    }

    /// Returns the socket if the user named one. An empty environment variable has no effect.
    pub fn socket(&self) -> Option<&std::path::Path> {
        self.socket.as_deref().filter(|path| !path.as_os_str().is_empty())
    }

    /// Connects to the daemon. Listings show this client as `tensorlend VERB`.
    pub fn open(&self, verb: &str) -> Result<Client, Failure> {
        Ok(self.builder(verb)?.connect()?)
    }

    /// Connects like [`Connection::open`]. If a limit refuses a session to this user, requests the metrics without one.
    pub fn reach(&self, verb: &str) -> Result<Reached, Failure> {
        let builder = self.builder(verb)?;
        match builder.clone().connect() {
            Ok(client) => Ok(Reached::Session(client)),
            Err(refused) if refused.is_limit() => match builder.stat() {
                Ok(stat) => Ok(Reached::Metrics { stat: Box::new(stat), refused }),
                Err(_) => Err(refused.into()),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the builder of a connection, for callers that may reconnect.
    pub fn builder(&self, verb: &str) -> Result<ClientBuilder, Failure> {
        match &self.namespace[..] {
            [] => Ok(self.client(verb, None)),
            [namespace] => Ok(self.client(verb, Some(namespace))),
            _ => Err(Failure::Usage(format!("{verb} joins one namespace: --namespace was given more than once"))),
        }
    }

    /// Connects as an observer of all namespaces.
    pub fn inspect(&self) -> Result<Inspector, Failure> {
        Ok(self.client("observe", None).inspect()?)
    }

    /// Returns the namespaces that the user named.
    pub fn namespaces(&self) -> &[String] {
        &self.namespace
    }

    /// Returns the namespaces that the user named, or all namespaces of the daemon, for an observer.
    pub fn observed_namespaces(&self) -> Result<Vec<String>, Failure> {
        if !self.namespace.is_empty() {
            return Ok(self.namespace.clone());
        }
        Ok(self.inspect()?.namespaces()?.into_iter().map(|it| it.name).collect())
    }

    pub fn client(&self, verb: &str, namespace: Option<&str>) -> ClientBuilder {
        let mut builder = Client::builder().label(&format!("tensorlend {verb}")).request_timeout(self.daemon_timeout);
        builder = builder.autostart(STARTS.contains(&verb));
        if let Some(socket) = self.socket() {
            builder = builder.socket(socket);
        }
        if let Some(namespace) = namespace {
            builder = builder.namespace(namespace);
        }
        builder
    }
}

/// Observation without a membership.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Observe {
    /// Observe all namespaces, or those of --namespace, without joining any: names, sizes and holders, no values. The
    /// daemon's configuration must list the user in `observers`.
    #[arg(id = "observe", long = "observe")]
    pub on: bool,
}

/// Machine-readable output.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Json {
    /// Print JSON for programs: one object, or one object per line for output that comes step by step.
    #[arg(long = "json")]
    pub on: bool,
}

/// Element type and shape of a raw file, which has no header.
#[derive(clap::Args, Debug)]
pub struct Raw {
    /// Element type of a raw file (f32, u8, bf16, ... or numpy's name); with --shape.
    #[arg(long, requires = "shape")]
    dtype: Option<DType>,
    /// Shape of a raw file, such as 480x640x3; '' for a single number.
    #[arg(long, requires = "dtype")]
    shape: Option<Shape>,
}

impl Raw {
    pub fn spec(&self) -> Option<RawSpec> {
        let (dtype, shape) = (self.dtype?, self.shape.as_ref()?);
        Some(RawSpec { dtype, shape: shape.0.clone() })
    }
}

#[derive(clap::Args, Debug)]
pub struct Notes {
    /// Metadata (text) of the tensor, 64 KiB at most.
    #[arg(long, value_name = "TEXT")]
    #[arg(value_parser = OsStringValueParser::new().try_map(metadata))]
    pub metadata: Option<Metadata>,
}

/// Metadata of a value: any bytes.
#[derive(Clone, Debug)]
pub struct Metadata(pub Vec<u8>);

fn metadata(words: OsString) -> Result<Metadata, String> {
    use std::os::unix::ffi::OsStringExt;
    let bytes = words.into_vec();
    match bytes.len() {
        0..=65_536 => Ok(Metadata(bytes)),
        long => Err(format!("it has {long} bytes, and 65536 are the limit: put more into a tensor of its own")),
    }
}

/// Lifetime of a name.
#[derive(clap::Args, Debug)]
pub struct Life {
    /// The name ends after this time unless it is overwritten: 10s, 500ms, 5m, 2h.
    #[arg(long, value_name = "TIME", value_parser = time)]
    ttl: Option<Duration>,
    /// The name ends with this command, which runs until it is stopped.
    #[arg(long)]
    pub ephemeral: bool,
}

impl Life {
    pub fn lifetime(&self) -> Lifetime {
        Lifetime { ttl: self.ttl, ephemeral: self.ephemeral }
    }
}

/// A shape: the number of elements along each axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape(pub Vec<u64>);

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.trim().is_empty() {
            return Ok(Self(Vec::new()));
        }
        let sizes: Result<Vec<u64>, _> = text.split(['x', ',']).map(|size| size.trim().parse()).collect();
        match sizes {
            Ok(sizes) if sizes.len() <= NDIM_MAX => Ok(Self(sizes)),
            Ok(sizes) => Err(format!("{} dimensions; at most {NDIM_MAX}", sizes.len())),
            Err(_) => Err("write the sizes with x or commas between them: 480x640x3".to_owned()),
        }
    }
}

/// Parses an interval from 0.1 s to one hour.
pub fn interval(text: &str) -> Result<Duration, String> {
    let interval = seconds(text)?;
    let sensible = Duration::from_millis(100)..=Duration::from_hours(1);
    if sensible.contains(&interval) { Ok(interval) } else { Err("give seconds from 0.1 to 3600".into()) }
}

/// Parses seconds, with an optional fraction.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "give seconds, such as 2 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "give a number of seconds from 0 on".to_owned())
}

/// Parses a time with a unit. A number without a unit is in seconds.
pub fn time(text: &str) -> Result<Duration, String> {
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86_400.0)];
    let (number, scale) =
        units.iter().find_map(|&(unit, scale)| Some((text.strip_suffix(unit)?, scale))).unwrap_or((text, 1.0));
    let number: f64 = number.trim().parse().map_err(|_| "give a time such as 10s, 500ms, 5m or 2h".to_owned())?;
    match Duration::try_from_secs_f64(number * scale) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err("give a time of more than 0".to_owned()),
    }
}

/// Parses bytes with a unit.
pub fn bytes(text: &str) -> Result<u64, String> {
    text.parse().map(|tensorlend_daemon::Bytes(bytes)| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_with_units() {
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(time("10s"), time("10"));
        assert_eq!(time("2h"), time("120m"));
        for bad in ["0s", "-1s", "s", "1y", ""] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bytes_with_units() {
        assert_eq!(bytes("1GiB"), Ok(1 << 30));
        assert_eq!(bytes("4096"), Ok(4096));
        assert!(bytes("1GB").unwrap_err().contains("GiB") && bytes("").is_err());
    }

    #[test]
    fn shapes() {
        assert_eq!("480x640x3".parse(), Ok(Shape(vec![480, 640, 3])));
        assert_eq!("2, 0".parse(), Ok(Shape(vec![2, 0])));
        assert_eq!("".parse(), Ok(Shape(vec![])));
        for bad in ["2x", "-1", "a", "2x3.0", &["1"; 17].join("x")] {
            assert!(bad.parse::<Shape>().is_err(), "{bad}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["-1", "nan", "inf", "soon", ""] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn metadata_has_a_limit() {
        assert!(metadata("x".repeat(65_536).into()).is_ok());
        assert!(metadata("x".repeat(65_537).into()).is_err());
    }
}
