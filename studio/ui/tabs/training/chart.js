// Draws a run's charts: takes columns as they come, asks for all of them when some are missing, and draws what is
// visible, once a change, with the least and the greatest value of every pixel.
const root = element.querySelector(".charts");
const tools = element.querySelector(".chart-tools");
const details = element.querySelector("details");
let figures = [...root.querySelectorAll("figure")];
const words = root.dataset;
const WIDTHS = { step: 7, eval: 3, metric: 5, gpu: 5 };
const STEP = 0, SECONDS = 1, LOSS = 2;
const AXES = {
  loss: { kind: "step", evals: "eval", y: 2, calm: true, log: true },
  learning_rate: { kind: "step", y: 3, log: true },
  grad_norm: { kind: "step", y: 4, calm: true, log: true },
  tokens_per_s: { kind: "step", y: 5, zero: true, calm: true },
  gpu_memory: { kind: "step", y: 6, zero: true, unit: "GiB", scale: 1 / 2 ** 30 },
  gpu_utilisation: { kind: "gpu", y: 1, zero: true, top: 100, unit: "%", scale: 100 },
  gpu_temperature: { kind: "gpu", y: 3, unit: "°C" },
  gpu_power: { kind: "gpu", y: 4, zero: true, unit: "W" },
};
// A metric of the run's objective: of the rows that are learned, and of those held out.
const metricAxis = (number, unit) => ({ kind: `metric ${number}`, evals: `metric ${number} held out`, y: 2, calm: true, unit: unit === "share" ? "%" : unit, scale: unit === "share" ? 100 : 1 });
const TABLE_ROWS = 20;
const UNSEEN_MS = 5000; // points that move a curve by less than half a pixel wait so long

// Columns of numbers that grow at their end; a gap is NaN.
class Table {
  constructor(width) { this.columns = Array.from({ length: width }, () => new Float64Array(1024)); this.length = 0; }
  add(columns, from) {
    const more = columns[0].length - from;
    if (more <= 0) return;
    const needed = this.length + more;
    if (needed > this.columns[0].length) {
      this.columns = this.columns.map((old) => { const grown = new Float64Array(Math.max(needed, old.length * 2)); grown.set(old); return grown; });
    }
    columns.forEach((values, c) => {
      const column = this.columns[c];
      column.set(from ? values.subarray(from) : values, this.length);
    });
    this.length = needed;
  }
}
// What studio/ui/metric_columns.py packs: columns one behind the other, 32-bit floats in base64.
function unpack(words, width) {
  const bytes = Uint8Array.from(atob(words), (letter) => letter.charCodeAt(0));
  const numbers = new Float32Array(bytes.buffer), length = numbers.length / width;
  return Array.from({ length: width }, (_, c) => numbers.subarray(c * length, (c + 1) * length));
}
const empty = () => Object.fromEntries(Object.entries(WIDTHS).map(([kind, width]) => [kind, new Table(width)]));
const none = () => Object.fromEntries(Object.keys(WIDTHS).map((kind) => [kind, 0]));
const store = { run: null, generation: -1, cursor: none(), tables: empty(), metrics: "[]" };
const wish = { smooth: 60, log: false, window: "all", ...remembered() };
const mine = element.querySelector(".charts").dataset.fed === "page"; // by run.js; else by the component's value
let pointer = null; // {step, seconds} under the mouse, for all charts at once
let palette = null;
let missing = false;
let queued = false;

function remembered() {
  try { return JSON.parse(localStorage.getItem("studio-charts")) || {}; } catch { return {}; }
}

// Asks until an answer is there: a question put while the page is still mounting may get lost.
function ask() {
  if (mine) return forget(); // run.js asks from where this stands
  if (missing) return;
  missing = true;
  trigger("replay");
  setTimeout(() => { if (missing) { missing = false; ask(); } }, 2000);
}

function forget() {
  Object.assign(store, { run: null, generation: -1, cursor: none(), tables: empty() });
}

