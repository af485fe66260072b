// A run's charts: takes columns as they come, asks for all of them when some are missing, and has drawn what is visible,
// once a change.
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
  gpu_memory: { kind: "step", y: 6, zero: true, unit: "GiB", scale: 1 / 2 ** 30, card: true },
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
  figures.filter((figure) => figure.dataset.metric).forEach((figure) => { sizes.unobserve(placeOf(figure)); sight.unobserve(figure); clear(figure); figure.remove(); });
  figures = figures.filter((figure) => !figure.dataset.metric);
  const model = figures[0];
  metrics.forEach((metric, number) => {
    const figure = model.cloneNode(true);
    AXES[`metric ${number}`] = metricAxis(number, metric.unit);
    Object.assign(figure.dataset, { series: `metric ${number}`, metric: metric.name });
    figure.querySelector("figcaption span").textContent = metric.label;
    figure.querySelector("output").textContent = "";
    const place = placeOf(figure);
    place.replaceChildren(); // the model's plot is not its own
    place.setAttribute("aria-label", metric.label);
    if (metric.first) model.before(figure); // in their order, before the loss
    else figures[figures.length - 1].after(figure);
    figures.push(figure);
    listen(figure);
  });
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

// The values of rows `first` to `end` as uPlot has them: null where there is none, or none that a logarithm has.
function curve(column, first, end, scale, log) {
  const values = new Array(Math.max(0, end - first));
  for (let i = first; i < end; i++) {
    const value = column[i] * scale;
    values[i - first] = value === value && !(log && value <= 0) ? value : null;
  }
  return values;
}

function title(figure) {
  const picked = figure.querySelector("select");
  return picked ? picked.selectedOptions[0].text : figure.querySelector("figcaption span").textContent;
}

function tell(figure, said, label) {
  const output = figure.querySelector("output"), place = placeOf(figure);
  if (output.textContent !== said) output.textContent = said;
  if (place.getAttribute("aria-label") !== label) place.setAttribute("aria-label", label);
}

function placeOf(figure) {
  return figure.querySelector(".plot");
}

function clear(figure) {
  figure.plot?.destroy();
  figure.plot = null;
  figure.classList.remove("judged");
}

// Says the newest value, or that under the pointer, and shows where that is.
function say(figure) {
  const axis = axisOf(figure), table = tableOf(axis.kind), ys = table.columns[axis.y], [first, end] = span(axis.kind);
  const worth = (row) => `${plots.short(ys[row] * (axis.scale || 1)) || "–"}${axis.unit ? ` ${axis.unit}` : ""}`;
  let last = end - 1;
  while (last > first && ys[last] !== ys[last]) last--;
  const value = figure.plot && ys[last] === ys[last] && last >= first ? worth(last) : "", label = `${title(figure)}: ${figure.plot ? value : placeOf(figure).dataset.empty}`;
  const xs = table.columns[0], near = pointer && figure.plot && end > first ? nearest(table, axis.kind, first, end) : -1;
  if (figure.plot) plots.mark(figure.plot, near < 0 ? null : xs[near]);
  tell(figure, near < 0 ? value : `${nameOf(figure)(xs[near])} · ${worth(near)}`, label);
}

// The words of a place on the axis of steps, or of seconds.
function nameOf(figure) {
  return axisOf(figure).kind === "gpu" ? shortTime : (step) => `${words.step} ${step}`;
}

function draw(figure) {
  const { box } = figure, axis = axisOf(figure), table = tableOf(axis.kind), [first, end] = span(axis.kind);
  if (figure.stale === "grown" && end - figure.end < (end - first) / (2 * box.width) && performance.now() - figure.drawn < UNSEEN_MS) return;
  Object.assign(figure, { stale: "", end, drawn: performance.now() });
  const scale = axis.scale || 1, log = Boolean(wish.log && axis.log), ys = table.columns[axis.y];
  const evals = axis.evals ? tableOf(axis.evals) : null, [evalFirst, evalEnd] = evals ? span(axis.evals) : [0, 0];
  const calm = axis.calm && wish.smooth > 0 && end - first > 12;
  const raw = curve(ys, first, end, scale, log), mean = calm ? curve(smooth(ys, end, end - first), first, end, scale, log) : raw;
  const judged = evals ? curve(evals.columns[2], evalFirst, evalEnd, scale, log) : [];
  const some = (value) => (axis.card ? value : value !== null); // without a card its memory is 0
  if (!raw.some(some) && !judged.some(some)) return clear(figure);

  if (figure.plot && figure.log !== log) clear(figure);
  const xs = table.columns[0].subarray(first, end);
  const data = judged.length ? uPlot.join([[xs, raw, mean], [evals.columns[STEP].subarray(evalFirst, evalEnd), judged]]) : [xs, raw, mean, mean];
  const plot = (figure.plot ||= begin(figure, log));
  figure.log = log;
  figure.classList.toggle("judged", judged.length > 0);
  const [, steps, calmed, held] = plot.series;
  Object.assign(steps, { width: calm ? 1 : 1.8, alpha: !calm ? 1 : end - first > 3 * box.width ? 0.22 : 0.4 });
  calmed.show = calm;
  held.show = judged.length > 0;
  steps.points.show = () => end - first < 3;
  held.points.show = () => judged.length < 60;
  if (plot.width !== box.width || plot.height !== box.height) plot.setSize(box);
  plot.setData(data);
}

