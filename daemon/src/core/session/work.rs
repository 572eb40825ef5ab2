//! The completion of orders: memory has been made, or could not be made.

use super::{Conn, Core, Failed, Joined, Phase};
use crate::core::account::NamespaceId;
use crate::core::event::{ConnId, MemId, Unmade};
use crate::core::members::Members;
use crate::core::orders::Purpose;
use crate::core::outcome::{Task, Work};
use crate::core::parts::Parts;
use crate::core::probes::{Probed, Probing};
use crate::core::range::SlotRange;
use crate::core::segment::Segments;
use tensorlend_layout::raw::View;
use tensorlend_layout::wire::Export;

impl Core {
    pub(super) fn created(&mut self, mem: MemId, made: Result<Option<View>, Unmade>) {
        self.arrived(mem, made.map(|view| (view, None)));
    }

    pub(super) fn created_on_device(&mut self, mem: MemId, made: Result<Export, Unmade>) {
        self.arrived(mem, made.map(|export| (None, Some(export))));
    }

    fn arrived(&mut self, mem: MemId, made: Result<(Option<View>, Option<Export>), Unmade>) {
        match self.env.orders.arrived(mem) {
            Purpose::Nobody => {
                self.env.arrived_for_nobody(mem, made.is_ok());
            }
            Purpose::Spare => {
                if let Err(reason) = &made {
                    tracing::warn!("no memory for a spare segment: {reason}");
                }
                if self.env.pool.arrived(mem, made.is_ok()) {
                    self.env.release(mem);
                }
            }
            Purpose::Spilled(whose) => {
                let namespace = self.namespaces.get_mut(&whose.namespace).expect("its purpose ends with its namespace");
                Segments::recalled(
                    &mut Parts { env: &mut self.env, context: &mut namespace.context, members: &mut namespace.members },
                    whose,
                    made.map(|_| ()),
                );
            }
            Purpose::Directory(id) => self.directory_made(id, made.map(|(view, _)| view)),
            Purpose::Request(conn) => {
                let Some(Conn { phase: Phase::Working(work), .. }) = self.conns.get_mut(&conn) else {
                    unreachable!("memory on order for a request is abandoned with it");
                };
                let at = work.making.iter().position(|m| m.mem == mem).expect("it was ordered for this request");
                match made {
                    Ok((view, export)) => {
                        let it = &mut work.making[at];
                        (it.made, it.view, it.export) = (true, view, export);
                        self.proceed(conn);
                    }
                    Err(reason) => {
                        // No memory was made, so only the charges are refunded.
                        let making = work.making.remove(at);
                        let (bytes, on_host) = (making.segment_bytes, making.device.is_none());
                        self.env.uncount(making);
                        self.abandon_work(conn);
                        if bytes.is_some() && on_host {
                            self.signal_pressure(None);
                        }
                        let bytes = bytes.unwrap_or_default();
                        self.conclude(conn, Err(reason.refusal(bytes)));
                    }
                }
            }
        }
    }

    pub(super) fn allocated(&mut self, mem: MemId, at: u64, made: Result<(), Unmade>) {
        // If the namespace was closed after the order, no namespace has this directory.
        if let Some(namespace) = self.namespaces.values_mut().find(|n| n.context.directory.mem() == mem) {
            if let Err(reason) = &made {
                tracing::warn!(namespace = namespace.context.ledger.name(), "no memory for more names: {reason}");
            }
            namespace.bindings.arrived(&namespace.context, at, made);
        }
    }

    pub(super) fn directory_made(&mut self, id: NamespaceId, made: Result<Option<View>, Unmade>) {
        let at = self.opening.iter().position(|o| o.ledger.id() == id).expect("a directory is made for an opening");
        let opening = self.opening.remove(at);
        match made {
            Ok(view) => {
                let view = view.expect("a sheet comes with its view");
                let namespace = opening.finish(&mut self.env, &view);
                self.namespaces.open(namespace);
            }
            Err(reason) => {
                let failed = Failed { at_ns: self.env.clock.now_ns(), reason, reserved: opening.reserved };
                self.failed.insert(opening.ledger.name().to_owned(), failed);
                opening.give_up(&mut self.env);
            }
        }
    }

    /// Continues a request after all its memory has been made.
    pub(super) fn proceed(&mut self, conn: ConnId) {
        let state = self.conns.get_mut(&conn).expect("it waits for memory");
        match &state.phase {
            Phase::Working(work) if work.making.iter().all(|m| m.made) => {}
            _ => return,
        }
        let Phase::Working(Work { task, making }) = std::mem::replace(&mut state.phase, Phase::Idle) else {
            unreachable!("seen above");
        };
        if let Task::Join { namespace, joining } = &task {
            state.joined = Some(Joined { namespace: *namespace, number: joining.number, role: joining.role });
        }
        let joined = state.joined.expect("a connection that waits for memory has joined, or joins here");
        let namespace = self.namespaces.get_mut(&joined.namespace).expect("it has a client");
        let (env, me) = (&mut self.env, joined.number);
        let result = match task {
            Task::Join { joining, .. } => Ok(namespace.joined(env, joining, making)),
            Task::Segment { base, log2 } => namespace.segments.segment_made(
                &mut Parts { env, context: &mut namespace.context, members: &mut namespace.members },
                &mut namespace.devices,
                SlotRange { owner: me, base, log2 },
                making,
            ),
            Task::Cells { part } => Ok(Members::cells_made(
                &mut Parts { env, context: &mut namespace.context, members: &mut namespace.members },
                me,
                part,
                making,
            )),
            Task::Ring(ring) => namespace.streams.ring_made(
                &mut Parts { env, context: &mut namespace.context, members: &mut namespace.members },
                &mut namespace.bindings,
                ring,
                making,
            ),
        };
        self.conclude(conn, result);
    }

    /// Abandons the memory that a connection's request has on order. Does nothing if the request
    /// has ordered no memory.
    pub(super) fn abandon_work(&mut self, conn: ConnId) {
        let state = self.conns.get_mut(&conn).expect("the caller found it");
        let work = match std::mem::replace(&mut state.phase, Phase::Idle) {
            Phase::Working(work) => work,
            other => {
                state.phase = other;
                return;
            }
        };
        if let Task::Join { namespace, joining } = work.task {
            self.namespaces.get_mut(&namespace).expect("a client is joining it").members.unjoin(joining.number);
        }
        for making in work.making {
            self.env.abandon(making);
        }
    }

    pub(super) fn probed(&mut self, probed: Probed) {
        match self.env.probes.responded(probed.mem) {
            Some(Probing::Ended(id, number)) => {
                if let Some(namespace) = self.namespaces.get_mut(&id) {
                    namespace.members.probed(&mut self.env, &namespace.context, number, probed);
                }
            }
            Some(Probing::Disconnected(id, number)) => {
                if let Some(namespace) = self.namespaces.get_mut(&id) {
                    namespace.disconnected_probed(&mut self.env, number, probed);
                }
            }
            Some(Probing::Draining(id, number)) => {
                if let Some(namespace) = self.namespaces.get_mut(&id) {
                    namespace.members.leases_probed(&mut self.env, &namespace.context, number, probed);
                }
            }
            Some(Probing::Orphaned) => self.env.orphan_probed(probed),
            None => {}
        }
    }
}
