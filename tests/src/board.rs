//! A page of words shared by the processes of a test, so that they can wait for each other without messages.

use std::path::Path;
use std::time::Instant;
use tensorlend_layout::raw::View;
use tensorlend_layout::word::Word;
use tensorlend_os::map;
use tensorlend_os::memfd::Access;

const BYTES: usize = 4096;
/// Index of the first counter, and distance between counters.
const FIRST: usize = 64;

pub struct Board {
    view: View,
    players: usize,
}

impl Board {
    /// Creates a board in a file, for this number of players, who open it with [`Board::open`].
    pub fn make(path: &Path, players: usize) -> std::io::Result<Self> {
        std::fs::write(path, vec![0; BYTES])?;
        let board = Self::open(path)?;
        board.word(8).set(players as u64);
        Ok(Self { players, ..board })
    }

    /// Opens an existing board.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let file = std::fs::File::options().read(true).write(true).open(path)?;
        let view = map::sheet(&file.into(), BYTES, Access::Write)?;
        let mut board = Self { view, players: 0 };
        board.players = board.word(8).read() as usize;
        Ok(board)
    }

    fn word(&self, at: usize) -> &Word {
        self.view.at(at).expect("a word of the board")
    }

    pub fn is_over(&self) -> bool {
        self.word(0).read() != 0
    }

    pub fn end(&self) {
        self.word(0).set(1);
    }

    /// Counts one more round of a player.
    pub fn round(&self, player: usize) {
        self.word(FIRST + player * 64).add(1);
    }

    /// Returns the number of rounds that a player has done.
    pub fn rounds(&self, player: usize) -> u64 {
        self.word(FIRST + player * 64).read()
    }

    /// Waits until every player has begun and finished this many more rounds; false if a player makes no progress for
    /// [`crate::PATIENCE`].
    pub fn wait(&self, rounds: u64) -> bool {
        let goals: Vec<u64> = (0..self.players).map(|player| self.rounds(player) + rounds + 1).collect();
        let start = Instant::now();
        loop {
            if self.is_over() || goals.iter().enumerate().all(|(player, goal)| self.rounds(player) >= *goal) {
                return true;
            }
            if start.elapsed() > crate::PATIENCE {
                return false;
            }
            std::thread::yield_now();
        }
    }
}
