//! What `tensorlend save` writes into a file's header beside the tensors, so that `tensorlend load` publishes what there was.
//!
//! A .safetensors file knows tensors by key. A name may hold a dataset, and both have metadata of any bytes and a timestamp.
//! So the header's notes have the key `tensorlend`, whose text is JSON:
//!
//! ```json
//! {"version": 1, "names": [
//!   {"name": "weights", "key": "weights", "metadata": "epoch 3", "timestamp_ns": 1700000000000000000},
//!   {"name": "frame", "metadata_hex": "ff00", "members": [{"name": "image", "key": "frame/image"}]}]}
//! ```
//!
//! `metadata` is text; what is no UTF-8 is `metadata_hex`, two hexadecimal digits a byte. What is empty or 0 is left out.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

/// The key of the notes.
pub const KEY: &str = "tensorlend";
const VERSION: u32 = 1;
/// What the format keeps for itself.
const RESERVED: &str = "__metadata__";

/// What a file of `tensorlend save` holds.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    version: u32,
    pub names: Vec<Named>,
}

/// A name, and what it held.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    pub name: String,
    /// Of a tensor: its key in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(flatten)]
    pub about: About,
    /// Of a dataset: its tensors.
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

/// What travels with a tensor or a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metadata: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metadata_hex: Option<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub timestamp_ns: u64,
}

// The signature is serde's.
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

    /// The metadata's bytes; `None`: what is there is no encoding of any.
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

    /// Of a file that says nothing but its keys: each is a name.
    pub fn of_keys<'a>(keys: impl Iterator<Item = &'a str>) -> Self {
        let named = |key: &str| Named {
            name: key.to_owned(),
            key: Some(key.to_owned()),
            about: About::default(),
            members: None,
        };
        Self::new(keys.map(named).collect())
    }

    /// Reads it and compares it with the keys that there are: each tensor has one place in it, and each name occurs once.
    ///
    /// # Errors
    /// What is wrong, for a sentence that begins with the file.
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

/// Hands out keys: the wanted one, or one that looks like it where that is taken.
#[derive(Debug)]
pub struct Keys {
    taken: HashSet<String>,
}

impl Keys {
    /// Leaves out the names of tensors, which are keys before any others, and what the format keeps for itself.
    pub fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        Self { taken: names.chain([RESERVED]).map(str::to_owned).collect() }
    }

    /// The key of a tensor that has a name to itself: that name, wherever the format can have it.
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
