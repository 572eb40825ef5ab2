//! The modules of a crate and the arrows between them, read from `use` declarations and paths.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tensorlend_tests::tree::texts;

/// The modules of a crate: path of the module, text of its file. Tests are left out.
fn modules(src: &Path) -> BTreeMap<Vec<String>, String> {
    let mut found = BTreeMap::new();
    for (path, text) in texts(src, "rs") {
        let mut module: Vec<String> = path
            .strip_prefix(src)
            .unwrap()
            .with_extension("")
            .iter()
            .map(|part| part.to_str().unwrap().into())
            .collect();
        if module.iter().any(|part| part == "tests" || part == "main" || part == "bin") {
            continue;
        }
        if module.last().is_some_and(|last| last == "mod" || last == "lib") {
            module.pop();
        }
        // A file's own tests stand at its end.
        let marks = ["#[cfg(test)]\nmod tests {", "#[cfg(test)]\npub mod tests {"];
        let end = marks.iter().filter_map(|mark| text.find(mark)).min().unwrap_or(text.len());
        found.insert(module, text[..end].to_owned());
    }
    found
}

/// A path that a `use` declaration imports.
#[derive(Debug)]
struct Import {
    /// Whether others can import it from this module: a re-export.
    is_public: bool,
    /// Its name in this module; `*` for all names of a module.
    name: String,
    path: Vec<String>,
}

/// The text of a `use` declaration without attributes, and whether it is public; `None` for another line.
fn declaration(line: &str) -> Option<(bool, &str)> {
    if let Some(tree) = line.strip_prefix("use ") {
        return Some((false, tree));
    }
    let rest = line.strip_prefix("pub")?;
    let rest = if rest.starts_with('(') { rest.split_once(')')?.1 } else { rest };
    Some((true, rest.trim_start().strip_prefix("use ")?))
}

/// Splits a text without its comments into the paths that its `use` declarations import, with braces expanded, and the rest.
fn imports(text: &str) -> (Vec<Import>, String) {
    let (mut found, mut rest) = (Vec::new(), String::new());
    let mut lines = text.lines().map(|line| if line.trim_start().starts_with("//") { "" } else { line });
    while let Some(line) = lines.next() {
        let Some((is_public, tree)) = declaration(line.trim_start()) else {
            rest.push_str(line);
            rest.push('\n');
            continue;
        };
        let mut tree = tree.to_owned();
        while !tree.contains(';') {
            let Some(line) = lines.next() else { break };
            tree.push_str(line.trim());
        }
        expand(tree.split(';').next().unwrap(), &[], is_public, &mut found);
    }
    (found, rest)
}

fn expand(tree: &str, before: &[String], is_public: bool, found: &mut Vec<Import>) {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias)));
        let mut path: Vec<String> =
            before.iter().cloned().chain(path.split("::").map(|part| part.trim().to_owned())).collect();
        // `a::{self}` imports the module `a`.
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let name = alias.map_or_else(|| path.last().unwrap().clone(), |alias| alias.trim().to_owned());
        found.push(Import { is_public, name, path });
        return;
    };
    let mut path = before.to_vec();
    path.extend(tree[..open].split("::").map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()));
    let inner = &tree[open + 1..tree.rfind('}').expect("braces are closed")];
    let (mut depth, mut begin) = (0, 0);
    for (at, sign) in inner.char_indices().chain([(inner.len(), ',')]) {
        match sign {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !inner[begin..at].trim().is_empty() {
                    expand(&inner[begin..at], &path, is_public, found);
                }
                begin = at + 1;
            }
            _ => {}
        }
    }
}

/// True if the text has this word, not as a part of a longer one.
pub fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part))
}

/// The paths of a text that begin with `crate::`, `self::` or `super::`, except calls of macros.
fn inline_paths(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for first in ["crate::", "self::", "super::"] {
        for (at, _) in text.match_indices(first) {
            // `$crate` is written where a macro is defined, and read where it is called.
            if text[..at].ends_with(|c: char| c.is_alphanumeric() || "_:$".contains(c)) {
                continue;
            }
            let path = text[at..].split(|c: char| !(c.is_alphanumeric() || "_:".contains(c))).next().unwrap();
            if !text[at + path.len()..].starts_with('!') {
                found.push(path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect());
            }
        }
    }
    found
}

/// The modules of a crate, with the paths that they import and the rest of their texts.
pub struct Modules {
    read: BTreeMap<Vec<String>, (Vec<Import>, String)>,
}

impl Modules {
    /// Reads the modules of a crate.
    pub fn of(src: &Path) -> Self {
        Self { read: modules(src).into_iter().map(|(module, text)| (module, imports(&text))).collect() }
    }

