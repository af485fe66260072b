// Tells the server which of a screen's own buttons was pressed and what its form holds: {do, value, form, number}.
const screen = element.closest(element.querySelector("i").dataset.screen);
const PAUSE_MS = 800; // a double click is one wish
const pressed = new WeakMap();
let number = 0;
let focused = "";

function say(part, value) {
  const fields = part.closest("[data-form]")?.querySelectorAll("[name]") || [];
  const form = {};
  fields.forEach((field) => {
    if (field.type === "checkbox") (form[field.name] ||= []).push(...(field.checked ? [field.value] : []));
    else if (field.type !== "radio" || field.checked) form[field.name] = field.value;
  });
  props.value = { do: part.dataset.do, value, form, number: ++number };
  trigger("said");
}

screen.addEventListener("click", async (event) => {
  const part = event.target.closest("button[data-do]");
  if (!part || part.disabled) return;
  const question = part.dataset.confirm;
  if (question && !(await window.studio.confirm(question, part.innerText))) return;
  if (performance.now() - (pressed.get(part) ?? -PAUSE_MS) < PAUSE_MS) return;
  pressed.set(part, performance.now());
  say(part, part.dataset.value || "");
});

screen.addEventListener("change", (event) => {
  const part = event.target.closest("select[data-do], input[data-do]");
  if (part) say(part, part.type === "checkbox" ? String(part.checked) : part.value);
});

// What has the focus keeps it when its card is drawn anew.
screen.addEventListener("focusin", (event) => { focused = event.target.dataset?.focus || ""; });
// A press beside it says that the person is elsewhere: the next space key must not press what had the focus.
document.addEventListener("pointerdown", (event) => { if (!event.target.closest?.("[data-focus]")) focused = ""; }, true);
new MutationObserver(() => {
  if (!focused || document.activeElement !== document.body) return;
  screen.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}).observe(screen, { childList: true, subtree: true });
