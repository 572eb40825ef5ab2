//! The takeover of a previous daemon's state: see [`crate::core::recovery::restore`].

use super::{Core, GATHERING_NS};
use crate::core::account::NamespaceId;
use crate::core::effect::Effect;
use crate::core::event::MemId;
use crate::core::label::{Label, Preserved};
use crate::core::ledger::{Budget, Ledger};
use crate::core::length;
use crate::core::names::Names;
use crate::core::namespace::Namespace;
use crate::core::opening::Opening;
use crate::core::recovery::restore::{Descriptors, Lost, Owned, PreservedDirectory};
use crate::core::segment::Segments;
use crate::core::settings::NamespaceLimits;
use std::collections::{BTreeMap, BTreeSet};
use tensorlend_layout::directory::Directory;
use tensorlend_layout::size;

/// The reason for names in host memory that the next daemon does not have.
const LOST: &str = "their memory, or the tables that lead to it, did not outlive the daemon before; \
    `tensorlend doctor` checks the descriptor store";

/// The reason for names on devices that the next daemon does not have.
const LOST_ON_DEVICES: &str = "their memory on a device ended with the daemon before, or the device is missing";

impl Core {
    /// Takes over the descriptors of the previous daemon. `sys::Shell` calls this once, before it
    /// passes any event. Memory that the core requests later gets other ids than these descriptors.
    /// The core releases descriptors that it cannot use.
    pub fn restore(&mut self, now_ns: u64, preserved: Vec<Preserved>) -> Vec<Effect> {
        self.env.clock.advance(now_ns);
        let copied = preserved.iter().any(|it| it.copied);
        self.reserve_ids(&preserved);
        let mut takeover = Takeover {
            unused: preserved.iter().map(|it| it.mem).collect(),
            labels: preserved.iter().map(|it| (it.mem, (it.label.clone(), it.bytes))).collect(),
            core: self,
        };
        let mut descriptors: BTreeMap<NamespaceId, Descriptors> = BTreeMap::new();
        for it in preserved {
            descriptors.entry(it.label.namespace()).or_default().add(it);
        }
        for (id, descriptors) in descriptors {
            takeover.take_over(id, descriptors);
        }
        takeover.release_unused();
        self.gathering_until_ns = copied.then(|| now_ns + GATHERING_NS);
        self.env.effects.take()
    }

    /// Excludes the ids of these descriptors from those that the core gives to new memory.
    fn reserve_ids(&mut self, preserved: &[Preserved]) {
        self.env.orders.reserve_ids(preserved.iter().map(|it| it.mem.0).max().unwrap_or(0));
        let given_up = preserved.iter().filter_map(|it| match it.label {
            Label::Orphaned { id, .. } | Label::DeviceOrphaned { id, .. } => Some(id),
            _ => None,
        });
        self.env.orphans.reserve_ids(given_up.max().unwrap_or(0));
    }

    /// Logs the parts of a namespace that are lost, and adds them to the record of this daemon's start.
    fn report_lost(&mut self, namespace: &str, Lost { in_memory, on_devices, streams, bytes }: &Lost) {
        for (names, why) in [(in_memory, LOST), (on_devices, LOST_ON_DEVICES)] {
            if *names > 0 {
                tracing::warn!(namespace, names, "names lost at the restart: {names}; {why}");
                self.env.lost.names += names;
                self.note_loss(why);
            }
        }
        if *streams > 0 {
            tracing::warn!(namespace, streams, "streams lost at the restart: {streams}; {LOST}");
            self.env.lost.streams += streams;
            self.note_loss(LOST);
        }
        // A segment that no name refers to may have been on its way to its client.
        if in_memory + on_devices + streams > 0 {
            self.env.lost.bytes += bytes;
        }
    }

    fn note_loss(&mut self, why: &str) {
        let all = &mut self.env.lost.why;
        if !all.contains(why) {
            let sep = if all.is_empty() { "" } else { "; " };
            all.push_str(sep);
            all.push_str(why);
        }
    }

    /// Restores the orphaned memory of a namespace that does not exist any more.
    fn restore_orphans(&mut self, id: NamespaceId, orphaned: &[Preserved]) {
        if !orphaned.is_empty() {
            self.env.accounts.open(id, "that is gone", "", u64::MAX);
            for it in orphaned {
                self.env.restore_orphaned(it);
            }
            self.env.accounts.close(id);
        }
    }

    /// Returns the limits of the configuration, but with the sizes of the directory's tables.
    fn restored_limits(&self, d: &Directory, uid: Option<u32>, name: &str) -> (NamespaceLimits, String) {
        let configured = self.env.settings.namespaces.get(name).map(|rule| rule.limits);
        let (limits, setting) = match (uid, configured) {
            (None, Some(limits)) => (limits, format!("namespace.{name}")),
            _ => (self.env.settings.private, "namespace_default".into()),
        };
        let limits = NamespaceLimits {
            members_max: length::members_max(d.members.len()),
            names_max: size::count(d.names.len()) - 1,
            lists_max: size::count(d.lists.len()),
            streams_max: size::count(d.streams.len()),
            segments_max: size::count(d.segments.len()),
            ..limits
        };
        d.head().bytes_max.set(limits.bytes_max);
        (limits, setting)
    }
}

