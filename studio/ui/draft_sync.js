// Asks the server, when the person comes back to this window, whether another one has changed the form meanwhile.
const AWAY_MS = 1000; // a shorter way out and back changes nothing elsewhere, and what was typed here last may be on its way
let left = performance.now();
let away = false;
const tell = runtime.teller(props, trigger);

function leave() {
  if (!away) left = performance.now();
  away = true;
}

function come() {
  if (document.hidden || !away) return;
  away = false;
  if (performance.now() - left < AWAY_MS) return;
  tell({});
}

addEventListener("blur", leave);
addEventListener("focus", come);
document.addEventListener("visibilitychange", () => (document.hidden ? leave() : come()));
