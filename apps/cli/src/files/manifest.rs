//! The manifest in the header of a file of `tensorlend save`, from which `tensorlend load` publishes the same values.
//!
//! A .safetensors file identifies tensors by key. But a name may hold a dataset, and tensors and datasets have metadata
//! (any bytes) and a timestamp. So the header's metadata has the key `tensorlend`, whose text is JSON:
//!
//! ```json
//! {"version": 1, "names": [
//!   {"name": "weights", "key": "weights", "metadata": "epoch 3", "timestamp_ns": 1700000000000000000},
//!   {"name": "frame", "metadata_hex": "ff00", "members": [{"name": "image", "key": "frame/image"}]}]}
//! ```
//!
//! `metadata` is text. `metadata_hex` contains bytes that are not UTF-8, as two hexadecimal digits
//! per byte. Empty values and zeros are omitted.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

/// The key of the manifest in the header's metadata.
pub const KEY: &str = "tensorlend";
const VERSION: u32 = 1;
/// A key that the format reserves.
const RESERVED: &str = "__metadata__";

/// The contents of a file of `tensorlend save`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    version: u32,
    pub names: Vec<Named>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    pub name: String,
    /// The tensor's key in the file; `None` for a dataset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(flatten)]
    pub about: About,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<Member>>,
}

/// A tensor of a dataset.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub name: String,
    pub key: String,
    #[serde(flatten)]
    pub about: About,
}

/// Metadata and timestamp of a tensor or a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metadata: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metadata_hex: Option<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub timestamp_ns: u64,
}

// serde prescribes this signature.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl About {
    pub fn new(metadata: &[u8], timestamp_ns: u64) -> Self {
        let (text, hex) = match std::str::from_utf8(metadata) {
            Ok("") => (None, None),
            Ok(text) => (Some(text.to_owned()), None),
            Err(_) => {
                let digits = metadata.iter().flat_map(|byte| [byte >> 4, byte & 15]);
                (None, Some(digits.filter_map(|digit| char::from_digit(digit.into(), 16)).collect()))
            }
        };
        Self { metadata: text, metadata_hex: hex, timestamp_ns }
    }

    /// Returns the metadata's bytes; `None` if the encoding is invalid.
    pub fn metadata(&self) -> Option<Vec<u8>> {
        match (&self.metadata, &self.metadata_hex) {
            (None, None) => Some(Vec::new()),
            (Some(text), None) => Some(text.clone().into_bytes()),
            (None, Some(hex)) => {
                let digits: Option<Vec<u8>> = hex.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
                let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
                Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
            }
            (Some(_), Some(_)) => None,
        }
    }
}

impl Manifest {
    pub fn new(names: Vec<Named>) -> Self {
        Self { version: VERSION, names }
    }

    /// Returns the manifest for a file without one, in which each key becomes a name.
    pub fn of_keys<'a>(keys: impl Iterator<Item = &'a str>) -> Self {
        let named = |key: &str| Named {
            name: key.to_owned(),
            key: Some(key.to_owned()),
            about: About::default(),
            members: None,
        };
        Self::new(keys.map(named).collect())
    }

    /// Parses a manifest and compares it with the file's keys. Each tensor and each name must occur
    /// exactly once in the manifest.
    ///
    /// # Errors
    /// A text about the fault, which follows the file's name in the message.
    pub fn read<'a>(text: &str, keys: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let it: Self = serde_json::from_str(text).map_err(|e| format!("its notes cannot be understood: {e}"))?;
        if it.version != VERSION {
            return Err(format!("its notes are of version {}, and this program reads version {VERSION}", it.version));
        }
        let mut left: HashSet<&str> = keys.collect();
        let (mut names, mut members) = (HashSet::new(), HashSet::new());
        for named in &it.names {
            if !names.insert(&named.name) {
                return Err(format!("its notes have the name {:?} twice", named.name));
            }
            if named.key.is_some() == named.members.is_some() {
                return Err(format!("its notes do not say whether {:?} is a tensor or a dataset", named.name));
            }
            members.clear();
            for member in named.members.iter().flatten() {
                if !members.insert(&member.name) {
                    return Err(format!("its notes have {:?} twice in {:?}", member.name, named.name));
                }
            }
            let keys = named.key.iter().chain(named.members.iter().flatten().map(|member| &member.key));
            for key in keys {
                if !left.remove(key.as_str()) {
                    return Err(format!("its notes want one tensor {key:?} for {:?}", named.name));
                }
            }
            let abouts = named.members.iter().flatten().map(|member| &member.about).chain([&named.about]);
            if abouts.into_iter().any(|about| about.metadata().is_none()) {
                return Err(format!("the metadata of {:?} cannot be understood", named.name));
            }
        }
        match left.into_iter().min() {
            None => Ok(it),
            Some(key) => Err(format!("its notes do not know its tensor {key:?}")),
        }
    }

    pub fn text(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers are JSON")
    }
}

