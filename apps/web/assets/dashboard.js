// The page: requests the data under /api/v1 and shows it. Names are untrusted text: they go into text nodes and nowhere
// else.

import { TimeChart, bytes, drawMap, histogram, make } from "./charts.js";
import { Table, count } from "./tables.js";

const $ = (id) => document.getElementById(id);
const POINTS = 600;
const PAGE = 50;

let token = takeToken();
let namespace = null;
let latest = null;
let points = new Map();
let by = "state", order = "age", offset = 0, total = 0;
let looks = 0;

/// A token may follow the #, which browsers do not send; this tab keeps it from then on.
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("token");
}

async function ask(path, signal) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { headers, signal, cache: "no-store", credentials: "omit" });
  if (answer.status === 401) {
    $("login").hidden = false;
    $("figures").hidden = true;
    if (token) $("wrong").textContent = "That token was not accepted.";
    throw new Error("a token is needed");
  }
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error ?? `status ${answer.status}`);
  return answer;
}

const api = async (what, query = {}) => (await ask(`/api/v1/${what}?${new URLSearchParams(query)}`)).json();

// ---- text

const plural = (n, one) => `${count(n)} ${one}${n === 1 ? "" : "s"}`;

/// The same text as the function `age_text` of the command line.
function time(seconds) {
  if (seconds == null) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const [unit, word] = seconds < 100 ? [1, "s"] : seconds < 6000 ? [60, "min"] : seconds < 172800 ? [3600, "h"] : [86400, "d"];
  return `${Math.floor(seconds / unit)} ${word}`;
}

/// The age of a lease. The server saw an older one at its first sample, and knows no more.
const age = (seconds, older) => `${older && seconds != null ? "> " : ""}${time(seconds)}`;

/// Makes invisible characters, and those that change the direction of text, visible in untrusted text.
const plain = (text) => text.replace(/[\p{Cc}\u2028\u2029]|(?!\u200d)\p{Cf}/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);

function what(of) {
  if (!of) return "old value: replaced or deleted";
  if (of.name != null) return plain(of.name);
  return of.list != null ? `${plain(of.list)}[${of.number}]` : `${plain(of.stream)} #${of.number}`;
}

const here = () => latest?.namespaces.find((ns) => ns.name === namespace) ?? latest?.namespaces[0];
const status = () => latest?.status.namespaces.find((ns) => ns.name === here()?.name);
const owner = (number) => here()?.clients.find((client) => client.client === number);
const who = (number) => { const c = owner(number); return c ? `${c.pid || "?"} ${plain(c.label)}${c.state === "ended" ? " (gone)" : ""}` : `client ${number}`; };

// ---- tables

const two = (first, second) => ({
  make: () => make("div", {}, make("span", { class: "clip" }), make("span", { class: "command clip" })),
  update: (node) => [first, second].forEach((text, at) => { if (node.children[at].textContent !== (text ?? "")) node.children[at].textContent = text ?? ""; }),
});
const alarm = (text, is) => ({ make: () => make("span"), update: (node) => { node.textContent = text; node.className = is ? "alarm" : ""; } });

