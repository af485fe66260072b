// Tells the server what was chosen in the Dataset screen's own parts, and moves the length limit.
const screen = element.closest("#tab-dataset");
const PAUSE_MS = 250;
const say = runtime.teller(props, trigger);
let timer = 0;

function answerOf(part) {
  const card = part.closest("fieldset");
  return (card.querySelector("input:checked") || card.querySelector("select"))?.value || "";
}

runtime.on(screen, "click", "button[data-do]", (part) => {
  if (part.disabled) return;
  const value = part.dataset.do === "answer" ? answerOf(part) : "";
  part.disabled = true;
  setTimeout(() => { part.disabled = false; }, 1500);
  say({ do: part.dataset.do, field: part.dataset.field || "", value });
});

runtime.on(screen, "change", "select[data-do]", (part) => {
  say({ do: part.dataset.do, column: part.dataset.column, value: part.value });
});

// Gradio changes what differs in a card and leaves its parts: what was chosen in one must not stay for another.
function settle(part) {
  if (part.settled === part.dataset.key) return;
  part.settled = part.dataset.key;
  part.querySelectorAll("option").forEach((one) => { one.selected = one.defaultSelected; });
  part.querySelectorAll("input").forEach((one) => { one.checked = one.defaultChecked; });
}

runtime.keepFocus(screen, {
  settle: () => screen.querySelectorAll("[data-key]").forEach(settle),
  observed: { attributeFilter: ["data-key"] },
});

function tableOf(root) {
  if (root.read !== root.dataset.cuts) {
    root.read = root.dataset.cuts;
    root.table = JSON.parse(root.read);
  }
  return root.table;
}

function show(root, index) {
  const row = tableOf(root)[index];
  const line = root.querySelector(".limit");
  const { low, high } = root.dataset;
  const share = (Math.log2(row[0]) - low) / (high - low);
  line.style.left = `${Math.min(1, Math.max(0, share)) * 100}%`;
  line.setAttribute("aria-valuenow", row[0]);
  line.firstElementChild.textContent = row[0].toLocaleString("en-US");
  root.querySelectorAll("[data-figure]").forEach((cell, i) => { cell.textContent = row[i + 1]; });
  clearTimeout(timer);
  timer = setTimeout(() => say({ do: "limit", value: row[0] }), PAUSE_MS);
}

function nearest(root, limit) {
  const table = tableOf(root);
  let best = 0;
  table.forEach((row, i) => { if (Math.abs(row[0] - limit) < Math.abs(table[best][0] - limit)) best = i; });
  return best;
}

function moveTo(root, x) {
  const box = root.querySelector(".plot").getBoundingClientRect();
  const share = Math.min(1, Math.max(0, (x - box.left) / box.width));
  const { low, high } = root.dataset;
  show(root, nearest(root, 2 ** (Number(low) + share * (high - low))));
}

screen.addEventListener("pointerdown", (event) => {
  const plot = event.target.closest(".lengths .plot");
  if (!plot?.querySelector(".limit")) return;
  const root = plot.parentElement;
  event.preventDefault();
  plot.querySelector(".limit").focus();
  plot.setPointerCapture(event.pointerId);
  moveTo(root, event.clientX);
  const move = (moved) => moveTo(root, moved.clientX);
  plot.addEventListener("pointermove", move);
  plot.addEventListener("lostpointercapture", () => plot.removeEventListener("pointermove", move), { once: true });
});

screen.addEventListener("keydown", (event) => {
  const line = event.target.closest(".lengths .limit");
  const steps = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -8, PageUp: 8, Home: -1e6, End: 1e6 };
  if (!line || !(event.key in steps)) return;
  const root = line.closest(".lengths");
  const last = tableOf(root).length - 1;
  event.preventDefault();
  show(root, Math.min(last, Math.max(0, nearest(root, Number(line.getAttribute("aria-valuenow"))) + steps[event.key])));
});
