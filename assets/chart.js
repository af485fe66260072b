// Draws the six live charts of a run: takes rows as they come, asks for all of them when some are missing.
const root = element.querySelector(".charts");
const AXES = {
  loss: { kind: "step", x: 1, y: 2 },
  learning_rate: { kind: "step", x: 1, y: 3 },
  grad_norm: { kind: "step", x: 1, y: 4 },
  tokens_per_s: { kind: "step", x: 1, y: 5, zero: true },
  gpu_memory: { kind: "step", x: 1, y: 6, zero: true, unit: "GiB", scale: 1 / 2 ** 30 },
  gpu_utilisation: { kind: "gpu", x: 1, y: 2, zero: true, top: 100, unit: "%", scale: 100, seconds: true },
};
const store = { run: null, generation: -1, cursor: 0, rows: [] };
let missing = false;
let queued = false;

// Asks until an answer is there: a question put while the page is still mounting may get lost.
function ask() {
  if (missing) return;
  missing = true;
  trigger("replay");
  setTimeout(() => { if (missing) { missing = false; ask(); } }, 2000);
}

function take(message) {
  if (!message || !("run" in message)) return;
  const same = message.run === store.run && message.generation === store.generation;
  if (message.since === 0 && !(same && message.until <= store.cursor)) {
    store.rows = message.rows;
  } else if (same && message.since <= store.cursor) {
    store.rows = store.rows.concat(message.rows.slice(store.cursor - message.since));
  } else {
    return ask();
  }
  if (same && message.until < store.cursor) return;
  missing = false;
  Object.assign(store, { run: message.run, generation: message.generation, cursor: message.until });
  redraw();
}

function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e4 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(size >= 100 ? 4 : 3)));
}

