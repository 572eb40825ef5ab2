//! The routes of the HTTP interface, and their responses.

use crate::Connect;
use crate::body::Reply;
use crate::guard::{self, Door};
use crate::query::Query;
use crate::shm;
use crate::token::Token;
use crate::view::{self, Namespace, Snapshot};
use crate::{json, live, metrics, page, picture, preview};
use hyper::body::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use std::sync::Arc;
use tensorlend::Value as Leased;
use tokio::sync::{Semaphore, mpsc, watch};

/// Default number of entries in one response. The maximum number follows.
const LIMIT: usize = 200;
const LIMIT_MAX: usize = 10_000;
/// Maximum number of simultaneous viewers of live updates.
const VIEWERS: usize = 16;
/// Maximum number of simultaneous previews.
const PREVIEWS: usize = 2;

/// The data behind all responses.
pub struct Site {
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    /// The namespaces whose values the server may read, each with the function that joins it.
    pub joined: Vec<(String, Connect)>,
    pub token: Option<Token>,
    pub previews: bool,
    viewers: Arc<Semaphore>,
    previewing: Arc<Semaphore>,
    shm: Arc<shm::Latest>,
}

type Answer = Response<Reply>;

impl Site {
    pub fn new(
        snapshots: watch::Receiver<Arc<Snapshot>>,
        joined: Vec<(String, Connect)>,
        token: Option<Token>,
        previews: bool,
    ) -> Self {
        let (viewers, previewing) = (Semaphore::new(VIEWERS).into(), Semaphore::new(PREVIEWS).into());
        Self { snapshots, joined, token, previews, viewers, previewing, shm: Arc::default() }
    }

