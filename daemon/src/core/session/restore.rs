//! The takeover of a previous daemon's state: see [`crate::core::recovery::restore`].

use super::{Core, GATHERING_NS};
use crate::core::account::NamespaceId;
use crate::core::effect::Effect;
use crate::core::event::MemId;
use crate::core::label::{Label, Preserved};
use crate::core::ledger::{Budget, Ledger};
use crate::core::length;
use crate::core::names::Names;
use crate::core::opening::Opening;
use crate::core::recovery::restore::{Descriptors, Lost, Origin, Owned, PreservedDirectory};
use crate::core::segment::Segments;
use crate::core::settings::NamespaceLimits;
use std::collections::{BTreeMap, BTreeSet};
use tensorlend_layout::directory::Directory;

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
        self.take_over(preserved, Origin::FdStore);
        self.env.effects.take()
    }

    /// Opens the namespaces of these descriptors.
    pub(super) fn take_over(&mut self, preserved: Vec<Preserved>, from: Origin) {
        let copied = preserved.iter().any(|it| it.copied);
        let mut unused: BTreeSet<MemId> = preserved.iter().map(|it| it.mem).collect();
        let ours = |mem: &&MemId| **mem == MemId(mem.0 & !(1 << 63));
        self.env.orders.reserve_ids(unused.iter().filter(ours).map(|mem| mem.0).max().unwrap_or(0));
        let given_up = preserved.iter().filter_map(|it| match it.label {
            Label::Orphaned { id, .. } | Label::DeviceOrphaned { id, .. } => Some(id),
            _ => None,
        });
        self.env.orphans.reserve_ids(given_up.max().unwrap_or(0));
        let mut descriptors: BTreeMap<NamespaceId, Descriptors> = BTreeMap::new();
        let labels: BTreeMap<MemId, (Label, u64)> =
            preserved.iter().map(|it| (it.mem, (it.label.clone(), it.bytes))).collect();
        for it in preserved {
            descriptors.entry(it.label.namespace()).or_default().add(it);
        }
        for (id, mut descriptors) in descriptors {
            self.namespaces.exclude_id(id);
            let orphaned = std::mem::take(&mut descriptors.orphaned);
            let on_devices = std::mem::take(&mut descriptors.on_devices);
            for it in &orphaned {
                unused.remove(&it.mem);
            }
            let directory = descriptors.directory.clone().filter(|it| self.namespaces.id_of(&it.name).is_none());
            // If a client handed the directory back, other processes may write the directory's
            // words.
            let sound = |directory: &Directory, bytes| directory.geometry(bytes).is_some();
            let opened = directory.and_then(|it| Some((Directory::new(&it.view).filter(|d| sound(d, it.bytes))?, it)));
            let Some((directory, PreservedDirectory { mem, bytes, private, name, .. })) = opened else {
                self.restore_orphans(id, &orphaned);
                if from == Origin::FdStore && descriptors.has_segments() {
                    tracing::warn!("all names of namespace number {id} are lost: {LOST}");
                    self.env.lost.namespaces += 1;
                    self.env.lost.bytes += descriptors.segment_bytes();
                    self.note_loss(LOST);
                }
                continue;
            };
            directory.renew_added();
            Segments::announce_spill(&self.env, &directory);
            let (limits, setting) = self.restored_limits(&directory, private, &name);
            let discards = !self.env.settings.is_user_mode();
            let secret = self.env.seed();
            let names = Names::restore(&directory, limits.names_max, discards, self.env.clock.now_ns(), secret);
            let settings = &self.env.settings;
            let shares_tables = settings.uid_share && private.is_none();
            let budget = Budget { id, name: &name, private, limits, shares_tables, owners: &settings.owners };
            let ledger = Ledger::reopen(&mut self.env.accounts, budget, setting, bytes);
            let opening = Opening { ledger, mem, private, reserved: false };
            // The restoration of the segments finds the free entries.
            let mut namespace = opening.namespace(directory, names, Segments::restored());
            unused.remove(&mem);
            namespace.devices.list_devices(&self.env, &namespace.context);
            let lost = namespace.restore(&mut self.env, descriptors, &mut unused);
            for it in &on_devices {
                if let Label::DeviceOrphaned { uid, .. } = it.label
                    && namespace.devices.recover_given_up(&mut self.env, &namespace.context, uid, it)
                {
                    unused.remove(&it.mem);
                }
            }
            for it in &orphaned {
                self.env.restore_orphaned(it);
            }
            let mut recovered = Vec::new();
            // Either the previous daemon orphaned this memory just before its end, or it had lent
            // the memory and no client published in it. No entry refers to the memory, but a client
            // may have it mapped.
            let of_no_use = labels.iter().filter(|(mem, (label, _))| label.namespace() == id && unused.contains(mem));
            for (&mem, (label, bytes)) in of_no_use {
                let whose = namespace.writer_of(label);
                if let (Label::DeviceSegment { .. }, Some(Owned { uid, .. })) = (label, whose) {
                    let (label, bytes) = (label.clone(), *bytes);
                    let it = Preserved { label, mem, view: None, bytes, acked: true, copied: false };
                    if namespace.devices.recover_given_up(&mut self.env, &namespace.context, uid, &it) {
                        recovered.push(mem);
                    }
                    continue;
                }
                if let Some(whose) = whose.filter(|it| self.env.has_room_for_recovered(from, it.kind, *bytes)) {
                    self.env.orphan_recovered(id, whose, mem, *bytes);
                }
            }
            unused.retain(|mem| !self.env.orphans.contains(*mem) && !recovered.contains(mem));
            namespace.devices.begin_again(&mut self.env, &mut namespace.context);
            tracing::info!(
                namespace = name,
                clients = namespace.members.len(),
                names = namespace.bindings.names().live(),
                "taken over from the daemon before"
            );
            self.report_lost(&name, &lost);
            self.namespaces.open(namespace);
        }
        for mem in unused {
            match labels[&mem] {
                (Label::Spilled { .. }, _) => self.env.effects.push(Effect::DropFile { file: mem }),
                _ => self.env.release(mem),
            }
        }
        if copied {
            self.succession.gather_until(self.env.clock.now_ns() + GATHERING_NS);
        }
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
            names_max: d.names.len() as u32 - 1,
            lists_max: d.lists.len() as u32,
            streams_max: d.streams.len() as u32,
            segments_max: d.segments.len() as u32,
            ..limits
        };
        d.head().bytes_max.set(limits.bytes_max);
        (limits, setting)
    }
}
