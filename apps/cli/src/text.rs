//! Texts for people: sizes, ages, owners, and text that cannot harm a terminal.

use std::time::Duration;

use tensorlend::observe::{ClientSeen, ClientState, ValueSeen};
use tensorlend::{DType, Refusals, RestartLoss};

/// Escapes characters that would control a terminal, or disguise the rest of the line.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || is_misleading(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// Returns true if a character is invisible and changes the order or the appearance of other
/// characters. Such characters are direction marks, line ends, zero-width spaces and tags. The two
/// zero-width joiners are allowed, because some scripts need them.
fn is_misleading(c: char) -> bool {
    matches!(c,
        '\u{AD}' | '\u{61C}' | '\u{180E}' | '\u{200B}' | '\u{200E}' | '\u{200F}' | '\u{2028}'..='\u{202E}'
        | '\u{2060}'..='\u{206F}' | '\u{FEFF}' | '\u{FFF9}'..='\u{FFFB}' | '\u{E0000}'..='\u{E007F}')
}

/// Formats bytes with a binary unit.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = "";
    for next in UNITS {
        // A value that would round to 1024.0 gets the next unit.
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// Formats a duration in its largest unit.
pub fn age_text(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..=9 => format!("{:.1} s", age.as_secs_f64()),
        10..=99 => format!("{seconds} s"),
        100..=5999 => format!("{} min", seconds / 60),
        6000..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Returns the text of a pid. The pid is 0 if the process is in a pid namespace that the daemon does not see.
pub fn pid_text(pid: u32) -> String {
    if pid == 0 { "?".to_owned() } else { pid.to_string() }
}

/// Returns a client's process and its label, and whether the client has ended.
pub fn owner_text(pid: u32, label: &str, is_alive: bool) -> String {
    let gone = if is_alive { "" } else { " (gone)" };
    format!("{} {label}{gone}", pid_text(pid))
}

/// Returns a client as [`owner_text`] does. The client is unknown if an observation omitted it.
pub fn client_text(client: Option<&ClientSeen>) -> String {
    client.map_or_else(|| "?".to_owned(), |it| owner_text(it.pid, &it.label, it.state != ClientState::Ended))
}

/// Returns the element type of a value. It is unknown for a value on a device.
pub fn dtype_text(value: &ValueSeen) -> &'static str {
    value.dtype.map_or(if value.is_dataset { "dataset" } else { "?" }, DType::name)
}

/// Returns the shape of a value as text, if it is known.
pub fn shape_text(value: &ValueSeen) -> String {
    value.shape.as_ref().map_or_else(String::new, |shape| format!("{shape:?}"))
}

/// Formats a number with its noun, such as "1 name" or "2 names".
pub fn count(number: impl Into<u64>, what: &str) -> String {
    let number = number.into();
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// Returns the number of refusals, with their reasons if there are any.
pub fn refused_text(refusals: &Refusals) -> String {
    let reasons = [
        (refusals.limit, "for a limit"),
        (refusals.invalid, "invalid"),
        (refusals.race, "because another client was first"),
    ];
    let reasons = reasons.into_iter().filter(|&(number, _)| number > 0);
    let reasons: Vec<String> = reasons.map(|(number, reason)| format!("{number} {reason}")).collect();
    if reasons.is_empty() {
        return "0 refused".to_owned();
    }
    format!("{} refused ({})", refusals.total(), reasons.join(", "))
}

/// Returns the losses of a restart, with the cause.
pub fn loss_text(lost: &RestartLoss) -> String {
    let RestartLoss { names, streams, bytes, namespaces, why } = lost;
    let namespaces = match namespaces {
        0 => String::new(),
        some => format!(", {} whole", count(*some, "namespace")),
    };
    let (names, streams) = (count(*names, "name"), count(*streams, "stream"));
    format!("lost {names}, {streams}{namespaces} and {} of segments: {why}", bytes_text(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(bytes_text(0), "0 B");
        assert_eq!(bytes_text(1023), "1023 B");
        assert_eq!(bytes_text(1536), "1.5 KiB");
        assert_eq!(bytes_text((1 << 20) - 1), "1.0 MiB");
        assert_eq!(bytes_text(1 << 30), "1.0 GiB");
        assert_eq!(bytes_text(u64::MAX), "16.0 EiB");
    }

    #[test]
    fn refusals_have_reasons() {
        assert_eq!(refused_text(&Refusals::default()), "0 refused");
        assert_eq!(
            refused_text(&Refusals { limit: 2, invalid: 0, race: 1 }),
            "3 refused (2 for a limit, 1 because another client was first)"
        );
    }

    #[test]
    fn ages() {
        let text = |seconds| age_text(Duration::from_secs_f64(seconds));
        assert_eq!([text(0.25), text(12.0), text(600.0), text(7200.0)], ["0.2 s", "12 s", "10 min", "2 h"]);
        assert_eq!(text(1e6), "11 d");
    }

    #[test]
    fn plurals() {
        assert_eq!(count(1u64, "name"), "1 name");
        assert_eq!(count(0u64, "name"), "0 names");
    }
}
