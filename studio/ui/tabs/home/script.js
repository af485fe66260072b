// Keeps the card of the run that is on up to date from the strip's chip, and asks the server anew when the run ends.
const chip = document.getElementById("run-chip");
const PAUSE_MS = 3000;
let told = null;
let waiting = 0;
let due = false; // what moves while nobody looks is made up for when the window is shown again

function refresh() {
  if (!due || waiting || document.hidden || !element.closest("#tab-home")?.offsetParent) return;
  due = false;
  trigger("refresh");
  waiting = setTimeout(() => { waiting = 0; refresh(); }, PAUSE_MS);
}

function follow() {
  const now = chip.querySelector(".chip");
  if (!now) return;
  const card = element.querySelector(".now");
  const { run = "", state, percent } = now.dataset;
  const mine = card?.dataset.run === run;
  if (mine && percent) {
    card.querySelector(".bar i").style.width = percent;
    card.querySelector(".bar").setAttribute("aria-valuenow", parseInt(percent, 10));
  }
  const words = now.querySelector(".link")?.innerText;
  if (mine && words) card.querySelector(".words").textContent = words;
  const on = state === "running" || state === "paused";
  const changed = told !== null && told !== `${run} ${state}`;
  if (changed || (on ? !mine : card)) due = true;
  refresh();
  told = `${run} ${state}`;
}

if (chip) {
  new MutationObserver(follow).observe(chip, { subtree: true, childList: true, characterData: true, attributes: true });
  document.addEventListener("visibilitychange", refresh);
}
