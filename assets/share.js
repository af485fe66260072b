// Copies a link or a pass phrase; the button says so for a moment.
element.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-share-copy]");
  if (!button) return;
  const name = button.textContent;
  try {
    await navigator.clipboard.writeText(button.dataset.shareCopy);
  } catch {
    // A page without https may not write to the clipboard by itself: an older way still may.
    const field = document.createElement("textarea");
    field.value = button.dataset.shareCopy;
    button.after(field);
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  button.textContent = button.dataset.copied;
  setTimeout(() => { button.textContent = name; }, 1500);
});
