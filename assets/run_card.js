// The card of a run: its texts are copied and saved here, and folds stay as they were when it is drawn anew.
const open = {};

async function copy(words) {
  try {
    await navigator.clipboard.writeText(words);
  } catch {
    // A page that came over plain http from another machine has no clipboard of its own.
    const box = Object.assign(document.createElement("textarea"), { value: words });
    element.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
}

element.addEventListener("click", async (event) => {
  const part = event.target.closest("[data-copy], [data-save]");
  if (!part) return;
  const words = element.querySelector(`#${part.dataset.copy || part.dataset.save}`).textContent;
  if (part.dataset.save) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([words], { type: "application/json" }));
    link.download = part.dataset.name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    return;
  }
  await copy(words);
  const label = part.textContent;
  part.textContent = part.dataset.copied;
  setTimeout(() => { part.textContent = label; }, 1500);
});

element.addEventListener("toggle", (event) => { open[event.target.dataset.keep] = event.target.open; }, true);
new MutationObserver(() => {
  element.querySelectorAll("details[data-keep]").forEach((part) => {
    if (part.open !== Boolean(open[part.dataset.keep])) part.open = Boolean(open[part.dataset.keep]);
  });
}).observe(element, { childList: true, subtree: true });
