// Escape presses the screen's Stop button.
const screen = element.closest(element.querySelector("i").dataset.screen);

// Escape does one thing: a question, a list or a message that is open goes first. Looked for before any of them closes.
let open = null;
document.addEventListener("keydown", () => {
  open = document.querySelector('dialog[open], input[aria-expanded="true"], .toast-close');
}, true);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || open || event.defaultPrevented || !screen.offsetParent || event.isComposing) return;
  const stop = screen.querySelector("#chat-stop:not(:disabled), button[data-do='stop']:not(:disabled)");
  if (stop?.offsetParent) { event.preventDefault(); stop.click(); }
});
