//! The rules of a session that uses TLS: every link is encrypted, and certificates decide who gets one.
//!
//! By default zenoh listens on plain TCP, finds peers by multicast, and connects to every endpoint that they announce.
//! A peer without a certificate would get a link in each of these ways, although all configured endpoints use TLS. So
//! TLS anywhere in the configuration confines the whole session:
//!
//! * The allow-list of link protocols has only QUIC, which TLS encrypts. Zenoh checks the list when it listens and when it
//!   connects, also for endpoints that it has learnt from other nodes.
//! * Multicast scouting is off: whoever replies to it chooses the endpoint to which this node connects.
//! * Zenoh's default listeners, which are plain, do not apply.
//!
//! A setting that contradicts these rules is an error, because the user may rely on it.

use serde_json::Value;
use zenoh::config::EndPoint;

/// The protocol whose links TLS encrypts and authenticates. Links of zenoh's protocol `tls` are left out: their reader
/// and their writer change the state of one rustls connection without a lock (zenoh issue 2557).
const ENCRYPTED: &str = "quic";

/// Protocols that use TLS. An endpoint with one of them shows that the user expects TLS, also if this build lacks it.
const PROTOCOLS_OF_TLS: [&str; 3] = [ENCRYPTED, "quic-datagram", "tls"];

/// Protocols whose links this build has: the features of zenoh in the workspace's `Cargo.toml`.
const PROTOCOLS_BUILT: [&str; 4] = [ENCRYPTED, "tcp", "udp", "unixsock-stream"];

/// The mode of a session whose configuration has no mode.
const DEFAULT_MODE: &str = "peer";

const LISTEN: &str = "listen/endpoints";
const CONNECT: &str = "connect/endpoints";
const PROTOCOLS: &str = "transport/link/protocols";
const MULTICAST: &str = "scouting/multicast/enabled";
const MUTUAL: &str = "enable_mtls";
const VERIFY_NAME: &str = "verify_name_on_connect";

/// Certificates and keys below `transport/link/tls`. If one of them is set, the user expects TLS.
const CREDENTIALS: [&str; 5] =
    ["root_ca_certificate", "listen_certificate", "listen_private_key", "connect_certificate", "connect_private_key"];

/// A setting with which no link can exist, or with which peers without a valid certificate would get a link although TLS
/// is configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{setting}: {why}")]
pub struct Refused {
    /// The setting: a key of zenoh's configuration.
    pub setting: String,
    /// The reason why the gateway refuses the setting, and the remedy.
    pub why: String,
}

fn refused(setting: &str, why: String) -> Refused {
    Refused { setting: setting.to_owned(), why }
}

/// Confines a session to TLS if its configuration uses TLS anywhere. Returns a warning if the user has chosen to let
/// peers connect without a certificate. Endpoints of other modes than the session's mode do not apply.
///
/// # Errors
/// [`Refused`].
pub(super) fn confine(config: &mut zenoh::Config) -> Result<Option<String>, Refused> {
    let listens_by_default = get(config, LISTEN) == get(&zenoh::Config::default(), LISTEN);
    let listen = if listens_by_default { Vec::new() } else { endpoints(config, LISTEN) };
    let connect = endpoints(config, CONNECT);
    for (setting, endpoints) in [(LISTEN, &listen), (CONNECT, &connect)] {
        if let Some(foreign) = endpoints.iter().find(|endpoint| !is_built(endpoint.protocol().as_str())) {
            let why = format!(
                "\"{}\" uses a protocol that this gateway is built without: use one of {}",
                foreign.to_locator(),
                PROTOCOLS_BUILT.join(", ")
            );
            return Err(refused(setting, why));
        }
    }
    let Some(reason) = uses_tls(config) else { return Ok(None) };
    for (setting, endpoints) in [(LISTEN, &listen), (CONNECT, &connect)] {
        if let Some(plain) = endpoints.iter().find(|endpoint| !is_encrypted(endpoint.protocol().as_str())) {
            let plain = plain.to_locator();
            let why = format!(
                "\"{plain}\" is not encrypted, but TLS is configured ({reason}): use only endpoints that begin with quic/, or remove all settings of TLS"
            );
            return Err(refused(setting, why));
        }
    }
    if listen.is_empty() && connect.is_empty() {
        let why = format!(
            "TLS is configured ({reason}), but no endpoint. With TLS, peers do not find each other by multicast: set endpoints that begin with quic/ in listen or connect"
        );
        return Err(refused(&format!("{LISTEN}, {CONNECT}"), why));
    }
    if get(config, MULTICAST) == Value::Bool(true) {
        let why = format!(
            "multicast scouting connects to peers without a certificate, but TLS is configured ({reason}): set it to false, and list the peers in connect"
        );
        return Err(refused(MULTICAST, why));
    }
    let skips_name = |endpoint| switch(config, endpoint, VERIFY_NAME) == Some(false);
    if listen.iter().chain(&connect).map(Some).chain([None]).any(skips_name) {
        let why = "with false, zenoh accepts any certificate that a public authority has signed, for any name: \
                   remove this setting, and issue certificates for the names or addresses in connect";
        return Err(refused(&tls(VERIFY_NAME), why.into()));
    }
    check_files(config)?;
    let warning = confine_listeners(config, &listen)?;
    confine_protocols(config, &reason)?;
    set(config, MULTICAST, "false")?;
    if listens_by_default {
        set(config, LISTEN, "[]")?;
    }
    Ok(warning)
}

