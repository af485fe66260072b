// Tells the server which of a screen's own buttons was pressed and what its form holds: {do, value, form, number}.
const screen = element.closest(element.querySelector("i").dataset.screen);
const PAUSE_MS = 800; // a double click is one wish
const pressed = new WeakMap();
const tell = runtime.teller(props, trigger);

function say(part, value) {
  const fields = part.closest("[data-form]")?.querySelectorAll("[name]") || [];
  const form = {};
  fields.forEach((field) => {
    if (field.type === "checkbox") (form[field.name] ||= []).push(...(field.checked ? [field.value] : []));
    else if (field.type !== "radio" || field.checked) form[field.name] = field.value;
  });
  tell({ do: part.dataset.do, value, form });
}

runtime.on(screen, "click", "button[data-do]", async (part) => {
  if (part.disabled) return;
  const question = part.dataset.confirm;
  if (question && !(await window.studio.confirm(question, part.innerText))) return;
  if (performance.now() - (pressed.get(part) ?? -PAUSE_MS) < PAUSE_MS) return;
  pressed.set(part, performance.now());
  say(part, part.dataset.value || "");
});
runtime.on(screen, "change", "select[data-do], input[data-do], textarea[data-do]", (part) => {
  say(part, part.type === "checkbox" ? String(part.checked) : part.value);
});
runtime.keepFocus(screen);
