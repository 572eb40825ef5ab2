//! The command-line arguments of one of the two processes.

use std::path::PathBuf;
use std::time::Duration;

use tensorlend::Client;

use super::game::Game;
use crate::BaselineError;
use crate::end::Side;

/// Timeout of the wait for the other party.
pub(super) const MEETING: Duration = Duration::from_secs(30);

/// The argument in place of a socket's path. The client then finds the socket itself.
pub(super) const SOCKET_DEFAULT: &str = "-";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Invitation {
    pub(super) game: Game,
    pub(super) bytes: usize,
    pub(super) side: Side,
    pub(super) core: usize,
    pub(super) socket: String,
    pub(super) tag: String,
    pub(super) folder: PathBuf,
    pub(super) parent: u32,
    /// The pid of the other party. Used only by the first party.
    pub(super) receiver: u32,
}

impl Invitation {
    /// Returns the arguments as text, for a command line.
    pub(super) fn words(&self) -> Vec<String> {
        vec![
            self.game.name().to_owned(),
            self.bytes.to_string(),
            if self.side == Side::First { "first" } else { "second" }.to_owned(),
            self.core.to_string(),
            self.socket.clone(),
            self.tag.clone(),
            self.folder.to_string_lossy().into_owned(),
            self.parent.to_string(),
            self.receiver.to_string(),
        ]
    }

    pub(super) fn read(words: &[String]) -> Option<Self> {
        let [game, bytes, side, core, socket, tag, folder, parent, receiver] = words else { return None };
        Some(Self {
            game: Game::ALL.into_iter().find(|it| it.name() == game)?,
            bytes: bytes.parse().ok()?,
            side: match side.as_str() {
                "first" => Side::First,
                "second" => Side::Second,
                _ => return None,
            },
            core: core.parse().ok()?,
            socket: socket.clone(),
            tag: tag.clone(),
            folder: folder.into(),
            parent: parent.parse().ok()?,
            receiver: receiver.parse().ok()?,
        })
    }

    /// Returns the names of this party's end and of the other party's.
    pub(super) fn ends(&self) -> (&'static str, &'static str) {
        match self.side {
            Side::First => ("first", "second"),
            Side::Second => ("second", "first"),
        }
    }

    /// Connects a client to the daemon.
    pub(super) fn client(&self) -> Result<Client, BaselineError> {
        let builder = Client::builder().label("bench");
        Ok(if self.socket == SOCKET_DEFAULT { builder.connect() } else { builder.socket(&self.socket).connect() }?)
    }
}

#[cfg(test)]
mod tests {
    use super::{Game, Invitation, Side};

    #[test]
    fn an_invitation_survives_its_words() {
        for game in Game::ALL {
            let invitation = Invitation {
                game,
                bytes: 5,
                side: Side::First,
                core: 1,
                socket: "/a b".to_owned(),
                tag: "t".to_owned(),
                folder: "/f".into(),
                parent: 7,
                receiver: 8,
            };
            let mut words = invitation.words();
            assert_eq!(Invitation::read(&words), Some(invitation));
            words[2] = "third".to_owned();
            assert_eq!(Invitation::read(&words), None);
        }
        assert_eq!(Invitation::read(&[]), None);
    }
}