/// Checks that the files with certificates and keys can be read and have PEM's form. Otherwise the session would start,
/// and each link would fail later.
fn check_files(config: &zenoh::Config) -> Result<(), Refused> {
    for key in CREDENTIALS {
        let Value::String(path) = get(config, &tls(key)) else { continue };
        let (kind, ends) = if key.ends_with("_key") {
            ("private key", "PRIVATE KEY-----")
        } else {
            ("certificate", "BEGIN CERTIFICATE-----")
        };
        let fault = match std::fs::read(&path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()) {
            Err(error) => format!("cannot read \"{path}\": {error}"),
            Ok(text) if text.contains("ENCRYPTED PRIVATE KEY-----") => {
                format!("the key in \"{path}\" is encrypted: decrypt it")
            }
            Ok(text) if !text.contains(ends) => format!("\"{path}\" has no {kind} in PEM format"),
            Ok(_) => continue,
        };
        return Err(refused(&tls(key), fault));
    }
    Ok(())
}

/// Sets the allow-list of link protocols, unless the user has a stricter one.
fn confine_protocols(config: &mut zenoh::Config, reason: &str) -> Result<(), Refused> {
    let Value::Array(given) = get(config, PROTOCOLS) else {
        return set(config, PROTOCOLS, &Value::from(vec![ENCRYPTED]).to_string());
    };
    // A protocol that this build does not have permits no link.
    let mut built = given.iter().filter_map(Value::as_str).filter(|protocol| is_built(protocol));
    if let Some(plain) = built.find(|protocol| !is_encrypted(protocol)) {
        let why = format!("\"{plain}\" is not encrypted, but TLS is configured ({reason}): list only \"quic\"");
        return Err(refused(PROTOCOLS, why));
    }
    if !given.iter().any(|protocol| protocol.as_str() == Some(ENCRYPTED)) {
        return Err(refused(PROTOCOLS, "the list permits no link of this gateway: list \"quic\"".into()));
    }
    Ok(())
}

/// Checks that listeners require certificates, or that the user has decided that they do not.
fn confine_listeners(config: &zenoh::Config, listen: &[EndPoint]) -> Result<Option<String>, Refused> {
    let mut warning = None;
    // zenoh asks for no password if the file has no line and this gateway has no password of its own.
    let [users, user, password] = ["dictionary_file", "user", "password"]
        .map(|key| get(config, &format!("transport/auth/usrpwd/{key}")).as_str().map(str::to_owned));
    let has_passwords = users.is_some_and(|path| {
        user.is_some() && password.is_some() || std::fs::read_to_string(path).is_ok_and(|text| !text.trim().is_empty())
    });
    for endpoint in listen {
        let locator = endpoint.to_locator();
        let Some(mutual) = switch(config, Some(endpoint), MUTUAL) else {
            let why = format!(
                "not set, so \"{locator}\" would accept peers without a certificate: set it to true. Set it to false only if peers show a password (transport/auth/usrpwd), or if every host that reaches the port may read all exported names"
            );
            return Err(refused(&tls(MUTUAL), why));
        };
        if !mutual && !has_passwords {
            let setting = tls(MUTUAL);
            warning = Some(format!(
                "every host that reaches \"{locator}\" can read all exported names: set {setting} to true, so that peers must show a certificate"
            ));
        }
    }
    Ok(warning)
}