/// Assigner of keys to tensors. If a requested key is already taken, it assigns a similar key.
#[derive(Debug)]
pub struct Keys {
    taken: HashSet<String>,
}

impl Keys {
    /// Reserves the names of tensors, which have precedence, and the format's own key.
    pub fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        Self { taken: names.chain([RESERVED]).map(str::to_owned).collect() }
    }

    /// Returns the key of a single tensor, which is the tensor's name if the format allows it.
    pub fn own(&mut self, name: &str) -> String {
        if name == RESERVED { self.take(name) } else { name.to_owned() }
    }

    pub fn take(&mut self, wanted: &str) -> String {
        let other = (2..).map(|n| format!("{wanted}#{n}"));
        let key = std::iter::once(wanted.to_owned()).chain(other).find(|key| !self.taken.contains(key));
        let key = key.expect("numbers do not end before keys do");
        self.taken.insert(key.clone());
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let member = |name: &str| Member { name: name.to_owned(), key: format!("f/{name}"), about: About::default() };
        Manifest::new(vec![
            Named { name: "a".into(), key: Some("a".into()), about: About::new(b"\xff\x00", 7), members: None },
            Named {
                name: "f".into(),
                key: None,
                about: About::new("ü".as_bytes(), 0),
                members: Some(vec![member("x"), member("y")]),
            },
        ])
    }

    #[test]
    fn what_is_written_is_read() {
        let it = manifest();
        assert_eq!(Manifest::read(&it.text(), ["a", "f/x", "f/y"].into_iter()).unwrap(), it);
        assert_eq!(it.names[0].about.metadata().unwrap(), b"\xff\x00");
        assert_eq!(it.names[1].about.metadata().unwrap(), "ü".as_bytes());
        assert!(it.text().contains("\"metadata_hex\":\"ff00\",\"timestamp_ns\":7"), "{}", it.text());
    }

    #[test]
    fn notes_that_do_not_fit_are_refused() {
        let text = manifest().text();
        let keys = ["a", "f/x", "f/y"];
        for (from, to, says) in [
            ("\"version\":1", "\"version\":2", "version 2"),
            ("\"key\":\"a\"", "\"key\":\"f/x\"", "\"f/x\""),
            ("\"key\":\"a\",", "", "tensor or a dataset"),
            ("\"name\":\"f\"", "\"name\":\"a\"", "twice"),
            ("\"name\":\"y\"", "\"name\":\"x\"", "twice"),
            ("ff00", "ff0", "metadata"),
            ("ff00", "ff0g", "metadata"),
            ("[", "{", "understood"),
        ] {
            let error = Manifest::read(&text.replacen(from, to, 1), keys.into_iter()).unwrap_err();
            assert!(error.contains(says), "{from} {to}: {error}");
        }
        let error = Manifest::read(&text, ["a", "b", "f/x", "f/y"].into_iter()).unwrap_err();
        assert!(error.contains("\"b\""), "{error}");
    }

    #[test]
    fn keys_are_unique() {
        let mut keys = Keys::new(["f/x"].into_iter());
        assert_eq!(keys.take("f/x"), "f/x#2");
        assert_eq!(keys.take("f/x"), "f/x#3");
        assert_eq!(keys.take("f/y"), "f/y");
        assert_eq!(keys.own("f/x"), "f/x");
        assert_eq!(keys.own("__metadata__"), "__metadata__#2");
    }
}