function shortTime(seconds) {
  const minutes = Math.floor(seconds / 60);
  return minutes >= 60 ? `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")} h`
    : `${minutes}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
}

function points(axis, kind) {
  const scale = axis.scale || 1;
  return store.rows.filter((row) => row[0] === kind)
    .map((row) => [row[1], row[kind === "eval" ? 2 : axis.y] === null ? null : row[kind === "eval" ? 2 : axis.y] * scale]);
}

// A mean that follows the curve; the more points, the calmer.
function smooth(curve) {
  const keep = Math.min(0.97, 1 - 40 / curve.length);
  let mean = null;
  return curve.map(([x, y]) => {
    if (y !== null) mean = mean === null ? y : mean * keep + y * (1 - keep);
    return [x, mean];
  });
}

function draw(figure) {
  const name = figure.dataset.series;
  const axis = AXES[name];
  const canvas = figure.querySelector("canvas");
  const output = figure.querySelector("output");
  const box = canvas.getBoundingClientRect();
  if (!box.width) return;
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(box.width * ratio)) canvas.width = Math.round(box.width * ratio);
  if (canvas.height !== Math.round(box.height * ratio)) canvas.height = Math.round(box.height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, box.width, box.height);
  const style = getComputedStyle(figure);
  const colour = (key) => style.getPropertyValue(key).trim();
  pen.font = `11px ${style.fontFamily}`;

  const main = points(axis, axis.kind);
  const evals = name === "loss" ? points(axis, "eval") : [];
  const known = main.concat(evals).filter(([, y]) => y !== null);
  const blank = !known.length || (name.startsWith("gpu") && known.every(([, y]) => y === 0));
  const title = figure.querySelector("figcaption span").textContent;
  if (blank) {
    pen.fillStyle = colour("--studio-soft");
    pen.textAlign = "center";
    pen.fillText(figure.dataset.empty, box.width / 2, box.height / 2);
    output.textContent = "";
    canvas.setAttribute("aria-label", `${title}: ${figure.dataset.empty}`);
    return;
  }
  const last = main.filter(([, y]) => y !== null).at(-1);
  const unit = axis.unit ? ` ${axis.unit}` : "";
  output.textContent = last ? short(last[1]) + unit : "";
  canvas.setAttribute("aria-label", `${title}: ${last ? short(last[1]) + unit : ""}`);

  const right = box.width - 8, top = 8, bottom = box.height - 20;
  const ys = known.map(([, y]) => y), xs = known.map(([x]) => x);
  let low = axis.zero ? 0 : Math.min(...sample(ys, Math.min));
  let high = axis.top || Math.max(...sample(ys, Math.max));
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  if (!axis.zero) low = low >= 0 ? Math.max(low - room, 0) : low - room;
  if (!axis.top) high += room;
  const from = Math.min(xs[0], evals.length ? evals[0][0] : xs[0]);
  const until = Math.max(...sample(xs, Math.max), from + 1);
  const marks = [0, 1, 2, 3].map((i) => low + (high - low) * i / 3);
  const left = 12 + Math.max(...marks.map((mark) => pen.measureText(short(mark)).width));
  const toX = (x) => left + (x - from) / (until - from) * (right - left);
  const toY = (y) => bottom - (y - low) / (high - low) * (bottom - top);

  pen.strokeStyle = colour("--studio-line");
  pen.fillStyle = colour("--studio-soft");
  pen.lineWidth = 1;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const value of marks) {
    const y = Math.round(toY(value)) + 0.5;
    pen.beginPath(); pen.moveTo(left, y); pen.lineTo(right, y); pen.stroke();
    pen.fillText(short(value), left - 6, y);
  }
  pen.textBaseline = "alphabetic";
  pen.textAlign = "left";
  pen.fillText(axis.seconds ? shortTime(from) : `${figure.dataset.step} ${from}`, left, box.height - 5);
  pen.textAlign = "right";
  pen.fillText(axis.seconds ? shortTime(until) : String(until), right, box.height - 5);

  const raw = name === "loss" && main.length > 100;
  line(pen, main, toX, toY, colour("--studio-accent"), raw ? 0.35 : 1, raw ? 1 : 1.8);
  if (raw) line(pen, smooth(main), toX, toY, colour("--studio-accent"), 1, 2);
  line(pen, evals, toX, toY, colour("--studio-second"), 1, 1.8);
  for (const [x, y] of evals) dot(pen, toX(x), toY(y), colour("--studio-second"), 3);
  if (last && main.length < 3) dot(pen, toX(last[0]), toY(last[1]), colour("--studio-accent"), 3);
  if (evals.length) legend(pen, figure, right, top, colour);
  hover(figure, pen, main, toX, toY, colour, box, output, unit, axis);
}

// Math.min(...many) overflows the stack beyond some 100 000 values.
function sample(values, pick) {
  const chosen = [];
  for (let i = 0; i < values.length; i += 10000) chosen.push(pick(...values.slice(i, i + 10000)));
  return chosen;
}

function line(pen, curve, toX, toY, colour, alpha, width) {
  pen.save();
  pen.globalAlpha = alpha;
  pen.strokeStyle = colour;
  pen.lineWidth = width;
  pen.lineJoin = "round";
  pen.beginPath();
  let drawing = false;
  for (const [x, y] of curve) {
    if (y === null) { drawing = false; continue; }
    if (drawing) pen.lineTo(toX(x), toY(y)); else pen.moveTo(toX(x), toY(y));
    drawing = true;
  }
  pen.stroke();
  pen.restore();
}

function dot(pen, x, y, colour, size) {
  pen.fillStyle = colour;
  pen.beginPath();
  pen.arc(x, y, size, 0, 7);
  pen.fill();
}

function legend(pen, figure, right, top, colour) {
  let x = right;
  pen.textAlign = "right";
  for (const [words, key] of [[figure.dataset.eval, "--studio-second"], [figure.dataset.train, "--studio-accent"]]) {
    pen.fillStyle = colour("--studio-soft");
    pen.fillText(words, x, top + 9);
    x -= pen.measureText(words).width + 8;
    dot(pen, x, top + 5, colour(key), 3.5);
    x -= 14;
  }
}

function hover(figure, pen, main, toX, toY, colour, box, output, unit, axis) {
  if (figure.pointer === undefined) return;
  let near = null;
  for (const point of main) {
    if (point[1] !== null && (!near || Math.abs(toX(point[0]) - figure.pointer) < Math.abs(toX(near[0]) - figure.pointer))) near = point;
  }
  if (!near) return;
  pen.strokeStyle = colour("--studio-soft");
  pen.setLineDash([3, 3]);
  pen.beginPath(); pen.moveTo(toX(near[0]), 8); pen.lineTo(toX(near[0]), box.height - 20); pen.stroke();
  pen.setLineDash([]);
  dot(pen, toX(near[0]), toY(near[1]), colour("--studio-accent"), 3.5);
  const where = axis.seconds ? shortTime(near[0]) : `${figure.dataset.step} ${near[0]}`;
  output.textContent = `${where} · ${short(near[1])}${unit}`;
}

function redraw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => {
    queued = false;
    root.dataset.points = String(store.rows.filter((row) => row[0] === "step").length);
    root.rows = store.rows;
    root.querySelectorAll("figure").forEach(draw);
  });
}

root.querySelectorAll("figure").forEach((figure) => {
  const canvas = figure.querySelector("canvas");
  canvas.addEventListener("pointermove", (event) => { figure.pointer = event.offsetX; redraw(); });
  canvas.addEventListener("pointerleave", () => { figure.pointer = undefined; redraw(); });
});
new ResizeObserver(redraw).observe(root);
new MutationObserver(redraw).observe(document.body, { attributes: true, attributeFilter: ["class"] });
watch("value", () => take(props.value));
// The page may have got rows before this tab was opened.
take(props.value);
redraw();