/// Returns the reason why TLS counts as configured, or `None`. Endpoints of all modes count, because a user who changes
/// the mode must not lose TLS.
fn uses_tls(config: &zenoh::Config) -> Option<String> {
    for (name, setting) in [("listen", LISTEN), ("connect", CONNECT)] {
        let endpoints = endpoints_in(&get(config, setting));
        if let Some(endpoint) =
            endpoints.iter().find(|endpoint| PROTOCOLS_OF_TLS.contains(&endpoint.protocol().as_str()))
        {
            return Some(format!("{name} has \"{}\"", endpoint.to_locator()));
        }
    }
    let is_set = |key: &String| get(config, key) != Value::Null;
    let credentials = CREDENTIALS.iter().flat_map(|key| [tls(key), format!("{}_base64", tls(key))]);
    if let Some(key) = { credentials }.find(is_set) {
        return Some(format!("{key} is set"));
    }
    (switch(config, None, MUTUAL) == Some(true)).then(|| format!("{} is true", tls(MUTUAL)))
}

fn tls(key: &str) -> String {
    format!("transport/link/tls/{key}")
}

fn is_encrypted(protocol: &str) -> bool {
    protocol == ENCRYPTED
}

fn is_built(protocol: &str) -> bool {
    PROTOCOLS_BUILT.contains(&protocol)
}

/// Returns a switch of TLS as it applies to an endpoint, whose own parameters override the global keys.
fn switch(config: &zenoh::Config, endpoint: Option<&EndPoint>, key: &str) -> Option<bool> {
    let own = endpoint.and_then(|endpoint| endpoint.config().get(key).map(|value| value == "true"));
    own.or_else(|| get(config, &tls(key)).as_bool())
}

/// Returns the endpoints of a setting in the session's mode.
fn endpoints(config: &zenoh::Config, setting: &str) -> Vec<EndPoint> {
    match get(config, setting) {
        Value::Object(modes) => {
            let mode = get(config, "mode");
            modes.get(mode.as_str().unwrap_or(DEFAULT_MODE)).map_or_else(Vec::new, endpoints_in)
        }
        list => endpoints_in(&list),
    }
}

