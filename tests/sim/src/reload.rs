//! The settings of a world, and an administrator who changes limits while clients are connected. Clients keep everything they have; usage above a
//! limit may only fall.

use crate::rng::Rng;
use crate::sim::{DEVICE, SEGMENT, Sim};
use std::collections::BTreeMap;
use tensorlend_daemon::core::Event;
use tensorlend_daemon::core::settings::{
    DeviceSettings, Mode, NamespaceLimits, NamespaceRule, Payer, Principal, Settings,
};
use tensorlend_layout::wire::{Allocator, Stat};

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

/// Returns random settings.
pub fn settings(rng: &mut Rng) -> Settings {
    let limits = NamespaceLimits {
        bytes_max: if rng.chance(15) { 6 << 20 } else { u64::MAX },
        names_max: rng.pick(&[6, 64, 300]),
        members_max: 8 + rng.below(4) as u32,
        lists_max: 1 + rng.below(3) as u32,
        streams_max: 1 + rng.below(3) as u32,
        segments_max: 2 + rng.below(12) as u32,
        device_bytes_max: u64::MAX,
        payer: Payer::Daemon,
    };
    let writers = vec![Principal::Uid(1), Principal::Uid(2)];
    let allocator = rng.pick(&[Allocator::Pool, Allocator::Pool, Allocator::Async]);
    let device = DeviceSettings {
        uuid: DEVICE,
        name: "device".into(),
        allocator,
        segment_bytes: 4 << 20,
        unit_bytes: 2 << 20,
        bytes_max: (1 + rng.below(5)) << 22,
        idle_bytes_max: rng.below(3) << 22,
    };
    let rule = NamespaceRule { readers: vec![Principal::Uid(3)], writers, limits };
    let plain = plain_settings(Mode::System, limits, rule);
    Settings {
        mode: if rng.chance(50) { Mode::System } else { Mode::User },
        seed: rng.next(),
        pool_bytes_max: (2 + rng.below(14)) * SEGMENT,
        sheet_bytes_max: if rng.chance(10) { 4 << 20 } else { 1 << 30 },
        spare_segments: rng.below(3) as u32,
        idle_bytes_max: rng.below(5) * SEGMENT,
        uid_bytes_max: if rng.chance(15) { 5 << 20 } else { u64::MAX },
        uid_sessions_max: 2 + rng.below(6) as u32,
        administrators: if rng.chance(20) { vec![3] } else { Vec::new() },
        stream_grace_ns: rng.pick(&[1_000_000, 50_000_000, 2_000_000_000]),
        devices: if rng.chance(60) { vec![device] } else { Vec::new() },
        ..plain
    }
}

/// Returns settings of a pool of 8 segments, in which little limits a user. Shares and the maximum age of leases have their own
/// tests: here they limit nobody.
pub fn plain_settings(mode: Mode, limits: NamespaceLimits, rule: NamespaceRule) -> Settings {
    Settings {
        mode,
        pid: 1,
        seed: 0,
        pool_bytes_max: 8 * SEGMENT,
        sheet_bytes_max: 1 << 30,
        segment_bytes: SEGMENT,
        segment_unit: 4096,
        spare_segments: 0,
        page_lock: false,
        idle_bytes_max: 0,
        uid_bytes_max: u64::MAX,
        uid_sessions_max: 4,
        uid_share: false,
        owners: std::sync::Arc::default(),
        administrators: Vec::new(),
        observers: Vec::new(),
        refused_uid: None,
        stream_grace_ns: 50_000_000,
        descriptors_max: 10_000,
        lease_ns_max: None,
        devices: Vec::new(),
        no_device: String::new(),
        uid_device_bytes_max: u64::MAX,
        quarantine_ns: 100_000_000,
        spill: None,
        private: limits,
        namespaces: BTreeMap::from([("lab".into(), rule)]),
    }
}
