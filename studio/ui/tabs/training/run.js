// Asks the server once a second what is new of the run on show, and puts it where it belongs: the run's parts, its
// charts, the chip and the machine in the strip, the banner while the studio is shared. What is known is kept for parts
// that are mounted later. A studio that does not answer is told of.
const EVERY_MS = 1000;
const AWAY_TICKS = 10; // ticks, not seconds: those of a page that the browser froze do not count
const address = new URLSearchParams(location.search);
const known = {
  run: address.get("run") || "",
  // A reload of this tab keeps its run; the run of another tab's address gives way to the one that is on.
  active: address.get("tab") === "training" ? null : "",
  chip: {}, sample: null, answers: {}, state: "", marks: {}, parts: {},
};
let asking = false;
let again = false;
let said = 0;
let started = 0;
let unanswered = 0;
let touched = performance.now();
for (const kind of ["pointermove", "pointerdown", "keydown", "wheel", "scroll", "touchstart", "visibilitychange"]) {
  document.addEventListener(kind, () => { touched = performance.now(); }, { capture: true, passive: true });
}

// The log grows while somebody reads it: its box stays with its focus, and the lines on show stay where they are.
function grow(place, html) {
  const box = (part) => part.querySelector(".log[tabindex]");
  const log = box(place), next = box(new DOMParser().parseFromString(html, "text/html"));
  if (!log || !next) return false;
  const scrolled = log.scrollTop; // 0 at the newest line, which is the last one; less further up
  const lines = log.firstElementChild, fresh = [...next.firstElementChild.children];
  let kept = 0;
  for (const line of [...lines.children]) {
    if (line.outerHTML === fresh[kept]?.outerHTML) kept += 1; else line.remove();
  }
  const height = scrolled && log.scrollHeight;
  lines.append(...fresh.slice(kept));
  if (scrolled) log.scrollTop = kept ? scrolled - (log.scrollHeight - height) : 0;
  return true;
}

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
  if (name === "log" && grow(place, html)) return;
  const open = [...place.querySelectorAll("details")].map((one) => one.open);
  const scrolled = place.querySelector("ul, .rows")?.scrollTop;
  place.innerHTML = html;
  place.querySelectorAll("details").forEach((one, i) => { one.open = Boolean(open[i]); });
  const list = scrolled && place.querySelector("ul, .rows");
  if (list) list.scrollTop = scrolled;
}

function draw() {
  Object.keys(known.parts).forEach(put);
}

function note(html) {
  const place = document.getElementById("run-note");
  if (place) place.innerHTML = html;
}

// Said once, and taken back with the next answer.
function tellAway(away) {
  const { dataset } = document.body;
  if ((dataset.away === "yes") === away) return;
  dataset.away = away ? "yes" : "no";
  const place = document.getElementById("studio-away");
  place.textContent = away ? place.dataset.words : "";
}

// The end of a run is told once, where the person allowed it and looks elsewhere.
function tellEnd({ run, name, words }) {
  if (window.Notification?.permission === "granted" && document.hidden) new Notification(words, { body: name, tag: run });
}

function apply(answer) {
  if (answer.run !== known.run || answer.state !== known.state) note("");
  if (answer.run !== known.run) known.sample = null;
  Object.assign(known, { run: answer.run, active: answer.active, chip: answer.chip, state: answer.state });
  Object.assign(known.marks, answer.marks);
  Object.assign(known.parts, answer.parts);
  Object.keys(answer.parts).forEach(put);
  const { dataset } = document.body;
  const on = answer.active ? "yes" : "no";
  if (dataset.training !== on) dataset.training = on;
  const there = answer.run ? "yes" : "no";
  if (dataset.runs !== there) dataset.runs = there;
  if (answer.state === "running" || answer.chip.state === "running") dataset.beat = dataset.beat === "1" ? "0" : "1";
  if (answer.ended) tellEnd(answer.ended);
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
    const { run, active, chip, sample, answers, marks } = known;
    const rest_s = document.hidden ? 1e6 : (performance.now() - touched) / 1000;
    const chart = window.studioRun.chart?.shown() || null;
    const answer = await server.look({ run, active, chip, sample, answers, marks, chart, rest_s });
    if (!answer) return; // Gradio's client gives nothing for a question that failed; the next second asks again
    unanswered = 0;
    tellAway(false);
    if (answer.renews) window.studio.returnLater?.(); // the server makes room for a fresh one: nobody has touched a page
    if (mine === started && run === known.run) apply(answer); else again = true;
  } finally {
    if (mine === started) asking = false;
  }
  if (again) look();
}

// Another run, wanted by the person or by another tab's button. The chip goes along when none is on.
function show(run) {
  if (run && run !== known.run) Object.assign(known, { run, sample: null, answers: { ...known.answers, step: "" } }, known.active ? {} : { chip: {} });
  props.value = { ...(props.value || {}), run: known.run };
  look();
}

async function download(part) {
  const text = await server.log(known.run);
  if (typeof text !== "string") {
    const words = part.textContent;
    if (words !== part.dataset.failed) setTimeout(() => { part.textContent = words; }, 4000);
    part.textContent = part.dataset.failed;
    return;
  }
  window.studio.save({ name: `${known.run}.txt`, text });
}

watch("value", () => {
  const { run, note: words, number } = props.value || {};
  if (!number || number === said) return;
  said = number;
  if (words) { note(words); }
  show(run);
});
// Which of a run's answers are looked at: what its box says, and the step of a button in the table.
function pickAnswers(step) {
  const box = document.getElementById("run-answers-box");
  const fields = Object.fromEntries([...box.querySelectorAll("[name]")].map((one) => [one.name, one.value]));
  known.answers = { ...fields, step };
  look();
}

document.addEventListener("change", (event) => {
  const part = event.target.closest?.("[data-pick]");
  if (!part) return;
  if (part.dataset.pick === "answers") pickAnswers(known.answers.step || "");
  if (part.dataset.pick === "answers-step") pickAnswers(part.value.trim());
  if (part.dataset.pick === "run") show(part.value);
  if (part.dataset.pick === "sample") { known.sample = Number(part.value); look(); }
});
document.addEventListener("click", (event) => {
  // What is said of the run on show is said of this one.
  if (event.target.closest("[data-do]") && (props.value || {}).run !== known.run) props.value = { ...(props.value || {}), run: known.run };
  const log = event.target.closest("#run-log-download");
  if (log) download(log);
  const step = event.target.closest("#run-answers [data-step]");
  if (step) pickAnswers(step.dataset.step);
}, true);
window.studioRun = { ...(window.studioRun || {}), look, draw, show, known };
setInterval(() => {
  unanswered += 1;
  if (unanswered > AWAY_TICKS) tellAway(true);
  look();
}, EVERY_MS);
look();
