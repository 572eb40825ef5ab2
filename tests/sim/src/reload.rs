//! An administrator who changes limits while clients are connected. Clients keep everything they have; usage above a
//! limit may only fall.

use crate::rng::Rng;
use crate::sim::{SEGMENT, Sim};
use tensorlend_daemon::core::Event;
use tensorlend_daemon::core::settings::Settings;
use tensorlend_layout::wire::Stat;

/// Percentage of worlds with an administrator.
const WORLDS: u64 = 30;
/// Frequency of changes there, per thousand steps.
const RELOADS_PER_MILLE: u64 = 15;

/// The administrator of a world. It has its own random numbers, so worlds without one are unaffected.
pub struct Administrator {
    rng: Rng,
    reloads: bool,
    first: Settings,
    /// Permitted bytes of segments and of sheets: the limit, or the usage when the limit was lowered below it.
    pub segments_max: u64,
    pub sheets_max: u64,
}

impl Administrator {
    /// Creates the administrator of a world with these first settings.
    pub fn new(seed: u64, first: Settings) -> Self {
        let mut rng = Rng::new(!seed);
        let reloads = rng.chance(WORLDS);
        let (segments_max, sheets_max) = (first.pool_bytes_max, first.sheet_bytes_max);
        Self { rng, reloads, first, segments_max, sheets_max }
    }

    fn other_settings(&mut self, now: &Settings) -> Settings {
        let rng = &mut self.rng;
        let mut new = now.clone();
        new.pool_bytes_max = (2 + rng.below(14)) * SEGMENT;
        new.spare_segments = rng.below(3) as u32;
        new.idle_bytes_max = rng.below(5) * SEGMENT;
        new.uid_bytes_max = if rng.chance(25) { 5 << 20 } else { u64::MAX };
        new.uid_sessions_max += rng.below(2) as u32;
        let bytes_max = if rng.chance(25) { 6 << 20 } else { u64::MAX };
        new.private.bytes_max = bytes_max;
        for rule in new.namespaces.values_mut() {
            rule.limits.bytes_max = bytes_max;
        }
        // Has no effect on a running daemon.
        new.segment_bytes = rng.pick(&[SEGMENT, 4 * SEGMENT]);
        new
    }
}

impl Sim {
    /// Sometimes changes limits.
    pub fn reloads(&mut self) -> bool {
        let it = &mut self.administrator;
        if !it.reloads || it.rng.below(1000) >= RELOADS_PER_MILLE {
            return false;
        }
        let new = it.other_settings(&self.settings);
        self.reload(new);
        true
    }

    /// Restores the first limits.
    pub fn reload_the_first(&mut self) {
        if self.administrator.reloads {
            let first = self.administrator.first.clone();
            self.reload(Settings { uid_sessions_max: self.settings.uid_sessions_max, ..first });
        }
    }

    fn reload(&mut self, new: Settings) {
        self.settings.reload(new.clone());
        self.done.reloads += 1;
        self.happen(Event::Reload(Box::new(new)));
    }

    /// Returns true if no usage above a limit has grown.
    pub fn is_within_limits(&mut self, stat: &Stat) -> bool {
        let it = &mut self.administrator;
        it.segments_max = self.settings.pool_bytes_max.max(it.segments_max.min(stat.pool_bytes));
        it.sheets_max = self.settings.sheet_bytes_max.max(it.sheets_max.min(stat.bytes_sheets));
        // Administrators' sessions come in beyond the limits, and what they had counts until it is quiescent.
        let sheets_hold = !self.settings.administrators.is_empty() || stat.bytes_sheets <= it.sheets_max;
        stat.pool_bytes <= it.segments_max && sheets_hold
    }
}
