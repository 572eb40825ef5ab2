//! The work of one of the two processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::mpsc::Sender;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::game::Game;
use super::invitation::Invitation;
use super::link::{Lender, Sleeper};
use super::name::NamePoller;
use super::stream::{LoanPoller, Poller};
use crate::BaselineError;
use crate::cores::{pin, unpin};
use crate::end::{Alarm, Each, Player, Volley};

/// The prefix of a line that reports an error.
pub(super) const ERROR: &str = "error: ";

/// Runs a party in this process.
pub(crate) fn serve(words: &[String]) -> Result<(), BaselineError> {
    let Some(invitation) = Invitation::read(words) else { return Err(BaselineError::Arguments(words.to_vec())) };
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(BaselineError::system("ask to end with the parent"))?;
    // Check the parent, because it may have ended before the call above.
    if getppid().is_none_or(|pid| pid.as_raw_nonzero().get().cast_unsigned() != invitation.parent) {
        return Err(BaselineError::ProducerGone);
    }
    // Undo the pinning that this process may have inherited, because a client that may use only one
    // core never spins.
    unpin()?;
    let played = play(&invitation);
    if let Err(error) = &played {
        say(&format!("{ERROR}{error}"))?;
    }
    played
}

fn play(invitation: &Invitation) -> Result<(), BaselineError> {
    let mut player: Box<dyn Player> = match invitation.game {
        Game::StreamPoll => Box::new(Volley::one_way(Poller::<false>::meet(invitation)?)),
        Game::StreamLoan => Box::new(Volley::one_way(LoanPoller::<false>::meet(invitation)?)),
        Game::StreamLoanWrittenRead => Box::new(Volley::one_way(LoanPoller::<true>::meet(invitation)?)),
        Game::StreamWrittenRead => Box::new(Volley::one_way(Poller::<true>::meet(invitation)?)),
        Game::NamePoll => Box::new(Volley::one_way(NamePoller::meet(invitation)?)),
        Game::StreamWake | Game::StreamEpoll => Box::new(Alarm(Sleeper::meet(invitation)?)),
        Game::Lend | Game::Put => Box::new(Volley::round_trip(Lender::meet(invitation)?)),
        Game::StreamLoanEach => Box::new(Each(LoanPoller::<false>::meet(invitation)?)),
        #[cfg(feature = "iceoryx2")]
        Game::IceoryxPollEach => Box::new(Each(super::iceoryx::Poller::<false>::meet(invitation)?)),
        #[cfg(feature = "iceoryx2")]
        Game::IceoryxPoll => Box::new(Volley::one_way(super::iceoryx::Poller::<false>::meet(invitation)?)),
        #[cfg(feature = "iceoryx2")]
        Game::IceoryxWrittenRead => Box::new(Volley::one_way(super::iceoryx::Poller::<true>::meet(invitation)?)),
        #[cfg(not(feature = "iceoryx2"))]
        Game::IceoryxPoll | Game::IceoryxPollEach | Game::IceoryxWrittenRead => {
            return Err(BaselineError::NotBuilt { feature: "iceoryx2" });
        }
    };
    pin(invitation.core)?;
    say("ready")?;
    for line in std::io::stdin().lines() {
        let line = line.map_err(BaselineError::system("hear the next order"))?;
        let rounds = line.trim().parse().map_err(|_| BaselineError::Arguments(vec![line.clone()]))?;
        let mut samples_ns = Vec::new();
        player.play(invitation.side, rounds, &mut samples_ns)?;
        let words: Vec<String> = samples_ns.iter().map(ToString::to_string).collect();
        say(&words.join(" "))?;
    }
    Ok(())
}

fn say(line: &str) -> Result<(), BaselineError> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(BaselineError::system("report"))
}

/// Forwards the lines of a party's output to the channel.
pub(super) fn forward(out: impl Read, lines: &Sender<String>) {
    for line in BufReader::new(out).lines().map_while(Result::ok) {
        if lines.send(line).is_err() {
            return;
        }
    }
}
