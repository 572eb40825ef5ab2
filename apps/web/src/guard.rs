//! Access control, and the security headers of every response.

use crate::token::Token;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode, Version};
use std::net::{IpAddr, Ipv6Addr};

/// The way in which a request arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// A TCP port that only this machine reaches.
    Loopback,
    /// A TCP port that other machines reach.
    Open,
    /// A Unix socket that only this user can open.
    Unix,
}

/// The Content-Security-Policy. The browser loads nothing from other origins, and runs only this
/// server's scripts. Images may be blobs, because the page draws pictures from data that it has
/// fetched.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// Returns the error response for a request that is not allowed. Returns `None` for an allowed
/// request.
pub fn refuse(
    method: &Method,
    version: Version,
    headers: &HeaderMap,
    door: Door,
) -> Option<(StatusCode, &'static str)> {
    if method != Method::GET && method != Method::HEAD {
        return Some((StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are allowed"));
    }
    // Reject a body, because no request of this API has one.
    let has_body = headers.contains_key(header::TRANSFER_ENCODING)
        || headers.get(header::CONTENT_LENGTH).is_some_and(|length| length != "0");
    if has_body {
        return Some((StatusCode::PAYLOAD_TOO_LARGE, "a request has no body here"));
    }
    if version == Version::HTTP_10 || version == Version::HTTP_11 {
        let mut hosts = headers.get_all(header::HOST).iter();
        let (host, more) = (hosts.next(), hosts.next());
        // Prevent DNS rebinding. Otherwise a foreign page whose name resolves to this machine would
        // have the same origin as this server in the browser.
        if more.is_some() || door == Door::Loopback && !host.is_some_and(|host| is_loopback(host.as_bytes())) {
            return Some((StatusCode::MISDIRECTED_REQUEST, "ask for localhost or 127.0.0.1"));
        }
    }
    None
}

/// Returns true if the request may see more than the page's static files.
pub fn may_see(headers: &HeaderMap, door: Door, token: Option<&Token>) -> bool {
    match (door, token) {
        (Door::Unix, _) | (Door::Loopback, None) => true,
        // Never reached, because a server with an open port requires a token.
        (Door::Open, None) => false,
        (_, Some(token)) => token.is_in(headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes)),
    }
}

/// Returns true if a Host header names this machine's loopback, with any port.
fn is_loopback(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((name, port)) => (name, port.strip_prefix(':').or(port.is_empty().then_some("0"))),
            None => return false,
        },
        None => host.split_once(':').map_or((host, Some("0")), |(name, port)| (name, Some(port))),
    };
    if port.is_none_or(|port| port.parse::<u16>().is_err()) {
        return false;
    }
    if host.starts_with('[') {
        return name.parse::<Ipv6Addr>().is_ok_and(|ip| ip.is_loopback());
    }
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4() && ip.is_loopback())
}

/// Adds the headers that every response has.
pub fn harden(headers: &mut HeaderMap) {
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_its_own() {
        for host in ["localhost", "LOCALHOST:9470", "127.0.0.1:1", "127.1.2.3", "[::1]", "[::1]:9470"] {
            assert!(is_loopback(host.as_bytes()), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1:9470",
            "[::2]:1",
            "[::1",
            "[::1]x",
            "localhost:",
            "localhost:x",
            "127.0.0.1:1:2",
            "::1",
            "[127.0.0.1]",
            "\u{ff}",
        ] {
            assert!(!is_loopback(host.as_bytes()), "{host}");
        }
    }

    #[test]
    fn an_open_door_without_a_token_stays_closed() {
        let none = HeaderMap::new();
        assert!(may_see(&none, Door::Unix, None) && may_see(&none, Door::Loopback, None));
        assert!(!may_see(&none, Door::Open, None));
    }
}
