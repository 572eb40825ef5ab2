//! Parser of query strings.

use percent_encoding::percent_decode_str;

/// Maximum number of pairs in a query string.
const PAIRS_MAX: usize = 16;

/// A request's query, as decoded names and values.
#[derive(Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Parses a query. Returns `None` for invalid UTF-8, and for too many pairs.
    pub fn parse(text: Option<&str>) -> Option<Self> {
        let mut pairs = Vec::new();
        for pair in text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            pairs.push((decode(name)?, decode(value)?));
        }
        (pairs.len() <= PAIRS_MAX).then_some(Self(pairs))
    }

    /// Returns the first value with this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// Returns a number, or the default if the name is missing. Returns an error if the value is not a number.
    pub fn number(&self, name: &str, default: usize) -> Result<usize, ()> {
        self.get(name).map_or(Ok(default), |text| text.parse().map_err(|_| ()))
    }
}

/// Decodes `application/x-www-form-urlencoded` text, in which a plus is a space.
fn decode(text: &str) -> Option<String> {
    percent_decode_str(&text.replace('+', " ")).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_decoded_once() {
        let query = Query::parse(Some("name=%3Cscript%3E%20a%2Bb+c&n=3&n=4&&flag")).unwrap();
        assert_eq!(query.get("name"), Some("<script> a+b c"));
        assert_eq!((query.number("n", 0), query.number("m", 7), query.number("name", 0)), (Ok(3), Ok(7), Err(())));
        assert_eq!((query.get("flag"), query.get("none")), (Some(""), None));
        assert!(Query::parse(Some("a=%ff")).is_none());
        assert!(Query::parse(Some(&"a&".repeat(17))).is_none());
        assert!(Query::parse(None).is_some());
    }
}
