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

const known = (curve) => curve.filter(([, y]) => y !== null);

// Has the curves of the chosen runs drawn, each with its letter at its end, and says where each one ends.
function draw(figure) {
  const place = figure.querySelector(".plot"), title = figure.querySelector("figcaption").textContent;
  const curves = runs.map((run) => known(run[figure.dataset.kind]));
  figure.dataset.points = curves.flat().length;
  figure.plot?.destroy();
  figure.plot = null;
  const last = curves.map((curve, i) => (curve.length ? `${LETTERS[i]} ${runs[i].name} ${plots.short(curve.at(-1)[1])}` : ""));
  const words = last.filter(Boolean).join("; ") || place.dataset.empty;
  place.setAttribute("aria-label", `${title}: ${words}`);
  if (!place.clientWidth || !curves.flat().length) return;
  const paths = curves.map((curve) => (curve.length > 100 ? smooth(curve) : curve));
  const ends = curves.map((curve, i) => letter(LETTERS[i], `var(--runs-${i + 1})`)), tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  const name = (x, at) => (at ? String(x) : `${figure.dataset.step} ${x}`);
  const plot = figure.plot = plots.make(place, {
    width: place.clientWidth,
    height: place.clientHeight,
    curves: curves.map((_, i) => ({ colour: `runs-${i + 1}`, width: 1.9, dash: DASHES[i].map((one) => one * devicePixelRatio) })),
    right: 22,
    name,
    point: (x) => plots.mark(plot, x),
    hooks: {
      draw: [() => paths.forEach((path, i) => { if (path.length) put(ends[i], plot.valToPos(path.at(-1)[0], "x"), plot.valToPos(path.at(-1)[1], "y")); })],
      setCursor: [() => tell(plot, tip, curves, name)],
    },
  });
  plot.setData(uPlot.join(paths.map((path) => [path.map(([x]) => x), path.map(([, y]) => y)])));
  plot.over.append(...ends.filter((_, i) => curves[i].length), tip);
}

function letter(words, colour) {
  const part = document.createElement("b");
  part.className = "end";
  part.textContent = words;
  part.style.color = colour;
  return part;
}

function put(part, left, top) {
  part.style.transform = `translate(${left}px, ${top}px)`;
}

// Beside the pointer: the step, and each curve's value nearest to it.
function tell(plot, tip, curves, name) {
  const { idx, idxs, left } = plot.cursor, xs = plot.data[0];
  tip.hidden = idx === null || idx === undefined;
  if (tip.hidden) return;
  const near = curves.map((curve, i) => curve.find(([x]) => x === xs[idxs[i + 1]]));
  tip.innerText = [name(xs[idx], 0), ...near.map((point, i) => (point ? `${LETTERS[i]}  ${plots.short(point[1])}` : "")).filter(Boolean)].join("\n");
  const right = left + 10 + tip.offsetWidth > plot.over.clientWidth;
  put(tip, right ? left - 10 - tip.offsetWidth : left + 10, 4);
}

let queued = false;
function redraw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => { queued = false; root.querySelectorAll("figure").forEach(draw); });
}

new ResizeObserver(redraw).observe(root);
plots.followColours(redraw);

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
