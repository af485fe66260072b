// Escape presses the screen's Stop button.
const screen = element.closest(element.querySelector("i").dataset.screen);

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !screen.offsetParent || event.isComposing) return;
  const stop = screen.querySelector("#chat-stop:not(:disabled), button[data-do='stop']:not(:disabled)");
  if (stop?.offsetParent) { event.preventDefault(); stop.click(); }
});