function take(message) {
  if (!message || !("run" in message)) return;
  const kinds = Object.keys(WIDTHS);
  const same = message.run === store.run && message.generation === store.generation;
  const whole = kinds.every((kind) => message.since[kind] === 0);
  if (same && message.card === store.card && kinds.every((kind) => message.until[kind] <= store.cursor[kind])) { missing = false; return; }
  if (!whole && !(same && kinds.every((kind) => message.since[kind] <= store.cursor[kind]))) return ask();
  if (!same || whole) {
    store.tables = empty();
    store.cursor = none();
  }
  for (const kind of kinds) {
    const columns = unpack(message[kind], WIDTHS[kind]), from = whole ? 0 : store.cursor[kind] - message.since[kind];
    if (kind === "metric") part(columns, from);
    store.tables[kind].add(columns, from);
  }
  show(message.metrics || []);
  missing = false;
  Object.assign(store, { run: message.run, generation: message.generation, cursor: message.until, card: message.card });
  // A run on a processor has no figures of a card: four charts say all there is, from the first picture on.
  root.classList.toggle("without-card", message.card === false);
  root.dataset.points = String(store.cursor.step);
  root.taken = (root.taken || 0) + 1;
  change(same && !whole);
}

// Gives each metric tables of its own: rows come for all of them one behind the other.
function part(columns, from) {
  for (let i = from; i < columns[0].length; i++) {
    const name = `metric ${columns[2][i]}${columns[4][i] ? " held out" : ""}`;
    (store.tables[name] ||= new Table(3)).add([columns[0], columns[1], columns[3]].map((column) => column.subarray(i, i + 1)), 0);
  }
}

// Makes a chart for each metric that the run has.
function show(metrics) {
  const wanted = JSON.stringify(metrics);
  if (wanted === store.metrics) return;
  store.metrics = wanted;
  figures.filter((figure) => figure.dataset.metric).forEach((figure) => { sizes.unobserve(figure.querySelector("canvas")); sight.unobserve(figure); figure.remove(); });
  figures = figures.filter((figure) => !figure.dataset.metric);
  const model = figures[0];
  metrics.forEach((metric, number) => {
    const figure = model.cloneNode(true);
    AXES[`metric ${number}`] = metricAxis(number, metric.unit);
    Object.assign(figure.dataset, { series: `metric ${number}`, metric: metric.name });
    figure.querySelector("figcaption span").textContent = metric.label;
    figure.querySelector("output").textContent = "";
    figure.querySelector("canvas").setAttribute("aria-label", metric.label);
    figures[figures.length - 1].after(figure);
    figures.push(figure);
    listen(figure);
  });
}

function short(value) {
  if (!Number.isFinite(value)) return "";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1).replace("e+", "e").replace(".0e", "e");
  return String(Number(value.toPrecision(size >= 100 ? 4 : 3)));
}

