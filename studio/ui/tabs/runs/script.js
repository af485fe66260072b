// Lays the curves of compared runs over each other; keeps ticks and focus where they were; asks for news during a run.
const screen = element.closest("#tab-runs");
const root = element.querySelector(".overlay");
const LETTERS = "ABCDE";
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 2]];
const PAUSE_MS = 3000;
const SEARCH_MS = 200;
const chosen = new Set();
let grabbed = "";
let kept = null;
let runs = [];

// Ticks --------------------------------------------------------------------------------------------------------------

const part = (id) => screen.querySelector(id);

function count() {
  const told = part("#runs-ticked");
  const button = part("#runs-compare");
  if (!told || !button) return;
  told.textContent = chosen.size ? told.dataset.count.replace("{count}", chosen.size) : told.dataset.help;
  button.disabled = chosen.size < Number(button.dataset.fewest) || chosen.size > Number(button.dataset.most);
  button.classList.toggle("primary", !button.disabled);
  button.dataset.value = [...chosen].join(" ");
}

runtime.on(screen, "change", ".runs .pick input", (box) => {
  if (box.checked) chosen.add(box.value); else chosen.delete(box.value);
  count();
});

// Keys ---------------------------------------------------------------------------------------------------------------

screen.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.matches("[data-enter]")) {
    event.preventDefault();
    event.target.closest("[data-form]").querySelector("button.primary").click();
  }
  // Escape does one thing: a message goes first, by the page's own hand.
  if (event.key !== "Escape" || document.querySelector(".toast-close")) return;
  if (event.target.closest(".panel")) screen.querySelector('.panel [data-do="cancel"]')?.click();
});

let typing = 0;
runtime.on(screen, "input", "#runs-search", (box) => {
  clearTimeout(typing);
  typing = setTimeout(() => box.dispatchEvent(new Event("change", { bubbles: true })), SEARCH_MS);
});

// Gradio changes what differs and leaves its parts, so a row may become another run's: ticks and focus go with the run.
function settle() {
  screen.querySelectorAll(".runs .pick input").forEach((box) => { box.checked = chosen.has(box.value); });
  const queue = part(".queue");
  const keep = part('.queue [data-do="keep"]');
  if (keep && queue.dataset.keep !== kept) {
    kept = queue.dataset.keep;
    keep.checked = kept === "yes";
  }
  const grab = part("[data-grab]");
  const wanted = grab?.dataset.grab || "";
  if (grab && wanted !== grabbed) { grab.focus(); grab.select?.(); }
  grabbed = wanted;
}

runtime.keepFocus(screen, {
  settle,
  isLost: (focused) => {
    const now = document.activeElement;
    return now === document.body || (screen.contains(now) && now.dataset.focus !== focused);
  },
  // What a panel held goes back to the row's own button when the panel is closed; a row that is gone, to the search.
  find: (focused, named) => {
    const run = focused.endsWith(" panel") ? focused.split(" ")[1] : "";
    return named(focused) || named(`actions ${run}`) || part("#runs-search");
  },
  observed: { attributes: true, attributeFilter: ["data-focus", "data-grab", "data-keep", "value"] },
});

// News while a run is on: the strip's chip moves, and every few seconds the table follows. ------------------------------

let waiting = 0;
let asked = 0;
let due = false; // what moves while nobody looks is made up for when the window is shown again
const chip = document.getElementById("run-chip");
const shown = () => screen.offsetParent !== null && !document.hidden;

function follow() {
  if (!due || waiting || !shown()) return;
  waiting = setTimeout(() => {
    waiting = 0;
    if (!shown()) return;
    due = false;
    asked = Date.now();
    trigger("refresh");
  }, Math.max(300, asked + PAUSE_MS - Date.now()));
}

if (chip) {
  new MutationObserver(() => { due = true; follow(); }).observe(chip, { subtree: true, childList: true, characterData: true, attributes: true });
  document.addEventListener("visibilitychange", follow);
}

// Curves ---------------------------------------------------------------------------------------------------------------

function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e4 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(size >= 100 ? 4 : 3)));
}

const colourOf = (i) => getComputedStyle(root).getPropertyValue(`--runs-${i + 1}`).trim();
const known = (curve) => curve.filter(([, y]) => y !== null);

// A mean that follows the curve; the more points, the calmer.
function smooth(curve) {
  const keep = Math.min(0.97, 1 - 40 / curve.length);
  let mean = null;
  return curve.map(([x, y]) => {
    mean = mean === null ? y : mean * keep + y * (1 - keep);
    return [x, mean];
  });
}

function legend() {
  const list = root.querySelector(".curves");
  list.replaceChildren(...runs.map((run, i) => {
    const row = document.createElement("li");
    row.innerHTML = '<svg viewBox="0 0 34 10" aria-hidden="true"><line x1="1" y1="5" x2="33" y2="5"></line></svg><b class="letter"></b><span></span>';
    row.querySelector("line").style.cssText = `stroke: var(--runs-${i + 1}); stroke-dasharray: ${DASHES[i].join(" ") || "none"}`;
    row.querySelector("b").textContent = LETTERS[i];
    row.querySelector("span").textContent = run.name;
    row.title = run.run;
    return row;
  }));
}

