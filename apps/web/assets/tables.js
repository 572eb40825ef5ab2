// Tables that sort. Rows are reused by key, so that focus and selection stay.

import { make } from "./charts.js";

// One format for all: a call of toLocaleString makes a new one.
const format = new Intl.NumberFormat("en");
/// Names in their natural order: layer.2 before layer.10.
const names = new Intl.Collator("en", { numeric: true });
export const count = (n) => n == null ? "–" : format.format(n);

export class Table {
  constructor(parent, caption, columns, empty) {
    this.columns = columns;
    this.empty = make("p", { class: "quiet" }, empty);
    this.note = make("p", { class: "quiet", hidden: "" });
    this.body = make("tbody", { role: "rowgroup" });
    this.sort = null;
    const heads = columns.map((c, at) => {
      const head = make("th", { scope: "col", role: "columnheader", class: c.number ? "num" : "" });
      if (!c.by) { head.append(c.head); return head; }
      const button = make("button", { type: "button", class: "sort" }, c.head);
      button.addEventListener("click", () => this.turn(at));
      head.append(button);
      return head;
    });
    this.heads = heads;
    this.table = make("table", { role: "table" }, make("caption", {}, caption),
      make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...heads)), this.body);
    this.scroll = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, this.table);
    this.rows = new Map();
    parent.append(this.scroll, this.empty, this.note);
  }

  /// Orders the rows by a column: numbers from the largest down, then the other way round, then as they come.
  turn(at) {
    const first = this.columns[at].number ? -1 : 1;
    if (this.sort?.at !== at) this.sort = { at, way: first };
    else this.sort = this.sort.way === first ? { at, way: -first } : null;
    this.heads.forEach((head, n) => {
      if (this.sort?.at === n) head.setAttribute("aria-sort", this.sort.way > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    if (this.last) this.set(...this.last);
  }

  ordered(rows) {
    if (!this.sort) return rows;
    const { at, way } = this.sort, { by } = this.columns[at];
    const compare = (a, b) => a == null ? (b == null ? 0 : 1) : b == null ? -1 : way * (typeof a === "string" ? names.compare(a, b) : a - b);
    return [...rows].sort((a, b) => compare(by(a), by(b)));
  }

  /// Shows these rows out of `all`.
  set(rows, key, all = rows.length) {
    this.last = [rows, key, all];
    rows = this.ordered(rows);
    this.note.hidden = all <= rows.length;
    this.note.textContent = this.note.hidden ? "" : `${count(rows.length)} of ${count(all)} are shown; /api/v1 has all.`;
    this.scroll.hidden = rows.length === 0;
    this.empty.hidden = rows.length > 0;
    const seen = new Set();
    let before = null;
    for (const row of rows) {
      let id = key(row);
      while (seen.has(id)) id += "+";
      seen.add(id);
      let node = this.rows.get(id);
      if (!node) {
        node = make("tr", { role: "row" }, ...this.columns.map((c) =>
          make("td", { role: "cell", "data-head": c.head, class: [c.number && "num", c.wide && "wide", c.kind].filter(Boolean).join(" ") })));
        this.rows.set(id, node);
      }
      this.columns.forEach((c, at) => fill(node.cells[at], c.cell(row), row));
      const next = before ? before.nextSibling : this.body.firstChild;
      if (next !== node) this.body.insertBefore(node, next);
      before = node;
    }
    for (const [id, node] of this.rows) if (!seen.has(id)) { node.remove(); this.rows.delete(id); }
  }
}

/// A cell holds text, or a node that `node` makes and `update` refreshes.
function fill(cell, value, row) {
  if (value != null && typeof value === "object") {
    if (!cell.made) { cell.made = value.make(); cell.append(cell.made); }
    value.update?.(cell.made, row);
    return;
  }
  const text = value == null ? "–" : String(value);
  if (cell.textContent !== text) cell.textContent = text;
}
