//! The manual pages of configurations, made from the files that explain every option.

use crate::page::Page;
use clap_mangen::roff::{Roff, bold, roman};

/// Starts a line that shows an example, or a default that depends on the machine.
const EXAMPLE: &str = "#= ";

/// A configuration file.
pub struct Configuration {
    /// The program that reads the file.
    pub program: &'static str,
    pub name: &'static str,
    /// The file's usual path.
    pub path: &'static str,
    /// The call that checks a file.
    pub check: &'static str,
    /// The file, in which comments stand above the options that they explain.
    pub text: &'static str,
}

pub const ALL: &[Configuration] = &[
    DAEMON,
    #[cfg(feature = "companions")]
    GATEWAY,
];

const DAEMON: Configuration = Configuration {
    program: "tensorlendd",
    name: "tensorlendd.toml",
    path: "/etc/tensorlend/tensorlendd.toml",
    check: "tensorlendd --check-config --config FILE",
    text: tensorlend_daemon::EXAMPLE,
};

#[cfg(feature = "companions")]
const GATEWAY: Configuration = Configuration {
    program: "tensorlend-gateway",
    name: "tensorlend-gateway.toml",
    path: "/etc/tensorlend/gateway.toml",
    check: "tensorlend-gateway --check --config FILE",
    text: tensorlend_gateway::config::EXAMPLE,
};

pub fn page(of: &Configuration) -> Page {
    let (head, options) = of.text.split_once("\n\n").expect("the file begins with words about itself");
    let source = format!("tensorlend {}", env!("CARGO_PKG_VERSION"));
    let mut roff = Roff::new();
    roff.control("TH", [of.name, "5", "", source.as_str(), "tensorlend"]);
    roff.control("SH", ["NAME"]).text([roman(format!("{} - configuration of {}", of.name, of.program))]);
    roff.control("SH", ["SYNOPSIS"]).text([roman(of.path)]);
    roff.control("SH", ["DESCRIPTION"]);
    let words: Vec<&str> = head.lines().map(|line| line.trim_start_matches(['#', ' '])).collect();
    // The sentence about the signs of the file does not fit the page, which has no signs.
    let words = words.join(" ").replace("Lines that begin with \"#=\" show", "Inspected are also");
    let words = words.trim_start_matches(of.program).trim_start_matches(": ");
    roff.text([roman(capital(words))]);
    let print = format!("{} --print-config", of.program);
    roff.text([roman("The file is TOML. "), bold(print), roman(" prints all of it; ")]);
    roff.text([bold(of.check), roman(" names the faults of a file.")]);
    roff.control("SH", ["OPTIONS"]);
    for block in options.split("\n\n") {
        explain(block, &mut roff);
    }
    let (program, section) = (of.program, "(8), ");
    roff.control("SH", ["SEE ALSO"]).text([bold(program), roman(section), bold("tensorlend"), roman("(1)")]);
    Page { name: format!("{}.5", of.name), text: roff.render().into_bytes() }
}

/// Explains a block of the file: comments, each above the options that it is about. The head of a table may stand before
/// or after its comment.
fn explain(block: &str, roff: &mut Roff) {
    let mut words: Vec<&str> = Vec::new();
    let mut lines: Vec<&str> = Vec::new();
    for line in block.lines() {
        // An option without effect has no space after its sign.
        let option =
            line.strip_prefix(EXAMPLE).or_else(|| line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')));
        let option =
            option.filter(|option| !option.is_empty()).or_else(|| Some(line).filter(|line| !line.starts_with('#')));
        match option {
            Some(head) if head.starts_with('[') => {
                describe(&mut words, &mut lines, roff);
                roff.control("SS", [head]);
                for word in words.drain(..) {
                    roff.text([roman(word)]);
                }
            }
            Some(option) => lines.push(option),
            None => {
                if !lines.is_empty() {
                    describe(&mut words, &mut lines, roff);
                }
                words.push(line.trim_start_matches('#').trim_start());
            }
        }
    }
    describe(&mut words, &mut lines, roff);
}

/// Writes options with their explanations. Text before the first option goes to the head of the next table.
fn describe(words: &mut Vec<&str>, lines: &mut Vec<&str>, roff: &mut Roff) {
    if lines.is_empty() {
        return;
    }
    for (at, line) in lines.drain(..).enumerate() {
        roff.control(if at == 0 { "TP" } else { "TQ" }, []);
        roff.text([bold(line)]);
    }
    for word in words.drain(..) {
        roff.text([roman(word)]);
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_explained_under_its_table() {
        for (of, tables) in [(DAEMON, [".SS [pool]\n", ".SS [uid]\n"]), (GATEWAY, [".SS [[namespace]]\n", "export"])] {
            let page = page(&of);
            let text = String::from_utf8(page.text).unwrap();
            let options = of.text.lines().filter(|line| {
                let line = line.strip_prefix(EXAMPLE).unwrap_or(line).trim_start_matches('#');
                line.split_once(" = ").is_some_and(|(key, _)| key.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
            });
            let shown = text.lines().filter(|line| line.starts_with("\\fB") && line.contains(" = ")).count();
            assert_eq!(shown, options.count(), "{text}");
            assert!(tables.iter().all(|table| text.contains(table)), "{text}");
        }
    }
}
