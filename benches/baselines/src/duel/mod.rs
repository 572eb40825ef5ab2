//! Two processes on two cores.
//!
//! Both processes run this program, and call [`serve`](crate::serve). They read the number of
//! exchanges from their standard input, and write samples to their standard output. In between they
//! sleep. If the process that started them ends, for any reason, they end, too.

mod game;
#[cfg(feature = "iceoryx2")]
mod iceoryx;
mod invitation;
mod leftovers;
mod link;
mod name;
mod party;
mod stream;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

pub use game::Game;
use invitation::{Invitation, SOCKET_DEFAULT};
use leftovers::Leftovers;
pub(crate) use party::serve;

use crate::cores::Cores;
use crate::end::Side;
use crate::within::within;
use crate::{BaselineError, Meter};

/// The first argument of the process of a party.
pub(crate) const ROLE: &str = "duel";

/// Timeout of a batch, or of the start of a party.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Time for the parties to end by themselves before they are killed.
const GRACE: Duration = Duration::from_secs(2);

/// A function that makes a command. The command runs this program so that it calls
/// [`serve`](crate::serve) with exactly these arguments.
pub type Launch<'a> = dyn Fn(&[String]) -> Command + 'a;

/// Two processes that play a [`Game`].
///
/// ```no_run
/// use std::process::Command;
/// use tensorlend_baselines::{Cores, Duel, Game, Meter, Stat, serve};
///
/// let args: Vec<String> = std::env::args().skip(1).collect();
/// if args.first().is_some_and(|first| first == "peer") {
///     return serve(&args[1..]).map_err(Into::into);
/// }
/// let launch = |args: &[String]| {
///     let mut command = Command::new("/proc/self/exe");
///     command.arg("peer").args(args);
///     command
/// };
/// let mut duel = Duel::start(Game::StreamPoll, 1 << 20, Cores::find()?, None, &launch)?;
/// let mut samples_ns = Vec::new();
/// duel.measure(10_000, &mut samples_ns)?;
/// println!("1 MiB, one way: {:.0} ns", Stat::of(&samples_ns).unwrap().p50_ns);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Duel {
    parties: [Party; 2],
    /// Files of the parties. This field must follow `parties`, so that the files are removed after
    /// the end of the parties.
    _leftovers: Option<Leftovers>,
}

struct Party {
    child: Child,
    orders: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Duel {
    /// Starts both processes, each on its core, with payloads of `bytes` bytes. `socket` is the
    /// daemon's socket, for the games of tensorlend. Without a socket, the processes find it as
    /// [`tensorlend::Client::connect`] does.
    ///
    /// # Errors
    ///
    /// [`BaselineError::NotBuilt`] if this program was built without the game's library. Otherwise
    /// the cause of the failure. After an error both processes have ended.
    pub fn start(
        game: Game,
        bytes: usize,
        cores: Cores,
        socket: Option<&Path>,
        launch: &Launch,
    ) -> Result<Self, BaselineError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        game.built()?;
        let tag = format!("duel-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let leftovers = if game.is_ours() { None } else { Some(Leftovers::new(&tag)?) };
        let folder = leftovers.as_ref().map_or_else(|| PathBuf::from("/"), |it| it.folder().to_owned());
        let socket = socket.map_or_else(|| SOCKET_DEFAULT.to_owned(), |path| path.to_string_lossy().into_owned());
        let mut invitation = Invitation {
            game,
            bytes,
            side: Side::Second,
            core: cores.second,
            socket,
            tag,
            folder,
            parent: std::process::id(),
            receiver: 0,
        };
        let second = Party::start(&invitation, launch)?;
        (invitation.side, invitation.core, invitation.receiver) = (Side::First, cores.first, second.child.id());
        let first = Party::start(&invitation, launch)?;
        let mut parties = [first, second];
        for party in &mut parties {
            party.line()?;
        }
        Ok(Self { parties, _leftovers: leftovers })
    }
}

impl Meter for Duel {
    fn measure(&mut self, operations: u64, samples_ns: &mut Vec<f64>) -> Result<(), BaselineError> {
        for party in &mut self.parties {
            party.order(operations);
        }
        for party in &mut self.parties {
            let line = party.line()?;
            for word in line.split_whitespace() {
                samples_ns.push(word.parse().map_err(|_| BaselineError::Party(line.clone()))?);
            }
        }
        Ok(())
    }
}

impl Drop for Duel {
    fn drop(&mut self) {
        for party in &mut self.parties {
            party.orders = None;
        }
        for Party { child, .. } in &mut self.parties {
            if !within(GRACE, || !matches!(child.try_wait(), Ok(None))) {
                let _ = child.kill();
            }
            let _ = child.wait();
        }
    }
}

impl Party {
    fn start(invitation: &Invitation, launch: &Launch) -> Result<Self, BaselineError> {
        let mut words = invitation.words();
        words.insert(0, ROLE.to_owned());
        let mut command = launch(&words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(BaselineError::Spawn)?;
        let (sender, lines) = channel();
        if let Some(out) = child.stdout.take() {
            // A separate thread reads the pipe, because the read has no timeout. The thread ends
            // with the child.
            std::thread::spawn(move || party::forward(out, &sender));
        }
        Ok(Self { orders: child.stdin.take(), child, lines })
    }

    fn order(&mut self, rounds: u64) {
        if let Some(orders) = &mut self.orders {
            // Ignore an error. A party that has ended has reported the reason, or its exit status
            // shows it.
            let _ = writeln!(orders, "{rounds}");
        }
    }

    /// Returns the next line of the party's output.
    fn line(&mut self) -> Result<String, BaselineError> {
        match self.lines.recv_timeout(TIMEOUT) {
            Ok(line) => match line.strip_prefix(party::ERROR) {
                Some(why) => Err(BaselineError::Party(why.to_owned())),
                None => Ok(line),
            },
            Err(RecvTimeoutError::Timeout) => {
                Err(BaselineError::Stalled { doing: "a batch of exchanges", timeout: TIMEOUT })
            }
            Err(RecvTimeoutError::Disconnected) => match self.child.wait() {
                Ok(status) => Err(BaselineError::PeerGone { status }),
                Err(error) => Err(BaselineError::Spawn(error)),
            },
        }
    }
}

impl Drop for Party {
    /// Kills the process if it is still running, as in a duel that could not start. In a complete
    /// duel the process has ended already.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
