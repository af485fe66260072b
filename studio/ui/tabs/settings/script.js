// What the Settings tab changes in the page itself: its colours, its language, its end.
const shown = document.documentElement.lang;

// What a person chose or typed stays in a field although its card is drawn anew: each is set to what it was drawn with.
function reset() {
  element.querySelectorAll("select").forEach((part) => {
    const drawn = part.querySelector("option[selected]");
    if (drawn && part.value !== drawn.value) part.value = drawn.value;
  });
  element.querySelectorAll("input[type=checkbox]").forEach((part) => { part.checked = part.hasAttribute("checked"); });
  element.querySelectorAll(".said:not([hidden])").forEach((said) => {
    said.parentElement.querySelectorAll(".entry input").forEach((part) => { part.value = part.getAttribute("value"); });
  });
}

function apply() {
  reset();
  const facts = element.querySelector(".preferences")?.dataset;
  if (!facts) return;
  const dark = facts.theme ? facts.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.body.classList.toggle("dark", dark);
  // The form is kept on the server: the page comes back with it, on this tab, in the other language.
  // A moment later: the answer that brought us here is then at its end.
  if (facts.language && shown && facts.language !== shown) setTimeout(() => location.reload(), 200);
}

element.addEventListener("click", (event) => {
  if (!event.target.closest('[data-part="close"]')) return;
  window.close();
  // A browser closes only windows that it opened for us: in a tab the person does it.
  element.querySelector('[data-part="left"]').hidden = false;
});

element.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !event.target.closest(".entry")) return;
  event.preventDefault();
  event.target.closest(".entry").querySelector("button").click();
});

new MutationObserver(apply).observe(element, { childList: true, subtree: true });
apply();