function begin(figure, log) {
  const gpu = axisOf(figure).kind === "gpu", name = nameOf(figure);
  return plots.make(placeOf(figure), {
    ...figure.box,
    log,
    seconds: gpu,
    right: 18,
    curves: [{ colour: "studio-accent", dot: 7 }, { colour: "studio-accent", width: 2 }, { colour: "studio-second", width: 1.8 }],
    range: (low, high) => {
      const axis = axisOf(figure), [below, above] = plots.widen(axis.zero ? 0 : low, axis.top || high);
      return [axis.zero ? 0 : below, axis.top || above];
    },
    name: (x, place) => (gpu || place === 0 ? name(x) : String(x)),
    point: (x) => { pointer = x === null ? null : pointed(figure, x); figures.forEach((one) => { if (one.plot) say(one); }); },
  });
}

// Where the pointer is for all charts: {step, seconds} of the row nearest to `x`.
function pointed(figure, x) {
  const { kind } = axisOf(figure), table = tableOf(kind), steps = store.tables.step, [first, end] = span(kind);
  if (end <= first) return null;
  const place = Math.min(end - 1, search(table.columns[0], end, x)), found = table.columns[0][place];
  if (kind !== "gpu") return { step: found, seconds: table.columns[SECONDS][place] };
  const at = Math.min(steps.length - 1, search(steps.columns[SECONDS], steps.length, found));
  return { seconds: found, step: at >= 0 ? steps.columns[STEP][at] : 0 };
}

function nearest(table, kind, first, end) {
  const column = table.columns[0], wanted = kind === "gpu" ? pointer.seconds : pointer.step;
  const place = Math.min(end - 1, Math.max(first, search(column, end, wanted)));
  return place > first && wanted - column[place - 1] < column[place] - wanted ? place - 1 : place;
}

// The last steps as a table, for who cannot see curves; filled only while it is open.
function list() {
  if (!details.open) return;
  const steps = store.tables.step, evals = store.tables.eval, c = steps.columns, body = details.querySelector("tbody");
  const rows = [];
  for (let i = steps.length - 1; i >= Math.max(0, steps.length - TABLE_ROWS); i--) {
    const step = c[STEP][i], at = search(evals.columns[STEP], evals.length, step);
    const judged = at < evals.length && evals.columns[STEP][at] === step ? plots.short(evals.columns[2][at]) : "";
    const memory = c[6][i] ? `${plots.short(c[6][i] / 2 ** 30)} GiB` : "";
    rows.push([step, plots.short(c[LOSS][i]), judged, ...[3, 4, 5].map((one) => plots.short(c[one][i])), memory]);
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
    figures.forEach((figure) => {
      if (!figure.stale || !figure.visible || !figure.box?.width || !figure.box.height) return;
      draw(figure);
      say(figure);
    });
    list();
  });
}

function change(grown = false) {
  figures.forEach((figure) => { figure.stale = grown === true && figure.stale !== "all" ? "grown" : "all"; });
  redraw();
}

function listen(figure) {
  figure.stale = "all";
  sizes.observe(placeOf(figure));
  sight.observe(figure);
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
  for (const entry of entries) { const figure = entry.target.closest("figure"); figure.box = { width: Math.floor(entry.contentRect.width), height: Math.floor(entry.contentRect.height) }; figure.stale = "all"; }
  redraw();
});
// A screen's height around what is seen counts as seen: scrolling shows finished curves.
const sight = new IntersectionObserver((entries) => {
  for (const entry of entries) entry.target.visible = entry.isIntersecting;
  redraw();
}, { rootMargin: "800px 0px" });
figures.forEach(listen);
document.addEventListener("visibilitychange", redraw);
plots.followColours(change);
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
