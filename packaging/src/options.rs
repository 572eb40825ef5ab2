//! The manual page of the configuration, made from the file that explains every option.

use crate::page::Page;
use clap_mangen::roff::{Roff, bold, roman};

/// Starts a line that shows an example, or a default that depends on the machine.
const EXAMPLE: &str = "#= ";

/// The page of a file in which comments stand above the options that they explain.
pub fn page(file: &str) -> Page {
    let (head, options) = file.split_once("\n\n").expect("the file begins with words about itself");
    let source = format!("tensorlend {}", env!("CARGO_PKG_VERSION"));
    let mut roff = Roff::new();
    roff.control("TH", ["tensorlendd.toml", "5", "", source.as_str(), "tensorlend"]);
    roff.control("SH", ["NAME"]).text([roman("tensorlendd.toml - configuration of tensorlendd")]);
    roff.control("SH", ["SYNOPSIS"]).text([roman("/etc/tensorlend/tensorlendd.toml")]);
    roff.control("SH", ["DESCRIPTION"]);
    let words: Vec<&str> = head.lines().map(|line| line.trim_start_matches(['#', ' '])).collect();
    // What it says of its marks is about the file.
    let words = words.join(" ").replace("Lines that begin with \"#=\" show", "Shown are also");
    let words = words.trim_start_matches("tensorlendd: ");
    roff.text([roman(capital(words))]);
    roff.text([roman("The file is TOML. "), bold("tensorlendd --print-config"), roman(" prints all of it; ")]);
    roff.text([bold("tensorlendd --check-config --config FILE"), roman(" says what is wrong with one.")]);
    roff.control("SH", ["OPTIONS"]);
    for block in options.split("\n\n") {
        explain(block, &mut roff);
    }
    roff.control("SH", ["SEE ALSO"]).text([bold("tensorlendd"), roman("(8), "), bold("tensorlend"), roman("(1)")]);
    Page { name: "tensorlendd.toml.5".into(), text: roff.render().into_bytes() }
}

/// A block: words, and the lines that they are about. A table's head may stand before or after its words.
fn explain(block: &str, roff: &mut Roff) {
    let mut words: Vec<&str> = Vec::new();
    let mut lines: Vec<&str> = Vec::new();
    for line in block.lines() {
        let example = line.strip_prefix(EXAMPLE);
        if let Some(comment) = line.strip_prefix('#').filter(|_| example.is_none()) {
            words.push(comment.trim_start());
        } else if line.starts_with('[') {
            roff.control("SS", [line]);
            for word in words.drain(..) {
                roff.text([roman(word)]);
            }
        } else {
            lines.push(example.unwrap_or(line));
        }
    }
    for (at, line) in lines.iter().enumerate() {
        roff.control(if at == 0 { "TP" } else { "TQ" }, []);
        roff.text([bold(*line)]);
    }
    for word in words {
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
    fn every_option_is_told_under_its_table() {
        let page = page(tensorlend_daemon::EXAMPLE);
        let text = String::from_utf8(page.text).unwrap();
        let options = tensorlend_daemon::EXAMPLE.lines().filter(|line| {
            let line = line.strip_prefix(EXAMPLE).unwrap_or(line);
            line.split_once(" = ").is_some_and(|(key, _)| key.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        });
        let shown = text.lines().filter(|line| line.starts_with("\\fB") && line.contains(" = ")).count();
        assert_eq!(shown, options.count(), "{text}");
        assert!(text.contains(".SS [pool]\n") && text.contains(".SS [uid]\n"), "{text}");
    }
}