    pub async fn answer<B>(&self, request: &Request<B>, door: Door) -> Answer {
        let mut answer = match guard::refuse(request.method(), request.version(), request.headers(), door) {
            Some((status, why)) => problem(status, why),
            None => self.serve(request, door).await,
        };
        if answer.status() == StatusCode::METHOD_NOT_ALLOWED {
            answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        if !guard::may_see(request.headers(), door, self.token.as_ref()) {
            // Connections of viewers without the token must not keep the places of others.
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        guard::harden(answer.headers_mut());
        if request.method() == Method::HEAD {
            let (head, body) = answer.into_parts();
            let length = hyper::body::Body::size_hint(&body).exact();
            let mut answer = Response::from_parts(head, Reply::Whole(None));
            if let Some(length) = length {
                answer.headers_mut().insert(header::CONTENT_LENGTH, length.into());
            }
            return answer;
        }
        answer
    }

    async fn serve<B>(&self, request: &Request<B>, door: Door) -> Answer {
        let path = request.uri().path();
        if let Some((kind, bytes)) = page::file(path) {
            let mut answer = whole(StatusCode::OK, kind, bytes);
            answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            return answer;
        }
        if !guard::may_see(request.headers(), door, self.token.as_ref()) {
            let mut answer = problem(StatusCode::UNAUTHORIZED, "a token is needed: Authorization: Bearer TOKEN");
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return answer;
        }
        let Some(query) = Query::parse(request.uri().query()) else {
            return problem(StatusCode::BAD_REQUEST, "the query is not percent-encoded UTF-8, or too long");
        };
        let snapshot = self.snapshots.borrow().clone();
        if path == "/metrics" {
            let shm = self.shm.clone();
            return made(move || {
                let page = metrics::page(&snapshot, &shm.totals());
                whole(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page.into())
            })
            .await;
        }
        let Some(what) = path.strip_prefix("/api/v1/") else {
            return problem(StatusCode::NOT_FOUND, "there is nothing here; docs/web.md lists what there is");
        };
        match what {
            "live" => self.live(request.method()),
            "preview" | "preview.png" => self.preview(&query, what == "preview.png").await,
            _ => {
                let (what, previews) = (what.to_owned(), self.previews);
                made(move || {
                    tell(&what, &query, &snapshot, previews).unwrap_or_else(|(status, why)| problem(status, why))
                })
                .await
            }
        }
    }

    /// Streams one update per sample.
    fn live(&self, method: &Method) -> Answer {
        let Ok(permit) = self.viewers.clone().try_acquire_owned() else {
            return problem(StatusCode::SERVICE_UNAVAILABLE, "16 viewers are here already");
        };
        let (viewer, pieces) = mpsc::channel(1);
        if method != Method::HEAD {
            let (snapshots, previews) = (self.snapshots.clone(), self.previews);
            tokio::spawn(async move {
                live::follow(snapshots, viewer, previews).await;
                drop(permit);
            });
        }
        typed(Response::new(Reply::Pieces(pieces)), "text/event-stream")
    }

    async fn preview(&self, query: &Query, picture: bool) -> Answer {
        if !self.previews {
            return problem(StatusCode::FORBIDDEN, "previews are off: tensorlend web --previews");
        }
        let Some(name) = query.get("name").map(str::to_owned) else {
            return problem(StatusCode::BAD_REQUEST, "which name?");
        };
        let member = query.get("member").map(str::to_owned);
        let namespace = query.get("namespace");
        let wanted = |(known, _): &&(String, Connect)| namespace.is_none_or(|ns| known == ns);
        let Some((_, connect)) = self.joined.iter().find(wanted).cloned() else {
            return match self.snapshots.borrow().namespace(namespace) {
                Some(_) => problem(StatusCode::FORBIDDEN, "an observer sees no values"),
                None => problem(StatusCode::NOT_FOUND, "this namespace is not shown here"),
            };
        };
        let Ok(turn) = self.previewing.clone().acquire_owned().await else {
            return problem(StatusCode::SERVICE_UNAVAILABLE, "the server ends");
        };
        made(move || {
            let answer = look_into(&connect, &name, member.as_deref(), picture);
            drop(turn);
            answer
        })
        .await
    }
}

/// Builds a response on a blocking thread. A single thread serves all connections, and a response
/// with ten thousand entries takes milliseconds.
async fn made(make: impl FnOnce() -> Answer + Send + 'static) -> Answer {
    let answer = tokio::task::spawn_blocking(make).await;
    answer.unwrap_or_else(|_| problem(StatusCode::INTERNAL_SERVER_ERROR, "the response could not be created"))
}

/// Returns a part of the latest sample.
fn tell(what: &str, query: &Query, snapshot: &Snapshot, previews: bool) -> Result<Answer, (StatusCode, &'static str)> {
    let bad = |()| (StatusCode::BAD_REQUEST, "limit and offset are numbers");
    let limit = query.number("limit", LIMIT).map_err(bad)?.min(LIMIT_MAX);
    let offset = query.number("offset", 0).map_err(bad)?;
    if what == "status" {
        return Ok(answer(&json::status(snapshot, previews)));
    }
    if what == "events" {
        let after = query.number("after", 0).map_err(bad)? as u64;
        let events = snapshot.events.iter().rev().filter(|event| event.number > after);
        return Ok(list(snapshot, "events", events.map(|e| || json::event(e)), offset, limit));
    }
    let ns = snapshot.namespace(query.get("namespace"));
    let ns: &Namespace = ns.ok_or((StatusCode::NOT_FOUND, "this namespace is not shown here"))?;
    let seen = &ns.sampled.seen;
    Ok(match what {
        "clients" => list(snapshot, what, view::clients(seen).into_iter().map(|c| || json::client(c)), offset, limit),
        "segments" => {
            let with_slots = query.get("slots").is_some_and(|slots| slots == "1");
            list(snapshot, what, seen.segments.iter().map(|s| move || json::segment(ns, s, with_slots)), offset, limit)
        }
        "streams" => list(snapshot, what, seen.streams.iter().map(|s| || json::stream(ns, s)), offset, limit),
        "leases" => list(snapshot, what, seen.leases.iter().map(|l| || json::lease(ns, l)), offset, limit),
        "history" => list(snapshot, what, ns.history.iter().map(|p| || json::point(p)), 0, LIMIT_MAX),
        "names" => {
            let part = query.get("contains").unwrap_or_default();
            let found = ns.values().filter(|value| match &value.origin {
                tensorlend::observe::Origin::Name(name) => name.contains(part),
                tensorlend::observe::Origin::Item { list: name, .. }
                | tensorlend::observe::Origin::Message { stream: name, .. } => !part.is_empty() && name.contains(part),
            });
            list(snapshot, what, found.map(|v| || json::value(v)), offset, limit)
        }
        _ => return Err((StatusCode::NOT_FOUND, "there is nothing here; docs/web.md lists what there is")),
    })
}

/// Leases a value and reads it, in a session of its own. The end of the session unmaps all memory,
/// because the daemon cannot free a segment that a process has mapped.
fn look_into(connect: &Connect, name: &str, member: Option<&str>, picture: bool) -> Answer {
    let Ok(client) = connect() else { return problem(StatusCode::BAD_GATEWAY, "the daemon does not respond") };
    let value = match client.get_value(name) {
        Ok(value) => value,
        Err(error) if error.is_not_found() => return problem(StatusCode::NOT_FOUND, "there is no such name"),
        Err(tensorlend::Error::Name { .. }) => return problem(StatusCode::BAD_REQUEST, "that cannot be a name"),
        Err(_) => return problem(StatusCode::BAD_GATEWAY, "its value cannot be read"),
    };
    let tensor = match (&value, member) {
        (Leased::Tensor(lease), None) => Some(&**lease),
        (Leased::Dataset(dataset), Some(member)) => dataset.get(member),
        (Leased::Dataset(dataset), None) if !picture => {
            let members = dataset.members().take(LIMIT).map(|(name, member)| {
                json!({ "name": name, "dtype": member.dtype().to_string(), "shape": member.shape(), "nbytes": member.nbytes() })
            });
            return answer(&json!({ "members": members.collect::<Vec<_>>() }));
        }
        _ => None,
    };
    let Some(tensor) = tensor else { return problem(StatusCode::NOT_FOUND, "there is no such tensor in it") };
    if !picture {
        return answer(&preview::describe(tensor));
    }
    match picture::draw(tensor) {
        Some(picture) => whole(StatusCode::OK, "image/png", picture.png.into()),
        None => problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, "it does not look like a picture"),
    }
}

/// Returns a page of a list, and the length of the list.
fn list(
    snapshot: &Snapshot,
    what: &str,
    all: impl Iterator<Item: FnOnce() -> Value>,
    offset: usize,
    limit: usize,
) -> Answer {
    let mut total = 0;
    let mut some = Vec::new();
    for make in all {
        if total >= offset && some.len() < limit {
            some.push(make());
        }
        total += 1;
    }
    answer(&json!({ "look": snapshot.number, "at_ms": snapshot.at_ms, "total": total, "offset": offset, what: some }))
}

fn answer(value: &Value) -> Answer {
    whole(StatusCode::OK, "application/json", value.to_string().into())
}

/// Returns an error response. Its text is a constant, so it never contains parts of the request.
fn problem(status: StatusCode, why: &'static str) -> Answer {
    whole(status, "application/json", json!({ "error": why }).to_string().into())
}

fn whole(status: StatusCode, kind: &'static str, bytes: Bytes) -> Answer {
    let mut answer = typed(Response::new(bytes.into()), kind);
    *answer.status_mut() = status;
    answer
}

fn typed(mut answer: Answer, kind: &'static str) -> Answer {
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