const tables = {
  streams: new Table($("streams-t"), "Streams: what was sent, and which subscribers lag", [
    { head: "stream", wide: true, kind: "name", cell: (s) => plain(s.name), by: (s) => s.name },
    { head: "sent", number: true, cell: (s) => count(s.sent), by: (s) => s.sent },
    { head: "rate", number: true, cell: (s) => s.rate == null ? "–" : `${s.rate.toFixed(1)}/s`, by: (s) => s.rate },
    { head: "held", number: true, cell: (s) => `${count(s.held)} / ${count(s.capacity)}`, by: (s) => s.held },
    { head: "lag", number: true, cell: (s) => alarm(count(s.lag_max), s.problem === "lags"), by: (s) => s.lag_max },
    { head: "lost", number: true, cell: (s) => alarm(count(s.lost), s.problem === "lost"), by: (s) => s.lost },
    { head: "subscribers", number: true, cell: (s) => s.subscribers.length, by: (s) => s.subscribers.length },
    { head: "policy", cell: (s) => s.is_closed ? "closed" : s.policy, by: (s) => s.policy },
    { head: "producer", cell: (s) => who(s.producer), by: (s) => who(s.producer) },
  ], "No streams."),
  leases: new Table($("leases-t"), "Leases: their holders, and what they keep", [
    { head: "keeps", wide: true, kind: "name", cell: (l) => l.is_of_segment ? "a whole segment" : what(l.of), by: (l) => what(l.of) },
    { head: "holder", wide: true, cell: (l) => two(who(l.holder), plain(owner(l.holder)?.command ?? "")), by: (l) => who(l.holder) },
    { head: "pid", number: true, cell: (l) => l.pid || "–", by: (l) => l.pid },
    { head: "owner", cell: (l) => who(l.client), by: (l) => who(l.client) },
    { head: "age", number: true, cell: (l) => age(l.age_s, l.is_older), by: (l) => l.age_s },
    { head: "bytes", number: true, cell: (l) => bytes(l.bytes), by: (l) => l.bytes },
    { head: "count", number: true, cell: (l) => count(l.count), by: (l) => l.count },
  ], "No client holds a lease."),
  clients: new Table($("clients-t"), "Clients: the memory that their leases keep, and the memory lent to them", [
    { head: "client", wide: true, cell: (c) => two(who(c.client) + (c.is_observer ? ", this page's server" : ""), c.command && plain(c.command)), by: (c) => who(c.client) },
    { head: "leased", number: true, cell: (c) => bytes(c.leased_bytes), by: (c) => c.leased_bytes },
    { head: "leases", number: true, cell: (c) => count(c.leases), by: (c) => c.leases },
    { head: "oldest lease", number: true, cell: (c) => age(c.lease_age_max_s, c.is_lease_older), by: (c) => c.lease_age_max_s },
    { head: "lent", number: true, cell: (c) => bytes(c.bytes), by: (c) => c.bytes },
    { head: "values", number: true, cell: (c) => count(c.values), by: (c) => c.values },
    { head: "pid", number: true, cell: (c) => c.pid || "–", by: (c) => c.pid },
    { head: "uid", number: true, cell: (c) => c.uid, by: (c) => c.uid },
    { head: "age", number: true, cell: (c) => time(c.age_s), by: (c) => c.age_s },
    { head: "state", cell: (c) => c.state, by: (c) => c.state },
  ], "No clients."),
  names: new Table($("names-t"), "Names and their values", [
    { head: "name", wide: true, kind: "name", cell: (v) => what(v.of), by: (v) => what(v.of) },
    { head: "dtype", cell: (v) => v.is_dataset ? "dataset" : v.dtype ?? "?", by: (v) => v.dtype ?? "" },
    { head: "shape", cell: (v) => v.shape ? v.shape.join(" x ") || "scalar" : "–" },
    { head: "bytes", number: true, cell: (v) => bytes(v.bytes), by: (v) => v.bytes },
    { head: "leases", number: true, cell: (v) => count(v.leases), by: (v) => v.leases },
    { head: "owner", cell: (v) => who(v.client), by: (v) => who(v.client) },
    { head: "preview", cell: (v) => latest?.status.previews && v.of?.name != null ? previewButton(v) : "–" },
  ], "No names."),
  events: new Table($("events-t"), "Events: clients and streams that came and went, refusals, revoked sessions", [
    { head: "time", cell: (e) => new Date(e.at_ms).toLocaleTimeString(), by: (e) => e.at_ms },
    { head: "event", cell: (e) => EVENTS[e.kind] ?? e.kind, by: (e) => e.kind },
    { head: "subject", wide: true, kind: "name", cell: (e) => e.kind === "requests_refused" ? reason(e.subject) : plain(e.subject) || "the daemon", by: (e) => e.subject },
    { head: "count", number: true, cell: (e) => e.kind.startsWith("segments_") ? bytes(e.count) : count(e.count), by: (e) => e.count },
  ], "Nothing has happened since this server began."),
  services: new Table($("services-t"), "Gateway and runners of models, as they report themselves", [
    { head: "service", wide: true, kind: "name", cell: (s) => s.name, by: (s) => s.name },
    { head: "metric", cell: (s) => s.metric, by: (s) => s.metric },
    { head: "value", number: true, cell: (s) => s.text, by: (s) => s.value },
  ], "No gateway and no runner publishes metrics in this namespace."),
};

const REASONS = new Map([["limit", "for a limit"], ["invalid", "invalid"], ["race", "another client was first"]]);
/// The words for a reason. A newer daemon may have other reasons, which are shown as they are.
const reason = (word) => REASONS.get(word) ?? plain(word);

