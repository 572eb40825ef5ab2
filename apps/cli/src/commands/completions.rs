//! `tensorlend completions`: prints a completion script for a shell. The script's functions get
//! names by [`crate::commands::complete`].

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;
use crate::failure::Failure;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  tensorlend completions bash > ~/.local/share/bash-completion/completions/tensorlend
  tensorlend completions zsh > ~/.zfunc/_tensorlend
  tensorlend completions fish > ~/.config/fish/completions/tensorlend.fish
";

/// The completion functions for bash. Names are untrusted, so `printf %q` quotes them.
const BASH: &str = r#"
_tensorlend_published() {
    local cur="${COMP_WORDS[COMP_CWORD]}" verb= kind=names at name
    local -a options=()
    _tensorlend "$@"
    [[ $cur == -* || ${COMP_WORDS[COMP_CWORD-1]} == -* ]] && return
    for ((at = 1; at < COMP_CWORD; at++)); do
        case ${COMP_WORDS[at]} in
            --socket | --namespace) options+=("${COMP_WORDS[at]}" "${COMP_WORDS[at + 1]}") && ((at++)) ;;
            -*) ;;
            *) verb=${verb:-${COMP_WORDS[at]}} ;;
        esac
    done
    case $verb in
        get | info | ls | rm | remove | rename | mv | copy | cp | watch | trace | save | put) ;;
        send | recv) kind=streams ;;
        append | list-get) kind=lists ;;
        *) return ;;
    esac
    while IFS= read -r name; do
        COMPREPLY+=("$(printf %q "$name")")
    done < <(tensorlend complete "$kind" "${options[@]}" -- "$cur" 2>/dev/null)
}

complete -F _tensorlend_published -o bashdefault -o default tensorlend
"#;

/// The completion functions for zsh. `compadd` quotes names.
const ZSH: &str = r#"
_tensorlend_published() {
    local kind=names
    case $words[1] in
        send | recv) kind=streams ;;
        append | list-get) kind=lists ;;
    esac
    local -a published=("${(@f)$(tensorlend complete $kind -- "$PREFIX" 2>/dev/null)}")
    compadd -a published
}
"#;

/// The completions for fish, which quotes names itself.
const FISH: &str = r#"
complete -c tensorlend -n "__fish_seen_subcommand_from get info ls rm remove rename mv copy cp watch trace save put" \
    -a "(tensorlend complete names -- (commandline -ct) 2>/dev/null)"
complete -c tensorlend -n "__fish_seen_subcommand_from send recv" \
    -a "(tensorlend complete streams -- (commandline -ct) 2>/dev/null)"
complete -c tensorlend -n "__fish_seen_subcommand_from append list-get" \
    -a "(tensorlend complete lists -- (commandline -ct) 2>/dev/null)"
"#;

/// Print a completion script for a shell. It completes commands and options, and the names that are published now.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

impl CompletionsArgs {
    pub fn run(&self) -> Result<(), Failure> {
        output::text_block(&script(self.shell))
    }
}

/// Returns the completion script for a shell. The scripts for bash, zsh and fish also complete
/// names.
pub fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "tensorlend", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    match shell {
        Shell::Bash => script + BASH,
        Shell::Fish => script + FISH,
        Shell::Zsh => {
            let lines: Vec<String> = script.lines().map(with_names).collect();
            let text = lines.join("\n");
            // The first line must stay the first, because it names the command.
            match text.split_once('\n') {
                Some((first, rest)) => format!("{first}\n{ZSH}{rest}\n"),
                None => text,
            }
        }
        _ => script,
    }
}

/// Lets zsh complete an argument that is a name.
fn with_names(line: &str) -> String {
    let text = line.trim_start_matches(['\'', ':', '*']);
    let is_name = ["name -- The name", "from -- ", "to -- The", "glob -- ", "globs -- ", "stream -- ", "list -- "];
    if line.starts_with('\'') && is_name.iter().any(|start| text.starts_with(start)) {
        return line.replace(":_default'", ":_tensorlend_published'");
    }
    line.to_owned()
}
