// A question that is typed and not answered yet stays when the page is loaded anew: by hand, or for a new studio.
() => {
  const NAME = "studio.question";
  const find = () => document.querySelector("#chat-input textarea");
  addEventListener("pagehide", () => {
    const box = find();
    if (box?.value) sessionStorage.setItem(NAME, box.value);
    else if (box) sessionStorage.removeItem(NAME);
  });
  const kept = sessionStorage.getItem(NAME);
  if (!kept) return;
  // The tab with the box may be opened much later.
  const watcher = new MutationObserver(() => {
    const box = find();
    if (!box) return;
    watcher.disconnect();
    if (box.value) return;
    box.value = kept;
    box.dispatchEvent(new Event("input", { bubbles: true }));
  });
  watcher.observe(document.body, { subtree: true, childList: true });
}
