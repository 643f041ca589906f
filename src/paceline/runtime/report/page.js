"use strict";
// The page is complete without this script. It adds sorting, reading values off curves, and zooming into timelines.

// --- sorting ---
function sortable(table) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const numeric = head.dataset.sort === "number";
      const now = head.getAttribute("aria-sort");
      const down = now ? now === "ascending" : numeric;  // numbers start with the largest
      const key = row => {
        const cell = row.cells[column];
        if (!numeric) return cell.textContent;
        return cell.dataset.v === "" ? null : Number(cell.dataset.v);
      };
      const rows = [...body.rows].map(row => [key(row), row]);
      rows.sort(([a, one], [b, other]) => {
        if (a === null || b === null) return (a === null) - (b === null);  // unknown values stay at the bottom
        const order = numeric ? a - b : a.localeCompare(b, "en", {numeric: true});
        return (down ? -order : order) || one.dataset.place - other.dataset.place;
      });
      body.append(...rows.map(([, row]) => row));
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
    });
  });
  if (body.rows.length > 8) filtered(table, body);
  body.addEventListener("pointerover", event => emphasise(event.target.closest("tr")?.dataset.name));
  body.addEventListener("pointerleave", () => emphasise());
}

// A field above a long table: only runs that contain all of its words stay, in the table and in the charts.
function filtered(table, body) {
  const field = document.createElement("input"), shown = document.createElement("output"), line = document.createElement("p");
  field.type = "search";
  field.placeholder = "downpour workers=4";
  field.setAttribute("aria-label", "Show runs that contain");
  line.className = "filter";
  line.append("Show runs that contain ", field, shown);
  table.parentElement.before(line);
  const named = cell => `${cell.dataset.label ?? ""}=${cell.textContent} ${cell.title}`;  // "workers=4", and the folder
  const text = row => [...row.cells].map(named).join(" ").toLowerCase();
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of body.rows) row.hidden = !words.every(word => text(row).includes(word));
    const left = [...body.rows].filter(row => !row.hidden), names = new Set(left.map(row => row.dataset.name));
    for (const curve of document.querySelectorAll("path[data-name]")) {
      curve.style.display = names.has(curve.dataset.name) ? "" : "none";
    }
    shown.textContent = words.length ? ` ${left.length} of ${body.rows.length} runs` : "";
  });
}

function emphasise(name) {
  document.body.classList.toggle("quiet", Boolean(name));
  for (const line of document.querySelectorAll(".line.loud")) line.classList.remove("loud");
  if (name) for (const line of document.querySelectorAll(`.line[data-name="${CSS.escape(name)}"]`)) line.classList.add("loud");
}

// --- curves ---
const digits = value => value === 0 ? "0" : Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : value.toPrecision(3);

function points(path) {
  let x = 0, y = 0;
  const found = [];
  for (const [, how, a, b] of path.getAttribute("d").matchAll(/([Ml])(-?\d+) (-?\d+)/g)) {
    [x, y] = how === "M" ? [+a, +b] : [x + +a, y + +b];
    found.push([x, y]);
  }
  return found;
}

function readable(figure) {
  const svg = figure.querySelector("svg");
  if (!svg.dataset.x) return;
  const [x0, x1] = svg.dataset.x.split(" ").map(Number), ends = svg.dataset.y.split(" ").map(Number);
  const log = "log" in svg.dataset, percent = "percent" in svg.dataset;
  const [y0, y1] = log ? ends.map(Math.log10) : ends;
  const unit = figure.querySelector(".axis").textContent;
  const read = document.createElement("output");
  read.className = "read";
  figure.append(read);
  const rule = document.createElementNS("http://www.w3.org/2000/svg", "path");
  rule.setAttribute("class", "rule");
  let lines = null;
  svg.parentElement.addEventListener("pointermove", event => {
    lines ??= [...svg.querySelectorAll(".line")].map(path => ({path, name: path.dataset.name, points: points(path)}));
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * 1000, y = (event.clientY - box.top) / box.height * 1000;
    let best = null;
    for (const line of lines) {
      for (const [px, py] of line.points) {
        const far = Math.hypot((px - x) * box.width, (py - y) * box.height * (lines.length > 1 ? 1 : 0.01));
        if (!best || far < best.far) best = {far, px, py, line};
      }
    }
    if (!best) return;
    rule.setAttribute("d", `M${best.px} 0v1000`);
    svg.append(rule);
    const at = x0 + best.px / 1000 * (x1 - x0), raw = y0 + (1 - best.py / 1000) * (y1 - y0), value = log ? 10 ** raw : raw;
    const shown = percent ? (100 * value).toFixed(1) + "%" : digits(value);
    read.textContent = `${lines.length > 1 ? best.line.name + ": " : ""}${shown} at ${digits(at)} ${unit}`;
    if (lines.length > 1) emphasise(best.line.name);
  });
  svg.parentElement.addEventListener("pointerleave", () => {
    rule.remove();
    read.textContent = "";
    emphasise();
  });
}