const EVENTS = {
  client_joined: "client joined", client_ended: "client ended", stream_opened: "stream opened", stream_closed: "stream closed",
  stream_gone: "stream gone", segments_lent: "segments lent", segments_returned: "segments returned",
  requests_refused: "requests refused", sessions_revoked: "sessions revoked", names_expired: "names expired",
  names_ephemeral_gone: "ephemeral names ended", daemon_away: "daemon does not respond", daemon_back: "daemon is back",
};

// ---- drawing

const chart = new TimeChart($("chart"));
// The holder of the most leased bytes comes first: it may be the cause of a leak.
tables.clients.turn(tables.clients.columns.findIndex((c) => c.head === "leased"));

function tile(key, name, value, more, share) {
  let node = $(`tile-${key}`);
  if (!node) {
    node = make("div", { id: `tile-${key}` }, make("dt", {}, name), make("dd", { class: "big" }), make("dd", { class: "more" }));
    if (share != null) node.append(make("dd", {}, make("meter", { min: 0, max: 1, high: 0.9, low: 0.75, optimum: 0, "aria-label": name })));
    $("tiles").append(node);
  }
  node.children[1].textContent = value;
  node.children[2].textContent = more;
  if (share != null) node.querySelector("meter").value = share;
}

function drawTiles() {
  const d = latest.status.daemon, ns = status(), p = latest.status.process;
  if (d) {
    tile("pool", "pool", bytes(d.pool_bytes), `${d.pool_bytes_max == null ? "no limit" : `of ${bytes(d.pool_bytes_max)}`}, ${bytes(d.bytes_in_use)} in use, ${bytes(d.bytes_spare)} spare`, d.pool_bytes_max ? d.pool_bytes / d.pool_bytes_max : 0);
  }
  if (ns) {
    tile("lent", "lent", bytes(ns.bytes_lent), `${ns.bytes_max == null ? "no limit" : `of ${bytes(ns.bytes_max)}`} for ${plain(ns.name)}`, ns.bytes_max ? ns.bytes_lent / ns.bytes_max : null);
    tile("live", "live", bytes(ns.bytes.live), plural(ns.names, "name"));
    const [most] = (here()?.clients ?? []).filter((c) => c.leases).sort((a, b) => b.leased_bytes - a.leased_bytes);
    tile("leased", "leased", bytes(ns.bytes.leased), plural(ns.leases, "lease") + (most ? `, most by ${who(most.client)}` : ""));
    tile("retired", "retired", bytes(ns.bytes.retired), "of the leased: replaced or deleted");
    tile("free", "free", bytes(ns.bytes.free), "or drafts");
    tile("clients", "clients", count(ns.clients), `${plural(ns.segments, "segment")}, ${plural(ns.streams, "stream")}`);
  }
  if (d) {
    const why = Object.entries(d.refusals_by_reason).filter(([, n]) => n).map(([word, n]) => `${count(n)} ${reason(word)}`);
    tile("refused", "refused", count(d.refusals), [...why, `${plural(d.sessions_revoked, "session")} revoked`].join(", "));
    tile("daemon", "daemon", bytes(p.resident_bytes), `${p.descriptors == null ? "descriptors unknown" : plural(p.descriptors, "descriptor")}, up ${time(d.uptime_ns / 1e9)}, ${d.mode} mode, pid ${d.pid}`);
  }
}

/// Problems of the last minutes, the gravest first: a reader must not search the page for them.
const SOON_MS = 10 * 60_000, OLD_S = 3600;

