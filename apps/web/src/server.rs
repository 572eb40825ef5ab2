//! The HTTP server. It limits the number of connections, the length of a request, and the time of
//! both.

use crate::guard::Door;
use crate::listen::{File, Listener};
use crate::routes::Site;
use crate::sampler::Sampler;
use crate::view::Snapshot;
use crate::{Error, Listen, Options, Source, check_access};
use hyper::Request;
use hyper::body::Incoming;
use hyper::rt::{Read, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// Maximum number of connections per listener. Each listener has its own bound, so TCP connections cannot starve the
/// Unix socket.
const CONNECTIONS: usize = 64;
/// Maximum time to receive a request's head, and maximum pause between two requests.
const HEAD: Duration = Duration::from_secs(10);
/// Maximum bytes of a request's head, and maximum number of its headers.
const HEAD_BYTES: usize = 16 * 1024;
const HEADERS: usize = 64;
/// Maximum duration of a connection. Viewers reconnect by themselves.
const LIFE: Duration = Duration::from_mins(10);
/// Time in milliseconds after which a connection is closed if its peer reads nothing.
const UNREAD_MS: u32 = 20_000;

/// A listening server. It responds once [`Server::run`] is called.
pub struct Server {
    listeners: Vec<(Listener, Door)>,
    files: Vec<File>,
    names: Vec<String>,
    site: Arc<Site>,
    sampler: Sampler,
    tell: watch::Sender<Arc<Snapshot>>,
}

impl Server {
    /// Joins the namespaces, takes a first sample, and listens.
    ///
    /// # Errors
    /// The errors of [`check_access`]. [`Error::Listen`] if an address cannot be opened. [`Error::Client`] if a namespace cannot be
    /// joined.
    pub fn new(options: Options) -> Result<Self, Error> {
        let observes = options.namespaces.iter().any(|source| matches!(source, Source::Observe { .. }));
        check_access(&options.listen, options.token.is_some(), observes || options.later.is_some())?;
        let mut sampler = Sampler::new(options.namespaces, options.later, options.interval, options.socket)?;
        let (mut listeners, mut files, mut names) = (Vec::new(), Vec::new(), Vec::new());
        for listen in &options.listen {
            let (listener, file, name) = listen.bind()?;
            let door = match listen {
                Listen::Unix(_) => Door::Unix,
                Listen::Tcp(_) if listen.is_local() => Door::Loopback,
                Listen::Tcp(_) => Door::Open,
            };
            listeners.push((listener, door));
            files.extend(file);
            names.push(name);
        }
        let joined = sampler.joined();
        let (tell, snapshots) = watch::channel(Arc::new(sampler.sample()));
        let site = Arc::new(Site::new(snapshots, joined, options.token, options.previews));
        Ok(Self { listeners, files, names, site, sampler, tell })
    }

    /// Returns the addresses of the server, for display.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the address of the first TCP listener, with the actual port if port 0 was requested.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listeners.iter().find_map(|(listener, _)| match listener {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(_) => None,
        })
    }

    /// Serves requests until the process ends.
    ///
    /// # Errors
    /// [`Error::System`] if threads cannot be started.
    pub fn run(self) -> Result<(), Error> {
        let Self { listeners, files, site, sampler, tell, .. } = self;
        sampler.start_pulse(&tell)?;
        std::thread::Builder::new().name("sampler".into()).spawn(move || sampler.run(&tell))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(4).build()?;
        runtime.block_on(async {
            let mut accepting = Vec::new();
            for (listener, door) in listeners {
                let (site, limit) = (site.clone(), Arc::new(Semaphore::new(CONNECTIONS)));
                accepting.push(match listener {
                    Listener::Tcp(listener) => {
                        tokio::spawn(accept_tcp(tokio::net::TcpListener::from_std(listener)?, door, site, limit))
                    }
                    Listener::Unix(listener) => {
                        tokio::spawn(accept_unix(tokio::net::UnixListener::from_std(listener)?, site, limit))
                    }
                });
            }
            for task in accepting {
                let _ = task.await;
            }
            Ok::<_, Error>(())
        })?;
        drop(files);
        Ok(())
    }
}

/// Pause after a failed `accept`. Most failures are due to a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

async fn accept_tcp(listener: tokio::net::TcpListener, door: Door, site: Arc<Site>, limit: Arc<Semaphore>) {
    loop {
        let Ok(permit) = limit.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let _ = stream.set_nodelay(true);
                let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, UNREAD_MS);
                let site = site.clone();
                tokio::spawn(async move {
                    serve(TokioIo::new(stream), door, site).await;
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn accept_unix(listener: tokio::net::UnixListener, site: Arc<Site>, limit: Arc<Semaphore>) {
    loop {
        let Ok(permit) = limit.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let site = site.clone();
                tokio::spawn(async move {
                    serve(TokioIo::new(stream), Door::Unix, site).await;
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn serve(stream: impl Read + Write + Unpin, door: Door, site: Arc<Site>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let site = site.clone();
        async move { Ok::<_, Infallible>(site.answer(&request, door).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS)
        .serve_connection(stream, service);
    let _ = tokio::time::timeout(LIFE, connection).await;
}
