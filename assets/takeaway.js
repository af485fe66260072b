// Copies what a button holds and saves what the server wrote; Escape presses the screen's Stop button.
const screen = element.closest(element.querySelector("i").dataset.screen);

async function copy(words) {
  if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(words);
  // Pages on a local network have no clipboard of their own.
  const box = document.createElement("textarea");
  box.value = words;
  box.style.position = "fixed";
  box.style.opacity = "0";
  document.body.append(box);
  box.select();
  document.execCommand("copy");
  box.remove();
}

screen.addEventListener("click", async (event) => {
  const part = event.target.closest("button[data-copy]");
  if (!part) return;
  await copy(part.dataset.copy);
  const before = part.textContent;
  part.textContent = part.dataset.copied;
  setTimeout(() => { part.textContent = before; }, 1500);
});

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

window.studio.save = (file) => {
  if (!file) return;
  const { name, text } = JSON.parse(file);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/octet-stream" }));
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
};