function problems() {
  const found = [], ns = here(), s = status(), d = latest.status.daemon;
  const since = latest.status.at_ms - SOON_MS;
  if (!d) found.push(["The daemon does not respond.", "#events"]);
  if (s?.error) found.push([`The namespace cannot be sampled: ${s.error}.`, "#events"]);
  const refused = new Map();
  // A race is no problem: the client repeats its request.
  for (const e of latest.events) if (e.kind === "requests_refused" && e.at_ms > since && e.subject !== "race") refused.set(e.subject, (refused.get(e.subject) ?? 0) + e.count);
  for (const [word, n] of refused) found.push([`${plural(n, "request")} refused in 10 minutes: ${reason(word)}.`, "#events"]);
  for (const stream of ns?.streams ?? []) {
    if (stream.problem === "lost") found.push([`Subscribers of stream ${plain(stream.name)} lost ${plural(stream.lost, "message")}.`, "#streams"]);
    if (stream.problem === "lags") found.push([`A subscriber of stream ${plain(stream.name)} lags by ${plural(stream.lag_max, "message")}.`, "#streams"]);
  }
  const [oldest] = [...(ns?.leases ?? [])].sort((a, b) => b.age_s - a.age_s);
  if (oldest?.age_s > OLD_S) found.push([`${who(oldest.holder)} has held a lease for ${time(oldest.age_s)}.`, "#leases"]);
  if (d?.pool_bytes_max && d.bytes_in_use / d.pool_bytes_max > 0.9) found.push([`The pool is ${Math.floor(100 * d.bytes_in_use / d.pool_bytes_max)} % in use.`, "#memory"]);
  if (d?.spill_failures) found.push([`${plural(d.spill_failures, "spill file")} could not be written or read.`, "#events"]);
  if (s?.truncated) found.push(["The namespace has more than one sample contains.", "#names"]);
  if (s?.damaged) found.push([`Invalid entries of clients, which are omitted: ${count(s.damaged)}.`, "#clients"]);
  return found;
}

const PROBLEMS = 12;
function drawProblems() {
  const found = problems(), list = $("problem-list");
  const shown = found.slice(0, PROBLEMS);
  if (found.length > PROBLEMS) shown.push([`and ${count(found.length - PROBLEMS)} more`, "#events"]);
  // The links stay, so that the focus stays when a number changes.
  while (list.children.length > shown.length) list.lastChild.remove();
  while (list.children.length < shown.length) list.append(make("li", {}, make("a", {})));
  shown.forEach(([words, where], at) => {
    const link = list.children[at].firstChild;
    if (link.textContent !== words) link.textContent = words;
    if (link.getAttribute("href") !== where) link.setAttribute("href", where);
  });
  $("problems").hidden = found.length === 0;
}

function drawTitle() {
  const s = latest.status, version = s.daemon?.version ?? s.version;
  const title = `${s.host}: tensorlend ${version}${s.socket ? ` at ${s.socket}` : ""}`;
  if (document.title !== title) document.title = title;
  if ($("where").textContent !== title) $("where").textContent = plain(title);
}

/// The gateway and the runners report themselves: their documents are claims, and only numbers of them are shown.
function drawServices() {
  const services = status()?.services, rows = [];
  const add = (name, metric, value) => {
    if (typeof value !== "number") return;
    const text = metric.endsWith("bytes") || metric.endsWith("bytes_max") ? bytes(value) : count(Math.round(value * 100) / 100);
    rows.push({ name, metric: metric.replaceAll("_", " "), value, text });
  };
  for (const [metric, value] of Object.entries(services?.gateway ?? {})) if (metric !== "v") add("gateway", plain(metric), value);
  for (const { model, runner, metrics } of services?.runners ?? []) {
    const name = `model ${plain(model)}, runner ${runner}`;
    for (const metric of ["requests", "failures", "runs", "rows"]) add(name, metric, metrics[metric]);
    for (const metric of ["run_us", "queue_us"]) for (const part of ["p50", "p99"]) add(name, `${metric} ${part}`, metrics[metric]?.[part]);
  }
  $("services").hidden = $("to-services").hidden = rows.length === 0;
  if (rows.length) tables.services.set(rows, (r) => `${r.name} ${r.metric}`);
}

function drawChart() {
  const all = points.get(here()?.name) ?? [];
  const times = all.map((p) => p.at_ms);
  const top = { label: "lent", values: all.map((p) => p.lent) };
  if (by === "state") {
    const series = (label, ink, value) => ({ label, ink: `var(--${ink})`, values: all.map((p) => value(p.bytes)) });
    const states = [series("live", "live", (b) => b.live), series("leased, current", "leased", (b) => b.leased - b.retired), series("leased, retired", "retired", (b) => b.retired)];
    chart.set(times, states, true, top);
    return;
  }
  const field = by === "uid" ? "uids" : "clients";
  const most = new Map();
  for (const p of all) for (const [key, value] of Object.entries(p[field])) most.set(key, Math.max(most.get(key) ?? 0, value));
  const keys = [...most].sort((a, b) => b[1] - a[1]).slice(0, 8).map(([key]) => key);
  const label = (key) => by === "uid" ? `user ${key}` : who(Number(key.split(".")[0]));
  chart.set(times, keys.map((key) => ({ label: label(key), values: all.map((p) => p[field][key] ?? 0) })), true, by === "uid" ? undefined : top);
}

