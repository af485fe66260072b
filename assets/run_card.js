// The card of a run: its folds stay as they were when it is drawn anew.
const open = {};

element.addEventListener("toggle", (event) => { open[event.target.dataset.keep] = event.target.open; }, true);
new MutationObserver(() => {
  element.querySelectorAll("details[data-keep]").forEach((part) => {
    if (part.open !== Boolean(open[part.dataset.keep])) part.open = Boolean(open[part.dataset.keep]);
  });
}).observe(element, { childList: true, subtree: true });
