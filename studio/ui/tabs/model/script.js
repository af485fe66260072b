// The Model screen: typing filters the list at once, and the chosen model is marked wherever the choice came from.
const screen = element.closest("#tab-model");
const box = element.querySelector("#model-filter");
let open = false;

function filter() {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  screen.querySelectorAll(".models [data-words]").forEach((row) => {
    row.hidden = !words.every((word) => row.dataset.words.includes(word));
    shown += row.hidden ? 0 : 1;
  });
  screen.querySelectorAll(".models section").forEach((section) => {
    section.hidden = !section.querySelector(".model-row:not([hidden])");
  });
  const none = screen.querySelector(".models .none");
  if (none) none.hidden = shown > 0;
}

// Gradio changes what differs in the list and leaves its parts: which one is checked must follow the server.
function mark() {
  const list = screen.querySelector(".models");
  if (!list || list.marked === list.dataset.chosen) return;
  list.marked = list.dataset.chosen;
  list.querySelectorAll("input[type=radio]").forEach((one) => { one.checked = one.value === list.marked; });
  list.querySelectorAll("details").forEach((part) => { part.open = open; });
}

box.addEventListener("input", filter);
screen.addEventListener("toggle", (event) => { if (event.target.matches(".models details")) open = event.target.open; }, true);
new MutationObserver(() => { mark(); filter(); }).observe(screen, {
  childList: true, subtree: true, attributes: true, attributeFilter: ["data-chosen"],
});
