// Dresses every field of the form, on all tabs: problems beside it, a badge and a way back when it is changed, what it
// costs, usual values, the filter. Says {do, value}: "look", "reset" (elem_id), "import" (a file's text).
const { words, tabs } = props.value;
const facts = new Map(props.value.facts.map((fact) => [fact.id, fact]));
const FORM_TABS = ["model", "dataset", "hyperparameters", "training"];
const problems = new Map();
let changed = new Map(); // a changed field's id -> what its badge says
let onlyChanged = false;
let opened = false;
let waiting = 0;
const report = runtime.teller(props, trigger);
const say = (what, value = "", form = {}) => report({ do: what, value, form });

function make(tag, className, text = "", rest = {}) {
  return Object.assign(document.createElement(tag), { className, textContent: text, ...rest });
}

const inputOf = (block) => block.querySelector("input, textarea");

// Fields ----------------------------------------------------------------------------------------------------------

function dress(block) {
  const fact = facts.get(block.id);
  block.dataset.dressed = "yes";
  const head = make("div", "knob-head");
  const badge = make("button", "knob-badge", fact.back, { type: "button", title: words.back, hidden: true });
  badge.dataset.reset = block.id;
  const help = make("button", "knob-help", "?", { type: "button", title: words.help });
  help.setAttribute("aria-label", `${words.help}: ${fact.label}`);
  help.setAttribute("aria-expanded", "false");
  head.append(help);
  const foot = make("div", "knob-foot");
  if (fact.useful.length) {
    const usual = make("div", "knob-useful");
    usual.setAttribute("role", "group");
    usual.setAttribute("aria-label", `${words.useful}: ${fact.label}`);
    fact.useful.forEach((value) => usual.append(make("button", "", value, { type: "button" })));
    foot.append(usual);
  }
  if (fact.cost) foot.append(make("span", "knob-cost", fact.cost));
  foot.append(badge);
  const more = make("p", "knob-more", `${fact.range} ${fact.normal} `);
  more.append(`${words.key} `, make("code", "", fact.path));
  const problem = make("p", "knob-problem", "", { id: `${block.id}-problem`, hidden: true });
  problem.setAttribute("aria-live", "polite");
  // The keys meet things in the order of the screen: the head stands above a field, but beside a box to tick.
  if (inputOf(block)?.type === "checkbox") block.append(head); else block.prepend(head);
  block.append(foot, more, problem);
  const input = inputOf(block);
  if (input) {
    input.setAttribute("aria-label", fact.label);
    input.setAttribute("aria-describedby", problem.id);
    if (fact.number) input.inputMode = fact.whole ? "numeric" : "decimal";
  }
  mark(block);
}

function mark(block) {
  const found = problems.get(block.id);
  const line = block.querySelector(".knob-problem");
  const input = inputOf(block);
  line.hidden = !found;
  line.textContent = found ? found.message : "";
  if (found) block.dataset.problem = found.severity; else delete block.dataset.problem;
  if (found?.severity === "error") input?.setAttribute("aria-invalid", "true"); else input?.removeAttribute("aria-invalid");
  const badge = block.querySelector(".knob-badge");
  const fact = facts.get(block.id);
  badge.hidden = !changed.has(block.id) || !fact.back;
  badge.textContent = changed.get(block.id) || fact.back;
  badge.setAttribute("aria-label", `${fact.label}: ${badge.textContent}. ${words.back}`);
}

function dressed() {
  return document.querySelectorAll("[data-dressed]");
}

function refresh() {
  for (const id of facts.keys()) {
    const block = document.getElementById(id);
    if (block && !block.dataset.dressed) dress(block);
  }
  settle();
  filter();
}

// Gradio changes what differs in a card and leaves its parts: what the server says is chosen is chosen here too.
function settle() {
  document.querySelectorAll("#tab-hyperparameters [data-chosen]").forEach((part) => {
    const { chosen } = part.dataset;
    if (part.settled === chosen) return;
    part.settled = chosen;
    if (part.tagName === "SELECT") part.value = chosen;
    else part.querySelectorAll("input").forEach((one) => { one.checked = one.value === chosen; });
  });
}

watch("value", () => {
  const told = props.value || {};
  if (told.problems) {
    if (told.of) problems.delete(told.of); else if (!told.more) problems.clear();
    told.problems.forEach((one) => { if (!problems.has(one.elem_id) || one.severity === "error") problems.set(one.elem_id, one); });
  }
  if (told.changed) changed = new Map(Object.entries(told.changed));
  const count = document.getElementById("settings-count");
  if (count && told.count) count.textContent = told.count;
  dressed().forEach(mark);
  if (told.changed && onlyChanged) filter();
  if (told.download) window.studio.save(told.download);
});

function put(input, value) {
  input.value = value;
  input.dispatchEvent(new Event("input", { bubbles: true }));
}

// Gradio's text fields tell of keys alone: pasted, deleted and composed text is told here, as one key more.
let told = false;
document.addEventListener("keydown", () => { told = false; }, true);
document.addEventListener("keypress", (event) => { if (event.isTrusted && event.key !== "Enter") told = true; }, true);
function tell(event) {
  if (!event.target.matches?.('[data-testid="textbox"]') || event.isComposing) return;
  if (!told || event.type === "compositionend") event.target.dispatchEvent(new KeyboardEvent("keypress", { key: "Unidentified" }));
  told = false;
}
document.addEventListener("input", tell);
document.addEventListener("compositionend", tell);

