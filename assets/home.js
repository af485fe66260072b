// Keeps the card of the run that is on up to date from the strip's chip, and asks the server anew when the run ends.
const chip = document.getElementById("run-chip");
const PAUSE_MS = 3000;
let state = null;
let waiting = 0;

function refresh() {
  if (waiting || document.hidden || !element.closest("#tab-home")?.offsetParent) return;
  trigger("refresh");
  waiting = setTimeout(() => { waiting = 0; }, PAUSE_MS);
}

function follow() {
  const now = chip.querySelector(".chip");
  if (!now) return;
  const card = element.querySelector(".now");
  if (card && now.dataset.percent) {
    card.querySelector(".bar i").style.width = now.dataset.percent;
    card.querySelector(".bar").setAttribute("aria-valuenow", parseInt(now.dataset.percent, 10));
  }
  const words = now.querySelector(".link")?.innerText;
  if (card && words) card.querySelector(".words").textContent = words;
  const on = now.dataset.state === "running" || now.dataset.state === "paused";
  if ((state !== null && now.dataset.state !== state) || on === !card) refresh();
  state = now.dataset.state;
}

if (chip) {
  new MutationObserver(follow).observe(chip, { subtree: true, childList: true, characterData: true, attributes: true });
}