    /// A path of a module from the crate's root; `None` if it leads into another crate or to an item of the module itself.
    fn absolute(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let child = || module.iter().chain(&path[..1]).cloned().collect::<Vec<_>>();
        let mut at = match path[0].as_str() {
            "crate" => Vec::new(),
            "self" | "super" => module.to_vec(),
            _ if self.read.contains_key(&child()) => module.to_vec(),
            _ => return None,
        };
        for part in path {
            match part.as_str() {
                "crate" | "self" => {}
                "super" => {
                    at.pop();
                }
                part => at.push(part.to_owned()),
            }
        }
        Some(at)
    }

    /// Returns the module that defines the path's target: the longest prefix of the path that is a module, or the
    /// module from which that one re-exports it.
    fn defining(&self, path: &[String]) -> &Vec<String> {
        let length = (0..=path.len()).rev().find(|&length| self.read.contains_key(&path[..length])).unwrap();
        let (module, (imports, rest)) = self.read.get_key_value(&path[..length]).unwrap();
        let Some(name) = path.get(length) else { return module };
        let public = || imports.iter().filter(|import| import.is_public);
        if let Some(there) =
            public().find(|import| import.name == *name).and_then(|import| self.absolute(module, &import.path))
        {
            return self.defining(&[&there[..], &path[length + 1..]].concat());
        }
        let defines = |text: &str| {
            ["fn", "struct", "enum", "trait", "const", "static", "type", "mod", "union"]
                .iter()
                .any(|kind| has_word(text, &format!("{kind} {name}")))
        };
        if defines(rest) {
            return module;
        }
        let globs = public().filter(|import| import.name == "*");
        let there = globs.filter_map(|import| self.absolute(module, &import.path[..import.path.len() - 1]));
        there
            .filter_map(|there| self.read.get_key_value(&there))
            .find(|(_, (_, rest))| defines(rest))
            .map_or(module, |(there, _)| there)
    }

    /// Returns for each module the modules that it uses, by `use` and by paths in its code. A re-export that the module
    /// itself does not use does not count.
    pub fn arrows(&self) -> BTreeMap<&Vec<String>, BTreeSet<&Vec<String>>> {
        let of = |(module, (imports, rest)): (_, &(Vec<Import>, String))| {
            let module: &Vec<String> = module;
            let used = imports.iter().filter(|import| !import.is_public || has_word(rest, &import.name));
            let paths = used.map(|import| import.path.clone()).chain(inline_paths(rest));
            let to: BTreeSet<&Vec<String>> = paths
                .filter_map(|path| self.absolute(module, &path))
                .map(|path| self.defining(&path))
                .filter(|to| *to != module)
                .collect();
            (module, to)
        };
        self.read.iter().map(of).collect()
    }
}

#[test]
fn imports_are_read() {
    let text =
        "use crate::a::{self, b::C, d::{E, F as G}};\npub(crate) use super::x;\nuse std::fmt;\n// we use crate::no;\n";
    let (read, rest) = imports(text);
    let paths: Vec<String> = read.iter().map(|import| import.path.join("::")).collect();
    assert_eq!(paths, ["crate::a", "crate::a::b::C", "crate::a::d::E", "crate::a::d::F", "super::x", "std::fmt"]);
    let names: Vec<&str> = read.iter().map(|import| import.name.as_str()).collect();
    assert_eq!(names, ["a", "C", "E", "G", "x", "fmt"]);
    assert_eq!(read.iter().filter(|import| import.is_public).count(), 1);
    assert_eq!(rest.trim(), "");
    let inline: Vec<String> = inline_paths("crate::a!(); $crate::b; x(super::c::D::new(), crate::e::<T>())")
        .iter()
        .map(|path| path.join("::"))
        .collect();
    assert_eq!(inline, ["crate::e", "super::c::D::new"]);
}

#[test]
fn paths_lead_through_re_exports_and_into_children() {
    let module = |path: &str| path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    let texts = [
        ("", "mod a;\nmod b;\npub use a::One;\npub use b::*;\n"),
        ("a", "mod child;\nuse child::Part;\npub use child::Whole;\npub struct One;\n"),
        ("a::child", "use crate::Two;\npub struct Part;\npub struct Whole;\n"),
        ("b", "pub struct Two;\nfn f(_: crate::a::Whole) {}\n"),
    ];
    let modules = Modules { read: texts.iter().map(|(path, text)| (module(path), imports(text))).collect() };
    let arrows = modules.arrows();
    let to = |path: &str| arrows[&module(path)].iter().map(|to| to.join("::")).collect::<Vec<_>>();
    assert_eq!(to(""), Vec::<String>::new(), "it only re-exports");
    assert_eq!(to("a"), ["a::child"]);
    assert_eq!(to("a::child"), ["b"]);
    assert_eq!(to("b"), ["a::child"]);
}