// What a field's text means, NaN where it is no number: the rules of studio/ui/numbers.py.
function read(words, whole) {
  let plain = words.normalize("NFKC").trim().replace("\u2212", "-").replace("\u3002", ".");
  plain = plain.replace(/(?<=\d)[\s'_]+(?=\d{3})/g, "");
  if (whole && /^[+-]?[1-9]\d{0,2}([,.]\d{3})+$/.test(plain)) plain = plain.replace(/[,.]/g, "");
  if (plain.includes(",") && plain.includes(".")) plain = plain.replaceAll(plain.lastIndexOf(",") < plain.lastIndexOf(".") ? "," : ".", "");
  plain = plain.replaceAll(",", ".");
  return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(plain) ? Number(plain) : NaN;
}

// Arrows go through the usual values, beyond them in steps; the field stays one for typing.
document.addEventListener("keydown", (event) => {
  const up = event.key === "ArrowUp";
  const fact = facts.get(event.target.closest?.("[data-dressed]")?.id);
  if (!fact?.number || event.altKey || event.ctrlKey || event.metaKey || !(up || event.key === "ArrowDown")) return;
  const now = read(event.target.value, fact.whole);
  if (!Number.isFinite(now)) return;
  event.preventDefault();
  const usual = fact.useful.map(Number);
  const next = up ? usual.find((one) => one > now) : usual.findLast((one) => one < now);
  const free = Number((now + (up ? fact.step : -fact.step)).toPrecision(12));
  put(event.target, String(Math.min(fact.high, Math.max(fact.low, next ?? free))));
});

document.addEventListener("click", (event) => {
  const part = event.target.closest("button");
  if (!part) return;
  const block = part.closest("[data-dressed]");
  if (part.dataset.reset) { say("reset", part.dataset.reset); return; }
  if (part.id === "settings-changed") { onlyChanged = !onlyChanged; part.setAttribute("aria-pressed", onlyChanged); filter(); }
  if (part.id === "settings-import") document.getElementById("settings-file").click();
  if (FORM_TABS.some((name) => part.id === `tab-${name}-button`)) say("look");
  if (!block) return;
  if (part.className === "knob-help") {
    const open = block.toggleAttribute("data-open");
    part.setAttribute("aria-expanded", open);
  }
  if (part.parentElement.className === "knob-useful") put(inputOf(block), part.textContent);
});

// Filter ----------------------------------------------------------------------------------------------------------

const isOpen = (fold) => {
  const content = fold.querySelector('[data-testid="accordion-content"]');
  return Boolean(content) && content.style.display !== "none";
};

function filter() {
  const box = document.getElementById("settings-filter");
  if (!box?.offsetParent) return;
  const asked = box.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const on = asked.length > 0 || onlyChanged;
  const fold = document.getElementById("settings-everything");
  if (on && !isOpen(fold)) { opened = true; fold.querySelector(".label-wrap").click(); }
  if (!on && opened) { opened = false; if (isOpen(fold)) fold.querySelector(".label-wrap").click(); }
  const fits = (fact) => (!onlyChanged || changed.has(fact.id)) && asked.every((word) => fact.search.includes(word));
  const panel = document.getElementById("tab-hyperparameters");
  let shown = 0;
  panel.querySelectorAll("[data-dressed]").forEach((block) => {
    const out = on && !fits(facts.get(block.id));
    shown += !out;
    if (out !== block.hasAttribute("data-out")) block.toggleAttribute("data-out", out);
  });
  const others = on ? [...facts.values()].filter((fact) => fact.tab !== "hyperparameters" && fits(fact)) : [];
  const key = `${on && !shown && !others.length}|${others.map((fact) => fact.id)}`;
  const place = document.getElementById("settings-elsewhere");
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  place.replaceChildren();
  if (others.length) {
    place.append(make("span", "", words.elsewhere));
    others.forEach((fact) => {
      const link = make("button", "say", `${tabs[fact.tab]} › ${fact.label}`, { type: "button" });
      Object.assign(link.dataset, { go: fact.tab, mark: fact.id });
      place.append(link);
    });
  } else if (on && !shown) place.append(make("span", "", words.nothing));
}

document.addEventListener("input", (event) => { if (event.target.id === "settings-filter") filter(); });

document.addEventListener("change", (event) => {
  const part = event.target.closest("#tab-hyperparameters [data-chosen]");
  if (part) part.settled = null;
});

// Files -----------------------------------------------------------------------------------------------------------

document.addEventListener("change", async (event) => {
  if (event.target.id !== "settings-file" || !event.target.files.length) return;
  const file = event.target.files[0];
  const text = await file.slice(0, 6000000).text();
  event.target.value = "";
  say("import", text, { name: file.name });
});

// Fields come when their tab or their fold is first opened.
new MutationObserver(() => {
  if (waiting) return;
  waiting = setTimeout(() => { waiting = 0; refresh(); }, 60);
}).observe(document.body, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-chosen"] });
refresh();