const drawn = new Map();
function drawMaps() {
  const parent = $("maps");
  const owners = new Map();
  for (const s of here()?.segments ?? []) owners.set(s.client, [...(owners.get(s.client) ?? []), s]);
  const seen = new Set();
  for (const [number, segments] of owners) {
    seen.add(number);
    let group = drawn.get(number);
    if (!group) {
      const head = make("summary", {});
      group = { node: make("details", { class: "owner" }, head), head, rows: new Map() };
      // A closed one draws nothing.
      group.node.addEventListener("toggle", () => { for (const row of group.rows.values()) drawMap(row.canvas, row.map); });
      drawn.set(number, group);
      parent.append(group.node);
    }
    const largest = segments.flatMap((s) => s.of).slice(0, 3).map(what).join(", ");
    const sum = segments.reduce((all, s) => all + s.bytes, 0);
    group.head.textContent = `${who(number)}: ${bytes(sum)} in ${plural(segments.length, "segment")}${largest ? `: ${largest}` : ""}`;
    group.node.classList.toggle("many", segments.length > 2);
    const bases = new Set();
    for (const s of segments) {
      bases.add(s.base);
      let row = group.rows.get(s.base);
      if (!row) {
        const canvas = make("canvas", { role: "img" }), text = make("p", { class: "num" }), of = make("p", { class: "name" });
        row = { node: make("div", { class: "segment" }, canvas, text, of), canvas, text, of };
        group.rows.set(s.base, row);
        group.node.append(row.node);
      }
      const place = s.place === "host" ? "host" : `${s.place.device} (${s.place.allocator})`;
      const words = s.is_mapped
        ? `${bytes(s.bytes)} ${place}: live ${bytes(s.live)}, leased ${bytes(s.leased)} (${bytes(s.retired)} retired), free or draft ${bytes(s.free)}; ${count(s.slots)} slots`
        : `${bytes(s.bytes)} ${place}: its slots are not known here`;
      row.text.textContent = words;
      const names = s.of.map(what).join(", ");
      if (row.of.textContent !== names) row.of.textContent = names;
      row.canvas.setAttribute("aria-label", `Map of a segment. ${words}`);
      if (row.map === s.map) continue;
      row.map = s.map;
      if (group.node.open) drawMap(row.canvas, s.map);
    }
    for (const [base, row] of group.rows) if (!bases.has(base)) { row.node.remove(); group.rows.delete(base); }
  }
  for (const [number, group] of drawn) if (!seen.has(number)) { group.node.remove(); drawn.delete(number); }
  if (!owners.size && !parent.querySelector(".none")) parent.append(make("p", { class: "quiet none" }, "Nothing is lent."));
  if (owners.size) parent.querySelector(".none")?.remove();
  const all = status()?.segments ?? 0, shown = here()?.segments.length ?? 0;
  $("more-maps").textContent = all > shown ? `The ${count(shown)} largest of ${count(all)} segments are shown; /api/v1 has all.` : "";
}

function drawLegend() {
  for (const canvas of document.querySelectorAll(".legend canvas")) drawMap(canvas, canvas.dataset.map);
}

function draw() {
  if (!latest) return;
  const ns = here();
  pickNamespaces();
  drawTitle();
  drawProblems();
  drawTiles();
  drawServices();
  drawChart();
  drawMaps();
  const all = status();
  tables.streams.set(ns?.streams ?? [], (s) => String(s.id), all?.streams);
  const leases = [...(ns?.leases ?? [])].sort((a, b) => order === "age" ? b.age_s - a.age_s : b.bytes - a.bytes).slice(0, 50);
  tables.leases.set(leases, (l) => `${l.holder}.${l.client}.${l.slot}.${l.of == null}`);
  tables.clients.set(ns?.clients ?? [], (c) => `${c.client}.${c.epoch}`, all?.clients);
  tables.events.set(latest.events.filter((e) => !e.namespace || e.namespace === ns?.name), (e) => String(e.number));
  const s = status();
  $("looked").textContent = `sample ${count(latest.status.look)}, ${((s?.took_us ?? 0) / 1000).toFixed(1)} ms`;
}

