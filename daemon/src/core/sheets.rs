//! Sheets of a client: further cells, and the sheets that other clients map.

use super::context::Context;
use super::effect::{Lending, SheetPlan};
use super::env::Env;
use super::event::ConnId;
use super::label::Label;
use super::length;
use super::members::Members;
use super::orders::{Making, Order};
use super::outcome::{Lent, Outcome, RequestResult, Task, Wait, Work};
use super::parts::Parts;
use tensorlend_layout::catalogue::{CELL_PARTS, cells_count, cells_first};
use tensorlend_layout::header::Magic;
use tensorlend_layout::number::ClientNo;
use tensorlend_layout::wire::{LimitKind, Refusal, Reply};

impl Members {
    /// Handles a request for more cells.
    pub fn grow_cells(&mut self, env: &mut Env, context: &Context, conn: ConnId, number: ClientNo) -> RequestResult {
        let client = self.me(number);
        let (uid, part, granted) = (client.uid, client.sheets.further_parts() + 1, client.sheets.granted());
        // A client may have twice as many cells as there may be names, because the client binds
        // each name to a fresh cell.
        if part >= CELL_PARTS || u64::from(granted) >= 2 * u64::from(context.ledger.limits().names_max).max(4096) {
            return Err(context.ledger.limit(
                LimitKind::Cells,
                "the number of names that one client published",
                "names_max",
                context.ledger.limits().names_max,
            ));
        }
        let count = cells_count(part);
        let bytes = length::cells(part);
        let charge = env.accounts.charge_sheet(uid, context.ledger.id(), bytes)?;
        let first = cells_first(part) as u64;
        let plan = SheetPlan { magic: Magic::Cells, owner: number, count: count as u64, first };
        let making = vec![env.orders.sheet(&mut env.effects, Order::sheet(bytes, plan, conn), charge)];
        Ok(Outcome::Working(Work { task: Task::Cells { part }, making }))
    }

    /// Completes a request for cells, after the cells have been made.
    pub fn cells_made(parts: &mut Parts<'_>, number: ClientNo, part: u8, mut work: Vec<Making>) -> Outcome {
        let cells = work.remove(0).into_part();
        let label = Label::Cells { namespace: parts.context.ledger.id(), owner: number, part };
        parts.env.effects.keep(cells.mem, label);
        let lend = vec![(cells.mem, Lending::Write)];
        let client = parts.members.me(number);
        client.sheets.add_cells(cells);
        tensorlend_layout::crash_point!("daemon: cells lent");
        client.lent_ns = parts.env.clock.now_ns();
        let geometry = parts.context.directory.entry(number).geometry.peek();
        Outcome::Lend(Reply::Cells { part, geometry }, lend, Lent::Cells(part))
    }

    /// Reclaims a client's cells after the first `parts` parts. The client never received these
    /// cells.
    pub fn drop_cells_after(&mut self, env: &mut Env, number: ClientNo, parts: u8) {
        let client = self.me(number);
        let whose = client.former_writer(number);
        for part in client.sheets.drop_cells_after(parts) {
            env.orphan_part(whose, part);
        }
    }

    /// Handles a request for the cells of a client.
    pub fn cells_of(&self, context: &Context, number: ClientNo, part: u8) -> RequestResult {
        let client = self.client(number)?;
        let missing = || Refusal::NotFound(format!("part {part} of the cells of client {number}"));
        let sheet = client.sheets.part(part).ok_or_else(missing)?;
        if !sheet.acked {
            return if client.is_live() { Ok(Outcome::Later(Wait::ack(number))) } else { Err(missing()) };
        }
        let geometry = context.directory.entry(number).geometry.peek();
        Ok(Outcome::Lend(Reply::Cells { part, geometry }, vec![(sheet.mem, Lending::Read)], Lent::Nothing))
    }

    /// Handles a request for the lease table of a client.
    pub fn leases_of(&self, number: ClientNo) -> RequestResult {
        let client = self.client(number)?;
        let missing = || Refusal::NotFound(format!("lease table of client {number}: it is gone"));
        // A member's leases count only after the member has acknowledged its lease table: see
        // [`Namespace::acknowledged`].
        let sheet = client.sheets.leases().filter(|sheet| sheet.acked).ok_or_else(missing)?;
        let reply = Reply::Sheet { member: client.member.0 };
        Ok(Outcome::Lend(reply, vec![(sheet.mem, Lending::Read)], Lent::Nothing))
    }
}
