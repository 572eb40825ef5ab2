//! The duration of the loop's turns. Debug builds log a turn that takes long, with the step that took most of it.

use std::fmt::{self, Debug, Write};
use std::time::{Duration, Instant};

/// Duration from which a turn is long. While the loop works on one turn, all clients wait.
const LONG: Duration = Duration::from_millis(20);

/// The longest step of the current turn. Release builds record nothing.
#[derive(Debug, Default)]
pub struct Turn {
    began: Option<Instant>,
    longest: (Duration, String),
}

impl Turn {
    /// Begins a turn, when the loop has woken.
    pub fn begin(&mut self) {
        if cfg!(debug_assertions) {
            *self = Self { began: Some(Instant::now()), longest: Default::default() };
        }
    }

    /// Returns the start of a step.
    pub fn step(&self) -> Option<Instant> {
        self.began.map(|_| Instant::now())
    }

    /// Ends a step that [`Turn::step`] has begun.
    pub fn end_step(&mut self, began: Option<Instant>, name: impl FnOnce() -> String) {
        let took = began.map_or(Duration::ZERO, |began| began.elapsed());
        if took > self.longest.0 {
            self.longest = (took, name());
        }
    }

    pub fn end(&mut self) {
        let took = self.began.take().map_or(Duration::ZERO, |began| began.elapsed());
        if took >= LONG {
            let (longest, name) = &self.longest;
            tracing::info!("a turn of the loop took {took:?}, of which {name} took {longest:?}");
        }
    }
}

/// Returns the name of the variant of an enumeration.
pub fn name_of(value: &impl Debug) -> String {
    struct Head(String);
    impl Write for Head {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let end = text.find(|c: char| !c.is_alphanumeric());
            self.0.push_str(&text[..end.unwrap_or(text.len())]);
            // An error ends the formatting, so that a long value costs nothing.
            if end.is_some() { Err(fmt::Error) } else { Ok(()) }
        }
    }
    let mut head = Head(String::new());
    let _ = write!(head, "{value:?}");
    head.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{ConnId, Effect, MemId};

    #[test]
    fn a_step_has_the_name_of_its_effect() {
        assert_eq!(name_of(&Effect::Close { conn: ConnId(1) }), "Close");
        assert_eq!(name_of(&Effect::Discard { mem: MemId(1), at: 0, bytes: 1 }), "Discard");
        let mut turn = Turn::default();
        turn.begin();
        for (millis, name) in [(1, "a"), (30, "b"), (2, "c")] {
            let step = turn.step();
            std::thread::sleep(Duration::from_millis(millis));
            turn.end_step(step, || name.to_owned());
        }
        assert_eq!(turn.longest.1, if cfg!(debug_assertions) { "b" } else { "" });
        turn.end();
        assert!(turn.step().is_none());
    }
}