function pickNamespaces() {
  const names = latest.namespaces.map((ns) => ns.name);
  $("pick").hidden = names.length < 2;
  const select = $("namespace");
  if ([...select.options].map((o) => o.value).join("\n") !== names.join("\n")) {
    select.replaceChildren(...names.map((name) => { const o = make("option", {}, plain(name)); o.value = name; return o; }));
    if (namespace) select.value = namespace;
  }
  namespace ??= names[0] ?? null;
}

// ---- names and previews

async function loadNames() {
  try {
    const query = { contains: $("contains").value, offset, limit: PAGE };
    if (namespace) query.namespace = namespace;
    const answer = await api("names", query);
    total = answer.total;
    tables.names.set(answer.names, (v) => JSON.stringify(v.of));
    $("page").textContent = total ? `${count(offset + 1)} to ${count(Math.min(total, offset + PAGE))} of ${count(total)}` : "none";
    $("before").disabled = offset === 0;
    $("after").disabled = offset + PAGE >= total;
  } catch { /* The live connection says what is wrong. */ }
}

function previewButton(v) {
  return {
    make: () => {
      const button = make("button", { type: "button" }, "Preview");
      button.addEventListener("click", () => preview(button.of.name));
      return button;
    },
    update: (button) => { button.of = v.of; button.setAttribute("aria-label", `Preview ${plain(v.of.name)}`); },
  };
}

async function preview(name) {
  const body = $("preview-body");
  $("preview-name").textContent = plain(name);
  body.replaceChildren("reading");
  $("preview").showModal();
  const query = { name, ...(namespace ? { namespace } : {}) };
  try {
    const seen = await api("preview", query);
    const parts = [];
    if (seen.members) {
      parts.push(make("p", {}, `A dataset of ${seen.members.length} tensors:`), make("ul", {}, ...seen.members.map((m) => make("li", { class: "name" }, `${plain(m.name)}: ${m.dtype} ${m.shape.join(" x ")}`))));
    } else {
      const list = make("dl", {});
      const row = (head, text) => list.append(make("dt", {}, head), make("dd", { class: "num" }, String(text ?? "–")));
      row("type", seen.dtype);
      row("shape", seen.shape.join(" x ") || "scalar");
      row("bytes", `${bytes(seen.nbytes)}, ${bytes(seen.metadata_bytes)} of metadata`);
      const s = seen.statistics;
      if (s) {
        row("elements", s.sampled < s.elements ? `${count(s.elements)}, ${count(s.sampled)} of them sampled` : count(s.elements));
        const round = (n) => n == null ? "–" : Number(n.toPrecision(6)).toLocaleString("en", { maximumSignificantDigits: 6 });
        row("min", round(s.min));
        row("max", round(s.max));
        row("mean", round(s.mean));
        row("not a number", `${count(s.nan)}, infinite ${count(s.infinite)}`);
      }
      parts.push(list);
      if (s?.histogram?.length) {
        const round = (n) => Number(n.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });
        parts.push(histogram(s.histogram, s.min, s.max), make("div", { class: "axis across num" }, make("span", {}, round(s.min)), make("span", {}, "value"), make("span", {}, round(s.max))));
      }
      if (seen.is_picture) {
        const blob = await (await ask(`/api/v1/preview.png?${new URLSearchParams(query)}`)).blob();
        const img = make("img", { alt: "The tensor as a picture" });
        img.src = URL.createObjectURL(blob);
        img.addEventListener("load", () => URL.revokeObjectURL(img.src));
        const [rows, columns] = seen.shape;
        const axis = (name, last, kind) => make("div", { class: `axis ${kind}` }, make("span", {}, "0"), make("span", {}, name), make("span", {}, count(last - 1)));
        parts.push(make("div", { class: "picture" }, axis("row", rows, "down"), img, axis("column", columns, "across")));
        const round = (n) => Number(n.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 });
        if (seen.picture_range) parts.push(make("p", { class: "scale num" }, round(seen.picture_range[0]), make("span", { class: "ramp", role: "img", "aria-label": "black to white" }), round(seen.picture_range[1])));
      }
    }
    body.replaceChildren(...parts);
  } catch (error) {
    body.replaceChildren(make("p", { class: "alarm" }, error.message));
  }
}

// ---- live

function say(text, on) {
  if ($("state").textContent !== text) $("state").textContent = text;
  $("dot").classList.toggle("on", on);
}

