// Copies for the person to keep, on every screen: words into the clipboard, words into a file.
() => {
  // Returns whether the words are in the clipboard. A page that came over plain http from another machine has none of
  // its own, and a browser may refuse: an older way still copies what is selected.
  async function copy(words) {
    try {
      await navigator.clipboard.writeText(words);
      return true;
    } catch {
      const focused = document.activeElement;
      const box = Object.assign(document.createElement("textarea"), { value: words, readOnly: true });
      Object.assign(box.style, { position: "fixed", top: "0", opacity: "0" });
      document.body.append(box);
      box.select();
      const copied = document.execCommand("copy");
      box.remove();
      focused?.focus({ preventScroll: true });
      return copied;
    }
  }

  function save({ name, text }) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "application/octet-stream" }));
    link.download = name;
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  // A button copies what it holds or what another part shows, and says so for a moment; or it saves what a part shows.
  document.addEventListener("click", async (event) => {
    const part = event.target.closest("[data-copy], [data-copy-from], [data-save-from]");
    if (!part) return;
    const { copy: held, copyFrom, saveFrom, copied } = part.dataset;
    const words = held ?? document.getElementById(copyFrom || saveFrom).textContent;
    if (saveFrom) return save({ name: part.dataset.name, text: words });
    if (!(await copy(words)) || part.textContent === copied) return;
    const label = part.textContent;
    part.textContent = copied;
    setTimeout(() => { part.textContent = label; }, 1500);
  });

  Object.assign(window.studio, { copy, save });
}
