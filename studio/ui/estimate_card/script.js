// The card of a run: its folds stay as they were when it is drawn anew.
const open = {};

// Not "toggle": that comes a moment later, and a card drawn anew in between would close the fold again.
element.addEventListener("click", (event) => {
  const part = event.target.closest("summary")?.parentElement;
  if (part?.dataset.keep) open[part.dataset.keep] = !part.open;
});
new MutationObserver(() => {
  element.querySelectorAll("details[data-keep]").forEach((part) => {
    if (part.open !== Boolean(open[part.dataset.keep])) part.open = Boolean(open[part.dataset.keep]);
  });
}).observe(element, { childList: true, subtree: true });