function shortTime(seconds) {
  const minutes = Math.floor(seconds / 60);
  return minutes >= 60 ? `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")} h`
    : `${minutes}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
}

// The first place in a rising column whose value is not below `value`.
function search(column, length, value) {
  let low = 0, high = length;
  while (low < high) { const middle = (low + high) >> 1; if (column[middle] < value) low = middle + 1; else high = middle; }
  return low;
}

function tableOf(kind) {
  return (store.tables[kind] ||= new Table(3));
}

function axisOf(figure) {
  const picked = figure.querySelector("select");
  return AXES[picked ? picked.value : figure.dataset.series];
}

// What of a table the window lets through: [first place, end].
function span(kind) {
  const table = tableOf(kind), steps = store.tables.step;
  const [what, amount] = wish.window.split(" ");
  if (what === "all" || !table.length) return [0, table.length];
  if (what === "steps" && kind === "step") return [Math.max(0, table.length - Number(amount)), table.length];
  const first = what === "steps" ? Math.max(0, steps.length - Number(amount)) : 0;
  if (what === "steps" && !steps.length) return [0, table.length];
  const seconds = kind === "gpu" ? 0 : SECONDS;
  const newest = Math.max(steps.length ? steps.columns[SECONDS][steps.length - 1] : 0, store.tables.gpu.length ? store.tables.gpu.columns[0][store.tables.gpu.length - 1] : 0);
  const from = what === "steps" ? steps.columns[SECONDS][first] : newest - Number(amount) * 60;
  return [search(table.columns[seconds], table.length, from), table.length];
}

// A mean that follows the curve, over up to a tenth of the points on show: the more there are, the calmer.
function smooth(column, length, shown) {
  const keep = 1 - 1 / (1 + (wish.smooth / 100) ** 2 * shown / 10), out = new Float64Array(length);
  let mean = NaN;
  for (let i = 0; i < length; i++) {
    const value = column[i];
    if (value === value) mean = mean === mean ? mean * keep + value * (1 - keep) : value;
    out[i] = mean;
  }
  return out;
}

function niceMarks(low, high, count) {
  const raw = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= raw * 0.999) || raw;
  const marks = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9 && marks.length < 12; value += step) marks.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  return marks;
}

function logMarks(low, high) {
  const marks = [];
  for (let power = Math.floor(low); power <= high; power++) {
    for (const one of high - low > 3 ? [1] : high - low > 1 ? [1, 3] : [1, 2, 3, 5]) {
      const mark = Math.log10(one) + power;
      if (mark >= low && mark <= high) marks.push(mark);
    }
  }
  return marks.length > 1 ? marks : [low, (low + high) / 2, high];
}

function bounds(column, first, end, scale, log, found) {
  for (let i = first; i < end; i++) {
    const value = column[i] * scale;
    if (value !== value || (log && value <= 0)) continue;
    if (value < found.low) found.low = value;
    if (value > found.high) found.high = value;
  }
}

// One line of a curve: per pixel at most its first, least, greatest and last point, joined in their order.
function trace(pen, xs, ys, first, end, toX, toY) {
  let pixel = -1, lows = 0, highs = 0, last = 0, drawing = false;
  const close = () => { if (pixel >= 0 && drawing) { pen.lineTo(pixel, lows); pen.lineTo(pixel, highs); pen.lineTo(pixel, last); } };
  pen.beginPath();
  for (let i = first; i < end; i++) {
    const y = toY(ys[i]);
    if (y !== y) { close(); pixel = -1; drawing = false; continue; }
    const x = Math.round(toX(xs[i]) * 2) / 2;
    if (x !== pixel) {
      close();
      if (drawing) pen.lineTo(x, y); else pen.moveTo(x, y);
      drawing = true; pixel = x; lows = highs = last = y;
    } else {
      if (y < lows) lows = y;
      if (y > highs) highs = y;
      last = y;
    }
  }
  close();
  pen.stroke();
}

function dot(pen, x, y, colour, size) {
  pen.fillStyle = colour;
  pen.beginPath();
  pen.arc(x, y, size, 0, 7);
  pen.fill();
}

function colours() {
  if (palette) return palette;
  const style = getComputedStyle(root);
  palette = { font: `11px ${style.fontFamily}` };
  for (const name of ["accent", "second", "soft", "line", "card"]) palette[name] = style.getPropertyValue(`--studio-${name}`).trim();
  return palette;
}

function title(figure) {
  const picked = figure.querySelector("select");
  return picked ? picked.selectedOptions[0].text : figure.querySelector("figcaption span").textContent;
}

function tell(figure, said, label) {
  const output = figure.querySelector("output"), canvas = figure.querySelector("canvas");
  if (output.textContent !== said) output.textContent = said;
  if (canvas.getAttribute("aria-label") !== label) canvas.setAttribute("aria-label", label);
}

function draw(figure) {
  const box = figure.box;
  if (!box || !box.width || !figure.visible) return;
  const axis = axisOf(figure), table = tableOf(axis.kind), colour = colours();
  const byStep = axis.kind !== "gpu", [first, end] = span(axis.kind), ys = table.columns[axis.y], unit = axis.unit ? ` ${axis.unit}` : "";
  let last = end - 1;
  while (last > first && ys[last] !== ys[last]) last--;
  const value = end > first ? short(ys[last] * (axis.scale || 1)) + unit : "";
  if (figure.stale === "grown" && end - figure.end < (end - first) / (2 * box.width) && performance.now() - figure.drawn < UNSEEN_MS) {
    if (!pointer) tell(figure, value, `${title(figure)}: ${value}`);
    return;
  }
  Object.assign(figure, { stale: "", end, drawn: performance.now() });
  const canvas = figure.querySelector("canvas"), ratio = window.devicePixelRatio || 1;
  const size = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
  if (canvas.width !== size[0]) canvas.width = size[0];
  if (canvas.height !== size[1]) canvas.height = size[1];
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, box.width, box.height);
  pen.font = colour.font;

  const scale = axis.scale || 1, log = wish.log && axis.log;
  const xs = table.columns[byStep ? STEP : 0];
  const evals = axis.evals ? tableOf(axis.evals) : null;
  const [evalFirst, evalEnd] = evals ? span(axis.evals) : [0, 0];
  const found = { low: Infinity, high: -Infinity };
  bounds(ys, first, end, scale, log, found);
  if (evals) bounds(evals.columns[2], evalFirst, evalEnd, scale, log, found);
  if (found.low > found.high || (figure.dataset.series.startsWith("gpu") && found.high === 0 && byStep)) {
    pen.fillStyle = colour.soft;
    pen.textAlign = "center";
    pen.fillText(figure.dataset.empty, box.width / 2, box.height / 2);
    return tell(figure, "", `${title(figure)}: ${figure.dataset.empty}`);
  }

  // Axes
  const right = box.width - 8, top = 8, bottom = box.height - 20;
  let low = axis.zero ? 0 : found.low, high = axis.top || found.high;
  if (log) { low = Math.log10(low); high = Math.log10(high); }
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  if (!axis.zero) low = log || low < 0 ? low - room : Math.max(low - room, 0);
  if (!axis.top) high += room;
  const marks = log ? logMarks(low, high) : niceMarks(low, high, 4);
  const name = (mark) => short(log ? 10 ** mark : mark);
  const left = 12 + Math.max(...marks.map((mark) => pen.measureText(name(mark)).width));
  const from = end > first ? Math.min(xs[first], evalEnd > evalFirst ? evals.columns[STEP][evalFirst] : Infinity) : evals.columns[STEP][evalFirst];
  const until = Math.max(end > first ? xs[end - 1] : 0, evalEnd > evalFirst ? evals.columns[STEP][evalEnd - 1] : 0, from + 1);
  const across = (right - left) / (until - from), up = (bottom - top) / (high - low);
  const toX = (x) => left + (x - from) * across;
  const toY = log ? (y) => (y * scale > 0 ? bottom - (Math.log10(y * scale) - low) * up : NaN) : (y) => bottom - (y * scale - low) * up;
  pen.strokeStyle = colour.line;
  pen.fillStyle = colour.soft;
  pen.lineWidth = 1;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  pen.beginPath();
  for (const mark of marks) {
    const y = Math.round(bottom - (mark - low) * up) + 0.5;
    pen.moveTo(left, y); pen.lineTo(right, y);
    pen.fillText(name(mark), left - 6, y);
  }
  pen.stroke();
  pen.textBaseline = "alphabetic";
  pen.textAlign = "left";
  pen.fillText(byStep ? `${words.step} ${from}` : shortTime(from), left, box.height - 5);
  pen.textAlign = "right";
  pen.fillText(byStep ? String(until) : shortTime(until), right, box.height - 5);

  // Curves
  const calm = axis.calm && wish.smooth > 0 && end - first > 12;
  pen.lineJoin = "round";
  pen.strokeStyle = colour.accent;
  pen.globalAlpha = calm ? (end - first > 3 * box.width ? 0.22 : 0.4) : 1;
  pen.lineWidth = calm ? 1 : 1.8;
  trace(pen, xs, ys, first, end, toX, toY);
  pen.globalAlpha = 1;
  if (calm) { pen.lineWidth = 2; trace(pen, xs, smooth(ys, end, end - first), first, end, toX, toY); }
  if (end - first < 3) for (let i = first; i < end; i++) dot(pen, toX(xs[i]), toY(ys[i]), colour.accent, 3);
  if (evalEnd > evalFirst) {
    pen.strokeStyle = colour.second;
    pen.lineWidth = 1.8;
    trace(pen, evals.columns[STEP], evals.columns[2], evalFirst, evalEnd, toX, toY);
    if (evalEnd - evalFirst < 60) for (let i = evalFirst; i < evalEnd; i++) dot(pen, toX(evals.columns[STEP][i]), toY(evals.columns[2][i]), colour.second, 3);
    legend(pen, figure, right, top, colour);
  }

  const near = pointer && end > first ? nearest(table, byStep, first, end) : -1;
  if (near >= 0) {
    const x = toX(xs[near]);
    pen.strokeStyle = colour.soft;
    pen.lineWidth = 1;
    pen.setLineDash([3, 3]);
    pen.beginPath(); pen.moveTo(x, top); pen.lineTo(x, bottom); pen.stroke();
    pen.setLineDash([]);
    if (ys[near] === ys[near]) dot(pen, x, toY(ys[near]), colour.accent, 3.5);
    const where = byStep ? `${words.step} ${xs[near]}` : shortTime(xs[near]);
    return tell(figure, `${where} · ${short(ys[near] * scale) || "–"}${unit}`, `${title(figure)}: ${value}`);
  }
  tell(figure, value, `${title(figure)}: ${value}`);
}

function nearest(table, byStep, first, end) {
  const column = table.columns[byStep ? STEP : 0], wanted = byStep ? pointer.step : pointer.seconds;
  const place = Math.min(end - 1, Math.max(first, search(column, end, wanted)));
  return place > first && wanted - column[place - 1] < column[place] - wanted ? place - 1 : place;
}

function legend(pen, figure, right, top, colour) {
  let x = right;
  pen.textAlign = "right";
  for (const [label, key] of [[words.eval, "second"], [words.train, "accent"]]) {
    pen.fillStyle = colour.soft;
    pen.fillText(label, x, top + 9);
    x -= pen.measureText(label).width + 8;
    dot(pen, x, top + 5, colour[key], 3.5);
    x -= 14;
  }
}

// The last steps as a table, for who cannot see curves; filled only while it is open.
function list() {
  if (!details.open) return;
  const steps = store.tables.step, evals = store.tables.eval, c = steps.columns, body = details.querySelector("tbody");
  const rows = [];
  for (let i = steps.length - 1; i >= Math.max(0, steps.length - TABLE_ROWS); i--) {
    const step = c[STEP][i], at = search(evals.columns[STEP], evals.length, step);
    const judged = at < evals.length && evals.columns[STEP][at] === step ? short(evals.columns[2][at]) : "";
    const memory = c[6][i] ? `${short(c[6][i] / 2 ** 30)} GiB` : "";
    rows.push([step, short(c[LOSS][i]), judged, short(c[3][i]), short(c[4][i]), short(c[5][i]), memory]);
  }
  body.replaceChildren(...rows.map((cells) => {
    const line = document.createElement("tr");
    line.append(...cells.map((cell) => { const part = document.createElement("td"); part.textContent = cell === "" ? "–" : String(cell); return part; }));
    return line;
  }));
}

function redraw() {
  if (queued || document.hidden) return;
  queued = true;
  requestAnimationFrame(() => {
    queued = false;
    figures.forEach((figure) => { if (figure.stale) draw(figure); });
    list();
  });
}

function change(grown = false) {
  figures.forEach((figure) => { figure.stale = grown === true && figure.stale !== "all" ? "grown" : "all"; });
  redraw();
}

function listen(figure) {
  const canvas = figure.querySelector("canvas");
  figure.stale = "all";
  sizes.observe(canvas);
  sight.observe(figure);
  canvas.addEventListener("pointermove", (event) => {
    const axis = axisOf(figure), table = tableOf(axis.kind), [first, end] = span(axis.kind);
    if (end <= first || !figure.box) return;
    const column = table.columns[0];
    const share = Math.min(1, Math.max(0, (event.offsetX - 40) / (figure.box.width - 48)));
    const place = Math.min(end - 1, search(column, end, column[first] + share * (column[end - 1] - column[first])));
    const steps = store.tables.step;
    if (axis.kind !== "gpu") pointer = { step: column[place], seconds: table.columns[SECONDS][place] };
    else {
      const at = Math.min(steps.length - 1, search(steps.columns[SECONDS], steps.length, column[place]));
      pointer = { seconds: column[place], step: at >= 0 ? steps.columns[STEP][at] : 0 };
    }
    change();
  });
  canvas.addEventListener("pointerleave", () => { pointer = null; change(); });
  figure.querySelector("select")?.addEventListener("change", () => change());
}

tools.querySelectorAll("[name]").forEach((field) => {
  if (field.type === "checkbox") field.checked = wish[field.name]; else field.value = wish[field.name];
  field.addEventListener("input", () => {
    wish[field.name] = field.type === "checkbox" ? field.checked : field.type === "range" ? Number(field.value) : field.value;
    try { localStorage.setItem("studio-charts", JSON.stringify(wish)); } catch { /* a browser that keeps nothing */ }
    change();
  });
});
details.addEventListener("toggle", list);

const sizes = new ResizeObserver((entries) => {
  for (const entry of entries) { const figure = entry.target.closest("figure"); figure.box = entry.contentRect; figure.stale = "all"; }
  redraw();
});
// A screen's height around what is seen counts as seen: scrolling shows finished curves.
const sight = new IntersectionObserver((entries) => {
  for (const entry of entries) entry.target.visible = entry.isIntersecting;
  redraw();
}, { rootMargin: "800px 0px" });
figures.forEach(listen);
document.addEventListener("visibilitychange", redraw);
new MutationObserver(() => { palette = null; change(); }).observe(document.body, { attributes: true, attributeFilter: ["class"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { palette = null; change(); });
// What scripts and tests may ask: the steps on show; `taken` counts the payloads.
root.steps = () => Array.from(store.tables.step.columns[STEP].subarray(0, store.tables.step.length));
if (mine) {
  window.studioRun = window.studioRun || {};
  window.studioRun.chart = { take, shown: () => ({ run: store.run, generation: store.generation, cursor: store.cursor, card: store.card }) };
  window.studioRun.look?.();
} else {
  watch("value", () => take(props.value));
  // The page may have got rows before this tab was opened.
  take(props.value);
}
redraw();