// --- timelines ---
let shown = new AbortController();  // ends what the timelines of this content listen for, when other content takes its place
const KINDS = ["compute", "update", "communicate", "wait", "other", "not measured"];
const STACK = 5;  // drawn from the bottom; the rest is not measured, and shows the strip's hatching

async function unfold(text) {
  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const raw = new Uint8Array(await new Response(stream).arrayBuffer());
  let at = 0;
  const next = () => {
    let value = 0, scale = 1, byte;
    do { byte = raw[at++]; value += (byte & 127) * scale; scale *= 128; } while (byte & 128);
    return value;
  };
  const count = next(), first = next(), kinds = raw.subarray(at, at += count), edges = new Float64Array(count + 1);
  edges[0] = first;
  for (let n = 0; n < count; n++) edges[n + 1] = edges[n] + next();
  return {kinds, edges};
}

function find(edges, value) {  // the index of the span that contains it
  let low = 0, high = edges.length - 1;
  while (low < high - 1) {
    const middle = (low + high) >> 1;
    if (edges[middle] <= value) low = middle; else high = middle;
  }
  return low;
}

function duration(nanoseconds) {
  for (const [size, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) if (nanoseconds >= size) return digits(nanoseconds / size) + " " + unit;
  return Math.round(nanoseconds) + " ns";
}

class Timeline {
  constructor(figure) {
    this.figure = figure;
    this.end = +figure.dataset.end;
    this.low = 0;
    this.high = this.end;
    this.read = figure.querySelector(".read");
    this.marks = figure.querySelector(".marks");
    this.axis = figure.querySelector(".axis");
    this.whole = this.marks.innerHTML;
    this.lanes = [...figure.querySelectorAll(".lane")].map(lane => ({
      strip: lane.querySelector(".strip"), hatched: lane.querySelector(".hatched") !== null, worker: lane.dataset.worker, unit: +lane.dataset.unit,
      coded: lane.dataset.spans, spans: null, canvas: null,
    }));
    this.buttons();
    this.lanes.forEach(lane => this.listen(lane));
    const {signal} = shown, again = () => this.close && this.draw();
    addEventListener("resize", again, {signal});
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again, {signal});
  }

  get close() { return this.low > 0 || this.high < this.end; }

  buttons() {
    const bar = document.createElement("div");
    bar.className = "zoom";
    const add = (text, label, does) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.setAttribute("aria-label", label);
      button.addEventListener("click", does);
      bar.append(button);
      return button;
    };
    add("+", "zoom in", () => this.scale(0.4));
    this.out = [
      add("−", "zoom out", () => this.scale(2.5)), add("‹", "earlier", () => this.shift(-0.5)),
      add("›", "later", () => this.shift(0.5)), add("all", "all of the run", () => this.show(0, this.end)),
    ];
    bar.append("or drag over a strip");
    this.figure.querySelector(".lanes").before(bar);
    this.out.forEach(button => button.disabled = true);
  }

  scale(by) {
    const middle = (this.low + this.high) / 2, half = (this.high - this.low) / 2 * by;
    this.show(middle - half, middle + half);
  }

  shift(by) {
    const width = this.high - this.low, low = Math.min(Math.max(0, this.low + by * width), this.end - width);
    this.show(low, low + width);
  }

  async show(low, high) {
    await Promise.all(this.lanes.map(async lane => lane.spans ??= await unfold(lane.coded)));
    const least = 20000;  // nanoseconds
    if (high - low < least) { const middle = (low + high) / 2; low = middle - least / 2; high = low + least; }
    this.low = Math.max(0, low);
    this.high = Math.min(this.end, Math.max(high, this.low + least));
    this.draw();
  }

  draw() {
    this.out.forEach(button => button.disabled = !this.close);
    const style = getComputedStyle(document.documentElement);
    const colours = KINDS.slice(0, STACK).map(kind => style.getPropertyValue(`--time-${kind}`));
    for (const lane of this.lanes) this.drawLane(lane, colours);
    for (const death of this.figure.querySelectorAll(".death")) death.hidden = this.close;
    if (!this.close) { this.marks.innerHTML = this.whole; this.axis.textContent = "seconds"; return; }
    const width = this.high - this.low, raw = width / 5, power = 10 ** Math.floor(Math.log10(raw));
    const step = power * [1, 2, 5, 10].find(f => f * power >= raw);
    const [size, unit] = width > 2e9 ? [1e9, "seconds"] : width > 2e6 ? [1e6, "milliseconds"] : [1e3, "microseconds"];
    this.marks.replaceChildren();
    for (let at = Math.ceil(this.low / step) * step; at <= this.high; at += step) {
      const mark = document.createElement("i");
      mark.className = "x";
      mark.style.left = (at - this.low) / width * 100 + "%";
      mark.textContent = (+(at / size).toPrecision(12)).toLocaleString("en");
      this.marks.append(mark);
    }
    this.axis.textContent = unit;
  }

  drawLane(lane, colours) {
    if (!this.close) {
      lane.canvas?.remove();
      lane.canvas = null;
      lane.strip.querySelector("svg").style.visibility = "";
      return;
    }
    if (!lane.canvas) {
      lane.canvas = lane.strip.appendChild(document.createElement("canvas"));
      lane.strip.querySelector("svg").style.visibility = "hidden";  // which would show through where nothing is drawn
    }
    const {canvas, spans: {kinds, edges}, unit} = lane, ratio = devicePixelRatio || 1;
    const width = canvas.width = Math.round(lane.strip.clientWidth * ratio);
    const height = canvas.height = Math.round(lane.strip.clientHeight * ratio), pen = canvas.getContext("2d");
    if (!lane.hatched) { pen.fillStyle = colours[4]; pen.fillRect(0, 0, width, height); }
    const low = this.low / unit, each = (this.high - this.low) / unit / width;
    let at = find(edges, low);
    for (let x = 0; x < width; x++) {
      const from = low + x * each, to = from + each, parts = [0, 0, 0, 0, 0, 0];
      while (at < kinds.length - 1 && edges[at + 1] <= from) at++;
      for (let n = at; n < kinds.length && edges[n] < to; n++) {
        const part = Math.min(edges[n + 1], to) - Math.max(edges[n], from);
        if (part > 0) parts[kinds[n]] += part / each;
      }
      for (let kind = 0, up = 0; kind < STACK; kind++) {
        const tall = parts[kind] * height;
        pen.fillStyle = colours[kind];
        pen.fillRect(x, height - up - tall, 1, tall);
        up += tall;
      }
    }
  }

  listen(lane) {
    let from = null, pick = null;
    const strip = lane.strip, place = event => {
      const box = strip.getBoundingClientRect();
      return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    };
    strip.style.touchAction = "pan-y";
    strip.style.cursor = "crosshair";
    strip.addEventListener("pointerdown", event => { from = place(event); strip.setPointerCapture(event.pointerId); });
    strip.addEventListener("pointermove", async event => {
      const at = place(event), now = this.low + at * (this.high - this.low);
      if (from !== null && Math.abs(at - from) > 0.004) {
        pick ??= strip.appendChild(Object.assign(document.createElement("div"), {className: "pick"}));
        pick.style.left = Math.min(at, from) * 100 + "%";
        pick.style.width = Math.abs(at - from) * 100 + "%";
      }
      lane.spans ??= await unfold(lane.coded);
      const {kinds, edges} = lane.spans, n = find(edges, now / lane.unit);
      const inside = now / lane.unit >= edges[0] && now / lane.unit <= edges[kinds.length];
      this.read.textContent = inside
        ? `worker ${lane.worker} at ${duration(now)}: ${KINDS[kinds[n]]} for ${duration((edges[n + 1] - edges[n]) * lane.unit)}`
        : `worker ${lane.worker} at ${duration(now)}: not running`;
    });
    const done = event => {
      if (pick && event.type === "pointerup") {
        const at = place(event), width = this.high - this.low;
        this.show(this.low + Math.min(at, from) * width, this.low + Math.max(at, from) * width);
      }
      pick?.remove();
      from = pick = null;
    };
    strip.addEventListener("pointerup", done);
    strip.addEventListener("pointercancel", done);
    strip.addEventListener("pointerleave", () => this.read.textContent = "");
  }
}

// Those in a folded part are made when it is opened.
const awake = new WeakSet();
const wake = part => {
  for (const figure of part.querySelectorAll(".timeline")) {
    if (awake.has(figure) || figure.closest("details:not([open])")) continue;
    awake.add(figure);
    new Timeline(figure);
  }
};

function enhance() {
  shown.abort();
  shown = new AbortController();
  document.querySelectorAll("table.runs").forEach(sortable);
  document.querySelectorAll(".chart").forEach(readable);
  wake(document);
  for (const part of document.querySelectorAll("details")) part.addEventListener("toggle", () => wake(part));
}
enhance();