struct Takeover<'a> {
    core: &'a mut Core,
    labels: BTreeMap<MemId, (Label, u64)>,
    /// Memory that no namespace uses so far.
    unused: BTreeSet<MemId>,
}

impl Takeover<'_> {
    /// Opens a namespace if its directory exists. Otherwise its names are lost.
    fn take_over(&mut self, id: NamespaceId, mut descriptors: Descriptors) {
        self.core.namespaces.exclude_id(id);
        let orphaned = std::mem::take(&mut descriptors.orphaned);
        let on_devices = std::mem::take(&mut descriptors.on_devices);
        for it in &orphaned {
            self.unused.remove(&it.mem);
        }
        let Some((mut namespace, name)) = self.open(id, &descriptors) else {
            self.core.restore_orphans(id, &orphaned);
            if descriptors.has_segments() {
                tracing::warn!("all names of namespace number {id} are lost: {LOST}");
                self.core.env.lost.namespaces += 1;
                self.core.env.lost.bytes += descriptors.segment_bytes();
                self.core.note_loss(LOST);
            }
            return;
        };
        let env = &mut self.core.env;
        let lost = namespace.restore(env, descriptors, &mut self.unused);
        for it in &on_devices {
            if let Label::DeviceOrphaned { uid, .. } = it.label
                && namespace.devices.recover_given_up(env, &namespace.context, uid, it)
            {
                self.unused.remove(&it.mem);
            }
        }
        for it in &orphaned {
            env.restore_orphaned(it);
        }
        self.orphan_rest(id, &mut namespace);
        namespace.devices.begin_again(&mut self.core.env, &mut namespace.context);
        tracing::info!(
            namespace = name,
            clients = namespace.members.len(),
            names = namespace.bindings.names().live(),
            "taken over from the daemon before"
        );
        self.core.report_lost(&name, &lost);
        self.core.namespaces.open(namespace);
    }

    /// Opens a namespace with its directory, and without its clients. Returns the namespace and its name.
    fn open(&mut self, id: NamespaceId, descriptors: &Descriptors) -> Option<(Namespace, String)> {
        let core = &mut *self.core;
        let directory = descriptors.directory.clone().filter(|it| core.namespaces.id_of(&it.name).is_none())?;
        let PreservedDirectory { mem, bytes, private, name, view, .. } = directory;
        let directory = Directory::new(&view).filter(|directory| directory.geometry(bytes).is_some())?;
        directory.renew_added();
        Segments::announce_spill(&core.env, &directory);
        let (limits, setting) = core.restored_limits(&directory, private, &name);
        let discards = !core.env.settings.is_user_mode();
        let secret = core.env.seed();
        let names = Names::restore(&directory, limits.names_max, discards, core.env.clock.now_ns(), secret);
        let settings = &core.env.settings;
        let shares_tables = settings.uid_share && private.is_none();
        let budget = Budget { id, name: &name, private, limits, shares_tables, owners: &settings.owners };
        let ledger = Ledger::reopen(&mut core.env.accounts, budget, setting, bytes);
        let opening = Opening { ledger, mem, private, reserved: false };
        // The restoration of the segments finds the free entries.
        let mut namespace = opening.namespace(directory, names, Segments::restored());
        self.unused.remove(&mem);
        namespace.devices.list_devices(&core.env, &namespace.context);
        Some((namespace, name))
    }

    /// Orphans the memory of a namespace to which no entry refers. Either the previous daemon orphaned it just before its
    /// end, or it had lent the memory and no client published in it. A client may have it mapped.
    fn orphan_rest(&mut self, id: NamespaceId, namespace: &mut Namespace) {
        let env = &mut self.core.env;
        let mut recovered = Vec::new();
        let rest = self.labels.iter().filter(|(mem, (label, _))| label.namespace() == id && self.unused.contains(mem));
        for (&mem, (label, bytes)) in rest {
            let whose = namespace.writer_of(label);
            if let (Label::DeviceSegment { .. }, Some(Owned { uid, .. })) = (label, whose) {
                let it = Preserved { label: label.clone(), mem, view: None, bytes: *bytes, acked: true, copied: false };
                if namespace.devices.recover_given_up(env, &namespace.context, uid, &it) {
                    recovered.push(mem);
                }
                continue;
            }
            if let Some(whose) = whose {
                env.orphan_recovered(id, whose, mem, *bytes);
            }
        }
        self.unused.retain(|mem| !env.orphans.contains(*mem) && !recovered.contains(mem));
    }

    fn release_unused(self) {
        for mem in self.unused {
            match self.labels[&mem] {
                (Label::Spilled { .. }, _) => self.core.env.effects.push(Effect::DropFile { file: mem }),
                _ => self.core.env.release(mem),
            }
        }
    }
}
