// Drawing: maps of slots, bytes over time, histograms. Nothing relies on colour alone: states have patterns, series
// have dashes.

const SVG = "http://www.w3.org/2000/svg";
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/// The same text as the function `bytes_text` of the command line.
export function bytes(count) {
  if (count == null) return "–";
  if (count < 1024) return `${Math.round(count)} B`;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let unit = 0;
  while (count >= 1023.95 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${count.toFixed(1)} ${units[unit]}`;
}

export function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "text", "rect", "g", "polyline"].includes(tag);
  const node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/// A row of places: V live (solid), L leased (stripes), R retired (dots), all others free (an empty box).
export function drawMap(canvas, map) {
  const ratio = Math.min(window.devicePixelRatio || 1, 3);
  const box = canvas.getBoundingClientRect();
  const width = Math.max(1, Math.round((box.width || 28) * ratio)), height = Math.max(1, Math.round((box.height || 14) * ratio));
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const g = canvas.getContext("2d");
  const colours = { V: colour("--live"), L: colour("--leased"), R: colour("--retired") };
  g.fillStyle = colour("--free");
  g.fillRect(0, 0, width, height);
  for (let from = 0; from < map.length;) {
    let to = from + 1;
    while (to < map.length && map[to] === map[from]) to += 1;
    const state = map[from];
    if (colours[state]) {
      const x = Math.floor(from * width / map.length), end = Math.max(x + 1, Math.floor(to * width / map.length));
      g.save();
      g.beginPath();
      g.rect(x, 0, end - x, height);
      g.clip();
      g.fillStyle = colours[state];
      g.fillRect(x, 0, end - x, height);
      g.strokeStyle = g.fillStyle = colour("--card");
      if (state === "L") {
        g.lineWidth = 1.5 * ratio;
        g.beginPath();
        for (let at = Math.floor((x - height) / (6 * ratio)) * 6 * ratio; at < end; at += 6 * ratio) { g.moveTo(at, height); g.lineTo(at + height, 0); }
        g.stroke();
      } else if (state === "R") {
        for (let at = Math.floor(x / (6 * ratio)) * 6 * ratio; at < end; at += 6 * ratio)
          for (let y = 3 * ratio; y < height; y += 6 * ratio) { g.beginPath(); g.arc(at + 3 * ratio, y, 1.4 * ratio, 0, 7); g.fill(); }
      }
      g.restore();
    }
    from = to;
  }
  g.strokeStyle = colour("--quiet");
  g.lineWidth = ratio;
  g.strokeRect(ratio / 2, ratio / 2, width - ratio, height - ratio);
}

/// Returns round numbers of bytes up to a maximum.
function ticks(max) {
  let step = 1;
  while (step * 4 < max) step *= 2;
  const all = [];
  for (let at = 0; at <= max; at += step) all.push(at);
  return all;
}

const DASHES = ["", "6 3", "2 3", "9 3 2 3", "12 4", "1 4", "4 4 1 4", "8 2"];

/// Bytes over time: series of {label, values}, times in milliseconds. The series are stacked where their sum is
/// meaningful.
export class TimeChart {
  constructor(parent) {
    this.svg = make("svg", { role: "img", tabindex: "0", preserveAspectRatio: "none" });
    this.keys = make("ul", { class: "keys" });
    this.says = make("p", { class: "quiet num", "aria-live": "off" });
    parent.append(this.svg, this.keys, this.says);
    this.at = null;
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => { this.at = null; this.draw(); });
    this.svg.addEventListener("blur", () => { this.at = null; this.draw(); });
    this.svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !this.times?.length) return;
      event.preventDefault();
      this.at = Math.max(0, Math.min(this.times.length - 1, (this.at ?? this.times.length - 1) + step));
      this.draw();
    });
    new ResizeObserver(() => this.draw()).observe(parent);
  }

  set(times, series, stacked, top) {
    Object.assign(this, { times, series, stacked, top });
    this.draw();
  }

  point(event) {
    if (!this.times?.length) return;
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left - this.left) / Math.max(1, box.width - this.left - 8);
    const span = this.times.at(-1) - this.times[0];
    const time = this.times[0] + share * span;
    let best = 0;
    this.times.forEach((t, at) => { if (Math.abs(t - time) < Math.abs(this.times[best] - time)) best = at; });
    this.at = best;
    this.draw();
  }

  draw() {
    const { svg, times, series } = this;
    if (!times) return;
    const box = svg.getBoundingClientRect();
    const width = Math.max(200, box.width), height = Math.max(80, box.height);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const left = this.left = 66, right = width - 8, bottom = height - 20;
    const sums = times.map((_, at) => series.reduce((sum, s) => sum + (s.line ? 0 : s.values[at] ?? 0), 0));
    const highest = Math.max(1024, this.top?.values ? Math.max(...this.top.values) : 0,
      ...(this.stacked ? sums : series.flatMap((s) => s.values.map((v) => v ?? 0))));
    const y = (value) => bottom - value / (highest * 1.04) * (bottom - 8);
    const span = Math.max(1, times.at(-1) - times[0]);
    const x = (time) => times.length < 2 ? right : left + (time - times[0]) / span * (right - left);
    const parts = [];
    for (const tick of ticks(highest)) {
      parts.push(make("line", { class: "grid", x1: left, x2: right, y1: y(tick), y2: y(tick) }),
        make("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, bytes(tick)));
    }
    const first = new Date(times[0]), last = new Date(times.at(-1) ?? 0);
    if (times.length > 1) {
      parts.push(make("text", { x: left, y: height - 4 }, first.toLocaleTimeString()),
        make("text", { x: right, y: height - 4, "text-anchor": "end" }, last.toLocaleTimeString()));
    }
    let under = times.map(() => 0);
    series.forEach((s, n) => {
      const ink = s.ink ?? `var(--s${n % 8})`;
      if (this.stacked) {
        const over = under.map((sum, at) => sum + (s.values[at] ?? 0));
        const path = times.map((t, at) => `${at ? "L" : "M"}${x(t).toFixed(1)} ${y(over[at]).toFixed(1)}`).join("");
        const back = times.map((t, at) => `L${x(t).toFixed(1)} ${y(under[at]).toFixed(1)}`).reverse().join("");
        parts.push(make("path", { d: `${path}${back}Z`, fill: ink, "fill-opacity": ".28" }),
          make("path", { d: path, fill: "none", stroke: ink, "stroke-width": "2", "stroke-dasharray": DASHES[n % 8] }));
        under = over;
      } else {
        const path = times.map((t, at) => `${at ? "L" : "M"}${x(t).toFixed(1)} ${y(s.values[at] ?? 0).toFixed(1)}`).join("");
        parts.push(make("path", { d: path, fill: "none", stroke: ink, "stroke-width": "2", "stroke-dasharray": DASHES[n % 8] }));
      }
    });
    if (this.top) {
      const path = times.map((t, at) => `${at ? "L" : "M"}${x(t).toFixed(1)} ${y(this.top.values[at] ?? 0).toFixed(1)}`).join("");
      parts.push(make("path", { d: path, fill: "none", stroke: "var(--ink)", "stroke-width": "1.5", "stroke-dasharray": "1 3" }));
    }
    const at = this.at == null ? times.length - 1 : Math.min(this.at, times.length - 1);
    if (this.at != null && times.length) parts.push(make("line", { class: "cross", x1: x(times[at]), x2: x(times[at]), y1: 6, y2: bottom }));
    svg.replaceChildren(...parts);
    const all = this.top ? [...series, { ...this.top, ink: "var(--ink)", dash: "1 3" }] : series;
    this.keys.replaceChildren(...all.map((s, n) => make("li", {},
      make("svg", { viewBox: "0 0 24 12", "aria-hidden": "true" }, make("line", { x1: 0, x2: 24, y1: 6, y2: 6, stroke: s.ink ?? `var(--s${n % 8})`, "stroke-width": 3, "stroke-dasharray": s.dash ?? DASHES[n % 8] })),
      `${s.label} ${bytes(s.values[at] ?? 0)}`)));
    this.says.textContent = times.length ? new Date(times[at]).toLocaleTimeString() + (this.at == null ? " (now)" : "") : "nothing yet";
    svg.setAttribute("aria-label", `Bytes over time. ${all.map((s) => `${s.label}: ${bytes(s.values[at] ?? 0)}`).join(", ")}. Arrow keys move through time.`);
  }
}

/// Draws the bars of a histogram.
export function histogram(bins, min, max) {
  const most = Math.max(1, ...bins);
  const svg = make("svg", { viewBox: `0 0 ${bins.length * 10} 100`, preserveAspectRatio: "none", role: "img", "aria-label": `Histogram from ${min} to ${max}` });
  bins.forEach((count, at) => svg.append(make("rect", { x: at * 10, width: 9, y: 100 - count / most * 98, height: count / most * 98 + 2, fill: "var(--live)" })));
  return svg;
}