/// A sample is late after this many milliseconds, or after two intervals, whichever is longer.
const LATE = 2000;
/// Time of the last sample that this page received.
let taken = 0;
/// The reason why there is no connection; null: connected.
let trouble = "connecting";

/// Reports whether the numbers are current: samples arrive and the daemon responds.
function judge() {
  const s = latest?.status, age = performance.now() - taken;
  let why = "";
  if (trouble) {
    say(trouble, false);
    // The server closes each connection after a while; the page reconnects immediately.
    if (s && age > LATE) why = `There is no connection to tensorlend web. The numbers are from ${clock(s.at_ms)}.`;
  } else if (!s.daemon) {
    say("daemon does not respond", false);
    const since = s.daemon_answered_ms ? ` since ${clock(s.daemon_answered_ms)}` : "";
    why = `The daemon has not responded${since}. Its metrics are from that time; the rest is read from shared memory.`;
  } else if (age > Math.max(LATE, 2 * s.interval_ms + 500)) {
    say("no new samples", false);
    why = `tensorlend web has sent nothing since ${clock(s.at_ms)}. The numbers are from that time.`;
  } else {
    say("live", true);
  }
  // Screen readers would announce an alert again if its unchanged text were set again.
  if ($("stale").textContent !== why) $("stale").textContent = why;
  $("figures").classList.toggle("stale", why !== "");
}

const clock = (at_ms) => new Date(at_ms).toLocaleTimeString();

function take(data) {
  latest = data;
  taken = performance.now();
  trouble = null;
  judge();
  looks += 1;
  for (const ns of data.namespaces) {
    const all = points.get(ns.name) ?? [];
    if (ns.point && ns.point.at_ms > (all.at(-1)?.at_ms ?? 0)) all.push(ns.point);
    points.set(ns.name, all.slice(-POINTS));
  }
  draw();
  if (looks % 3 === 1) loadNames();
}

/// Loads the history before this page was opened.
async function loadHistory(data) {
  for (const ns of data.namespaces) {
    const { history } = await api("history", { namespace: ns.name });
    points.set(ns.name, history.slice(-POINTS));
  }
}

function lose(why) {
  trouble = why;
  judge();
}

let connection = null;
async function live() {
  let wait = 500;
  while (!document.hidden) {
    connection = new AbortController();
    let why = "connecting again";
    try {
      const answer = await ask("/api/v1/live", connection.signal);
      $("login").hidden = true;
      $("figures").hidden = false;
      // A link sends no token.
      $("raw").hidden = token != null;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "", first = true;
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
          const line = text.slice(0, end).split("\n").find((l) => l.startsWith("data: "));
          if (!line) continue;
          const data = JSON.parse(line.slice(6));
          if (first) { await loadHistory(data); first = false; }
          wait = 500;
          take(data);
        }
      }
    } catch (error) {
      if (!$("login").hidden) { lose("a token is needed"); connection = null; return; }
      if (error.name !== "AbortError") why = `not connected: ${error.message}`;
    }
    if (!document.hidden) lose(why);
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(wait * 2, 10_000);
  }
  connection = null;
}

const start = () => { if (!connection && !document.hidden) live(); };
document.addEventListener("visibilitychange", () => {
  // A hidden page requests nothing.
  if (document.hidden) { connection?.abort(); lose("paused"); } else start();
});

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value;
  sessionStorage.setItem("token", token);
  $("token").value = "";
  $("wrong").textContent = "";
  start();
});
$("namespace").addEventListener("change", (event) => { namespace = event.target.value; offset = 0; draw(); loadNames(); });
function choose(group, name, set) {
  $(group).addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    for (const other of $(group).children) other.setAttribute("aria-pressed", String(other === button));
    set(button.dataset[name]);
    draw();
  });
}
choose("by", "by", (value) => { by = value; });
choose("order", "order", (value) => { order = value; });
$("search").addEventListener("submit", (event) => { event.preventDefault(); offset = 0; loadNames(); });
$("before").addEventListener("click", () => { offset = Math.max(0, offset - PAGE); loadNames(); });
$("after").addEventListener("click", () => { if (offset + PAGE < total) { offset += PAGE; loadNames(); } });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawLegend(); draw(); });
new ResizeObserver(() => { for (const group of drawn.values()) for (const row of group.rows.values()) drawMap(row.canvas, row.map); }).observe($("maps"));
drawLegend();
setInterval(() => { if (!document.hidden) judge(); }, 250);
start();