/// Returns all endpoints of a value: of every mode, and of groups of endpoints.
fn endpoints_in(value: &Value) -> Vec<EndPoint> {
    fn collect(value: &Value, into: &mut Vec<EndPoint>) {
        match value {
            // Other strings, such as the strategy of a group, are no endpoints.
            Value::String(text) => into.extend(text.parse::<EndPoint>()),
            Value::Array(values) => values.iter().for_each(|value| collect(value, into)),
            Value::Object(values) => values.values().for_each(|value| collect(value, into)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    collect(value, &mut found);
    found
}

fn get(config: &zenoh::Config, key: &str) -> Value {
    config.get_json(key).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or(Value::Null)
}

fn set(config: &mut zenoh::Config, key: &str, value: &str) -> Result<(), Refused> {
    config.insert_json5(key, value).map_err(|error| refused(key, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> zenoh::Config {
        zenoh::Config::from_json5(text).unwrap()
    }

    const MUTUAL_TLS: &str = "transport: { link: { tls: { enable_mtls: true } } }";

    #[test]
    fn tls_anywhere_confines_the_session_to_tls() {
        for text in [
            format!("{{ listen: {{ endpoints: ['quic/[::]:7447'] }}, {MUTUAL_TLS} }}"),
            format!("{{ mode: 'router', listen: {{ endpoints: {{ router: ['quic/[::]:7447'] }} }}, {MUTUAL_TLS} }}"),
            // The other modes' endpoints do not apply.
            "{ connect: { endpoints: { peer: ['quic/hub:1'], router: ['tcp/hub:2'] } } }".into(),
            "{ mode: 'client', connect: { endpoints: { client: ['quic/hub:1'], peer: ['ws/hub:2'] } } }".into(),
            "{ listen: { endpoints: ['quic/[::]:7447#enable_mtls=true'] } }".into(),
            "{ connect: { endpoints: ['quic/hub:7447'] } }".into(),
            "{ connect: { endpoints: [{ strategy: 'allOf', locators: ['quic/hub:7447', 'quic/hub:7448'] }] } }".into(),
            "{ connect: { endpoints: ['quic/hub:7447'] }, scouting: { multicast: { enabled: false } } }".into(),
        ] {
            let mut config = config(&text);
            let default = get(&config, LISTEN) == get(&zenoh::Config::default(), LISTEN);
            assert_eq!(confine(&mut config), Ok(None), "{text}");
            assert_eq!(get(&config, PROTOCOLS), serde_json::json!(["quic"]), "{text}");
            assert_eq!(get(&config, MULTICAST), false, "{text}");
            assert!(endpoints(&config, LISTEN).iter().all(|endpoint| is_encrypted(endpoint.protocol().as_str())));
            assert_eq!(endpoints(&config, LISTEN).is_empty(), default, "{text}");
            // A session that is confined already stays so.
            let once = config.to_string();
            assert_eq!(confine(&mut config), Ok(None), "{text}");
            assert_eq!(config.to_string(), once);
        }
        let text = "{ connect: { endpoints: ['quic/hub:7447'] }, transport: { link: { protocols: ['quic'] } } }";
        let mut stricter = config(text);
        assert_eq!(confine(&mut stricter), Ok(None));
        assert_eq!(get(&stricter, PROTOCOLS), serde_json::json!(["quic"]));
    }

    #[test]
    fn the_protocols_of_the_build_are_known() {
        let protocols =
            ["quic", "quic-datagram", "serial", "tcp", "tls", "udp", "unixpipe", "unixsock-stream", "vsock", "ws"];
        for protocol in protocols {
            let text = format!(
                "{{ listen: {{ endpoints: ['{protocol}/nowhere.invalid:1'], exit_on_failure: true, timeout_ms: 0 }}, \
                 scouting: {{ multicast: {{ enabled: false }} }} }}"
            );
            let error = zenoh::Wait::wait(zenoh::open(config(&text))).err().map(|error| error.to_string());
            let is_missing = error.as_ref().is_some_and(|error| error.contains("not supported for"));
            assert_eq!(is_missing, !is_built(protocol), "{protocol}: {error:?}");
        }
    }

    #[test]
    fn without_tls_nothing_changes() {
        for text in [
            "{}",
            "{ listen: { endpoints: ['tcp/[::]:7447'] }, scouting: { multicast: { enabled: true } } }",
            // As in zenoh's example file.
            "{ transport: { link: { tls: { enable_mtls: false, verify_name_on_connect: true, root_ca_certificate: null } } } }",
        ] {
            let mut config = config(text);
            let before = config.to_string();
            assert_eq!(confine(&mut config), Ok(None), "{text}");
            assert_eq!(config.to_string(), before, "{text}");
        }
    }

    #[test]
    fn settings_that_let_peers_in_without_a_certificate_are_named() {
        let link = |link: &str| format!("transport: {{ link: {{ {link} }} }}");
        let to = |endpoints: &str, more: &str| format!("{{ connect: {{ endpoints: {endpoints} }}, {more} }}");
        let on = |endpoints: &str, more: &str| format!("{{ listen: {{ endpoints: {endpoints} }}, {more} }}");
        let authority = link("tls: { root_ca_certificate: '/ca.pem' }");
        let inline = link("tls: { root_ca_certificate_base64: 'AA==' }");
        let cases = [
            (to("['quic/hub:1', 'tcp/hub:2']", ""), CONNECT, "tcp/hub:2"),
            (to("['quic/hub:1', 'udp/224.0.0.5:2']", ""), CONNECT, "udp/224.0.0.5:2"),
            (to("['quic/hub:1', 'unixsock-stream/a']", ""), CONNECT, "unixsock-stream/a"),
            (to("[{ strategy: 'allOf', locators: ['quic/hub:1', 'tcp/hub:2'] }]", ""), CONNECT, "tcp/hub:2"),
            (to("{ peer: ['tcp/hub:2'], router: ['quic/hub:1'] }", ""), CONNECT, "tcp/hub:2"),
            (to("{ peer: ['quic/hub:1'], router: ['tcp/hub:2'] }", "mode: 'router'"), CONNECT, "tcp/hub:2"),
            (on("{ router: ['quic/[::]:1'] }", MUTUAL_TLS), "listen/endpoints, connect/endpoints", "no endpoint"),
            (on("['tls/[::]:1']", MUTUAL_TLS), LISTEN, "built without"),
            (to("['quic/hub:1', 'tls/hub:2']", ""), CONNECT, "\"tls/hub:2\""),
            (to("['serial/hub:2']", ""), CONNECT, "built without"),
            (to("['quic/hub:1']", "listen: { endpoints: ['tcp/[::]:0'] }"), LISTEN, "tcp/[::]:0"),
            (on("['udp/[::]:1']", &authority), LISTEN, "root_ca_certificate is set"),
            (on("['tcp/[::]:1']", &inline), LISTEN, "root_ca_certificate_base64 is set"),
            (on("['tcp/[::]:1']", MUTUAL_TLS), LISTEN, "enable_mtls is true"),
            (format!("{{ {authority} }}"), "listen/endpoints, connect/endpoints", "no endpoint"),
            (to("['quic/hub:1']", "scouting: { multicast: { enabled: true } }"), MULTICAST, "to false"),
            (to("['quic/hub:1']", &link("protocols: ['quic', 'tcp']")), PROTOCOLS, "\"tcp\""),
            (to("['quic/hub:1']", &link("protocols: ['tls']")), PROTOCOLS, "no link"),
            (
                to("['quic/hub:1']", &link("tls: { verify_name_on_connect: false }")),
                "transport/link/tls/verify_name_on_connect",
                "",
            ),
            (to("['quic/hub:1#verify_name_on_connect=false']", ""), "transport/link/tls/verify_name_on_connect", ""),
            (on("['quic/[::]:1']", ""), "transport/link/tls/enable_mtls", "quic/[::]:1"),
            (
                to("['quic/hub:1']", &link("tls: { connect_certificate: '/nowhere/node.pem' }")),
                "transport/link/tls/connect_certificate",
                "cannot read \"/nowhere/node.pem\"",
            ),
            (
                to("['quic/hub:1']", &link("tls: { root_ca_certificate: '/dev/null' }")),
                "transport/link/tls/root_ca_certificate",
                "PEM",
            ),
        ];
        for (text, setting, words) in cases {
            let mut config = config(&text);
            let before = config.to_string();
            let error = confine(&mut config).expect_err(&text);
            assert_eq!(error.setting, setting, "{text}: {error}");
            assert!(error.why.contains(words), "{text}: {error}");
            assert_eq!(config.to_string(), before, "{text}");
        }
    }

    #[test]
    fn listeners_without_certificates_of_peers_are_a_decision() {
        let tls = "tls: { enable_mtls: false }";
        let open = format!("{{ listen: {{ endpoints: ['quic/[::]:1'] }}, transport: {{ link: {{ {tls} }} }} }}");
        assert!(confine(&mut config(&open)).unwrap().unwrap().contains("\"quic/[::]:1\""));
        // An endpoint's own parameter overrides the global one.
        let own = open.replace("quic/[::]:1", "quic/[::]:1#enable_mtls=true");
        assert_eq!(confine(&mut config(&own)), Ok(None));
        let own = format!("{{ listen: {{ endpoints: ['quic/[::]:1#enable_mtls=false'] }}, {MUTUAL_TLS} }}");
        assert!(confine(&mut config(&own)).unwrap().is_some());
        let auth = "auth: { usrpwd: { user: 'a', password: 'b', dictionary_file: '/passwords' } }";
        let passwords =
            format!("{{ listen: {{ endpoints: ['quic/[::]:1'] }}, transport: {{ link: {{ {tls} }}, {auth} }} }}");
        assert_eq!(confine(&mut config(&passwords)), Ok(None));
        // Without a password of its own and without a line in the file, the gateway asks for none.
        let file = tempfile::NamedTempFile::new().unwrap();
        let auth = format!("auth: {{ usrpwd: {{ dictionary_file: '{}' }} }}", file.path().display());
        let passwords =
            format!("{{ listen: {{ endpoints: ['quic/[::]:1'] }}, transport: {{ link: {{ {tls} }}, {auth} }} }}");
        assert!(confine(&mut config(&passwords)).unwrap().is_some());
        std::fs::write(file.path(), "hub:x\n").unwrap();
        assert_eq!(confine(&mut config(&passwords)), Ok(None));
    }
}