function draw(figure) {
  const canvas = figure.querySelector("canvas");
  const box = canvas.getBoundingClientRect();
  if (!box.width) return;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(box.width * ratio);
  canvas.height = Math.round(box.height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const style = getComputedStyle(root);
  const [soft, line] = ["--studio-soft", "--studio-line"].map((name) => style.getPropertyValue(name).trim());
  pen.font = `11px ${style.fontFamily}`;
  const curves = runs.map((run) => known(run[figure.dataset.kind]));
  const points = curves.flat();
  const title = figure.querySelector("figcaption").textContent;
  figure.dataset.points = points.length;
  if (!points.length) {
    pen.fillStyle = soft;
    pen.textAlign = "center";
    pen.fillText(figure.dataset.empty, box.width / 2, box.height / 2);
    canvas.setAttribute("aria-label", `${title}: ${figure.dataset.empty}`);
    return;
  }
  const last = curves.map((curve, i) => (curve.length ? `${LETTERS[i]} ${runs[i].name} ${short(curve.at(-1)[1])}` : ""));
  canvas.setAttribute("aria-label", `${title}: ${last.filter(Boolean).join("; ")}`);
  const bounds = (axis) => points.reduce(([low, high], point) => [Math.min(low, point[axis]), Math.max(high, point[axis])], [Infinity, -Infinity]);
  const [from, end] = bounds(0);
  const until = Math.max(end, from + 1);
  let [low, high] = bounds(1);
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  low = low >= 0 ? Math.max(low - room, 0) : low - room;
  high += room;
  const marks = [0, 1, 2, 3].map((i) => low + ((high - low) * i) / 3);
  const left = 12 + Math.max(...marks.map((mark) => pen.measureText(short(mark)).width));
  const right = box.width - 22, top = 8, bottom = box.height - 20;
  const toX = (x) => left + ((x - from) / (until - from)) * (right - left);
  const toY = (y) => bottom - ((y - low) / (high - low)) * (bottom - top);
  pen.strokeStyle = line;
  pen.fillStyle = soft;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const mark of marks) {
    const y = Math.round(toY(mark)) + 0.5;
    pen.beginPath(); pen.moveTo(left, y); pen.lineTo(right, y); pen.stroke();
    pen.fillText(short(mark), left - 6, y);
  }
  pen.textBaseline = "alphabetic";
  pen.fillText(String(until), right, box.height - 5);
  pen.textAlign = "left";
  pen.fillText(`${figure.dataset.step} ${from}`, left, box.height - 5);
  curves.forEach((curve, i) => {
    if (!curve.length) return;
    const colour = colourOf(i);
    const path = curve.length > 100 ? smooth(curve) : curve;
    pen.strokeStyle = pen.fillStyle = colour;
    pen.lineWidth = 1.9;
    pen.lineJoin = "round";
    pen.setLineDash(DASHES[i]);
    pen.beginPath();
    path.forEach(([x, y], at) => (at ? pen.lineTo(toX(x), toY(y)) : pen.moveTo(toX(x), toY(y))));
    pen.stroke();
    pen.setLineDash([]);
    const [x, y] = path.at(-1);
    pen.beginPath(); pen.arc(toX(x), toY(y), 3, 0, 7); pen.fill();
    pen.font = `bold 11px ${style.fontFamily}`;
    pen.fillText(LETTERS[i], toX(x) + 7, toY(y) + 4);
    pen.font = `11px ${style.fontFamily}`;
  });
  hover(figure, pen, curves, toX, toY, soft, bottom, style);
}

function hover(figure, pen, curves, toX, toY, soft, bottom, style) {
  const at = figure.pointer;
  if (at === undefined) return;
  const near = curves.map((curve) => curve.reduce((best, point) => (!best || Math.abs(toX(point[0]) - at) < Math.abs(toX(best[0]) - at) ? point : best), null));
  const first = near.filter(Boolean).sort((a, b) => Math.abs(toX(a[0]) - at) - Math.abs(toX(b[0]) - at))[0];
  const x = toX(first[0]);
  pen.strokeStyle = soft;
  pen.setLineDash([3, 3]);
  pen.beginPath(); pen.moveTo(x, 8); pen.lineTo(x, bottom); pen.stroke();
  pen.setLineDash([]);
  const lines = [`${figure.dataset.step} ${first[0]}`, ...near.map((point, i) => (point ? `${LETTERS[i]}  ${short(point[1])}` : "")).filter(Boolean)];
  const width = Math.max(...lines.map((words) => pen.measureText(words).width)) + 16;
  const left = x + 10 + width > pen.canvas.getBoundingClientRect().width ? x - 10 - width : x + 10;
  pen.fillStyle = style.getPropertyValue("--studio-card").trim();
  pen.strokeStyle = style.getPropertyValue("--studio-line").trim();
  pen.beginPath(); pen.roundRect(left, 12, width, lines.length * 15 + 8, 6); pen.fill(); pen.stroke();
  pen.textAlign = "left";
  pen.fillStyle = style.getPropertyValue("--studio-ink").trim();
  lines.forEach((words, i) => pen.fillText(words, left + 8, 27 + i * 15));
}

let queued = false;
function redraw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => { queued = false; root.querySelectorAll("figure").forEach(draw); });
}

root.querySelectorAll("figure").forEach((figure) => {
  const canvas = figure.querySelector("canvas");
  canvas.addEventListener("pointermove", (event) => { figure.pointer = event.offsetX; redraw(); });
  canvas.addEventListener("pointerleave", () => { figure.pointer = undefined; redraw(); });
});
new ResizeObserver(redraw).observe(root);
new MutationObserver(redraw).observe(document.body, { attributes: true, attributeFilter: ["class"] });

function take(message) {
  if (chosen.delete(message?.gone)) count();
  const before = runs.length;
  runs = message?.runs || [];
  root.hidden = !runs.length;
  legend();
  redraw();
  if (runs.length && !before) root.scrollIntoView({ block: "nearest" });
}
watch("value", () => take(props.value));
take(props.value);
count();
