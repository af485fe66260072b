// Asks the server once a second what is new of the run on show, and puts it where it belongs: the run's parts, its
// charts, the chip and the machine in the strip, the banner while the studio is shared. What is known is kept for parts
// that are mounted later.
const EVERY_MS = 1000;
const known = { run: new URLSearchParams(location.search).get("run") || "", active: null, sample: null, state: "", marks: {}, parts: {} };
let asking = false;
let again = false;
let said = 0;
let started = 0;

// A page keeps the focus and what is folded open where a part is drawn anew with the same words in another number.
function put(name) {
  const html = known.parts[name];
  if (html === undefined) return;
  if (name === "chip" || name === "machine") {
    const place = document.querySelector(name === "chip" ? "#run-chip .chip" : "#machine .mode")?.parentElement;
    if (place && place.dataset.drawn !== html) { place.dataset.drawn = html; place.innerHTML = html; }
    return;
  }
  const place = document.getElementById(`run-${name}`);
  if (!place || place.drawn === html) return;
  place.drawn = html;
  if (name === "spoken") { place.textContent = new DOMParser().parseFromString(html, "text/html").body.textContent; return; }
  const open = [...place.querySelectorAll("details")].map((one) => one.open);
  const scrolled = place.querySelector("ul")?.scrollTop;
  place.innerHTML = html;
  place.querySelectorAll("details").forEach((one, i) => { one.open = Boolean(open[i]); });
  if (scrolled) place.querySelector("ul").scrollTop = scrolled;
}

function draw() {
  Object.keys(known.parts).forEach(put);
}

function note(html) {
  const place = document.getElementById("run-note");
  if (place) place.innerHTML = html;
}

function apply(answer) {
  if (answer.run !== known.run || answer.state !== known.state) note(known.note || "");
  known.note = "";
  if (answer.run !== known.run) known.sample = null;
  Object.assign(known, { run: answer.run, active: answer.active, state: answer.state });
  Object.assign(known.marks, answer.marks);
  Object.assign(known.parts, answer.parts);
  Object.keys(answer.parts).forEach(put);
  const { dataset } = document.body;
  const on = answer.active ? "yes" : "no";
  if (dataset.training !== on) dataset.training = on;
  const there = answer.run ? "yes" : "no";
  if (dataset.runs !== there) dataset.runs = there;
  if (answer.state === "running") dataset.beat = dataset.beat === "1" ? "0" : "1";
  if (answer.points) window.studioRun.chart?.take(answer.points);
}

async function look() {
  // Two looks at once could come back in the other order. One that never comes back does not end it all.
  if (asking && performance.now() - started < 15000) { again = true; return; }
  asking = true;
  again = false;
  started = performance.now();
  const mine = started;
  try {
    const { run, active, sample, marks } = known;
    const answer = await server.look({ run, active, sample, marks, chart: window.studioRun.chart?.shown() || null });
    if (mine === started && run === known.run) apply(answer); else again = true;
  } catch { /* the studio is away, or busy: the next second asks again */ }
  if (mine === started) asking = false;
  if (again) look();
}

// Another run, wanted by the person or by another tab's button.
function show(run) {
  if (run && run !== known.run) Object.assign(known, { run, sample: null });
  props.value = { ...(props.value || {}), run: known.run };
  look();
}

async function download() {
  const text = await server.log(known.run);
  window.studio.save({ name: `${known.run}.txt`, text });
}

watch("value", () => {
  const { run, note: words, number } = props.value || {};
  if (!number || number === said) return;
  said = number;
  if (words) { note(words); }
  show(run);
});
document.addEventListener("change", (event) => {
  const part = event.target.closest?.("select[data-pick]");
  if (!part) return;
  if (part.dataset.pick === "run") show(part.value);
  if (part.dataset.pick === "sample") { known.sample = Number(part.value); look(); }
});
document.addEventListener("click", (event) => {
  // What is said of the run on show is said of this one.
  if (event.target.closest("[data-do]") && (props.value || {}).run !== known.run) props.value = { ...(props.value || {}), run: known.run };
  if (event.target.closest("#run-log-download")) download();
}, true);
window.studioRun = { ...(window.studioRun || {}), look, draw, known };
setInterval(look, EVERY_MS);
look();
