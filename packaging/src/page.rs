//! Manual pages of commands.

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::io;
use std::path::Path;

/// The foot of every page.
const MANUAL: &str = "tensorlend";

/// A page as it is written.
pub struct Page {
    pub name: String,
    pub text: Vec<u8>,
}

impl Page {
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        std::fs::write(folder.join(&self.name), &self.text)
    }
}

/// The pages of a command and of all its subcommands.
pub fn all(command: Command, section: &str) -> Vec<Page> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    collect(&command, section, &mut pages);
    pages
}

fn collect(command: &Command, section: &str, pages: &mut Vec<Page>) {
    for subcommand in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        collect(subcommand, section, pages);
    }
    pages.push(of(command, section));
}

fn of(command: &Command, section: &str) -> Page {
    let source = format!("tensorlend {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).section(section).source(source).manual(MANUAL);
    let mut text = Vec::new();
    let render = |text: &mut Vec<u8>| {
        man.render_title(text)?;
        man.render_name_section(text)?;
        man.render_synopsis_section(text)?;
        man.render_description_section(text)?;
        man.render_options_section(text)?;
        if command.has_subcommands() {
            man.render_subcommands_section(text)?;
        }
        let after = command.get_after_long_help().or(command.get_after_help());
        if let Some(after) = after {
            sections(&after.to_string()).to_writer(text)?;
        }
        see_also(command, section).to_writer(text)
    };
    render(&mut text).expect("a vector takes whatever is written");
    Page { name: man.get_filename(), text }
}

/// The sections of a help's foot, each under a line of its own that ends with a colon. Their lines stay lines, which
/// clap_mangen would fill.
fn sections(foot: &str) -> Roff {
    let mut roff = Roff::new();
    let mut open = false;
    for line in foot.lines() {
        match line.strip_suffix(':') {
            Some(title) if !line.starts_with(' ') => {
                if open {
                    roff.control("fi", []);
                }
                roff.control("SH", [title.to_uppercase().as_str()]);
                roff.control("nf", []);
                open = true;
            }
            _ => _ = roff.text([roman(line)]),
        }
    }
    if open {
        roff.control("fi", []);
    }
    roff
}

fn see_also(command: &Command, section: &str) -> Roff {
    let own = command.get_display_name().unwrap_or_else(|| command.get_name());
    let all = [
        ("tensorlend", "1"),
        ("tensorlend-runner", "1"),
        ("tensorlendd.toml", "5"),
        ("tensorlend-gateway.toml", "5"),
        ("tensorlend-gateway", "8"),
        ("tensorlendd", "8"),
    ];
    let others = all.into_iter().filter(|other| *other != (own, section));
    let words = others.enumerate().flat_map(|(at, (name, section))| {
        let comma = if at == 0 { "" } else { ", " };
        [roman(comma), bold(name), roman(format!("({section})"))]
    });
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]).text(words.collect::<Vec<_>>());
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foot_keeps_its_lines() {
        let foot = "Examples:\n  one --two   three\n  .four\n\nExit status:\n  0  done\n";
        let text = sections(foot).render();
        assert_eq!(text.matches(".SH").count(), 2, "{text}");
        assert_eq!(text.matches(".nf\n").count(), text.matches(".fi\n").count());
        assert!(text.contains(".SH EXAMPLES") && text.contains(r#".SH "EXIT STATUS""#), "{text}");
        assert!(text.contains("  one \\-\\-two   three"), "{text}");
    }
}
